"""What each level of the kit means to whoever reads a report."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One level; it includes those below.

    Attributes:
        name: Its name in one or two words.
        judges: What is looked at.
        means: What a host may rely on where a worker passes.
        needs: What the worker's author has to bring.
    """

    name: str
    judges: str
    means: str
    needs: str


LEVEL_MEANINGS = {
    "L0": Level(
        name="the wire",
        judges="Lines, messages, ids, errors and ceilings: bytes that are split anywhere, numbers that no double "
        "holds, text that is none, lines without an end.",
        means="Nothing that is sent is lost or misread, and a bad line costs one error and not the worker.",
        needs="a worker that answers `ping`",
    ),
    "L1": Level(
        name="the process",
        judges="The worker as a program: what else it prints, how it starts in `/` with no variables, what it does at "
        "the end of its input, at signals, with full pipes, and what is left when it is killed.",
        means="A host can start it, stop it and kill it at any moment, and nothing of it stays.",
        needs="a sandbox, for what is looked at in one",
    ),
    "L2": Level(
        name="the hello",
        judges="Versions, methods, capabilities and ceilings, and whether they are true: what is advertised works, "
        "what is not is refused by its name.",
        means="What a worker cannot do is known before anything is begun.",
        needs="nothing more",
    ),
    "L3": Level(
        name="calls",
        judges="Commands, their output under credit and their ends; cancels and deadlines; processes; configs; "
        "leases of one worker; one answer for each call.",
        means="An exit code, an output and an error can be believed. This is where a provider is of use.",
        needs="a config with which a sandbox can be had, where the default is not one",
    ),
    "L4": Level(
        name="sandboxes",
        judges="Sandboxes over their whole life and over many workers, which are killed in the middle of what they "
        "do; expiry, isolation of one from the other; files, both ways, in every form.",
        means="No sandbox is lost, none lives too long, a crash costs what ran and nothing else, and files arrive as "
        "they left.",
        needs="sandboxes that outlive their worker",
    ),
    "L5": Level(
        name="endurance",
        judges="What shows after hours: there is no check yet.",
        means="Nothing yet.",
        needs="time",
    ),
    "L6": Level(
        name="security",
        judges="What an attacker inside of a sandbox could do: there is no check yet.",
        means="Nothing yet.",
        needs="a sandbox that is meant to hold",
    ),
}
"""Each level by its id."""
