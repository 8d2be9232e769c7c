"""*Output files*: either complete or unchanged."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from pathlib import Path


def write_file(path: str | os.PathLike[str], text: str) -> None:
    """Writes ``text`` to the file at ``path`` and replaces its earlier content.

    The text goes to a new file in the same folder, which is then renamed. If the call fails or is
    interrupted, the earlier file stays unchanged. The new file keeps the mode of the earlier one,
    and a symbolic link stays a link. Devices, pipes, and files in a folder that accepts no new
    files are written directly.

    Raises :class:`OSError` as :func:`open` and :func:`os.replace` do.
    """
    target = Path(os.path.realpath(path))
    try:
        mode = target.stat().st_mode
    except FileNotFoundError:
        umask = os.umask(0o077)
        os.umask(umask)
        mode = stat.S_IFREG | (0o666 & ~umask)
    replacement = _new_file_beside(target) if stat.S_ISREG(mode) else None
    if replacement is None:
        with open(path, "w", encoding="utf-8") as direct:
            direct.write(text)
        return
    descriptor, name = replacement
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fchmod(file.fileno(), stat.S_IMODE(mode))
            os.fsync(file.fileno())
        os.replace(name, target)
    except BaseException:
        os.unlink(name)
        raise


def _new_file_beside(target: Path) -> tuple[int, str] | None:
    """Creates a file in the target's folder. Returns None if the folder accepts no new files."""
    try:
        return tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    except PermissionError:
        return None
    except OSError as error:
        if error.errno == errno.EROFS:
            return None
        raise
