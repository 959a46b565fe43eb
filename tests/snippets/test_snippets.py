"""What the documents show is so: their commands and programs run, in their order, and print what is shown."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest

from sandport import configuration
from sandport_conformance import settings
from sdk.tests.test_guide import end_keepers
from tests.architecture.workspace import ROOT
from tests.snippets.blocks import DRAWN, LANGUAGES, SHELLS, Block, Command, blocks, commands, of_markdown, words
from tests.snippets.exceptions import read
from tests.snippets.reader import Reader, is_as_told

BLOCKS = blocks()
EXCEPTIONS = read()
GENERATED = {entry.document for entry in EXCEPTIONS.elsewhere if entry.generated}
RUN_HERE = [block for block in BLOCKS if block.language != DRAWN and not EXCEPTIONS.leaves_out(block)]
DOCUMENTS = sorted({block.document for block in RUN_HERE})


def is_skipped(document: str, command: Command) -> bool:
    return any(s.document == document and command.text.startswith(s.command) for s in EXCEPTIONS.command)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("document", DOCUMENTS)
def test_who_does_what_a_document_says_sees_what_it_shows(document: str, tmp_path: Path) -> None:
    faults: list[str] = []
    with Reader(tmp_path) as reader:
        for given in EXCEPTIONS.given:
            if given.document == document:
                for command in (f"cd {given.folder}", *given.commands):
                    assert reader.run(command)[0] == 0, command
        for block in RUN_HERE:
            if block.document == document:
                faults += [f"{block.place}: {fault}" for fault in do(reader, filled_in(block, reader))]
    left = end_keepers(tmp_path)
    assert faults == [], "\n\n".join(faults)
    assert left == [], "a sandbox outlived the document"


def filled_in(block: Block, reader: Reader) -> Block:
    """The block with the reader's own in place of what stands for it."""
    text = block.text
    for each in EXCEPTIONS.stands_for:
        if each.document == block.document:
            text = text.replace(each.text, each.by.format(root=reader.root, python=reader.python))
    return Block(block.document, block.line, block.language, text)


def do(reader: Reader, block: Block) -> list[str]:
    """Do what a block says; what is not as it says."""
    if block.language in SHELLS:
        return [fault for command in commands(block) if (fault := obey(reader, block.document, command))]
    if block.language == "python":
        status, printed = reader.run_program(program(block))
        return [f"exit code {status}\n{printed}"] if status else []
    return parse(reader, block)


def obey(reader: Reader, document: str, command: Command) -> str | None:
    """Run one command; what is not as told. Behind a # may stand its exit code, and some of the JSON that it prints."""
    if is_skipped(document, command):
        return None
    said = command.text.rpartition(" # ")[2] if " # " in command.text else ""
    ends = re.search(r"exit code (\d+)", said)
    shown = re.match(r"\{.*?\}", said)
    status, printed = reader.run(command.text)
    if status != (int(ends[1]) if ends else 0):
        return f"$ {command.text}\nexit code {status}\n{printed}"
    if shown and not json.loads(shown[0].replace(", ...", "")).items() <= json.loads(printed).items():
        return f"$ {command.text}\n{printed}\nhas not\n{shown[0]}"
    if command.told and not is_as_told(printed, command.told):
        return f"$ {command.text}\n{printed}\nis not\n{command.told}"
    return None


def program(block: Block) -> str:
    """A whole program: the block, with what its document says in words."""
    around = next((entry for entry in EXCEPTIONS.around if entry.covers(block)), None)
    if around is None:
        return block.text
    text = block.text
    if around.inside:
        top = re.search(r"^ *(?:async )?def ", text, re.MULTILINE)
        assert top
        body = textwrap.indent(textwrap.dedent(text[top.start() :]), "    ")
        text = f"{text[: top.start()]}\n{around.inside}\n{body}"
    return f"{around.before}\n{text}\n{around.after}"


def parse(reader: Reader, block: Block) -> list[str]:
    """Read settings as the program reads them that they are for, and put them where the block says."""
    if block.language == "json":
        json.loads(block.text)
        return []
    table = tomllib.loads(block.text)
    named = re.match(r"# (\w+\.toml)$", block.first)
    if named:
        reader.run(f"cat >{named[1]} <<'END'\n{block.text}END")
    place = reader.programs / (named[1] if named else "settings.toml")
    place.write_text(block.text, encoding="utf-8")
    if "version" in table:
        configuration.load(place)
    elif {"worker", "run", "commands", "known_failures"} & table.keys():
        names: dict[str, str] = table.get("worker", {}).get("secrets", {})
        settings.load(place, dict.fromkeys(names.values(), "secret"))
    return []


# ------------------------------------------------------------------ the table


def test_every_block_says_its_language_and_most_are_run() -> None:
    written = [block for block in BLOCKS if block.document not in GENERATED]
    assert [block.place for block in written if block.language not in LANGUAGES] == []
    listed = [block for block in written if any(entry.covers(block) for entry in EXCEPTIONS.not_run)]
    code = [block for block in written if block.language != DRAWN or EXCEPTIONS.leaves_out(block)]
    not_run = [block.place for block in listed]
    print(f"{len(code)} blocks of code outside of generated pages; {len(not_run)} of them are not run")
    assert len(not_run) <= 0.15 * len(code), not_run


