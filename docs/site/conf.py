"""Settings of the documentation site: Sphinx reads them when ``cargo xtask site`` runs it.

:mod:`pages` copies the pages of the repository to ``target/site/source``, with generated ones:
the references of the command, of Rust, of Python, and of C and C++ as Doxygen reads the headers."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.util import logging

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE))

import pages  # noqa: E402
import python_reference  # noqa: E402

project = "kvmem"
copyright = "The kvmem authors"
root_doc = "README"
extensions = ["myst_parser", "breathe"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}

# GitHub's rule for the names of headings, so one link works in both places.
myst_heading_anchors = 6
myst_enable_extensions = ["colon_fence", "deflist"]
myst_url_schemes = ["http", "https", "site"]
# C has a structure and a type of the same name, and each header opens the namespace of C++.
suppress_warnings = ["myst.header", "duplicate_declaration.c", "duplicate_declaration.cpp"]

breathe_default_project = "kvmem"
breathe_show_define_initializer = True
breathe_show_enumvalue_initializer = True
breathe_domain_by_extension = {"h": "c", "hpp": "cpp"}
# Headers that are no part of the interface.
INTERNAL = {"handle.hpp", "testing.hpp"}
SECTIONS = (
    "briefdescription detaileddescription define enum func innerclass typedef user-defined var"
)
SECTIONS += " public-attrib public-func public-static-attrib public-static-func public-type"

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


def generate(app: Sphinx, config: Any) -> None:
    """Writes the source of the site, and checks the code in the pages."""
    repository = pages.Repository(ROOT, Path(config.rustdoc))
    app.kvmem = repository
    blocks = repository.all_blocks()
    run, others = repository.check_blocks(blocks)
    helps = pages.helps(Path(config.command))
    chores = pages.check_commands(blocks, helps, ROOT)
    parsed = subprocess.run([config.xtask, "parse", *chores], capture_output=True, text=True)
    if parsed.returncode:
        raise ExtensionError(parsed.stderr)
    logging.getLogger(__name__).info("%s blocks run, %s do not and say why", run, others)
    repository.write(app.srcdir)
    for name, text in references(helps, Path(config.rustdoc)).items():
        pages.put(app.srcdir / "reference" / name, text)
    folder = app.srcdir.parent / "doxygen"
    folder.mkdir(exist_ok=True)
    doxygen = subprocess.run(
        ["doxygen", str(HERE / "Doxyfile")], cwd=folder, capture_output=True, text=True
    )
    if doxygen.returncode or doxygen.stderr:
        raise ExtensionError(f"Doxygen ended with {doxygen.returncode}: {doxygen.stderr}")
    config.breathe_projects = {"kvmem": str(folder / "xml")}


def references(helps: dict[tuple[str, ...], str], rustdoc: Path) -> dict[str, str]:
    """Returns the generated pages by their names."""
    command = [
        "# Reference of the command\n\nThe help of `kvmem` and of each subcommand. [The page"
    ]
    command += [" of the command](../docs/command.md) shows what they print.\n"]
    for words, text in helps.items():
        command.append(f"\n## `{' '.join(['kvmem', *words])}`\n\n```text\n{text}```\n")
    modules = re.findall(
        r'<a class="mod" href="([^"/]+)/index.html"[^>]*>.*?<dd>(.*?)</dd>',
        (rustdoc / "kvmem/index.html").read_text(encoding="utf-8"),
        re.DOTALL,
    )
    rows = [
        f"| [`kvmem::{name}`](site:rust/kvmem/{name}/index.html) | "
        f"{' '.join(re.sub('<[^>]*>', '', summary).split())} |\n"
        for name, summary in modules
    ]
    if len(rows) < 5 or len(helps) < 5:
        raise ExtensionError(f"{len(rows)} modules and {len(helps)} commands: is that all?")
    rust = (
        "# Reference of Rust\n\n[Rustdoc's pages of the crate `kvmem`](site:rust/kvmem/index.html) "
        "have every item, with errors, complexity and examples.\n\n| module | what it has |\n"
        f"|---|---|\n{''.join(rows)}"
    )
    include = ROOT / "crates/kvmem-capi/include"
    comment = (include / "kvmem.h").read_text(encoding="utf-8").partition("*/")[0]
    rules = re.sub(r"(?m)^ \* ?", "", comment).partition("Rules for")[2].replace("*", "\\*")
    c = (
        "# Reference of C\n\nEverything that `kvmem.h` declares. [The page on C]"
        "(../crates/kvmem-capi/docs/c.md) explains how it is used.\n\n"
        f"Rules for{rules}\n{doxygenfile('kvmem.h')}"
    )
    cpp = [
        "# Reference of C++\n\nThe public declarations of `kvmem.hpp` and of the headers that it "
        "includes, in the namespace `kvmem`. [The page on C++](../crates/kvmem-capi/docs/cpp.md) "
        "explains how they are used.\n"
    ]
    for header in sorted((include / "kvmem").glob("*.hpp")):
        if header.name not in INTERNAL:
            cpp.append(f"\n## `kvmem/{header.name}`\n\n{doxygenfile(header.name)}")
    return {
        "command.md": "".join(command),
        "rust.md": rust,
        "c.md": c,
        "cpp.md": "".join(cpp),
        "python.rst": python_reference.page(ROOT),
    }


def doxygenfile(header: str) -> str:
    return f"```{{doxygenfile}} {header}\n:sections: {SECTIONS}\n```\n"


def to_files(app: Sphinx, tree: nodes.document) -> None:
    """Leads the links that lead to no page to other files."""
    links = list(tree.findall(addnodes.pending_xref))
    for link in links:
        if link.get("reftype") == "myst" and not link["refdomain"]:
            target = app.kvmem.target_of(f"{link['refdoc']}.md", link["reftarget"])
            if target is not None:
                new = nodes.reference("", "", *link.children, refuri=target)
                link.replace_self(new if target else link.children)


def resolve(app: Sphinx, tree: nodes.document, page: str) -> None:
    """Makes links to other files relative to the page.

    Sphinx knows pages only. The pages of rustdoc and copied files are written
    into the site after it, so their links carry a scheme of their own until here."""
    up = "../" * page.count("/")
    for link in tree.findall(nodes.reference):
        target = link.get("refuri", "")
        if target.startswith(pages.SCHEME):
            copy = target.removeprefix(f"{pages.SCHEME}files/").partition("#")[0]
            is_name = (ROOT / copy).is_file()
            app.kvmem.linked.add(copy if is_name else copy.removesuffix(".txt"))
            link["refuri"] = up + target.removeprefix(pages.SCHEME)
            link["internal"] = True


def finish(app: Sphinx, error: Exception | None) -> None:
    """Writes the other files, and the front page under the name that browsers open."""
    if error is None:
        shutil.copytree(app.config.rustdoc, app.outdir / "rust", dirs_exist_ok=True)
        for path in (path for path in app.kvmem.linked if (ROOT / path).is_file()):
            pages.put(app.outdir / "files" / pages.copy_name(path), (ROOT / path).read_bytes())
        shutil.copyfile(app.outdir / "README.html", app.outdir / "index.html")


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_config_value("rustdoc", "", "", str)
    app.add_config_value("command", "", "", str)
    app.add_config_value("xtask", "", "", str)
    app.connect("config-inited", generate)
    app.connect("doctree-read", to_files)
    app.connect("doctree-resolved", resolve)
    app.connect("build-finished", finish)
    # The files that are linked are collected in one process.
    return {"parallel_read_safe": True, "parallel_write_safe": False}
