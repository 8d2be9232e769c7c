"""Installs a wheel into a clean environment of every CPython of this machine, and uses it there.

``cargo xtask wheel --check`` runs it as ``nox --noxfile noxfile.py -- WHEEL``. The ``PATH`` of the
environment has neither a Rust toolchain nor a compiler.
"""

from __future__ import annotations

import os
from pathlib import Path

import nox

PROGRAM = Path(__file__).parents[3] / "crates/kvmem-python/tests/wheel/installed.py"


@nox.session(python=["3.11", "3.12", "3.13", "3.14"], venv_backend="venv")
def installed(session: nox.Session) -> None:
    session.install("--no-index", *session.posargs)
    # Only the checks of arrays need it. The program says when they are left out.
    session.install("--only-binary=:all:", "numpy", success_codes=[0, 1])
    # A folder without modules, so the package of the repository is not found by accident.
    session.chdir(session.create_tmp())
    path = os.environ["PATH"]
    arguments = ["python", "-I", PROGRAM, "--compile", path]
    session.run(*arguments, env={"PATH": session.bin}, include_outer_env=True)
