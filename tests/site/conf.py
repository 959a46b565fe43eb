"""How Sphinx builds the site; `python -m tests.site` gives it the pages and judges what came out."""

from __future__ import annotations

from tests.site import lead_to_requirements, show_sources

project = "Sandport"
html_title = "Sandport"
root_doc = "index"
extensions = ["myst_parser", show_sources.__name__, lead_to_requirements.__name__]

# The documents are written for every reader of Markdown: what MyST adds to it would be an accident in them.
myst_disable_syntax = ["myst_block_break", "myst_line_comment", "myst_role", "myst_target"]
myst_heading_anchors = 6

html_theme = "furo"
html_static_path = ["theme"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_copyright = False
html_use_index = False
# The system's own fonts: a page asks no other machine for anything.
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#1d5fa8", "color-brand-content": "#1d5fa8"},
    "dark_css_variables": {"color-brand-primary": "#7db4f0", "color-brand-content": "#7db4f0"},
}
pygments_style = "friendly"
pygments_dark_style = "native"
