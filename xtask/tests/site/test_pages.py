"""The pages of the site: what is forgotten, broken or not tested is found."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from sphinx.errors import ExtensionError

from machine import ROOT

sys.path.insert(0, str(ROOT / "docs/site"))

import pages
from pages import Block, Page, Repository, commands, copy_name, fault, find, is_hidden, menu

LISTED = """# chapters
Start
    README.md: Home

Project
    d/README.md
        d/*
    reference/c.md
-
    LONG.md: too long
"""


def repository(files: set[str], list_of_chapters: str = LISTED) -> Repository:
    made = Repository.__new__(Repository)
    made.root, made.rustdoc, made.files, made.linked = ROOT, ROOT / "no", files, set()
    made.parts = made.chapters(list_of_chapters)
    made.pages = list(pages.flat(page for _, some in made.parts for page in some))
    made.paths = {page.path for page in made.pages}
    return made


def test_pages_stand_in_parts_and_below_pages() -> None:
    made = repository({"README.md", "d/README.md", "d/1.md", "d/2.md", "LONG.md"})
    paths = [page.path for page in made.pages]
    assert paths == ["README.md", "d/README.md", "d/1.md", "d/2.md", "reference/c.md"]
    assert [len(page.below) for page in made.parts[1][1]] == [2, 0]
    assert made.pages[0].title == "Home"


@pytest.mark.parametrize(
    ("chapters", "files", "said"),
    [
        ("A\n    a.md\n", {"a.md", "b.md"}, "no chapter has b.md"),
        ("A\n    a.md\n", set(), "which does not exist"),
        ("A\n    a.md\n    a.md\n", {"a.md"}, "twice"),
        ("A\n    a.md\n-\n    b.md\n", {"a.md", "b.md"}, "a reason"),
        ("A\n    a.md\n    d/*\n", {"a.md"}, "lists d/\\*"),
    ],
)
def test_missing_forgotten_and_doubled_pages_are_errors(
    chapters: str, files: set[str], said: str
) -> None:
    with pytest.raises(ExtensionError, match=said):
        repository(files, chapters)


def blocks_of(path: str, text: str) -> list[Block]:
    return list(Repository.blocks(None, Page(path, "", []), text))


def test_languages_are_those_of_the_page() -> None:
    text = "```\nx\n```\n\n```sh\ny\n```\n\n```rust,no_run\nz\n```\n"
    of = lambda path: [block.language for block in blocks_of(path, text)]  # noqa: E731
    assert of("README.md") == ["text", "bash", "rust"]
    assert of("crates/kvmem/docs/arena.md") == ["rust", "bash", "rust"]


def test_blocks_run_or_say_why_not() -> None:
    made = Repository(ROOT, ROOT)
    known = made.all_blocks()
    assert made.check_blocks(known)[0] > 50
    text = "<!-- not run: a NIC -->\n```bash\nb\n```\n"
    made.check_blocks([*known, *blocks_of("docs/glossary.md", text)])
    for wrong in ("```bash\na\n```\n", "<!-- not run: -->\n```bash\nc\n```\n"):
        with pytest.raises(ExtensionError, match="no test runs this block of bash"):
            made.check_blocks([*known, *blocks_of("docs/glossary.md", wrong)])
    with pytest.raises(ExtensionError, match="remove the line"):
        made.check_blocks([block for block in known if block.page != "docs/tutorial.md"])


def test_commands_lose_comments_and_keep_lines_together() -> None:
    code = "```bash\nkvmem doctor \\\n    --size 1 # why\n\n# nothing\nls | cat\n```\n"
    found = [words for _, words in commands(blocks_of("a.md", code))]
    assert found == [["kvmem", "doctor", "--size", "1"], ["ls"]]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("kvmem doctor --size 1", ""),
        ("cargo run --release -- doctor", ""),
        ("kvmem serve-mooncake --master a:1", ""),
        ("ls --all", ""),
        ("kvmem docter", "`kvmem` has no subcommand docter"),
        ("kvmem doctor --sise=1", "`kvmem doctor` has no option --sise"),
        ("kvmem serve-mooncake --mister a", "no option --mister"),
    ],
)
def test_unknown_subcommands_and_options_are_found(line: str, said: str) -> None:
    helps = {
        (): "\nCommands:\n  doctor  D\n\nOptions:\n  -h, --help  Print help\n",
        ("doctor",): "\nOptions:\n      --size <SIZE>  S\n",
    }
    found = fault(line.split(), helps, 'parser("serve-mooncake"); option("--master")')
    assert said in found and bool(said) == bool(found)


def test_items_are_found_by_the_end_of_their_paths() -> None:
    links = {"kvmem::pool::Pool": "a.html", "kvmem::pool::Pool::new": "a.html#new"}
    assert find(links, "`Pool`") == find(links, "crate::private::Pool") == "a.html"
    assert find(links, "method@Pool::new()") == "a.html#new"
    assert find(links, "Pole") == ""


def test_copies_menus_and_hidden_lines() -> None:
    assert copy_name("LICENSE") == "LICENSE.txt" and copy_name("docs/a.png") == "docs/a.png"
    front, page = Page("README.md", "", []), Page("a/b.md", "B", [])
    text = "\n```{toctree}\n:hidden:\n:caption: Start\n\nB </a/b>\n```\n"
    assert menu("Start", [front, page], front) == text
    [block] = blocks_of("a.md", "```rust\n# use a::B;\n#[test]\n```\n")
    assert [is_hidden(line, block) for line in block.code.splitlines()] == [True, False]


def test_links_to_what_is_no_page_lead_to_copies() -> None:
    made = repository({"README.md", "d/README.md", "d/1.md", "LONG.md"})
    assert made.target_of("docs/x.md", "../LICENSE#a") == "site:files/LICENSE.txt#a"
    assert made.target_of("docs/x.md", "../no-such-file") is None
    assert made.target_of("docs/x.md", "../crates") == ""
    assert Path(ROOT / "LICENSE").is_file()
