"""*Hooks*: the functions that a front end such as ``pip`` calls.

A wheel is made by maturin, which compiles the extension module, and completed with files of a
*stage*: a folder with ``scripts``, whose files become commands, and ``package``, whose files are
added to the package. ``cargo xtask wheel`` passes its stage by the setting ``stage``. Without one,
the stage is the ``kvmem`` command, compiled here."""

import contextlib
import importlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from . import archive, progress, toolchain

MATURIN = "maturin>=1.9,<2"
"""What a front end installs before it makes a wheel."""

Settings = Mapping[str, Any] | None


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    """Returns the requirements of a build, if there is a Rust toolchain."""
    toolchain.check()
    return [MATURIN]


get_requires_for_build_editable = get_requires_for_build_wheel
get_requires_for_build_sdist = get_requires_for_build_wheel


def prepare_metadata_for_build_wheel(
    metadata_directory: str, config_settings: Settings = None
) -> str:
    """Writes the metadata alone."""
    name: str = _maturin().prepare_metadata_for_build_wheel(metadata_directory, config_settings)
    return name


prepare_metadata_for_build_editable = prepare_metadata_for_build_wheel


def build_wheel(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    """Builds a wheel and returns its file name."""
    return _build("build_wheel", wheel_directory, config_settings, metadata_directory)


def build_editable(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    """Builds the wheel of ``pip install --editable``, whose Python files stay in their folder."""
    return _build("build_editable", wheel_directory, config_settings, metadata_directory)


def build_sdist(sdist_directory: str, config_settings: Settings = None) -> str:
    """Fails: the command is built from crates of the repository that such an archive lacks."""
    raise SystemExit(
        "kvmem: there is no source distribution of the Python package: the kvmem command is "
        "compiled from the whole repository. Install from the repository, or make wheels with "
        "`cargo xtask wheel`"
    )


def _build(hook: str, folder: str, settings: Settings, metadata: str | None) -> str:
    """Runs maturin's hook and completes its wheel."""
    maturin = _maturin()
    with progress.shown() as watch:
        with _stage(settings, watch) as stage:
            with watch.step("the Python module", toolchain.crates("kvmem-python")):
                name: str = getattr(maturin, hook)(folder, settings, metadata)
            archive.complete(Path(folder) / name, stage)
    return name


@contextlib.contextmanager
def _stage(settings: Settings, watch: progress.Progress) -> Iterator[Path]:
    """Yields the folder with the files that are added to maturin's."""
    named = (settings or {}).get("stage")
    if named:
        yield Path(named)
        return
    with tempfile.TemporaryDirectory(prefix="kvmem-stage-") as made:
        scripts = Path(made) / "scripts"
        scripts.mkdir()
        with watch.step("the kvmem command", toolchain.crates("kvmem-cli")):
            shutil.copy2(toolchain.build_command(), scripts / "kvmem")
        yield Path(made)


def _maturin() -> Any:
    """Returns maturin's backend. It must not install a toolchain by itself."""
    toolchain.check()
    os.environ["MATURIN_NO_INSTALL_RUST"] = "1"
    return importlib.import_module("maturin")
