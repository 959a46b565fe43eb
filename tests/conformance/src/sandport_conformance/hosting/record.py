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
