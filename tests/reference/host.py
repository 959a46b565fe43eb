"""host/REFERENCE.md: what an embedder imports, and everything that it raises."""

import ast
import importlib
import tomllib
from collections.abc import Iterator
from pathlib import Path

from sandport_protocol.errors import SandportError
from tests.reference.markdown import definition, item, prose
from tests.reference.sources import Function, assigned, find, public_names, tree_of

TO_DO = Path(__file__).with_name("to_do.toml")
"""What to do about each error; when it is raised stands in the docstrings."""

INTERNAL = {
    "Host": {"abandon", "store"},
    "Sandbox": {
        "attachment",
        "call",
        "client",
        "groups",
        "leave",
        "request_destroy",
        "run_apart",
        "start_apart",
        "witness",
    },
    "Process": {"aclose", "follow", "when_ended"},
    "Account": {"of"},
    "Delays": {"after"},
}
"""Members that an embedder has no use for: other parts of the host call these."""

SURFACE = (
    ("sandport", ("Host", "Sandbox", "Process", "Outcome", "Captured", "LeaseInfo", "ProviderFacts", "SyncResult")),
)
BESIDE = (("sandport.process", ("ProcessInput",)),)
ANSWERS = (
    ("sandport.sync", ("SyncProgress", "Skipped", "Refused", "Changed")),
    ("sandport.lease.view", ("HostProcess", "Pending")),
    ("sandport.lease.clean_up", ("Attempted",)),
    ("sandport.lease.unknown", ("Found", "Unknown", "Account", "Unasked")),
    ("sandport_protocol.v1", ("Egress", "LeaseResult", "ProbeResult", "ProbeCheck", "ValidateConfigResult", "Issue")),
    ("sandport_protocol.v1", ("InitializeResult", "PeerInfo", "ProviderInfo")),
    ("sandport_protocol.capabilities", ("Capabilities",)),
    ("sandport.worker.report", ("CrashReport",)),
    ("sandport_protocol.errors", ("Detail", "Partial", "Kept")),
)
SETTINGS = (
    ("sandport.configuration", ("load", "Configuration", "HostSettings", "ProviderSettings", "EnvironmentSettings")),
    ("sandport.numbers", ("Timing", "StopLadder", "Restart", "RateLimit")),
    ("sandport.lease.delays", ("Delays",)),
)
OPENING = (("sandport.log", ("Log",)), ("sandport.clock", ("Clock", "VirtualClock")))
WORDS = (
    ("sandport.command", "Argument"),
    ("sandport.sync", "HostPath"),
    ("sandport.sandbox", "OnOutput"),
    ("sandport.files", "OnProgress"),
    ("sandport.lease.clean_up", "OnDone"),
    ("sandport.lease.clean_up", "End"),
    ("sandport.lease.info", "LeaseWord"),
    ("sandport.lease.view", "Why"),
    ("sandport.lease.recovery", "IsRunLive"),
    ("sandport_protocol.v1", "Ended"),
    ("sandport_protocol.v1", "StreamEnd"),
    ("sandport_protocol.v1", "StreamName"),
    ("sandport_protocol.v1", "Tree"),
    ("sandport.hooks", "Verb"),
)
"""Short names for types, as signatures have them."""


def page() -> Iterator[str]:
    """The page, less its first line."""
    yield from (
        "# Reference of sandport",
        "",
        "What a program that embeds the host imports. How it fits together, task by task: [README.md](README.md).",
        "Seconds are floats and end in `_s`, bytes end in `_bytes`, moments are Unix milliseconds and end in `_ms`.",
        "**Repeat** says what a second call does, **Cancel** what a cut at any await leaves behind.",
        "",
        "- [The host, sandboxes, processes](#sandport)",
        "- [Without `async`](#sandportblocking)",
        "- [Errors, and what to do on each](#sandporterrors)",
        "- [Hooks](#sandporthooks)",
        "- [What calls answer](#what-calls-answer)",
        "- [Settings](#settings)",
        "- [Short names for types](#short-names-for-types)",
        "",
        "## `sandport`",
    )
    yield from _definitions(SURFACE + BESIDE)
    yield from (
        "",
        "## `sandport.blocking`",
        "",
        *_without_fences(ast.get_docstring(tree_of("sandport.blocking")) or ""),
    )
    yield from _mirrors()
    yield from _errors()
    yield from _hooks()
    yield from (
        "",
        "## What calls answer",
        "",
        "Each with the module that it is imported from, where you need its name.",
    )
    yield from _definitions(ANSWERS, told=True)
    yield from (
        "",
        "## Settings",
        "",
        "What `Host.open` takes, and the tables of `sandport.toml`, whose keys have these names.",
    )
    yield from _definitions(SETTINGS + OPENING, told=True)
    yield from ("", "## Short names for types", "", "| name | is | |", "|---|---|---|")
    for module, name in WORDS:
        _, statement, doc = find(module, name)
        value = ast.unparse(getattr(statement, "value", statement)).replace("|", r"\|")
        yield f"| `{name}` | `{value}` | {doc} |"


