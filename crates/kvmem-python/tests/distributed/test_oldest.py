"""The oldest supported releases of Mooncake and NIXL. Both are among the packages, so another
release needs another interpreter: a pytest whose path begins with the folder of that release.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from engine_features import DISTRIBUTIONS, FEATURES, REAL
from engines import HERE, missing

LIMIT = 600.0
"""Seconds after which a run fails. Only a fault takes as long."""

RELEASES = {
    "mooncake": (
        "0.3.13",
        "mooncake-transfer-engine-non-cuda==0.3.13 'nvidia-cuda-runtime-cu12<12.9'",
    ),
    "nixl": ("1.5.0", "nixl-cu12==1.5.0 nixl==1.5.0"),
}


@pytest.mark.parametrize("engine", RELEASES)
def test_the_oldest_release_shows_the_same_features(engine: str) -> None:
    version, wheels = RELEASES[engine]
    variable = f"{engine.upper()}_OLDEST_DIR"
    folder = os.environ.get(variable)
    if not folder or not Path(folder, engine).is_dir():
        missing(
            f"the oldest supported {engine} is not here: export {variable}=FOLDER && pip install "
            f"--no-deps --target FOLDER {wheels}"
        )
    shown = [feature for feature in FEATURES if feature.engine == engine and feature.tests]
    assert shown and all(feature.tested == REAL for feature in shown)
    # A whole module where each test builds upon the one before.
    chosen = {
        str(HERE / feature.file) + ("" if feature.file.endswith("_processes.py") else f"::{name}")
        for feature in shown
        for name in feature.tests
    }
    program = (
        "import importlib.metadata, sys, pytest\n"
        f"assert importlib.metadata.version({DISTRIBUTIONS[engine]!r}) == {version!r}\n"
        "sys.exit(pytest.main(sys.argv[1:]))\n"
    )
    # Before what the tests of this run are imported from.
    path = [str(folder), *filter(None, sys.path)]
    libraries = os.pathsep.join(map(str, Path(folder or "").glob("nvidia/*/lib")))
    done = subprocess.run(
        [sys.executable, "-c", program, "-q", "-p", "no:cacheprovider", *sorted(chosen)],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path), "LD_LIBRARY_PATH": libraries},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout and " skipped" not in done.stdout, done.stdout
