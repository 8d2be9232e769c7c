"""The page of documentation runs, and its types are right."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import needs_mlock

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "python.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S)


@needs_mlock
def test_the_page_runs_from_top_to_bottom(tmp_path: Path) -> None:
    assert len(EXAMPLES) >= 5
    program = tmp_path / "page.py"
    program.write_text("\n".join(EXAMPLES), encoding="utf-8")
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def mypy(*arguments: str, module: str = "mypy", cwd: Path) -> None:
    pytest.importorskip("mypy", reason="mypy is not installed: pip install mypy")
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments], capture_output=True, text=True, timeout=300, cwd=cwd
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_types_are_strict(tmp_path: Path) -> None:
    shutil.copy(HERE.parent / "pyproject.toml", tmp_path)
    for file in (*HERE.glob("*.py"), *HERE.glob("distributed/*.py"), *HERE.parent.glob("benches/*.py")):
        shutil.copy(file, tmp_path)
    (tmp_path / "page.py").write_text("\n".join(EXAMPLES), encoding="utf-8")
    mypy("--strict", "-p", "kvmem", cwd=tmp_path)
    mypy("--strict", "--allow-untyped-calls", ".", cwd=tmp_path)


def test_stubs_say_what_is_there(tmp_path: Path) -> None:
    allowed = ("--allowlist", str(HERE / "stubtest.txt"), "--ignore-unused-allowlist")
    settings = ("--mypy-config-file", str(HERE.parent / "pyproject.toml"))
    mypy("kvmem", *allowed, *settings, module="mypy.stubtest", cwd=tmp_path)
