"""*C library*: the folders of ``libkvmem`` and its headers, which a wheel contains.

``python -m kvmem.config`` prints them as options of a compiler."""

from pathlib import Path

from .errors import NotInstalledError

_FOLDER = Path(__file__).resolve().parent


def get_include() -> str:
    """Returns the folder of ``kvmem.h`` and ``kvmem.hpp``. Raises :class:`NotInstalledError` if
    this installation has no C library."""
    return _present("include", "kvmem.h")


def get_library_dir() -> str:
    """Returns the folder of ``libkvmem.so``, with ``pkgconfig`` and ``cmake/kvmem`` in it. Raises
    :class:`NotInstalledError` if this installation has no C library."""
    return _present("lib", "libkvmem.so")


def _present(folder: str, file: str) -> str:
    found = _FOLDER / folder
    if not (found / file).exists():
        remedy = (
            "in kvmem's repository, run `cargo xtask install --prefix DIR` for the C library "
            "alone, or install a wheel that `cargo xtask wheel` has made"
        )
        raise NotInstalledError(
            f"this installation of kvmem has no C library: {found / file} is missing: {remedy}",
            remedy=remedy,
        )
    return str(found)
