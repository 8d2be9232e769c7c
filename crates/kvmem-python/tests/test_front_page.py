"""The program in README.md runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from conftest import needs_mlock

PAGE = Path(__file__).parents[3] / "README.md"


@needs_mlock
def test_the_program_runs(tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    assert blocks, f"{PAGE} has no Python"
    program = tmp_path / "page.py"
    program.write_text("\n".join(blocks), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, timeout=120, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
