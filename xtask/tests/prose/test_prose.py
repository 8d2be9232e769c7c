"""The mechanical part of how kvmem is written.

``docs/glossary.md`` is the vocabulary and says how sentences are made. Most of that needs a reader.
These rules do not. They read the files that git tracks or would track, and take strings and
comments out by a regular expression, not by a parser, so they cost a few seconds.
"""

from __future__ import annotations

import re
import subprocess
from collections import defaultdict
from functools import cached_property
from pathlib import Path

import pytest

from machine import ROOT

MAX_COLUMNS = 100
# Files that programs write, and stored data.
GENERATED = (
    "THIRD-PARTY.md",
    "bench/record/",
    "fuzz/corpus/",
    "proptest-regressions/",
    "tests/data/",
)
# What is no code: comments, strings and characters; C++ has `'` in numbers, Rust in lifetimes.
SLASHES = re.compile(
    r"//[^\n]*|/\*.*?\*/|(?<!\w)b?r(?P<hashes>#*)\".*?\"(?P=hashes)|\"(?:\\.|[^\"\\])*\""
    r"|(?<!\w)'(?:\\(?:u\{\w+\}|x\w\w|.)|[^\\'])'",
    re.DOTALL,
)
HASH = re.compile(
    r'""".*?"""|\'\'\'.*?\'\'\'|#[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.DOTALL
)
ENDINGS = dict.fromkeys(("rs", "h", "hpp", "c", "cpp"), SLASHES)
ENDINGS |= dict.fromkeys(("py", "pyi", "toml"), HASH)


class File:
    """A file under the rules."""

    def __init__(self, path: str, text: str) -> None:
        self.path, self.text, self.lines = path, text, text.split("\n")
        self.no_code = ENDINGS.get(path.rpartition(".")[2])
        # Of Markdown, what kind of line each is: prose, the output of a program, or code.
        self.kinds, kind = [], "prose"
        for line in self.lines if self.no_code is None else ():
            fence = line.strip().startswith("```")
            self.kinds.append("code" if fence else kind)
            if fence:
                output = "output" if line.strip() in ("```", "```text") else "code"
                kind = output if kind == "prose" else "prose"

    @cached_property
    def code(self) -> str:
        """The code, with strings and comments blanked out, at the same lines and columns."""
        blank = lambda found: re.sub(r"[^\n]", " ", found[0])  # noqa: E731
        return self.no_code.sub(blank, self.text) if self.no_code else ""

    def is_prose(self, at: int) -> bool:
        return self.kinds[at] == "prose" if self.kinds else not self.code.split("\n")[at].strip()

    def is_output(self, at: int) -> bool:
        return bool(self.kinds) and self.kinds[at] == "output"

    def documentation(self) -> list[tuple[int, str]]:
        """The lines of documentation, without what marks them. A gap is an empty line."""
        found: list[tuple[int, str]] = []
        for at, line in enumerate(self.lines):
            doc = re.match(r"\s*(?:///|//!| \*|\* )(.*)", line)
            text = line if self.kinds and self.kinds[at] == "prose" else doc and doc[1]
            if self.no_code is HASH or text is None or (self.kinds and self.kinds[at] != "prose"):
                found += [(at, "")] if found and found[-1][1] else []
            else:
                found.append((at, text.strip()))
        return found


