"""The stand-in for the driver of GPUs that the tests of the registrar ``cuda`` use."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parent
ROOT = TESTS.parents[2]


def compiled(folder: Path) -> str:
    """Compiles it into a folder, and returns its path."""
    if shutil.which("cc") is None:
        # Not at the top: processes of engines import this module as well.
        import pytest

        pytest.skip("there is no C compiler: apt-get install gcc")
    library = folder / "libcuda.so.1"
    source = ROOT / "crates/kvmem/tests/standin/cuda.c"
    options = ["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-pthread"]
    subprocess.run(["cc", *options, str(source), "-o", str(library)], check=True)
    return str(library)


class Driver:
    """The driver, loaded into this process: the registrar of kvmem finds it by its name."""

    def __init__(self, library: str) -> None:
        self._library: Any = ctypes.CDLL(library)
        self._library.standin_get.restype = ctypes.c_uint64
        self._library.standin_get.argtypes = [ctypes.c_char_p, ctypes.c_uint64]
        for name in ("cuMemcpyDtoHAsync_v2", "cuMemcpyHtoDAsync_v2", "cuMemcpyAsync"):
            getattr(self._library, name).argtypes = [
                ctypes.c_void_p,
                ctypes.c_void_p,
                ctypes.c_size_t,
                ctypes.c_void_p,
            ]
        self._gpu = ctypes.create_string_buffer(0)

    def number(self, name: str) -> int:
        """Returns a number of the driver, such as ``crossed``: copies that met an edge."""
        return int(self._library.standin_get(name.encode(), 0))

    def fail(self, name: bytes, nth: int, times: int, error: int) -> None:
        """Makes calls of a function fail, from the ``nth`` one from now on."""
        self._library.standin_fail(name, ctypes.c_uint64(nth), ctypes.c_uint64(times), error)

    def copy(self, address: int, nbytes: int) -> int:
        """Copies from the GPU to an address and back. Returns the first error, or 0. The caller
        has registered memory: the driver has a context.
        """
        if len(self._gpu) < nbytes:
            self._gpu = ctypes.create_string_buffer(nbytes)
        gpu = ctypes.addressof(self._gpu)
        return self.run("cuMemcpyDtoHAsync_v2", address, gpu, nbytes) or self.run(
            "cuMemcpyHtoDAsync_v2", gpu, address, nbytes
        )

    def cudaHostRegister(self, address: int, nbytes: int, flags: int) -> int:
        """Registers memory as the runtime does for an engine."""
        register = self._library.cuMemHostRegister_v2
        register.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint]
        return self._in_context(lambda: register(address, nbytes, flags))

    def run(self, name: str, target: int, source: int, nbytes: int) -> int:
        """Calls one of the functions that copy, and returns its result."""
        copy = getattr(self._library, name)
        return self._in_context(lambda: copy(target, source, nbytes, None))

    def _in_context(self, call: Callable[[], int]) -> int:
        context = ctypes.c_void_p()
        self._library.cuCtxPushCurrent_v2(ctypes.c_void_p(1))
        try:
            return call()
        finally:
            self._library.cuCtxPopCurrent_v2(ctypes.byref(context))
