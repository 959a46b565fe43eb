"""The picture of the demo is whole in itself, and shows the demo as it is now."""

import ast
import re
import xml.etree.ElementTree as ET

import pytest

from examples.demo import picture
from tests.architecture.workspace import ROOT
from tests.site.audit import read, wanted_by_style

DEMO = ROOT / "examples" / "demo"
SVG = "{http://www.w3.org/2000/svg}"
TEXT = (DEMO / "demo.svg").read_text(encoding="utf-8")


def headings() -> list[str]:
    """What the demo calls its steps, in its order, as patterns: a step's name may hold what a run finds."""
    found = []
    for program in ("job.py", "run.py"):
        for node in ast.walk(ast.parse((DEMO / program).read_text(encoding="utf-8"))):
            match node:
                case ast.Call(func=ast.Name(id="step"), args=[ast.Constant(value=str(text))]):
                    found.append((program, node.lineno, re.escape(text)))
                case ast.Call(func=ast.Name(id="step"), args=[ast.JoinedStr(values=parts)]):
                    pattern = "".join(re.escape(str(p.value)) if isinstance(p, ast.Constant) else ".+" for p in parts)
                    found.append((program, node.lineno, pattern))
    return [pattern for _, _, pattern in sorted(found)]


def lines_shown(svg: str) -> list[str]:
    """The terminal's lines, from above."""
    lines: dict[float, str] = {}
    group = next(g for g in ET.fromstring(svg).iter(f"{SVG}g") if g.get("class") == "demo-matrix")
    for text in group.iter(f"{SVG}text"):
        y = float(text.get("y", ""))
        lines[y] = lines.get(y, "") + (text.text or "").replace("\N{NO-BREAK SPACE}", " ")
    return [lines[y].rstrip() for y in sorted(lines)]  # each line's end is a text of its own


def test_the_picture_shows_each_step_of_the_demo_in_its_order() -> None:
    """It is stale otherwise: `./dev picture` draws it anew."""
    shown = lines_shown(TEXT)
    assert shown[0] == f"$ {picture.COMMAND}"
    steps = [line for line in shown if line.startswith("== ")]
    patterns = headings()
    assert len(patterns) >= 6
    assert len(steps) == len(patterns)
    for line, pattern in zip(steps, patterns, strict=True):
        assert re.fullmatch(f"== {pattern}", line), f"{line} is not {pattern}"
    assert any(line.startswith("ended: exited, exit code 0") for line in shown)
    assert shown[-1] == "no process, no file of state, no temporary file, no sandbox in the journal"


def test_the_picture_fetches_nothing_and_tells_a_screen_reader_what_it_is() -> None:
    svg = ET.fromstring(TEXT)
    assert {element.tag for element in svg.iter()} & {SVG + "script", SVG + "image", SVG + "foreignObject"} == set()
    assert [found for found in [*wanted_by_style(TEXT), *read(TEXT).resources] if not found.startswith("#")] == []
    assert "@import" not in TEXT
    assert "@font-face" not in TEXT
    title, description = svg.find(f"{SVG}title"), svg.find(f"{SVG}desc")
    assert title is not None
    assert title.text == picture.TITLE
    assert description is not None
    assert description.text == picture.DESCRIPTION
    assert svg.get("role") == "img"
    assert svg.get("aria-labelledby") == f"{title.get('id')} {description.get('id')}"


def test_the_picture_is_what_is_drawn_of_its_own_text() -> None:
    """Whoever changes how it is drawn draws it anew; nobody mends it by hand."""
    first, *rest = lines_shown(TEXT)
    assert first == f"$ {picture.COMMAND}"
    written = [f"\x1b[1m{line}\x1b[0m" if line.startswith("== ") else line for line in rest]
    assert picture.drawn("\n".join(written)) == TEXT


@pytest.mark.parametrize("text", ["\x1b[2J", "a\rb", "\x07"])
def test_what_needs_a_screen_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="moves the cursor"):
        picture.drawn(text)


def test_what_only_this_machine_has_is_refused() -> None:
    with pytest.raises(ValueError, match="is of this machine"):
        picture.drawn(f"made {ROOT}/x")
    assert "sp0vmx0" in picture.drawn("sp0vmx0")
