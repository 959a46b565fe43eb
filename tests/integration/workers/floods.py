"""Writes without ever ending the line: before the hello, or as the answer of an execute."""

from tests.integration.workers.speaker import Message, Speaker

GIB = 1024**3


class Flooder(Speaker):
    """Floods when its argument says: `first`, or `execute`."""

    def __init__(self) -> None:
        super().__init__()
        if self.arguments == ["execute"]:
            self.handlers["execute"] = self.flood

    def flood(self, message: Message | None = None) -> None:
        piece = b"x" * 1024 * 1024
        for _ in range(GIB // len(piece)):
            self.write(piece)


def main() -> None:
    flooder = Flooder()
    if flooder.arguments == ["first"]:
        flooder.flood()
    flooder.serve()


if __name__ == "__main__":
    main()
