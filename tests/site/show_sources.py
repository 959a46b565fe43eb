"""A Sphinx extension: a link to a file that is no page leads to a plain page that shows that file.

They are as plain as can be: there are five times as many of them as of documents, and a reader looks at few.
"""

from __future__ import annotations

import html
import posixpath
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform

from tests.site.contents import FRONT, ROOT, Sources, beside, files_below, read_table, sources_of, tracked

PREFIX = "source/"
"""Where these pages are, so that none of them is in the way of a document of the same name."""
TABLE = read_table()
FILES = tracked()
SOURCES: Sources = sources_of(TABLE, FILES)
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{path} - Sandport</title>
<style>
:root {{ color-scheme: light dark }}
body {{ font: 16px/1.5 system-ui, sans-serif; margin: 1.5rem }}
pre, h1 {{ font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; font-size: 13px }}
pre {{ overflow-x: auto }}
</style>
</head>
<body>
<p><a href="{home}">Sandport</a></p>
<h1>{path}</h1>
{shown}
</body>
</html>
"""


class LeadToSources(SphinxPostTransform):
    """Gives each link that names no page of Sphinx's its target; the ones that it leaves are reported as broken."""

    default_priority = 8
    builders = ("html",)

    def run(self, **kwargs: Any) -> None:
        """Called by Sphinx for each document that is written, before MyST resolves what is left."""
        for node in list(self.document.findall(addnodes.pending_xref)):
            name, _, anchor = str(node["reftarget"]).partition("#")
            path = beside(self.env.docname + ".md", name)
            if node["reftype"] != "myst" or node["refdomain"] == "doc":
                continue
            if path == TABLE.front:
                page = FRONT
            elif path in SOURCES.files or path in SOURCES.folders:
                page = PREFIX + path
            else:
                continue
            uri = self.app.builder.get_relative_uri(self.env.docname, page) + (f"#{anchor}" if anchor else "")
            node.replace_self(nodes.reference("", "", *node.children, internal=True, refuri=uri))


def write_pages(app: Sphinx, failure: Exception | None) -> None:
    """Called by Sphinx once all documents are written: write what they lead to."""
    if failure is not None:
        return
    for path in SOURCES.files:
        text = (ROOT / path).read_text(encoding="utf-8")
        write_page(Path(app.outdir), path, f"<pre>{html.escape(text)}</pre>")
    for folder in SOURCES.folders:
        names = ((posixpath.relpath(path, posixpath.dirname(folder)), path) for path in files_below(folder, FILES))
        rows = [f'<li><a href="{html.escape(name)}.html">{html.escape(path)}</a></li>' for name, path in names]
        write_page(Path(app.outdir), folder, f"<ul>{''.join(rows)}</ul>")


def write_page(folder: Path, path: str, shown: str) -> None:
    """One page, with the way back."""
    place = folder / f"{PREFIX}{path}.html"
    place.parent.mkdir(parents=True, exist_ok=True)
    home = posixpath.relpath(f"{FRONT}.html", posixpath.dirname(PREFIX + path))
    place.write_text(PAGE.format(path=html.escape(path), home=home, shown=shown), encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.add_post_transform(LeadToSources)
    app.connect("build-finished", write_pages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
