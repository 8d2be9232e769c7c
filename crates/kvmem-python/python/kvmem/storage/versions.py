"""*Versions*: the versions of an engine that a plug-in is written against."""

import importlib.metadata
import logging
import re
from collections.abc import Iterable, Sequence

from ..errors import KvmemError

_log = logging.getLogger("kvmem")


class UnsupportedVersionError(KvmemError, ImportError):
    """The installed version of an engine, ``value``, is not one that the plug-in supports, which
    are ``limit``. ``remedy`` is the command that installs one of them."""


def numbers(version: str) -> tuple[int, ...]:
    """Returns the leading numbers of a version: (0, 5, 23) for ``0.5.23.post1``."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def installed(names: Iterable[str]) -> tuple[str, str] | None:
    """Returns the first of these distributions that is installed, and its version."""
    for name in names:
        try:
            return name, importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def check_version(
    engine: str | Sequence[str], first: str, below: str, version: str | None = None
) -> None:
    """Raises :class:`UnsupportedVersionError` unless the installed version of ``engine``, or the
    ``version`` if it is known, is ``first`` or later, and before ``below``. An engine that has
    several distributions is the first of them that is installed. An engine without metadata, such
    as a source tree, is used with a warning."""
    names = [engine] if isinstance(engine, str) else engine
    found = installed(names) if version is None else (names[0], version)
    engine, version = found or (names[0], "")
    if found is None:
        _log.warning(
            "%s has no metadata, so its version is not checked: this plug-in supports %s>=%s,<%s",
            engine,
            engine,
            first,
            below,
        )
        return
    if not numbers(first) <= numbers(version) < numbers(below):
        limit = f">={first},<{below}"
        raise UnsupportedVersionError(
            f"{engine} {version} is installed, and this plug-in supports {engine}{limit}",
            value=version,
            limit=limit,
            remedy=f"pip install '{engine}{limit}'",
        )
