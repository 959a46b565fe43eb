"""What must hold in everything that the host said to any worker of the run."""

from __future__ import annotations

from collections.abc import Iterator

from sandport_conformance.outcomes import Failed, expect

from .declaration import host_check
from .played import Json
from .stage import Stage

_WITH_CONFIG = {"validateConfig", "probe", "acquireLease", "attachLease", "listLeases"}


def _sessions(stage: Stage) -> Iterator[tuple[str, list[Json]]]:
    """What each worker received, in order, with the impostor's name; at least one."""
    stage.ordinary  # noqa: B018 - a run, where this check is the only one
    for played in stage.all_played:
        for start in played.starts:
            yield (
                f"{played.impostor} ({start['pid']})",
                [entry for entry in played.events("received") if entry["pid"] == start["pid"]],
            )


def _requests(received: list[Json]) -> list[Json]:
    return [entry for entry in received if entry["id"] is not None]


@host_check(
    "HELLO-1",
    why="Before the hello neither side knows what the other understands.",
    broken="asks for something before it has greeted",
    record=True,
)
def hello_first(stage: Stage) -> None:
    """The first request of a connection is `initialize`."""
    for name, received in _sessions(stage):
        first = [entry["method"] for entry in _requests(received)[:1]]
        expect(first in ([], ["initialize"], ["shutdown"]), f"{name}: the first request is {first}")


@host_check(
    "MSG-14", why="An answer to an id that was used twice could be either's.", broken="uses an id twice", record=True
)
def unique_ids(stage: Stage) -> None:
    """No id is used twice on a connection."""
    for name, received in _sessions(stage):
        ids = [(type(entry["id"]).__name__, entry["id"]) for entry in _requests(received)]
        twice = {key for key in ids if ids.count(key) > 1}
        expect(not twice, f"{name}: ids were used twice: {sorted(map(str, twice))}")


@host_check(
    "MSG-21",
    why="Some languages read large numbers as doubles, and the answer comes back to another id.",
    broken="takes ids that a worker may lose digits of",
    record=True,
)
def counted_ids(stage: Stage) -> None:
    """Ids are integers that count up from 1."""
    for name, received in _sessions(stage):
        ids = [entry["id"] for entry in _requests(received)]
        numbers = all(isinstance(value, int) for value in ids)
        expect(numbers and sorted(ids) == list(range(1, len(ids) + 1)), f"{name}: the ids are {ids[:20]}")


@host_check(
    "CANCEL-9",
    why="A cancel that comes first cancels nothing, and the call then runs for nobody.",
    broken="cancels a request that it has not sent",
    record=True,
)
def cancel_after(stage: Stage) -> None:
    """A cancel comes after the request that it names."""
    for name, received in _sessions(stage):
        seen: set[object] = set()
        for entry in received:
            if entry["id"] is not None:
                seen.add(entry["id"])
            elif entry["method"] == "cancel" and entry.get("target") not in seen:
                raise Failed(f"{name}: a cancel of {entry.get('target')!r} came before that request")


@host_check(
    "PING-6",
    why="A pong that does not list a call says that it was lost; so the call must have been there before the ping.",
    broken="lets a ping overtake a request",
    record=True,
)
def ping_in_order(stage: Stage) -> None:
    """No ping comes before a request with a lower id."""
    for name, received in _sessions(stage):
        highest = 0
        for entry in _requests(received):
            number = entry["id"]
            expect(not isinstance(number, int) or number > highest, f"{name}: {number} came after the ping {highest}")
            if entry["method"] == "ping" and isinstance(number, int):
                highest = number


@host_check(
    "LEASE-12",
    why="The id is how a lost create is found again; used twice, it finds the wrong one.",
    broken="sends a sandbox id in a second create",
    record=True,
)
def one_create(stage: Stage) -> None:
    """A sandbox id serves one create."""
    for played in stage.all_played:
        ids = [entry.get("sandboxId") for entry in played.received("acquireLease")]
        expect(len(ids) == len(set(ids)), f"{played.impostor}: an id was sent in two creates: {ids}")


