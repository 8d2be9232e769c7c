"""The build backend of the package (PEP 517): maturin, and the other contents of a wheel of kvmem.

``pip`` calls the functions of :mod:`.hooks`. They check for a Rust toolchain before anything is
downloaded (:mod:`.toolchain`), show on the terminal what is compiled (:mod:`.progress`), and add
the ``kvmem`` command to the wheel that maturin has made (:mod:`.archive`). Nothing here needs
more than the standard library, and maturin is imported when a wheel is made."""

from .hooks import *  # noqa: F403
