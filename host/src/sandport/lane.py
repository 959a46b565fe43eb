"""The output of one running command on its way from the reader to a consumer, under credit.

Credit is room that already exists here: a worker may send so many bytes of a stream ahead of the consumer. It is
given back as the consumer takes bytes; where nobody iterates, a capture takes them at once. The reader never waits:
a consumer that stalls stalls only its own command.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from sandport_protocol.v1 import CommandResult, OutputParams, StreamEnd, StreamName, StreamResult

Take = Callable[[StreamName, bytes], None]
_SMALL_BYTES = 1024


class _Stream:
    __slots__ = ("end", "granted", "owed", "received")

    def __init__(self, granted: int) -> None:
        self.received = 0
        self.granted = granted
        self.owed = 0
        self.end: StreamEnd | None = None


class OutputLane:
    """First in, first out: pieces of all streams in the order in which they came.

    Args:
        streams: Those that this command has.
        credit_bytes: What the hello agreed on, for each stream.
        take: Takes every piece at once; None where somebody iterates with `next_piece`.
    """

    def __init__(self, streams: tuple[StreamName, ...], credit_bytes: int, take: Take | None = None) -> None:
        self._streams = {name: _Stream(credit_bytes) for name in streams}
        self._batch = max(1, credit_bytes // 4)
        self._take = take
        self._pieces: deque[tuple[StreamName, bytes]] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._give: Callable[[StreamName, int], None] | None = None
        self._closed = False

    def bind(self, give: Callable[[StreamName, int], None]) -> None:
        """Set how credit is given back."""
        self._give = give

    # -------------------------------------------------------------- the reader's side

    def feed(self, piece: OutputParams) -> str | None:
        """Take a piece from the wire; answers the rule that it breaks, if it breaks one."""
        stream = self._streams.get(piece.stream)
        if stream is None:
            return f"this command has no stream {piece.stream}"
        if stream.end is not None:
            return f"output on {piece.stream} after its end"
        if piece.offset != stream.received:
            return f"a gap: {piece.stream} continues at {piece.offset}, {stream.received} bytes were received"
        data = piece.data
        if data:
            stream.received += len(data)
            if stream.received > stream.granted:
                return f"{piece.stream} went {stream.received - stream.granted} bytes beyond its credit"
            if self._take is not None:
                self._take(piece.stream, data)
                self._taken(piece.stream, stream, len(data))
            else:
                self._keep(piece.stream, data)
                self._wake()
        if piece.end is not None:
            stream.end = piece.end
        return None

    def _keep(self, name: StreamName, data: bytes) -> None:
        # Pieces of a few bytes are joined while they wait: as objects of their own they could cost fifty times that.
        if self._pieces and len(data) < _SMALL_BYTES:
            last_name, last = self._pieces[-1]
            if last_name == name and len(last) < _SMALL_BYTES:
                self._pieces[-1] = (name, last + data)
                return
        self._pieces.append((name, data))

    def close(self, _: object = None) -> None:
        """No more will come: the command ended, or its call did. Fits a future's callback."""
        self._closed = True
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # -------------------------------------------------------------- the consumer's side

    async def next_piece(self) -> tuple[StreamName, bytes] | None:
        """The next piece; None at the end of everything. Its credit goes back when the one after it is asked for."""
        while not self._pieces:
            if self._closed:
                return None
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self._pieces.popleft()

    def taken(self, name: StreamName, size: int) -> None:
        """The consumer is done with so many bytes."""
        self._taken(name, self._streams[name], size)

    def divert(self, take: Take) -> None:
        """From now on, and for what waits, `take` gets every piece: nobody iterates."""
        self._take = take
        while self._pieces:
            name, data = self._pieces.popleft()
            take(name, data)
            self.taken(name, len(data))

    def _taken(self, name: StreamName, stream: _Stream, size: int) -> None:
        stream.owed += size
        # In batches: a message for every piece would double the traffic. A quarter keeps the pipe busy meanwhile.
        if stream.owed >= self._batch and stream.end is None and self._give is not None:
            stream.granted += stream.owed
            self._give(name, stream.owed)
            stream.owed = 0

    # -------------------------------------------------------------- the truth

    def received(self, name: StreamName) -> int:
        """Bytes of this stream that came over the wire."""
        return self._streams[name].received

    def waiting(self, name: StreamName) -> int:
        """Bytes of this stream that nobody has taken yet."""
        return sum(len(data) for stream, data in self._pieces if stream == name)

    def contradiction(self, result: CommandResult) -> str | None:
        """Why the result cannot be believed, if it cannot: every byte was received, every end was marked."""
        said: dict[StreamName, StreamResult] = {"stdout": result.stdout, "stderr": result.stderr, "pty": result.stdout}
        for name, stream in self._streams.items():
            told = said[name]
            if stream.end is None:
                return f"{name} has no end mark"
            if told.total_bytes != stream.received:
                return f"{name} has {told.total_bytes} bytes by the result and {stream.received} were received"
            if told.end != stream.end:
                return f"{name} ended {told.end} by the result and {stream.end} by its mark"
        return None
