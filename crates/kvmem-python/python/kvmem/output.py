"""*Output files*: complete or as they were before."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from pathlib import Path


def write_file(path: str | os.PathLike[str], text: str) -> None:
    """Writes ``text`` to the file at ``path``, in place of its earlier content.

    The text goes to a new file in the same folder, which then takes the name: a run that fails or
    is interrupted leaves the earlier file as it was. The mode of the earlier file stays, and so does
    a symbolic link. A device, a pipe, and a file in a folder that takes no new files are written
    directly.

    Raises :class:`OSError` as :func:`open` and :func:`os.replace` do.
    """
    target = Path(os.path.realpath(path))
    try:
        mode = target.stat().st_mode
    except FileNotFoundError:
        umask = os.umask(0o077)
        os.umask(umask)
        mode = stat.S_IFREG | (0o666 & ~umask)
    beside_it = _beside(target) if stat.S_ISREG(mode) else None
    if beside_it is None:
        with open(path, "w", encoding="utf-8") as direct:
            direct.write(text)
        return
    descriptor, name = beside_it
    try:
        with open(descriptor, "w", encoding="utf-8") as beside:
            beside.write(text)
            beside.flush()
            os.fchmod(beside.fileno(), stat.S_IMODE(mode))
            os.fsync(beside.fileno())
        os.replace(name, target)
    except BaseException:
        os.unlink(name)
        raise


def _beside(target: Path) -> tuple[int, str] | None:
    """A new file in the target's folder, or None if the folder takes none."""
    try:
        return tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    except PermissionError:
        return None
    except OSError as error:
        if error.errno == errno.EROFS:
            return None
        raise
