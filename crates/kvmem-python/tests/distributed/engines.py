"""What the tests of engines share: whether engines are there, where unpacked wheels are, and
stand-ins for what those import and cannot be had here.

``LMCACHE_DIR`` and ``SGLANG_DIR`` name folders that the wheels were installed into; ``cargo xtask
test`` makes them. Where one is missing, its tests are skipped with the command that makes it, or
fail if ``KVMEM_REQUIRE_ENGINES`` is 1.

There are three modes. As a rule modules that are large are stood in for (see standins.py). Where
PyTorch is installed, it is used in place of its stand-in, and so is all else that is installed:
``cargo xtask test engine`` runs the tests like that. The tests marked :data:`with_torch` run there,
too. With ``KVMEM_WITH_TORCH=1`` nothing is stood in for: PyTorch and what LMCache's and SGLang's
modules import are then installed, or in the folder ``TORCH_DIR``. Tests marked
:data:`with_all_imports` need that.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import textwrap
from pathlib import Path

import fork_server
import pytest
from conftest import LIMIT

HERE = Path(__file__).parent
DOCS = HERE.parents[3] / "docs" / "distributed"

REAL = os.environ.get("KVMEM_WITH_TORCH") == "1"
"""Whether there are no stand-ins."""

HAS_TORCH = REAL or importlib.util.find_spec("torch") is not None
"""Whether PyTorch is no stand-in."""

with_torch = pytest.mark.skipif(
    not HAS_TORCH,
    reason="it is for PyTorch itself (2.5 GB): cargo xtask test engine, or KVMEM_WITH_TORCH=1 "
    "cargo xtask test python",
)
"""Reason to skip tests that stand-ins cannot replace."""

with_all_imports = pytest.mark.skipif(
    not REAL,
    reason="it imports SGLang whole, which takes packages for images and documents as well: "
    "KVMEM_WITH_TORCH=1 cargo xtask test python",
)
"""Reason to skip tests that no stand-in for an import of an engine can replace."""


def missing(reason: str) -> None:
    """Skips a test, or fails it if the engines are required."""
    if os.environ.get("KVMEM_REQUIRE_ENGINES") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


def unpacked(engine: str) -> Path:
    """Returns the folder of an engine's unpacked wheel."""
    variable = f"{engine.upper()}_DIR"
    folder = os.environ.get(variable)
    if not folder or not Path(folder, engine).is_dir():
        missing(
            f"{engine}'s wheel is not here: export {variable}=FOLDER && pip install --no-deps "
            f"--target FOLDER {engine}"
        )
    return Path(folder or "")


def torch_folder() -> list[str]:
    """Returns the folder of PyTorch, if the tests use it and it is not installed."""
    folder = os.environ.get("TORCH_DIR")
    if REAL and not folder and importlib.util.find_spec("torch") is None:
        missing(
            "PyTorch is not here: KVMEM_WITH_TORCH=1 cargo xtask test python, or pip install torch"
        )
    return [folder] if REAL and folder else []


def examples(page: str, section: str = "") -> str:
    """Returns the examples of a page, or of a section of it, as one program."""
    text = (DOCS / page).read_text(encoding="utf-8")
    if section:
        _, heading, text = text.partition(f"\n## {section}\n")
        assert heading, f"{page} has no section {section}"
        text = text.partition("\n## ")[0]
    found = re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S)
    assert found, page
    return "\n".join(found)


def paths(engine: str) -> str:
    """Returns a program that puts the engine on the path, second."""
    return f"import sys\nsys.path[:0] = {[str(HERE), str(unpacked(engine)), *torch_folder()]!r}\n"


def run(prelude: str, program: str, **environment: str) -> str:
    """Runs a program in a process of its own, which is forked from one that has run the prelude.
    What the prelude reads from the environment is that of the first call.
    """
    variables = {**os.environ, "LMCACHE_TRACK_USAGE": "false", **environment}
    return fork_server.run(prelude, textwrap.dedent(program), [], variables, LIMIT)


def run_forked(engine: str, prelude: str, imports: str, program: str) -> str:
    """Runs a program after the engine's modules have been imported, once for all such programs,
    with stand-ins for the modules around it.
    """
    # The child runs the imports again, for their names.
    return run(f"{paths(engine)}{prelude}\n{imports}", imports + textwrap.dedent(program))


def run_with(engine: str, prelude: str, program: str, **environment: str) -> str:
    """Runs a program, which imports the engine itself and reads these variables, with stand-ins
    for the modules around it, unless everything is real.
    """
    # PyTorch takes seconds to import, and NumPy a tenth of one.
    before = paths(engine) + ("import torch" if HAS_TORCH else "import numpy")
    start = "import sys\n" if REAL else f"import sys\n{prelude}\n"
    return run(before, start + textwrap.dedent(program), **environment)


# Module to import, and the command that installs it.
ENGINES = {
    "mooncake": (
        "mooncake.store",
        "pip install 'mooncake-transfer-engine-non-cuda>=0.3.13' && apt-get install "
        "--no-install-recommends libibverbs1 libnuma1 libcurl4",
    ),
}


def require(engine: str) -> None:
    """Skips a test whose engine is missing; fails it if the engines are required."""
    module, remedy = ENGINES[engine]
    try:
        importlib.import_module(module)
    except ImportError as error:
        missing(f"{engine} cannot be imported ({error}): {remedy}")
