"""Settings of the documentation site: Sphinx reads them when ``cargo xtask site`` runs it.

The pages lie where ``cargo xtask site`` puts them: in ``target/site/source``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

HERE = Path(__file__).parent

project = "kvmem"
copyright = "The kvmem authors"
root_doc = "index"
extensions = ["myst_parser"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}

# GitHub's rule for the names of headings, so one link works in both places.
myst_heading_anchors = 6
myst_enable_extensions = ["colon_fence", "deflist"]
# Links to files beside the pages: see `resolve`.
SCHEME = "site:"
myst_url_schemes = ["http", "https", "site"]
suppress_warnings = ["myst.header"]

html_theme = "furo"
html_title = "kvmem"
html_static_path = [str(HERE / "static")]
html_css_files = ["kvmem.css"]
html_copy_source = False
html_show_sphinx = False
html_use_index = True
html_domain_indices = False
# Summaries are read from the pages, which a browser only does over HTTP, not for files.
html_show_search_summary = False
html_theme_options = {
    "light_css_variables": {
        "color-brand-primary": "#0b5c7d",
        "color-brand-content": "#0b5c7d",
        "color-code-background": "#f4f6f8",
    },
    "dark_css_variables": {
        "color-brand-primary": "#6cc7e8",
        "color-brand-content": "#6cc7e8",
        "color-code-background": "#22262a",
    },
}
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"
highlight_language = "none"
maximum_signature_line_length = 80
# Each page has the menu of all: with every name of the references in it, writing them takes three
# times as long.
toc_object_entries = False
python_use_unqualified_type_names = True
add_module_names = False


def resolve(app: Sphinx, tree: nodes.document, page: str) -> None:
    """Makes links to files beside the pages relative to the page.

    Sphinx knows pages only. The pages of rustdoc and copied files are written
    into the site after it, so their links carry a scheme of their own until here.
    """
    up = "../" * page.count("/")
    for link in tree.findall(nodes.reference):
        target = link.get("refuri", "")
        if target.startswith(SCHEME):
            link["refuri"] = up + target.removeprefix(SCHEME)
            link["internal"] = True


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("doctree-resolved", resolve)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
