"""``python -m kvmem``: the ``kvmem`` command of this installation.

The package installs ``kvmem``, the same program that ``cargo install`` builds, among the scripts of
its environment. This module starts it, so ``python -m kvmem`` works where that folder is not in
``PATH``. ``serve-mooncake`` is written in Python and runs in this interpreter."""

import os
import sys
import sysconfig
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path


def program() -> Path | None:
    """Returns the file of the command, as the installer recorded it."""
    try:
        files = metadata.distribution("kvmem").files or []
    except metadata.PackageNotFoundError:
        files = []
    recorded = [Path(str(file.locate())) for file in files if file.name == "kvmem"]
    for file in (*recorded, Path(sysconfig.get_path("scripts")) / "kvmem"):
        if file.is_file() and os.access(file, os.X_OK):
            return file.resolve()
    return None


def main(arguments: Sequence[str] | None = None) -> int:
    """Becomes the command. Returns only if there is none, or for ``serve-mooncake``."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if arguments[:1] == ["serve-mooncake"]:
        from .mooncake import command

        return command.main(arguments[1:])
    file = program()
    if file is None:
        print(
            "kvmem: this installation has no kvmem command: install the package with `pip install "
            "./crates/kvmem-python` in kvmem's repository, or the command alone with `cargo "
            "install --path crates/kvmem-cli`",
            file=sys.stderr,
        )
        return 2
    sys.stdout.flush()
    os.execv(file, [str(file), *arguments])


if __name__ == "__main__":
    sys.exit(main())