@host_check(
    "LEASE-13",
    why="What a worker is not told it can neither log nor lose.",
    broken="sends config and secrets with every call",
    record=True,
)
def config_where_it_belongs(stage: Stage) -> None:
    """Config and secrets are sent where a sandbox is made, found or judged, and nowhere else."""
    given = False
    for name, received in _sessions(stage):
        for entry in received:
            carried = {"config", "secrets"} & set(entry["members"])
            given = given or bool(carried)
            expect(
                not carried or entry["method"] in _WITH_CONFIG,
                f"{name}: {entry['method']} carries {' and '.join(sorted(carried))}",
            )
    expect(given, "the config of SANDPORT_HOST_SETTINGS never reached a worker, so nothing was seen")


def _expect_none(stage: Stage, requirement: str) -> None:
    """Hold every line of every run to a requirement."""
    stage.ordinary  # noqa: B018 - a run, where this check is the only one
    for played in stage.all_played:
        for fault in played.events("fault"):
            expect(fault["requirement"] != requirement, f"{played.impostor}: {fault['fault']}: {fault['line']}")


@host_check(
    "FRAME-1",
    part="said",
    why="One line that is no message, and what it should have said is lost.",
    broken="writes lines for people, half messages, or two into each other",
    record=True,
)
def one_text_a_line(stage: Stage) -> None:
    """Every line is one JSON text."""
    _expect_none(stage, "FRAME-1")


@host_check(
    "FRAME-5",
    part="said",
    why="The encoding of the machine is another one on the next machine.",
    broken="writes in the encoding of the machine, or a byte order mark",
    record=True,
)
def utf8(stage: Stage) -> None:
    """Every line is UTF-8, without a byte order mark."""
    _expect_none(stage, "FRAME-5")


@host_check(
    "FRAME-7",
    part="said",
    why="Some languages write NaN as if it were JSON, and all others refuse the whole line.",
    broken="writes numbers that JSON does not have",
    record=True,
)
def finite_numbers(stage: Stage) -> None:
    """No line has NaN or Infinity."""
    _expect_none(stage, "FRAME-7")


@host_check(
    "FRAME-18",
    part="said",
    why="Half a pair has no UTF-8: many readers refuse the line, others put another character in its place.",
    broken="hands on half a surrogate pair that it was given, as of a file's name",
    record=True,
)
def whole_characters(stage: Stage) -> None:
    """No string has half a surrogate pair."""
    _expect_none(stage, "FRAME-18")


@host_check(
    "MSG-2",
    part="said",
    why="A worker refuses what does not say it.",
    broken="leaves the version of JSON-RPC out",
    record=True,
)
def version_of_the_messages(stage: Stage) -> None:
    """Every message has `"jsonrpc": "2.0"`."""
    _expect_none(stage, "MSG-2")


@host_check(
    "MSG-17",
    part="said",
    why="Strict languages read 1.0 as no integer, and refuse the call.",
    broken="writes an integer as a number with a fraction",
    record=True,
)
def whole_numbers(stage: Stage) -> None:
    """No integer is written with a fraction or an exponent."""
    _expect_none(stage, "MSG-17")


@host_check(
    "MSG-18",
    part="said",
    why="Of two members of one name some readers take the first, others the last.",
    broken="writes a member twice",
    record=True,
)
def members_once(stage: Stage) -> None:
    """No member stands twice in one object."""
    _expect_none(stage, "MSG-18")


@host_check(
    "OCT-2",
    part="said",
    why="Two forms of one text are two texts for whoever compares them.",
    broken="writes every string that may be bytes in the form for bytes",
    record=True,
)
def text_as_text(stage: Stage) -> None:
    """What is UTF-8 is not written in the form for bytes."""
    _expect_none(stage, "OCT-2")


@host_check(
    "EVO-3",
    part="said",
    why="A later version of the protocol may give the name a meaning.",
    broken="asks for methods of its own under names that belong to the protocol",
    record=True,
)
def names_of_its_own(stage: Stage) -> None:
    """Methods and features that are not the protocol's are named `x-<provider>/<name>`."""
    _expect_none(stage, "EVO-3")
