"""Definitions and their docstrings as Markdown, in one form for every page."""

import ast
import re
import textwrap
from collections.abc import Collection, Iterator

from tests.reference.sources import Function, find, member_text

WIDTH = 120
LONGEST_HEADING = 88
"""A signature that is longer stands below its heading, an argument a line."""

_SECTIONS = ("Args", "Attributes", "Raises", "Returns", "Yields")
_PROMISES = ("Repeat", "Cancel")
_ENTRY = re.compile(r"(\*{0,2}[\w., ]+?): (.*)", re.DOTALL)


# ------------------------------------------------------------------ definitions


def definition(module: str, name: str, *, hidden: Collection[str] = (), prefix: str = "") -> Iterator[str]:
    """A class, a function or a constant, as a section of level three.

    Args:
        module: Where it is imported from.
        name: Its name there.
        hidden: Members that are not shown.
        prefix: Written before the name, as in `errors.`.
    """
    home, statement, doc = find(module, name)
    yield ""
    if isinstance(statement, ast.ClassDef):
        yield from (f"### class `{prefix}{name}`", "", *prose(doc, hidden=hidden))
        yield from members(home, statement, hidden=hidden)
    elif isinstance(statement, Function):
        yield from (*_heading("###", home, statement), "", *prose(doc))
    else:
        yield from (f"### `{prefix}{ast.unparse(statement)}`", "", *prose(doc))


def members(home: str, of: ast.ClassDef, *, hidden: Collection[str] = ()) -> Iterator[str]:
    """The members of a class: a list of values and properties, then a section of level four for each method."""
    told = ast.get_docstring(of) or ""
    items: list[str] = []
    methods: list[str] = []
    for place, statement in enumerate(of.body):
        if isinstance(statement, Function):
            doc = ast.get_docstring(statement) or ""
            shown = statement.name[0] != "_" or (statement.name == "__init__" and doc)
            if not shown or statement.name in hidden:
                continue
            if is_property(statement):
                items += item(f"`{statement.name}`", " ".join(doc.split()))
            else:
                methods += ["", *_heading("####", home, statement, owner=of.name), "", *prose(doc)]
        elif isinstance(statement, ast.AnnAssign):
            name = ast.unparse(statement.target)
            doc = member_text(of.body[place + 1]) if place + 1 < len(of.body) else ""
            if name[0] != "_" and f"    {name}: " not in told and name not in hidden:
                items += item(f"`{ast.unparse(statement)}`", doc)
    yield from (["", *items] if items else [])
    yield from methods


def decorators(function: Function) -> set[str]:
    """The names of a function's decorators."""
    return {ast.unparse(decorator) for decorator in function.decorator_list}


def is_property(function: Function) -> bool:
    """Whether it is read like a value."""
    return "property" in decorators(function)


def _heading(level: str, home: str, function: Function, *, owner: str = "") -> list[str]:
    name = owner if function.name == "__init__" else function.name
    if decorators(function) & {"staticmethod", "classmethod"}:
        name = f"{owner}.{name}"
    before, given, after = _signature(home, function, owner=owner)
    whole = f"{before}{name}({', '.join(given)}){after}"
    if len(whole) <= LONGEST_HEADING:
        return [f"{level} `{whole}`"]
    lines = [f"    {before}{name}(", *(f"        {one}," for one in given), f"    ){after}"]
    return [f"{level} `{name}`", "", *lines]


def _signature(home: str, function: Function, *, owner: str) -> tuple[str, list[str], str]:
    """The words before a call, its arguments and what it gives."""
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(arguments.defaults))
    defaults += arguments.defaults
    pairs = list(zip(positional, defaults, strict=True))
    if owner and positional and positional[0].arg in ("self", "cls"):
        pairs = pairs[1:]
    given = [_argument(home, argument, default) for argument, default in pairs]
    if arguments.vararg:
        given.append(f"*{ast.unparse(arguments.vararg)}")
    elif arguments.kwonlyargs:
        given.append("*")
    keywords = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    given += [_argument(home, argument, default) for argument, default in keywords]
    if arguments.kwarg:
        given.append(f"**{ast.unparse(arguments.kwarg)}")
    returns = "" if function.returns is None or function.name == "__init__" else ast.unparse(function.returns)
    inner = re.fullmatch(r"(?:Async)?(?:Iterator|Generator)\[(.*)\]", returns)
    if inner and any(name.endswith("contextmanager") for name in decorators(function)):
        return (
            ("async with " if "asynccontextmanager" in " ".join(decorators(function)) else "with "),
            given,
            (f" as {inner[1]}"),
        )
    if isinstance(function, ast.AsyncFunctionDef):
        if inner:
            return "async for ", given, f" -> {inner[1]}"
        return "await ", given, f" -> {returns}" if returns else ""
    return "", given, f" -> {returns}" if returns else ""


def _argument(home: str, argument: ast.arg, default: ast.expr | None) -> str:
    words = ast.unparse(argument)
    if default is None:
        return words
    if isinstance(default, ast.Name) and default.id.isupper():
        number = _number(home, default.id)
        return f"{words} = {default.id if number is None else number}"
    if argument.arg == "mode" and isinstance(default, ast.Constant) and isinstance(default.value, int):
        return f"{words} = {default.value:#o}"
    return f"{words} = {ast.unparse(default)}" if argument.annotation else f"{words}={ast.unparse(default)}"


def _number(home: str, name: str) -> str | None:
    """What a constant of digits is, as its source says it."""
    try:
        _, statement, _ = find(home, name)
    except LookupError:
        return None
    value = getattr(statement, "value", None)
    text = "" if value is None else ast.unparse(value)
    return text if re.fullmatch(r"[\d.*_ ]+", text) else None


# ------------------------------------------------------------------ text


def prose(doc: str, *, hidden: Collection[str] = ()) -> Iterator[str]:
    """A docstring: its sections as lists, and what it promises of a repeat and a cancel."""
    section = ""
    entry: list[str] = []
    shown = [line for line in doc.splitlines() if not (line[:4].isspace() and line.strip().partition(":")[0] in hidden)]
    for line in shown:
        if line.rstrip(":") in _SECTIONS and line.endswith(":"):
            yield from (*_entry(entry), f"{line.rstrip(':')}:", "")
            section, entry = line, []
        elif line.partition(": ")[0] in _PROMISES:
            yield from _entry(entry)
            section, entry = "promise", [line]
        elif section and line.startswith("    "):
            if not line.startswith("     ") and entry:
                yield from _entry(entry)
                entry = []
            entry.append(line.strip())
        elif section == "promise" and line:
            entry.append(line)
        else:
            yield from _entry(entry)
            section, entry = section if not line else "", []
            yield line
    yield from _entry(entry)


def _entry(lines: list[str]) -> Iterator[str]:
    if lines:
        text = " ".join(lines)
        named = _ENTRY.fullmatch(text)
        if named and named[1] in _PROMISES:
            told, cancel, rest = named[2].partition(" Cancel: ")
            yield from ("", *_wrapped(f"**{named[1]}**: {told}", indent=""))
            if cancel:
                yield from ("", *_wrapped(f"**Cancel**: {rest}", indent=""))
        else:
            yield from item(f"`{named[1]}`", named[2]) if named else item(text, "")


def item(head: str, text: str) -> list[str]:
    """One item of a list."""
    return _wrapped(f"- {head}: {text}" if text else f"- {head}", indent="  ")


def _wrapped(words: str, *, indent: str) -> list[str]:
    return textwrap.wrap(words, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
