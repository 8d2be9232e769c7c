"""Pages: which page stands where in the site, and what Sphinx reads in its place.

``chapters.txt`` lists the pages. A listed page that does not exist, a page that is listed twice and
a Markdown file of the repository that is in no line are errors, so no page is ever forgotten. The
pages keep their paths, so links between them work unchanged. Five things differ in the copies:

- the front page has the menu of all pages, and a page with pages below it has theirs,
- a page that rustdoc shows has no heading of its own, and gets one,
- its links to items of the library lead where rustdoc's own links lead,
- code for rustdoc loses the lines that rustdoc hides,
- links to files that are no page lead to rustdoc's page of a source file, or to a copy.

Each code block runs in a test, which ``tested.txt`` names, or a comment above it says why not. The
commands in blocks must exist: :func:`faults_of_commands` looks into the helps of ``kvmem``."""

import re
import subprocess
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

from markdown_it import MarkdownIt
from sphinx.errors import ExtensionError

CHAPTERS = "docs/site/chapters.txt"
TESTED = "docs/site/tested.txt"
# Links to other files: `conf.py` makes them relative.
SCHEME = "site:"
# Languages of blocks that do not run.
DATA = {"text", "json", "toml", "yaml", "ini", "diff", "dockerfile", "xml", "csv"}
SYNONYMS = {"sh": "bash", "shell": "bash", "console": "bash", "c++": "cpp"}
OF_RUSTDOC = {"no_run", "should_panic", "compile_fail", "ignore"}
# A link of a page of rustdoc: `<a class="…" href="…" title="struct kvmem::pool::Pool">`.
ITEM = re.compile(r'<a (?=[^>]*href="([^":]*)")[^>]*title="[^"]* (kvmem[^" ]*)"')
LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\[\]]*\])+)\](?:\(([^)\s]+)\)|(?![\[(:]))")


class Page(NamedTuple):
    """A page: its path from the root of the repository, its title in the menu, those below it."""

    path: str
    title: str
    below: "list[Page]"

    @property
    def is_generated(self) -> bool:
        return self.path.startswith("reference/") or self.path == "genindex"

    @property
    def is_rustdoc(self) -> bool:
        return self.path.startswith("crates/kvmem/docs/")


class Block(NamedTuple):
    """A fenced block of code: the lines from its fence to behind the other one."""

    page: str
    lines: tuple[int, int]
    language: str
    info: str
    code: str
    comment: str


def flat(pages: Iterable[Page]) -> Iterator[Page]:
    for page in pages:
        yield page
        yield from flat(page.below)


def fail(faults: list[str]) -> None:
    if faults:
        raise ExtensionError("\n   ".join([f"{len(faults)} faults of pages:", *faults[:40]]))


class Repository:
    """The pages of a repository, by the chapters."""

    def __init__(self, root: Path, rustdoc: Path) -> None:
        self.root, self.rustdoc = root, rustdoc
        tracked = subprocess.run(
            ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", "*.md"],
            cwd=root, check=True, capture_output=True, text=True,
        ).stdout.split("\0")  # fmt: skip
        self.files = {path for path in tracked if (root / path).is_file()}
        self.parts = self.chapters((root / CHAPTERS).read_text(encoding="utf-8"))
        self.pages = list(flat(page for _, pages in self.parts for page in pages))
        self.paths = {page.path for page in self.pages}
        # The other files that pages link.
        self.linked: set[str] = set()

    def chapters(self, text: str) -> list[tuple[str, list[Page]]]:
        """Reads the list and compares it with the files of the repository."""
        lines = [line for line in text.splitlines() if line.strip() and line[0] != "#"]
        named = [line.strip().partition(": ")[0] for line in lines if line[0] == " "]
        faults = [f"{CHAPTERS} lists {path} twice" for path in set(named) if named.count(path) > 1]
        parts: list[tuple[str, list[Page]]] = []
        left_out: list[str] = []
        for line in lines:
            depth = (len(line) - len(line.lstrip())) // 4
            path, _, title = line.strip().partition(": ")
            if depth == 0:
                parts.append((path, []))
                continue
            if parts[-1][0] == "-":
                if not title:
                    faults.append(f"{CHAPTERS} leaves {path} out without a reason")
                left_out.append(path)
                continue
            level = parts[-1][1] if depth == 1 else parts[-1][1][-1].below
            others = self.files - set(named)
            paths = (
                sorted(each for each in others if fnmatch(each, path)) if "*" in path else [path]
            )
            level += [Page(each, title, []) for each in paths if each.count("/") == path.count("/")]
            is_page = Page(path, title, []).is_generated or "*" in path or path in self.files
            if not (paths and is_page):
                faults.append(f"{CHAPTERS} lists {path}, which does not exist")
        parts = [part for part in parts if part[0] != "-"]
        shown = {page.path for page in flat(page for _, pages in parts for page in pages)}
        for path in sorted(self.files - shown):
            if not any(fnmatch(path, pattern) for pattern in left_out):
                faults.append(f"no chapter has {path}: add a line to {CHAPTERS}, or leave it out")
        fail(faults)
        return parts

    def blocks(self, page: Page, text: str) -> Iterator[Block]:
        """Yields the blocks of code of a page."""
        above = ""
        for token in MarkdownIt("commonmark").enable("table").parse(text):
            if token.type == "fence" and token.map:
                word = re.split(r"[,\s{]", token.info)[0]
                language = "rust" if word in OF_RUSTDOC else SYNONYMS.get(word, word)
                language = language or ("rust" if page.is_rustdoc else "text")
                lines = (token.map[0], token.map[1])
                yield Block(page.path, lines, language, token.info, token.content, above)
            is_comment = token.type == "html_block" and token.content.startswith("<!--")
            above = token.content.strip()[4:-3].strip() if is_comment else ""

    def all_blocks(self) -> list[Block]:
        written = [page for page in self.pages if not page.is_generated]
        return [block for page in written for block in self.blocks(page, self.text(page))]

    def text(self, page: Page) -> str:
        return (self.root / page.path).read_text(encoding="utf-8")

    def check_blocks(self, blocks: list[Block]) -> tuple[int, int]:
        """Checks that each block runs or says why not. Returns how many do either."""
        tested: set[tuple[str, str]] = set()
        faults = []
        for line in (self.root / TESTED).read_text(encoding="utf-8").splitlines():
            if not line.strip() or line.startswith("#"):
                continue
            path, language, test = line.split()
            folder, name = path.rpartition("/")[0].rpartition("/")[2], path.rpartition("/")[2]
            program = (self.root / test).read_text(encoding="utf-8")
            by_pattern = (
                folder and "*.md" in program and re.search(rf"(?<![\w.-]){folder}", program)
            )
            if not re.search(rf"(?<![\w.-]){re.escape(name)}", program) and not by_pattern:
                faults.append(f"{TESTED}: {test} does not name {path}, so it cannot run its blocks")
            tested.add((path, language))
        code = [block for block in blocks if block.language not in DATA]
        run = 0
        for block in code:
            says_why = re.match(r"not run:\s*\S", block.comment)
            if says_why:
                continue
            run += "no_run" not in block.info
            if (block.page, block.language) not in tested and "no_run" not in block.info:
                faults.append(
                    f"{block.page}:{block.lines[0] + 1}: no test runs this block of "
                    f'{block.language}: add a line to {TESTED}, or "<!-- not run: the reason -->"'
                )
        for path, language in sorted(tested - {(block.page, block.language) for block in code}):
            faults.append(f"{TESTED}: {path} has no block of {language}: remove the line")
        fail(faults)
        return run, len(code) - run

    def write(self, source: Path) -> None:
        """Writes what Sphinx reads in place of the pages: what is unchanged keeps its time."""
        written = set()
        for page in (page for page in self.pages if not page.is_generated):
            menus = self.parts if page is self.pages[0] else [("", page.below)]
            text = self.read(page) + "".join(menu(name, pages, page) for name, pages in menus)
            written.add(put(source / page.path, text))
        tracked = ["git", "ls-files", "-z", "*.png", "*.svg"]
        pictures = subprocess.run(
            tracked, cwd=self.root, check=True, capture_output=True, text=True
        )
        for path in pictures.stdout.split("\0"):
            if path and (self.root / path).is_file():
                written.add(put(source / path, (self.root / path).read_bytes()))
        for file in source.rglob("*"):
            if file.is_file() and file not in written and source / "reference" not in file.parents:
                file.unlink()

    def read(self, page: Page) -> str:
        """Returns what Sphinx reads in place of a page."""
        lines = self.text(page).splitlines(keepends=True)
        inside = [False] * len(lines)
        for block in self.blocks(page, "".join(lines)):
            inside[block.lines[0] : block.lines[1]] = [True] * (block.lines[1] - block.lines[0])
            if block.language == "rust" or "," in block.info:
                indentation = re.match(r"\s*", lines[block.lines[0]])[0]
                shown = [line for line in block.code.splitlines() if not is_hidden(line, block)]
                # An empty line often divides hidden lines from the others.
                code = "\n".join(shown).strip("\n").splitlines()
                new = [f"{indentation}{each}\n" for each in (f"```{block.language}", *code, "```")]
                lines[block.lines[0] : block.lines[1]] = [
                    "".join(new), *[""] * (block.lines[1] - block.lines[0] - 1)
                ]  # fmt: skip
        if lines[0].startswith("# "):
            head = ""
        elif page.title:
            head = f"# {page.title}\n\n"
            lines = [
                "#" + line if line.startswith("#") and not code else line
                for line, code in zip(lines, inside, strict=True)
            ]
        else:
            raise ExtensionError(f"{page.path} has no heading: give its line in {CHAPTERS} a title")
        if page.is_rustdoc:
            lines = self.with_items(page, lines, inside)
        return head + "".join(lines)

    def with_items(self, page: Page, lines: list[str], inside: list[bool]) -> list[str]:
        """Replaces links to items of the library by those of rustdoc."""
        # A link may go on in the next line: the text between two blocks is one.
        text, code = "", []
        for line, is_code in zip(lines, inside, strict=True):
            code += [line] if is_code else []
            text += "\0" if is_code else line
        named = dict(re.findall(r"^\[([^\]]+)\]: (\S+)\n", text, re.MULTILINE))
        text = re.sub(r"^\[[^\]]+\]: \S+\n", "", text, flags=re.MULTILINE)
        target = lambda link: link[2] or named.get(link[1], link[1])  # noqa: E731
        links = [
            link for link in LINK.finditer(text) if is_item(link[2] or named.get(link[1]), link[1])
        ]
        targets = self.resolve([target(link) for link in links])
        missing = [target(link) for link, to in zip(links, targets, strict=True) if not to]
        fail([f"{page.path} links {each}, which rustdoc does not" for each in missing])
        for link, to in reversed(list(zip(links, targets, strict=True))):
            text = f"{text[: link.start()]}[{link[1]}]({SCHEME}rust/{to}){text[link.end() :]}"
        blocks = iter(code)
        return [re.sub("\0", lambda _: next(blocks), text)]

    def resolve(self, paths: list[str]) -> list[str]:
        """Returns where rustdoc's links to items lead: by the one of its pages that has the most of
        them, because names of items repeat across modules."""
        best: list[str] = [""] * len(paths)
        for file in sorted((self.rustdoc / "kvmem").rglob("*.html")) if paths else []:
            folder = file.parent.relative_to(self.rustdoc)
            links = {
                item: normal(folder / href) for href, item in ITEM.findall(file.read_text("utf-8"))
            }
            found = [find(links, path) for path in paths]
            best = max(best, found, key=lambda each: sum(map(bool, each)))
        return best

    def target_of(self, page: str, target: str) -> str | None:
        """Returns where a link of a page leads that leads to no page: ``None`` if nowhere."""
        path, _, anchor = target.partition("#")
        path = normal(Path(page).parent / path)
        whole, anchor = self.root / path, f"#{anchor}" if anchor else ""
        if not whole.exists():
            return None
        if f"{path}/README.md" in self.paths or path in self.paths:
            name = f"{path}/README" if whole.is_dir() else path.removesuffix(".md")
            return f"{SCHEME}{name}.html{anchor}"
        inside = path.removeprefix("crates/kvmem/src/")
        if inside != path:
            name = f"src/kvmem/{inside}.html" if whole.is_file() else f"kvmem/{inside}/index.html"
            if (self.rustdoc / name).is_file():
                return f"{SCHEME}rust/{name}{anchor}"
        if not whole.is_file():
            return ""
        return f"{SCHEME}files/{copy_name(path)}{anchor}"


def copy_name(path: str) -> str:
    """The name of a file's copy. Browsers show text and would save other endings."""
    return path if path.endswith((".png", ".svg", ".txt", ".html")) else f"{path}.txt"


def is_hidden(line: str, block: Block) -> bool:
    return block.language == "rust" and re.match(r"\s*#( |$)", line) is not None


def is_item(target: str | None, text: str) -> bool:
    """Whether rustdoc resolves a link: ``[`Pool`]``, ``[text](Pool::new)``."""
    if target is None:
        return text.startswith("`")
    return "::" in target or not re.search(r"[/.#:]", target)


def find(links: dict[str, str], path: str) -> str:
    """Returns the link of an item. The path may name private modules, which are not in the public
    path: then the end of it counts."""
    words = path.strip("`").removesuffix("()").rpartition("@")[2].split("::")
    while words:
        end = "::".join(words)
        ends = [full for full in links if full == end or full.endswith("::" + end)]
        if ends:
            return links[min(ends, key=lambda full: (len(full), full))]
        words = words[1:]
    return ""


def normal(path: Path) -> str:
    """The path without ``..``."""
    parts: list[str] = []
    for part in path.parts:
        parts = parts[:-1] if part == ".." else [*parts, part]
    return "/".join(parts)


def menu(caption: str, pages: list[Page], of: Page) -> str:
    pages = [page for page in pages if page is not of]
    lines = [
        f"{page.title} </{page.path.rpartition('.')[0] or page.path}>"
        if page.title
        else f"/{page.path.rpartition('.')[0]}"
        for page in pages
    ]
    head = ["", "```{toctree}", ":hidden:", *([f":caption: {caption}"] if caption else []), ""]
    return "\n".join([*head, *lines, "```", ""]) if pages else ""


def put(file: Path, content: str | bytes) -> Path:
    new = content.encode() if isinstance(content, str) else content
    if not file.is_file() or file.read_bytes() != new:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(new)
    return file


def helps(program: Path, words: tuple[str, ...] = ()) -> dict[tuple[str, ...], str]:
    """Returns the help of a command and of all its subcommands, by their words."""
    help = [str(program), *words, "--help"]
    text = subprocess.run(help, check=True, capture_output=True, text=True).stdout
    found = {words: text}
    listed = text.partition("\nCommands:\n")[2].partition("\n\n")[0]
    for name in re.findall(r"^  (\S+)", listed, re.MULTILINE):
        # `serve-mooncake` starts a program of the Python package, which has its help.
        if name not in ("help", "serve-mooncake"):
            found |= helps(program, (*words, name))
    return found


def commands(blocks: list[Block]) -> Iterator[tuple[str, list[str]]]:
    """Yields the commands of the blocks, with their places and without comments."""
    for block in blocks:
        lines = block.code.replace("\\\n", " ").splitlines() if block.language == "bash" else []
        for line in lines:
            words = re.split(r"(?:^|\s)(?:#|\||>|&&?\s)", line)[0].split()
            if words:
                yield f"{block.page}:{block.lines[0] + 1}", words


def fault(words: list[str], of: dict[tuple[str, ...], str], python: str) -> str:
    """Returns the fault of a command; nothing, if it has none or is another program's."""
    start = next(
        (n for n in (4, 1) if words[:n] in (["kvmem"], "cargo run --release --".split())), 0
    )
    if not start:
        return ""
    arguments = words[start:]
    named = max((key for key in of if tuple(arguments[: len(key)]) == key), key=len)
    rest = [word for word in arguments[len(named) : len(named) + 1] if not word.startswith("-")]
    in_python = any(f'"{word}"' in python for word in rest)
    name = " ".join(["kvmem", *named])
    if rest and "\nCommands:" in of[named] and not in_python:
        return f"`{name}` has no subcommand {rest[0]}"
    for word in arguments:
        option = word.partition("=")[0]
        listed = option in re.split(r"[ ,\n]", of[named])
        if option.startswith("--") and len(option) > 2:
            if not (f'"{option}"' in python if in_python else listed):
                return f"`{name}` has no option {option}"
    return ""


def check_commands(blocks: list[Block], of: dict[tuple[str, ...], str], root: Path) -> list[str]:
    """Checks that the commands of the blocks exist. Returns those of ``cargo xtask``, which it
    parses itself."""
    package = root / "crates/kvmem-python/python/kvmem"
    files = [package / "__main__.py", package / "mooncake/command.py"]
    python = "".join(file.read_text(encoding="utf-8") for file in files)
    found = list(commands(blocks))
    faults = [(place, words, fault(words, of, python)) for place, words in found]
    fail([f"{place}: `{' '.join(words)}`: {fault}" for place, words, fault in faults if fault])
    return [" ".join(words) for _, words in found if words[:2] == ["cargo", "xtask"]]