def read() -> list[File]:
    """Reads every file that git tracks or would track and that is of a known language."""
    git = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(git, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    known = [path for path in listed.split("\0") if path.rpartition(".")[2] in (*ENDINGS, "md")]
    paths = [path for path in known if not any(part in path for part in GENERATED)]
    return [File(p, (ROOT / p).read_text("utf-8")) for p in paths if (ROOT / p).is_file()]


@pytest.fixture(scope="module")
def files() -> list[File]:
    return read()


def none(findings: list[str]) -> None:
    assert not findings, "\n".join([f"{len(findings)} findings:", *findings[:40]])


def long_lines(file: File) -> list[str]:
    """Lines end by column 100, but for tables, URLs and the output of programs."""
    found = []
    for at, line in enumerate(file.lines):
        if len(line) > MAX_COLUMNS and "://" not in line and not file.is_output(at):
            is_table = line.lstrip("/!*# \t").startswith("|") and file.is_prose(at)
            found += [] if is_table else [f"{file.path}:{at + 1}: {len(line)} columns"]
    return found


def retired() -> dict[str, list[str]]:
    """Reads the words that are retired: one a line, then the paths where it may stay."""
    lines = (Path(__file__).parent / "retired.txt").read_text().splitlines()
    words = [words for line in lines if (words := line.partition("#")[0].split())]
    assert len({word for word, *_ in words}) == len(words), "a word stands twice"
    return {word: paths for word, *paths in words}


def snake_case(name: str) -> str:
    """``freeRun``, ``FreeRun`` and ``FREE_RUN`` are all ``free_run``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def retired_words(file: File, words: dict[str, list[str]]) -> list[str]:
    """Retired words do not come back as identifiers, parts of identifiers, or names of files."""
    here = [word for word, paths in words.items() if not file.path.startswith(tuple(paths) or "\0")]
    # Whole parts count: `played` has no `lay`.
    part = re.compile(rf"(?:^|_)({'|'.join(here)})(?:_|$)")
    names = [(1, name.replace("-", "_")) for name in re.split(r"[/.]", file.path)]
    for at, line in enumerate(file.code.split("\n")):
        names += [(at + 1, name) for name in re.findall(r"\w+", line)]
    return [
        f"{file.path}:{number}: `{name}` has the retired word `{found[1]}`: see docs/glossary.md"
        for number, name in names
        if (found := part.search(snake_case(name)))
    ]


# Folders whose documentation names its subject in every sentence.
PLAIN = ("crates/kvmem-node/", "crates/kvmem-cli/", "crates/kvmem-cluster/", "crates/kvmem-tier/")
VAGUE = r"Who |Whoever |What is |What a \w+ (?:has|holds|did|does)|Those of |That of |As \[`"
# Errors and output say what was expected, what came, and what to do.
RIDDLES = re.compile(r"(?<!there )\bis none\b|\bno word of\b|\bthat cannot be[:,.\"]")


def riddles(file: File) -> list[str]:
    """The strings of the product have no sentence that a reader must decode."""
    if not file.path.startswith("crates/") or "/tests" in file.path:
        return []
    lines = enumerate(file.lines, 1)
    strings = [(at, text) for at, line in lines for text in re.findall(r'"[^"]*"', line)]
    return [f"{file.path}:{at}: {text}" for at, text in strings if RIDDLES.search(text)]


def sentences(file: File) -> list[str]:
    """Sentences of documentation do not begin without naming what they are about."""
    found, ended = [], True
    vague = VAGUE if file.path.startswith(PLAIN) else r"Who |Whoever |What is "
    for at, line in file.documentation():
        rest = line.lstrip("-*> #|")
        begins = ended or len(rest) < len(line) or not line
        for number, sentence in enumerate(rest.split(". ")):
            start = re.match(vague, sentence.lstrip())
            if start and (begins or number):
                found.append(f'{file.path}:{at + 1}: a sentence begins with "{start[0].strip()}"')
        ended = not line or line.endswith((".", ":", "|"))
    return found


def installs_by_name(file: File) -> list[str]:
    """No line tells to install kvmem by its name: such a package of an index is another's."""
    command = re.compile(r"(?:pip install|pipx install|cargo add) ([^#&;|]*)")
    named = re.compile(r"(?:^|\s)['\"`]*kvmem(?![\w\-/.])")
    lines = [(at, command.search(line)) for at, line in enumerate(file.lines)]
    return [
        f"{file.path}:{at + 1}: kvmem is not published"
        for at, it in lines
        if it and named.search(it[1])
    ]


# Environment variables: the sources against the tables of their page.

PAGE = "docs/environment.md"
# How a call that reads a variable ends before the name, in every language; or how names begin.
READS = re.compile(
    r"(?:env::var\(|env::var_os\(|getenv\(|environ\.(?:get|pop|setdefault)\(|environ\[)"
    r'"([A-Z][A-Z0-9_]*[A-Z0-9])"'
    r'|"((?:G_SLICE|HSA_|KVMEM_|LMCACHE_|MC_|NIXL_LOG|PROPTEST_|SGLANG_|TORCH_|UCX_|VLLM_)'
    r'[A-Z0-9_]*)"'
)
# Other names in capitals: status codes and macros of the C interface.
OTHERS = ("KVMEM_ERR_", "KVMEM_GSLICE_", "KVMEM_INIT_ON_", "KVMEM_OK", "KVMEM_UNKNOWN_")


def variables(files: list[File]) -> list[str]:
    """Each variable that the sources read is in a table, and no other. Comments count too, so an
    example in a doc comment names no variable that is not there."""
    page = next(file for file in files if file.path == PAGE)
    rows = [
        line for at, line in enumerate(page.lines) if page.is_prose(at) and line.startswith("| `")
    ]
    listed = {name for row in rows for name in re.findall(r"`([^`]+)`", row.split("|")[1])}
    found, words = [], set()
    for file in files:
        if not file.path.endswith((".rs", ".py", ".c", ".h", ".cpp", ".hpp")):
            continue
        words |= listed & set(re.findall(r"[A-Z0-9_]+", file.text))
        if file.path != Path(__file__).relative_to(ROOT).as_posix():
            for either in READS.findall(file.text):
                name = "".join(either)
                if name not in listed and not name.startswith(OTHERS) and not name.endswith("_"):
                    found.append(f"{file.path}: {name} is read and not in {PAGE}: add a row")
    return found + [f"{PAGE}: no source names {name}: remove its row" for name in listed - words]


# Types: a name that is defined in several files of a crate sends a reader to the wrong one.

TOKENS = re.compile(
    r"#\[cfg\((?:all\()?test|\b(?:impl|fn|macro_rules!)"
    r"|\b(struct|enum|union|trait|type)\s+(\w+)|[{};]"
)


def types(code: str) -> set[str]:
    """Returns the types that a source file defines. What stands in functions, in implementations,
    in traits or behind ``#[cfg(test)]`` is theirs."""
    found, open_ones = set(), []
    counts, test = True, False
    for token in TOKENS.finditer(code):
        if token[0] == "{":
            open_ones.append(counts and not test)
            counts, test = True, False
        elif token[0] == "}":
            open_ones[-1:] = []
        elif token[0] == ";":
            counts, test = True, False
        elif token[0].startswith("#"):
            test = True
        elif token[2] is None:
            counts = False
        elif counts and not test and all(open_ones):
            found.add(token[2])
            counts = token[1] != "trait"
    return found


def types_twice(files: list[File]) -> list[str]:
    defined = defaultdict(list)
    for file in files:
        home, _, inner = file.path.partition("/src/")
        # Tests may call their fixtures what they like.
        is_test = re.search(r"(?:^|/)(?:tests|models)(?:/|\.rs$)", inner)
        if inner.endswith(".rs") and not is_test:
            for name in types(file.code):
                defined[home, name].append(inner)
    twice = [(*key, places) for key, places in defined.items() if len(places) > 1]
    return [f"{home}: `{name}` is defined in {', '.join(places)}" for home, name, places in twice]


def test_lines_end_by_column_100(files: list[File]) -> None:
    none([finding for file in files for finding in long_lines(file)])


def test_no_retired_words_in_names(files: list[File]) -> None:
    words = retired()
    none([finding for file in files for finding in retired_words(file, words)])


def test_environment_variables_are_in_the_table(files: list[File]) -> None:
    none(variables(files))


def test_types_have_one_name_each_in_a_crate(files: list[File]) -> None:
    none(types_twice(files))


def test_sentences_name_their_subject(files: list[File]) -> None:
    none([finding for file in files for finding in sentences(file)])


def test_kvmem_is_not_installed_by_its_name(files: list[File]) -> None:
    none([finding for file in files for finding in installs_by_name(file)])


# The rules find what they are for.


def test_long_lines_are_found_but_for_tables_urls_and_output() -> None:
    x = "x" * 99
    text = f"// {x}\nfn f() {{}} // {x}\n//! | {x} |\n// see https://{x}\n// {'é' * 97}\n"
    assert [line.split()[0] for line in long_lines(File("a.rs", text))] == ["a.rs:1:", "a.rs:2:"]
    text = f"| {x} |\n```text\n{x}yy\n```\n```rust\n{x}yy\n```\n{x}yy\n"
    assert [line.split()[0] for line in long_lines(File("a.md", text))] == ["a.md:6:", "a.md:8:"]


def test_retired_words_are_found_in_every_case_of_names_alone() -> None:
    words = {"free_run": [], "reap": ["slab/"]}
    text = '// free_run and reap\nlet free_runs = "free_run";\nfn FreeRun() { x.free_run(reap) }\n'
    found = retired_words(File("pool/a.rs", text), words)
    assert len(found) == 3 and all(line.startswith("pool/a.rs:3:") for line in found)
    assert not retired_words(File("slab/a.rs", "let reap = 1;"), words)
    assert len(retired_words(File("pool/reap.rs", ""), words)) == 1
    assert len(retired_words(File("a.py", "# reap\n'''reap'''\nx = 'reap'\nreap = 1"), words)) == 1


def test_comments_and_strings_are_no_code() -> None:
    text = 'let a = "b // \\" c"; // d\n/* e\n f */ let g = r#"h " i"#;\nlet j: &\'k str = \'l\';'
    code = File("a.rs", text).code
    assert re.findall(r"\w+", code) == ["let", "a", "let", "g", "let", "j", "k", "str"]
    assert code.count("\n") == text.count("\n")


def test_strings_are_no_riddles(files: list[File]) -> None:
    none([finding for file in files for finding in riddles(file)])


def test_riddles_are_found_in_strings_of_the_product_alone() -> None:
    text = 'f("a doorbell that is none"); // a string that is none\n'
    found = 'crates/a/src/b.rs:1: "a doorbell that is none"'
    assert riddles(File("crates/a/src/b.rs", text)) == [found]
    assert not riddles(File("crates/a/tests/b.rs", text))


def test_sentences_without_a_subject_are_found() -> None:
    plain = "/// Those of [`f`]. What a tier holds.\n"
    assert len(sentences(File("crates/kvmem-node/src/a.rs", plain))) == 2
    assert not sentences(File("a.rs", plain))
    text = "/// Frees it. Who waits is woken.\n/// What is in use stays. A thread\n/// Who waits.\n"
    found = sentences(File("a.rs", text + "// Who knows.\nfn f() {}\n"))
    assert [line.split()[0] for line in found] == ["a.rs:1:", "a.rs:2:"]
    assert len(sentences(File("a.md", "- Whoever reads\n\nWhat is this?\n"))) == 2


def test_lines_that_install_kvmem_by_name_are_found() -> None:
    # Put together, because this file is under the rule, too.
    line = "pip " + "install "
    for name in ("kvmem", "'kvmem[nixl]'", "`kvmem` numpy", "-q kvmem==0.1", "kvmem>=1"):
        assert installs_by_name(File("a.md", line + name)), name
    for name in ("./crates/kvmem-python", "numpy  # kvmem", "kvmem-0.1.0-cp311.whl", "x&& kvmem"):
        assert not installs_by_name(File("a.md", line + name)), name


def test_missing_and_stale_rows_are_found() -> None:
    page = "| variable | meaning |\n|---|---|\n| `KVMEM_A`, `MC_A` | a |\n| `OLD` | b |\n"
    source = "".join(f'f("{"KVMEM" + end}");' for end in ("_A", "_B", "_ERR_C")) + "MC_A getenv(x)"
    found = variables([File(PAGE, page), File("a.rs", source)])
    assert len(found) == 2 and "KVMEM" + "_B is read" in found[0] and "names OLD" in found[1]


def test_types_are_found_but_for_those_of_others() -> None:
    code = """pub struct A; impl<T> B for A { type C = u8; fn d() { struct E; } }
        trait F { type G; } pub(crate) enum H<T> { X(T) } type I = [u8; 2];
        #[cfg(test)] mod tests { struct J; } mod k { union L { a: u8 } }"""
    assert types(code) == set("AFHIL")
    both = [File("crates/a/src/x.rs", "struct S;"), File("crates/a/src/z/y.rs", "struct S;")]
    assert types_twice(both) and not types_twice([both[0], File("crates/b/src/x.rs", "struct S;")])
