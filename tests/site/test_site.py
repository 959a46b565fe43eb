"""Every document has its place in the site, and the audit of what is built finds what it is there for."""

import re
from pathlib import Path

import pytest

from tests.architecture.workspace import ROOT, distribution_name, load_toml, pins
from tests.site.audit import audit
from tests.site.contents import FRONT, Part, Table, assemble, read_table, sources_of, tracked
from tests.site.requirement_names import ANCHORS, ENTRIES, anchors, entries, pieces

TABLE = read_table()


def test_every_document_is_a_page_or_left_out_for_a_reason() -> None:
    documents = {name for name in tracked() if name.endswith(".md")}
    left_out = {entry.path for entry in TABLE.left_out}
    placed = [*TABLE.pages, *left_out]
    assert sorted(placed) == sorted(set(placed)), "a document stands twice in tests/site/pages.toml"
    assert documents - set(placed) == set(), "tests/site/pages.toml does not say where these belong"
    assert set(placed) - documents == set(), "tests/site/pages.toml names what is not there"
    assert all(entry.reason for entry in TABLE.left_out)


def test_everything_that_a_page_leads_to_is_shown() -> None:
    sources = sources_of(TABLE, tracked())
    assert "examples/stdlib_worker/worker.py" in sources.files
    assert not set(sources.files) & set(TABLE.pages)


def test_a_link_to_nothing_stops_the_build(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("# One\n\n[two](sub/two.md) and [three](three.py)\n")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "two.md").write_text("# Two\n\n`[code](nowhere.py)` and [one](../README.md#one)\n")
    table = Table(front="README.md", part=(Part(title="Two", pages=("sub/two.md",)),))
    files = frozenset({"README.md", "sub/two.md"})
    with pytest.raises(FileNotFoundError, match=r"README.md: the link three.py leads to nothing"):
        sources_of(table, files, tmp_path)
    assert sources_of(table, files | {"three.py"}, tmp_path).files == ("three.py",)


def test_pages_are_laid_out_as_they_stand_and_the_front_one_has_the_navigation(tmp_path: Path) -> None:
    assemble(tmp_path / "pages", TABLE)
    assert not (tmp_path / "pages" / "README.md").exists()
    spec = Path("protocol", "SPEC.md")
    assert (tmp_path / "pages" / spec).read_bytes() == (ROOT / spec).read_bytes()
    front = (tmp_path / "pages" / f"{FRONT}.md").read_text()
    assert front.startswith((ROOT / "README.md").read_text())
    for part in TABLE.part:
        assert f":caption: {part.title}\n" in front


def test_every_clause_has_an_anchor_and_every_entry_of_the_checks_a_clause() -> None:
    clauses = re.findall(r"\*\*([A-Z]+-\d+)\*\* \(L", (ROOT / "protocol" / "SPEC.md").read_text(encoding="utf-8"))
    assert clauses
    assert set(clauses) <= ANCHORS.keys()
    assert ENTRIES.keys() <= ANCHORS.keys()
    assert ENTRIES["FRAME-1"] == "frame-1"
    assert ENTRIES["FRAME-15"] == "frame-15-host"


def test_an_id_in_a_text_leads_to_its_clause_and_what_only_looks_like_one_does_not() -> None:
    known = anchors("- **LINE-2** (L0, worker): A line MUST end.\n")
    assert known == {"LINE-2": "line-2"}
    found = list(pieces("See LINE-2, LINE-20, UTF-8, and LINE-2.", known))
    assert "".join(text for text, _ in found) == "See LINE-2, LINE-20, UTF-8, and LINE-2."
    assert [piece for piece in found if piece[1]] == [("LINE-2", "line-2")] * 2
    assert entries("#### LINE-2 (host)\n\n#### LINE-3\n") == {"LINE-2": "line-2-host", "LINE-3": "line-3"}


HEALTHY = (
    '<link rel="stylesheet" href="a.css"><h1 id="top">x</h1><a href="sub/b.html#b">b</a><a href="https://x.y/">y</a>'
)
BROKEN = {
    '<a href="c.html">c</a>': "index.html: the link c.html leads nowhere",
    '<a href="sub">c</a>': "index.html: the link sub leads nowhere",
    '<a href="../outside.html">c</a>': "index.html: the link ../outside.html leads nowhere",
    '<a href="#bottom">c</a>': "index.html: the link #bottom leads to no place of that page",
    '<a href="sub/b.html#top">c</a>': "index.html: the link sub/b.html#top leads to no place of that page",
    '<script src="https://x.y/z.js"></script>': "index.html: https://x.y/z.js is fetched from elsewhere",
    '<img src="//x.y/z.png">': "index.html: //x.y/z.png is fetched from elsewhere",
    '<link rel="preconnect" href="http://x.y">': "index.html: http://x.y is fetched from elsewhere",
    '<img srcset="https://x.y/z.png 2x">': "index.html: https://x.y/z.png is fetched from elsewhere",
    '<p style="background: url(https://x.y/z.png)">': "index.html: https://x.y/z.png is fetched from elsewhere",
    "<style>@import 'https://x.y/z.css';</style>": "index.html: https://x.y/z.css is fetched from elsewhere",
    '<img src="gone.png">': "index.html: gone.png is not there",
}
BROKEN_STYLES = {
    '@import url("https://x.y/z.css");': "a.css: https://x.y/z.css is fetched from elsewhere",
    "@font-face { src: url(//x.y/z.woff2) }": "a.css: //x.y/z.woff2 is fetched from elsewhere",
    "p { background: url('gone.png') }": "a.css: gone.png is not there",
}


def built(folder: Path, more: str = "", style: str = "p { background: url(data:image/png;base64,AAAA) }") -> Path:
    """A site of two pages."""
    site = folder / "site"
    (site / "sub").mkdir(parents=True)
    (site / "index.html").write_text(HEALTHY + more)
    (site / "sub" / "b.html").write_text('<h1 id="b">b</h1><a href="../index.html">up</a>')
    (site / "a.css").write_text(style)
    (folder / "outside.html").write_text("")
    return site


def test_the_audit_passes_what_is_whole(tmp_path: Path) -> None:
    assert audit(built(tmp_path)) == []
    assert audit(tmp_path / "nowhere") == ["index.html: there is none"]


@pytest.mark.parametrize("more", BROKEN)
def test_the_audit_names_a_dead_link_and_what_is_fetched_from_elsewhere(tmp_path: Path, more: str) -> None:
    assert audit(built(tmp_path, more)) == [BROKEN[more]]


@pytest.mark.parametrize("style", BROKEN_STYLES)
def test_the_audit_reads_styles(tmp_path: Path, style: str) -> None:
    assert audit(built(tmp_path, style=style)) == [BROKEN_STYLES[style]]


def test_dev_installs_the_group_of_the_site_and_each_is_pinned() -> None:
    group = load_toml(ROOT / "pyproject.toml")["dependency-groups"]["site"]
    installed = re.search(r"--constraint constraints.txt \\\n +(.*?) \|\|", (ROOT / "dev").read_text(encoding="utf-8"))
    assert installed
    assert installed[1].split() == group
    assert {distribution_name(name) for name in group} - pins().keys() == set()
