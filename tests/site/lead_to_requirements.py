"""A Sphinx extension: the id of a requirement leads to its clause, and there to its checks.

In the repository the ids are plain text, as Markdown has no anchors for the lines of a list. Each clause of the
specification gets one here; every page that names it leads to it, and the clause to the page of all checks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform
from sphinx.transforms.post_transforms import SphinxPostTransform

from tests.site.requirement_names import ANCHORS, CHECKS, ENTRIES, SPECIFICATION, pieces


class NameClauses(SphinxTransform):
    """Gives each clause of the specification its anchor, while the document is read."""

    default_priority = 500

    def apply(self, **kwargs: Any) -> None:
        """Called by Sphinx for each document."""
        if self.env.docname != SPECIFICATION:
            return
        for item in self.document.findall(nodes.list_item):
            name = next((strong.astext() for strong in item.findall(nodes.strong)), "")
            if name in ANCHORS:
                item["ids"].append(ANCHORS[name])


class LeadToClauses(SphinxPostTransform):
    """Makes links of the ids in every page, when it is written."""

    default_priority = 900
    builders = ("html",)

    def run(self, **kwargs: Any) -> None:
        """Called by Sphinx for each document that is written."""
        here = self.env.docname
        for text in list(self.document.findall(nodes.Text)):
            if any(isinstance(outer, nodes.title | nodes.reference | nodes.FixedTextElement) for outer in above(text)):
                continue
            clause = here == SPECIFICATION and isinstance(text.parent, nodes.strong)
            page, known = (CHECKS, ENTRIES) if clause else (SPECIFICATION, ANCHORS)
            found = [piece for piece in pieces(text.astext(), known) if piece[0]]
            if all(anchor is None for _, anchor in found):
                continue
            uri = "" if page == here else self.app.builder.get_relative_uri(here, page)
            made = [
                nodes.Text(piece)
                if anchor is None
                else nodes.reference("", piece, internal=True, refuri=f"{uri}#{anchor}")
                for piece, anchor in found
            ]
            text.parent.replace(text, made)


def above(node: nodes.Node) -> Iterator[nodes.Node]:
    """What a node stands in, from the inside out."""
    while node.parent is not None:
        node = node.parent
        yield node


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.add_transform(NameClauses)
    app.add_post_transform(LeadToClauses)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
