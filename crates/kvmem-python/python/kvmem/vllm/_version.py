"""*Version*: the releases of vLLM whose interfaces this package knows.

vLLM calls its offloading interfaces experimental, and changes them between minor releases. Both
ends of the range are tested. Outside it every class of this package raises, because a wrong guess
about an interface would show as wrong bytes and not as an exception.
"""

from __future__ import annotations

import importlib.metadata
import re

from .errors import UnsupportedVersionError

OLDEST = (0, 32)
"""First supported minor release."""
NEWEST = (0, 33)
"""Last supported minor release."""

REMEDY = f"pip install 'vllm>={OLDEST[0]}.{OLDEST[1]},<{NEWEST[0]}.{NEWEST[1] + 1}'"


def installed() -> str:
    """Returns the version of the installed vLLM.

    Raises :class:`UnsupportedVersionError` if there is none.
    """
    try:
        return importlib.metadata.version("vllm")
    except importlib.metadata.PackageNotFoundError as error:
        raise UnsupportedVersionError("vLLM is not installed", remedy=REMEDY) from error


def check_version() -> str:
    """Returns the version of the installed vLLM if it is supported.

    Raises :class:`UnsupportedVersionError` otherwise.
    """
    version = installed()
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is None or not OLDEST <= (int(found[1]), int(found[2])) <= NEWEST:
        raise UnsupportedVersionError(
            f"vLLM {version} is installed; kvmem.vllm supports {OLDEST[0]}.{OLDEST[1]} to "
            f"{NEWEST[0]}.{NEWEST[1]}: {REMEDY}",
            found=version,
            remedy=REMEDY,
        )
    return version
