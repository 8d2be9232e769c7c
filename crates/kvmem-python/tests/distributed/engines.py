"""What the tests of engines share: whether engines are there, where unpacked wheels are, and stand-ins for what those import and cannot be had here.

``LMCACHE_DIR`` and ``SGLANG_DIR`` name folders of unpacked wheels; ``cargo xtask test`` makes them. Where one is missing, its tests are skipped
with the command that makes it, or fail if ``KVMEM_REQUIRE_ENGINES`` is 1.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

HERE = Path(__file__).parent
DOCS = HERE.parents[3] / "docs" / "distributed"


def missing(reason: str) -> None:
    """Skips a test, or fails it where engines must be there."""
    if os.environ.get("KVMEM_REQUIRE_ENGINES") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


def unpacked(engine: str) -> Path:
    """The folder of an engine's unpacked wheel."""
    variable = f"{engine.upper()}_DIR"
    folder = os.environ.get(variable)
    if not folder or not Path(folder, engine).is_dir():
        missing(
            f"{engine}'s wheel is not here: pip download --no-deps {engine} && unzip -d FOLDER {engine}-*.whl && export {variable}=FOLDER"
        )
    return Path(folder or "")


def run_with(engine: str, prelude: str, program: str, **environment: str) -> str:
    """Runs a program in a process of its own, with the engine's wheel and its stand-ins; returns what it printed."""
    lines = ["import sys", f"sys.path[:0] = [{str(HERE)!r}, {str(unpacked(engine))!r}]", prelude, textwrap.dedent(program)]
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", "\n".join(lines)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "LMCACHE_TRACK_USAGE": "false", **environment},
    )
    assert done.returncode == 0, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


# Module to import, and what gets it.
ENGINES = {
    "mooncake": ("mooncake.store", "pip install 'mooncake-transfer-engine-non-cuda>=0.3.13' && apt-get install libibverbs1 libnuma1 libcurl4"),
}


def require(engine: str) -> None:
    """Skips what needs an engine that is not there; fails where it must be there."""
    module, remedy = ENGINES[engine]
    try:
        importlib.import_module(module)
    except ImportError as error:
        missing(f"{engine} cannot be imported ({error}): {remedy}")
