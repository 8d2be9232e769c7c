"""The tutorial, the how-tos, fresh memory and troubleshooting: their commands and programs run from
top to bottom, and print what the pages show. The table of exceptions matches the classes.

The blocks of a page in one language are one program. A ``text`` block directly after a block is its
output. In it a number stands for any number, ``…`` for anything in the line, and a line of ``…``
for any lines. A block whose first line is a comment with a file's name is that file.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import inspect
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import kvmem
import pytest
from conftest import lockable
from node_server import Server

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
PAGES = [
    DOCS / "tutorial.md",
    DOCS / "fresh-memory.md",
    DOCS / "disk-tier.md",
    DOCS / "troubleshooting.md",
    *sorted((DOCS / "how-to").glob("*.md")),
]
END = "\x1e"
"""What programs print after each block."""


class Example(NamedTuple):
    """A block of code, and what the page says that it prints."""

    language: str
    code: str
    shown: str | None


def examples(page: str) -> list[Example]:
    """Returns the blocks of a page in order, each with the output that follows it."""
    found: list[Example] = []
    end = 0
    for block in re.finditer(r"^```([\w,]+)\n(.*?)^```$", page, re.M | re.S):
        language, code = block.groups()
        if language != "text":
            found.append(Example(language, code, None))
        elif found and page[end : block.start()].strip() == "":
            found[-1] = found[-1]._replace(shown=code)
        end = block.end()
    return found


def pattern(shown: str) -> str:
    """Returns the expression that an output as on the page matches."""
    expression = ""
    for line in shown.splitlines():
        if line.strip() == "…":
            expression += r"(?:.*\n)*?"
            continue
        for part in re.split(r"(0x[0-9a-f]+|\d[\d.,]*|…| +)", line.rstrip()):
            if part.startswith("0x"):
                expression += r"0x[0-9a-f]+"
            elif part[:1].isdigit():
                # A full stop or comma after a number is none of its digits.
                tail = part[len(part.rstrip(".,")) :]
                expression += r"\d(?:[\d.,]*\d)?" + re.escape(tail)
            elif part == "…":
                expression += r".*?"
            elif part.startswith(" "):
                expression += r" +"
            else:
                expression += re.escape(part)
        expression += r"\s*\n"
    return expression


def compare(page: Path, ran: list[Example], printed: str) -> None:
    """Compares the output of blocks with what the page shows."""
    outputs = printed.split(END + "\n")
    assert len(outputs) == len(ran) + 1, printed
    for example, output in zip(ran, outputs, strict=False):
        if example.shown is not None:
            fits = re.fullmatch(pattern(example.shown), output.rstrip("\n") + "\n")
            assert fits, f"{page.name}: the page shows\n{example.shown}\nand it prints\n{output}"


def run(command: list[str], folder: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        cwd=folder,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def rings() -> bool:
    """Whether this process may make rings."""
    try:
        kvmem.mount_report("256KiB", pages="4k", devices="io_uring:1")
    except (kvmem.NotAvailableError, kvmem.RegistrationError) as error:
        print(f"no rings here: {error}")
        return False
    return True


def check_devices(ran: list[Example]) -> None:
    """Skips the test if this machine lacks devices that the code or its output names."""
    text = "".join(example.code + (example.shown or "") for example in ran)
    if "io_uring" in text and not rings():
        pytest.skip("the page registers with rings, which this machine forbids")
    if "mlock" in text and not lockable():
        pytest.skip("the page locks memory, which RLIMIT_MEMLOCK forbids")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_python_blocks_run_and_print_what_the_page_shows(page: Path, tmp_path: Path) -> None:
    program, ran = "", []
    for example in examples(page.read_text(encoding="utf-8")):
        if example.language != "python":
            continue
        name = re.match(r"# (\w+\.py)\n", example.code)
        if name:
            (tmp_path / name[1]).write_text(example.code, encoding="utf-8")
            continue
        program += f"{example.code}\nprint({END!r}, flush=True)\n"
        ran.append(example)
    if not ran:
        pytest.skip("the page has no Python")
    check_devices(ran)
    (tmp_path / "page.py").write_text(program, encoding="utf-8")
    # The page of nodes needs a server in the current folder.
    needs_server = "kvmem.connect(" in program
    with Server(folder=tmp_path) if needs_server else contextlib.nullcontext():
        printed = run([sys.executable, "page.py"], tmp_path, {"PYTHONUNBUFFERED": "1"})
    compare(page, ran, printed)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_run_and_print_what_the_page_shows(page: Path, tmp_path: Path) -> None:
    ran = [each for each in examples(page.read_text(encoding="utf-8")) if each.language == "bash"]
    if not ran:
        pytest.skip("the page has no commands")
    program = "".join(f"{each.code}\nprintf '{END}\\n'\n" for each in ran)
    check_devices(ran)
    for written, instead in stand_ins(program).items():
        program = program.replace(written, instead)
    folders = [str(Path(sys.executable).parent), os.environ["PATH"]]
    environment = {"KVMEM_REPOSITORY": str(ROOT), "PATH": os.pathsep.join(folders)}
    # A clone of a checkout without a branch says so at length.
    environment |= {
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "advice.detachedHead",
        "GIT_CONFIG_VALUE_0": "false",
    }
    compare(page, ran, run(["bash", "-euo", "pipefail", "-c", program], tmp_path, environment))


def stand_ins(program: str) -> dict[str, str]:
    """Returns commands that have been carried out before the tests, with what stands for each: the
    command is built, and the package is installed, so the environment needs no pip either.
    """
    versions = [f"{name}-{importlib.metadata.version(name)}" for name in ("kvmem", "numpy")]
    instead = {
        "pip install ./crates/kvmem-python numpy": "test -f crates/kvmem-python/pyproject.toml && "
        f"echo Successfully installed {' '.join(versions)}",
        "python3 -m venv env": "python3 -m venv --without-pip env",
    }
    built = [each for each in ("cargo run --release --", "target/release/kvmem") if each in program]
    if built:
        command = os.environ.get("KVMEM_COMMAND")
        if command is None:
            pytest.skip("KVMEM_COMMAND does not name the built command")
        instead |= dict.fromkeys(built, command)
    if "git clone" in program and not (shutil.which("git") and (ROOT / ".git").exists()):
        pytest.skip("these sources are no git repository")
    return instead


EXCEPTIONS = (
    "<!-- Exceptions: KVMEM_WRITE_PAGES=1 pytest crates/kvmem-python/tests/test_pages.py -->\n",
    "<!-- The end of the exceptions -->\n",
)
"""The lines around the table of exceptions in troubleshooting.md."""
WITH_ERRORS = [
    "",
    ".mooncake",
    ".nixl",
    ".lmcache",
    ".sglang",
    ".storage",
    ".vllm",
    ".llama_cpp",
    ".transformers",
]


def exceptions() -> str:
    """Returns the table of all exceptions: name, what else each of them is, and its meaning."""
    rows = ["| exception | also a | meaning |\n", "|---|---|---|\n"]
    for package in WITH_ERRORS:
        module = importlib.import_module(f"kvmem{package}")
        for name, kind in inspect.getmembers(module, inspect.isclass):
            owners = (kind.__module__, kind.__module__.rpartition(".")[0])
            if module.__name__ not in owners or not issubclass(kind, kvmem.KvmemError):
                continue
            others = [each for each in kind.__mro__[1:] if each.__module__ == "builtins"]
            nearest = [
                f"`{each.__name__}`"
                for each in others
                if not any(other is not each and issubclass(other, each) for other in others)
            ]
            also = ", ".join(nearest).replace("`Exception`", "–")
            meaning = (inspect.getdoc(kind) or "").partition("\n\n")[0].replace("\n", " ")
            meaning = re.sub(r":\w+:`~?([^`]*)`", r"`\1`", meaning).replace("``", "`")
            rows.append(f"| `kvmem{package}.{name}` | {also} | {meaning} |\n")
    return "\n" + "".join(rows) + "\n"


def test_the_table_of_exceptions_matches_the_classes() -> None:
    page = DOCS / "troubleshooting.md"
    text = page.read_text(encoding="utf-8")
    (before, rest), begin, end = text.split(EXCEPTIONS[0]), *EXCEPTIONS
    wanted = before + begin + exceptions() + end + rest.partition(end)[2]
    if os.environ.get("KVMEM_WRITE_PAGES"):
        page.write_text(wanted, encoding="utf-8")
    assert page.read_text(encoding="utf-8") == wanted, begin


def test_every_page_has_a_title_a_sentence_and_code() -> None:
    assert len(PAGES) >= 9
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert re.match(r"# \w.*\n\n[^#`|\n]", text), f"{page.name}: a heading, then a sentence"
        assert examples(text), f"{page.name}: code"


def test_outputs_are_compared() -> None:
    shown = "a 1.5 MiB in 0.3 s, at 0x7f: 12 ok.\n…\nlast … line\n"
    for fits in (
        "a 200 MiB in 12.25 s, at 0xab01: 1,024 ok.\nlast line\n".replace("last ", "last one "),
        "a 1 MiB in 0 s, at 0x0:   7 ok.\nmore\nstill more\nlast x line\n",
    ):
        assert re.fullmatch(pattern(shown), fits), fits
    for differs in (
        "a 1.5 MiB in 0.3 s, at 0x7f: 12 warn.\nlast x line\n",
        "a 1.5 KiB in 0.3 s, at 0x7f: 12 ok.\nlast x line\n",
        "a 1.5 MiB in 0.3 s, at 0x7f: 12 ok.\nmore\n",
    ):
        assert not re.fullmatch(pattern(shown), differs), differs
    page = "```bash\nls\n```\n\n```text\na\n```\n\nthen\n\n```text\nb\n```\n```python\nx\n```\n"
    assert examples(page) == [Example("bash", "ls\n", "a\n"), Example("python", "x\n", None)]
