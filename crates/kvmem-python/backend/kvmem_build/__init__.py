"""The build backend of the package (PEP 517): maturin, and what a wheel of kvmem has beside it.

``pip`` calls the functions of :mod:`.hooks`. They check for a Rust toolchain before anything is
downloaded (:mod:`.toolchain`), show on the terminal what is compiled (:mod:`.progress`), and add
the ``kvmem`` command to the wheel that maturin has made (:mod:`.archive`). Nothing here needs
more than the standard library, and maturin is imported when a wheel is made.
"""

from .hooks import (
    build_editable,
    build_sdist,
    build_wheel,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]
