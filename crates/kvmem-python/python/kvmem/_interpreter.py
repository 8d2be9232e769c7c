"""*Interpreter*: fails the import on an interpreter that cannot load the extension module."""

import sys
import sysconfig

if sysconfig.get_config_var("Py_GIL_DISABLED"):
    # The module has the stable ABI, which free-threaded builds of CPython do not load. Without this
    # line the import fails with "No module named 'kvmem._kvmem'".
    _version = f"{sys.version_info.major}.{sys.version_info.minor}"
    raise ImportError(
        f"kvmem does not run on a free-threaded build of CPython, and {sys.executable} is one "
        f"({_version}t): use the build with the GIL, such as python{_version}, and install kvmem "
        "there",
        name="kvmem",
    )