def _definitions(groups: tuple[tuple[str, tuple[str, ...]], ...], *, told: bool = False) -> Iterator[str]:
    for module, names in groups:
        for name in names:
            lines = definition(module, name, hidden=INTERNAL.get(name, ()))
            yield from lines if not told else _from(module, list(lines))


def _from(module: str, lines: list[str]) -> Iterator[str]:
    """A definition with the module that it is from under its heading."""
    end = next(place for place, line in enumerate(lines) if line.startswith("### "))
    yield from (*lines[: end + 1], "", f"From `{module}`.", *lines[end + 1 :])


def _without_fences(doc: str) -> Iterator[str]:
    """Prose; a fenced example is shown indented, since it is a part of a program only."""
    inside = False
    for line in prose(doc):
        if line.startswith("```"):
            inside = not inside
        else:
            yield f"    {line}".rstrip() if inside else line


# ------------------------------------------------------------------ without async


def _mirrors() -> Iterator[str]:
    yield ""
    for statement in tree_of("sandport.blocking").body:
        if isinstance(statement, ast.ClassDef) and statement.name[0] != "_":
            names = [name for one in statement.body for name in sorted(assigned(one))]
            names += [one.name for one in statement.body if isinstance(one, Function)]
            shown = ", ".join(f"`{name}`" for name in names if name[0] != "_")
            yield from item(f"`{statement.name}`", shown)


# ------------------------------------------------------------------ errors


def errors() -> dict[str, type[SandportError]]:
    """Every error that an embedder may see, by name."""
    module = importlib.import_module("sandport.errors")
    return {name: getattr(module, name) for name in public_names("sandport.errors")}


def to_do() -> dict[str, str]:
    """What to do about each, by name."""
    return tomllib.loads(TO_DO.read_text(encoding="utf-8"))


def _errors() -> Iterator[str]:
    yield from ("", "## `sandport.errors`", "")
    yield from (
        "Everything that Sandport raises at an embedder is one of these, with a message of one or two lines: what",
        "happened, and what to do. `retry` says whether trying again may help (`now`, `later`, or `never`: something",
        "must change first), `dispatched` whether the effect may have happened (`no`, `yes`, `unknown`). The table has",
        "what a class usually says; the instance knows better. Only after `no` may a command be run again unseen.",
    )
    yield from definition("sandport.errors", "SandportError")
    yield from definition("sandport.errors", "WireError", hidden=("to_wire", "summary"))
    yield from ("", "### The tree", "", "| error | when | retry | dispatched | what to do |", "|---|---|---|---|---|")
    known, advice = errors(), to_do()
    for depth, kind in _tree(known):
        _, _, doc = find("sandport.errors", kind.__name__)
        when = " ".join(doc.partition("\n\nAttributes:")[0].split())
        indent = "&nbsp;" * 4 * depth
        row = (f"{indent}`{kind.__name__}`", when, kind.retry, kind.dispatched, advice[kind.__name__])
        yield "| " + " | ".join(cell.replace("|", r"\|") for cell in row) + " |"
    yield from ("", "Some carry more than a message:", "")
    for _, kind in _tree(known):
        _, statement, _ = find("sandport.errors", kind.__name__)
        told = [name for name in _attributes(statement) if kind.__name__ not in ("SandportError", "WireError")]
        for name, text in told:
            yield from item(f"`{kind.__name__}.{name}`", text)


def _attributes(statement: ast.stmt) -> list[tuple[str, str]]:
    """Names and words of the section `Attributes`."""
    doc = ast.get_docstring(statement) or "" if isinstance(statement, ast.ClassDef) else ""
    lines = list(prose(doc.partition("Attributes:")[2] and "Attributes:" + doc.partition("Attributes:")[2]))
    text = "\n".join(lines).replace("\n  ", " ")
    found = [line.removeprefix("- `").partition("`: ") for line in text.splitlines() if line.startswith("- `")]
    return [(name, words) for name, _, words in found]


def _tree(known: dict[str, type[SandportError]]) -> Iterator[tuple[int, type[SandportError]]]:
    """The classes, each below its base, in the order of the base's first mention."""
    ours = set(known.values())

    def below(base: type[SandportError], depth: int) -> Iterator[tuple[int, type[SandportError]]]:
        yield depth, base
        for kind in sorted((one for one in ours if base in one.__bases__), key=lambda one: one.__name__):
            yield from below(kind, depth + 1)

    yield from below(SandportError, 0)


# ------------------------------------------------------------------ hooks


def _hooks() -> Iterator[str]:
    module = "sandport.hooks"
    yield from ("", "## `sandport.hooks`", "", *_without_fences(ast.get_docstring(tree_of(module)) or ""))
    specs = find(module, "Specs")[1]
    assert isinstance(specs, ast.ClassDef)
    for statement in specs.body:
        if isinstance(statement, Function):
            arguments = ", ".join(ast.unparse(one) for one in statement.args.args[1:])
            returns = ast.unparse(statement.returns) if statement.returns else "None"
            yield from ("", f"### hook `{statement.name}({arguments}) -> {returns}`", "")
            yield from prose(ast.get_docstring(statement) or "")
    for name in public_names(module):
        if name not in ("Specs", "Verb"):
            yield from definition(module, name)
