"""*Toolchain*: cargo, its version, and what it compiles."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parents[4]
"""The repository."""

REMEDY = (
    "install one from https://rustup.rs (or `rustup update`), open a new terminal so that cargo is "
    "in PATH, and repeat the command"
)


def check() -> None:
    """Ends the build unless there is a Rust toolchain that is new enough, and an interpreter that
    loads what is built."""
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        python = f"{sys.version_info.major}.{sys.version_info.minor}"
        raise SystemExit(
            f"kvmem does not run on a free-threaded build of CPython, and {sys.executable} is one "
            f"({python}t): install it with the build that has the GIL, such as python{python}"
        )
    manifest = tomllib.loads((ROOT / "Cargo.toml").read_text(encoding="utf-8"))
    needed: str = manifest["workspace"]["package"]["rust-version"]
    if shutil.which("cargo") is None:
        _fail(f"cargo is not in PATH, and kvmem is compiled by Rust {needed} or later")
    done = subprocess.run(["cargo", "--version"], capture_output=True, text=True, cwd=ROOT)
    found = re.match(r"cargo (\d+)\.(\d+)", done.stdout)
    if done.returncode != 0 or found is None:
        said = (done.stderr or done.stdout).strip()
        _fail(f"`cargo --version` ended with status {done.returncode}: {said}")
    version = (int(found[1]), int(found[2]))
    if version < tuple(int(part) for part in needed.split(".")[:2]):
        _fail(f"cargo {version[0]}.{version[1]} is too old: kvmem needs Rust {needed} or later")


def _fail(why: str) -> NoReturn:
    raise SystemExit(f"kvmem: no usable Rust toolchain: {why}. To get one, {REMEDY}")


def crates(package: str) -> int:
    """Returns the number of crates that a package is compiled from, itself included."""
    tree = ["cargo", "tree", "--locked", "--package", package, "--edges", "normal,build"]
    done = subprocess.run([*tree, "--prefix", "none"], capture_output=True, text=True, cwd=ROOT)
    # Without the number, the progress shows none; the build itself says what is wrong.
    return len({tuple(line.split()[:2]) for line in done.stdout.splitlines() if line})


def build_command() -> Path:
    """Compiles the ``kvmem`` command and returns its file."""
    build = ["cargo", "build", "--release", "--locked", "--package", "kvmem-cli"]
    # Cargo's own messages go to standard error, where the progress is read from.
    done = subprocess.run(
        [*build, "--message-format", "json-render-diagnostics"],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "CARGO_TERM_COLOR": "never"},
    )
    if done.returncode != 0:
        raise SystemExit(f"kvmem: cargo could not build the command (status {done.returncode})")
    for line in done.stdout.splitlines():
        message = json.loads(line)
        if message.get("executable") and message["target"]["name"] == "kvmem":
            return Path(message["executable"])
    raise SystemExit("kvmem: cargo built no program `kvmem`")