def test_no_entry_of_the_table_is_stale() -> None:
    entries = [*EXCEPTIONS.elsewhere, *EXCEPTIONS.not_run, *EXCEPTIONS.around]
    stale = [f"{e.document}: {e.first}" for e in entries if not any(e.covers(block) for block in BLOCKS)]
    shown = [
        (block.document, command)
        for block in BLOCKS
        if block.language in SHELLS and not EXCEPTIONS.leaves_out(block)
        for command in commands(block)
    ]
    stale += [
        f"{e.document}: {e.command}"
        for e in EXCEPTIONS.command
        if not any(document == e.document and command.text.startswith(e.command) for document, command in shown)
    ]
    stale += [
        f"{e.document}: {e.text}"
        for e in EXCEPTIONS.stands_for
        if not any(e.document == block.document and e.text in block.text for block in RUN_HERE)
    ]
    stale += [e.document for e in EXCEPTIONS.given if e.document not in DOCUMENTS]
    assert stale == []


def test_no_block_has_two_entries() -> None:
    entries = [*EXCEPTIONS.elsewhere, *EXCEPTIONS.not_run]
    assert [block.place for block in BLOCKS if sum(e.covers(block) for e in entries) > 1] == []


def test_a_test_that_is_named_in_place_of_these_is_there() -> None:
    reasons = [e.reason for e in EXCEPTIONS.not_run] + [e.reason for e in EXCEPTIONS.command]
    named = {e.test for e in EXCEPTIONS.elsewhere} | set(re.findall(r"\b[\w/]+\.py\b", " ".join(reasons)))
    assert [name for name in sorted(named) if not (ROOT / name).is_file()] == []


def test_no_command_hides_among_the_drawings() -> None:
    """What is shown as text and begins as a command does is a command; the table says why nobody runs it."""
    known = re.compile(r"(?:\$ )?(?:\./dev|\.venv/bin/\S+|pip|pytest|python3?|sandport|sandport-conformance|apt-get) ")
    drawn = [block for block in BLOCKS if block.language == DRAWN and not EXCEPTIONS.leaves_out(block)]
    assert [block.place for block in drawn if known.match(block.first)] == []


def command_lines() -> list[str]:
    """The commands that are not run and whose words can be held against the help of what they start."""
    found = []
    for block in BLOCKS:
        if block.language in SHELLS:
            out = any(entry.covers(block) for entry in EXCEPTIONS.not_run)
            found += [c.text for c in commands(block) if out or is_skipped(block.document, c)]
    return sorted(set(found))


def known_words() -> tuple[set[str], set[str]]:
    """The commands of `./dev`, and the modules of tests that can be run."""
    usage = subprocess.run([ROOT / "dev", "--help"], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"^  ([a-z]+) {2,}", usage, re.MULTILINE)), {
        f"tests.{path.parent.name}" for path in (ROOT / "tests").glob("*/__main__.py")
    }


def test_a_command_that_is_not_run_is_one_that_its_program_knows() -> None:
    of_dev, modules = known_words()
    wrong = []
    helps: dict[tuple[str, ...], str] = {}
    for line in command_lines():
        given = words(line.replace("\\\n", " "))
        if given[0] == "./dev":
            wrong += [line] if given[1] not in of_dev else []
        elif given[0] == "sandport-conformance" or (given[1:2] == ["-m"] and given[2] in modules):
            start = ["-m", "sandport_conformance"] if given[0] == "sandport-conformance" else given[1:3]
            rest = given[1:] if given[0] == "sandport-conformance" else given[3:]
            sub = [word for word in rest[:1] if re.fullmatch(r"[a-z]+", word)]
            key = (*start, *sub, "--help")
            if key not in helps:
                asked = subprocess.run([sys.executable, *key], cwd=ROOT, capture_output=True, text=True, check=False)
                helps[key] = asked.stdout
            ours = rest[: rest.index("--")] if "--" in rest else rest
            wrong += [f"{line}: {word}" for word in ours if word.startswith("--") and word not in helps[key]]
    assert helps
    assert wrong == []


# ------------------------------------------------------------------ what reads the documents


def test_commands_are_told_from_what_they_print() -> None:
    text = "$ one \\\n  two\nout\n\nmore\n$ cat <<'END'\n$ no command\nEND\nout again\n"
    (block,) = of_markdown(f"```console\n{text}```\n", "x.md")
    assert [(c.text, c.told) for c in commands(block)] == [
        ("one \\\n  two", "out\n\nmore"),
        ("cat <<'END'\n$ no command\nEND", "out again"),
    ]


def test_a_block_in_a_list_loses_the_lists_margin_and_keeps_its_own() -> None:
    (block,) = of_markdown(
        textwrap.dedent("""\
        1. Do

           ```python
           if True:
               x = 1
           ```
        """),
        "x.md",
        above=7,
    )
    assert (block.line, block.text) == (10, "if True:\n    x = 1\n")


@pytest.mark.parametrize(
    ("printed", "told", "same"),
    [("a b\n", "a ...", True), ("a\nb\nc\n", "a\n...\nc", True), ("ab", "a", False), ("a", "a\nb", False)],
)
def test_dots_stand_for_anything_and_nothing_else_does(printed: str, told: str, *, same: bool) -> None:
    assert is_as_told(printed, told) is same


def test_a_reader_sees_what_a_wrong_document_says_wrong(tmp_path: Path) -> None:
    with Reader(tmp_path) as reader:
        assert do(reader, Block("x.md", 1, "console", "$ x=1\n$ echo $x\n1\n$ (exit 3) # exit code 3\n")) == []
        (wrong,) = do(reader, Block("x.md", 1, "console", "$ echo $x\n2\n"))
        assert "is not\n2" in wrong
        (wrong,) = do(reader, Block("x.md", 1, "sh", "(exit 3)\n"))
        assert "exit code 3" in wrong
        (wrong,) = do(reader, Block("x.md", 1, "python", "await 1\n"))
        assert "TypeError" in wrong
        assert do(reader, Block("x.md", 1, "python", "import asyncio\nawait asyncio.sleep(0)\n")) == []
