"""*Device*: the backend that ``LMCACHE_DEVICE_BACKEND=kvmem`` chooses.

It is the backend of the machine's accelerator (CUDA if there is one, otherwise the CPU) with other
host memory. Transfers, kernels, streams and interprocess handles are the ones that LMCache ships.

LMCache reads :data:`KvmemDeviceSpec` when it detects devices, during its own import. If a program
reads the attribute first, that import reads it again, recursively: the inner access creates the
class, and both accesses return it. If LMCache is configured to use this backend and cannot, the
access raises :class:`BackendUnusedError`, which LMCache logs as a warning.

Environment variables, other than ``LMCACHE_DEVICE_BACKEND``:

- ``KVMEM_LMCACHE_BASE``: name of another LMCache backend to build upon.
- ``KVMEM_LMCACHE_DEVICES`` and ``KVMEM_LMCACHE_PAGES``: ``devices`` and ``pages`` of
  :class:`~kvmem.lmcache.HostMemory`.
- ``KVMEM_LMCACHE_ADDRESS_MANAGER=0`` keeps LMCache's own class."""

import importlib
import importlib.util
import logging
import os
import sys
from collections.abc import Callable
from typing import Any

from .._kvmem import AddressManager
from ..errors import KvmemError
from ..storage.versions import UnsupportedVersionError, check_version
from .memory import HostMemory

_log = logging.getLogger("kvmem")

NAME = "kvmem"
"""Value of ``LMCACHE_DEVICE_BACKEND`` that chooses this backend."""
HOME = "lmcache.v1.memory_management"
"""The module of LMCache's AddressManager."""
SUPPORTED = ("0.5.6", "0.6")
"""First supported version of LMCache, and the first one that is not."""


class BackendUnusedError(KvmemError, ImportError):
    """LMCache's host memory is not kvmem's, although kvmem's was requested."""


def replace_address_manager() -> int:
    """Replaces LMCache's class by :class:`AddressManager`, in its module and in every module that
    has imported it from there. Returns the number of modules: 0 if the class was replaced before.
    Existing heaps do not change. Raises ``ImportError`` without LMCache."""
    theirs = importlib.import_module(HOME).AddressManager
    if theirs is AddressManager:
        return 0
    replaced = 0
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "lmcache" and vars(module).get("AddressManager") is theirs:
            vars(module)["AddressManager"] = AddressManager
            replaced += 1
    _log.info("LMCache's AddressManager replaced in %d modules", replaced)
    return replaced


def is_chosen() -> bool:
    """Returns whether LMCache is configured to use this backend."""
    return os.environ.get("LMCACHE_DEVICE_BACKEND", "").strip().lower() == NAME


def base_spec() -> type[Any]:
    """Returns the DeviceSpec that the environment names, or else CUDA's, or else the CPU's."""
    from lmcache.v1.platform.base.device_spec import DeviceSpec

    named = os.environ.get("KVMEM_LMCACHE_BASE", "").strip().lower()
    for name in [named] if named else ["cuda", "cpu"]:
        try:
            module = importlib.import_module(f"lmcache.v1.platform.devices.{name}")
        except ImportError:
            if name != "cpu" and not named:
                continue
            module = sys
        for found in vars(module).values():
            ours = (
                isinstance(found, type)
                and issubclass(found, DeviceSpec)
                and found.__module__ == module.__name__
            )
            if ours and (named or name == "cpu" or found().is_available()):
                spec: type[Any] = found
                return spec
    raise BackendUnusedError(
        f"LMCache has no backend {named or 'cpu'!r} to build kvmem's upon",
        remedy="set KVMEM_LMCACHE_BASE to cuda or cpu, or unset it",
    )


class MemoryOps:
    """A mixin of LMCache's operations that allocate and free host memory."""

    host_memory: HostMemory

    def _allocate(self, allocate: Callable[[], int]) -> int:
        module = sys.modules.get(HOME)
        if module is not None and os.environ.get("KVMEM_LMCACHE_ADDRESS_MANAGER", "1") != "0":
            # LMCache allocates the memory before it manages the addresses in it.
            replace_address_manager()
        try:
            return allocate()
        except (MemoryError, OSError) as error:
            # LMCache catches this exception and searches its message for these words.
            raise RuntimeError(f"mmap failed: {error}") from error

    def alloc_pinned_ptr(self, size: int, device_id: int = 0) -> int:
        return self._allocate(lambda: self.host_memory.allocate(size))

    def alloc_pinned_numa_ptr(self, size: int, numa_id: int = 0) -> int:
        return self._allocate(lambda: self.host_memory.allocate(size, numa=numa_id))

    def alloc_numa_ptr(self, size: int, numa_id: int = 0) -> int:
        return self._allocate(lambda: self.host_memory.allocate(size, numa=numa_id, pinned=False))

    def alloc_hugepage_pinned_ptr(self, size: int, device_id: int = 0) -> int:
        return self._allocate(lambda: self.host_memory.allocate(size, hugepages=True))

    def alloc_hugepage_pinned_numa_ptr(self, size: int, numa_id: int = 0) -> int:
        return self._allocate(lambda: self.host_memory.allocate(size, numa=numa_id, hugepages=True))

    def alloc_shm_pinned_ptr(self, size: int, shm_name: str = "") -> int:
        return self._allocate(lambda: self.host_memory.allocate_shared(size, shm_name))

    def free_pinned_ptr(self, ptr: int, size: int | None = None, shm_name: str = "") -> None:
        self.host_memory.free(ptr)

    free_pinned_numa_ptr = free_numa_ptr = free_hugepage_pinned_ptr = free_pinned_ptr
    free_hugepage_pinned_numa_ptr = free_shm_pinned_ptr = free_pinned_ptr


OPERATIONS = [name for name in vars(MemoryOps) if name.startswith(("alloc_", "free_"))]
"""Names of LMCache's operations that kvmem replaces."""


def memory_ops(base: type[Any], device_type: str) -> type[Any]:
    """Returns the operations of a backend, overridden by those of :class:`MemoryOps`."""

    class KvmemOps(MemoryOps, base):  # type: ignore[misc]
        """Another backend's operations, with kvmem's host memory."""

        def __init__(self) -> None:
            super().__init__()
            # CUDA needs pinned memory to be registered with it; the CPU only needs resident pages.
            devices = os.environ.get(
                "KVMEM_LMCACHE_DEVICES", "cuda" if device_type == "cuda" else None
            )
            self.host_memory = HostMemory(
                pages=os.environ.get("KVMEM_LMCACHE_PAGES") or None, devices=devices
            )

        def bind_native(self, module: object) -> None:
            super().bind_native(module)
            # The base class has put the module's functions into the instance, where they hide the
            # methods of the class.
            for name in OPERATIONS:
                self.__dict__.pop(name, None)

    return KvmemOps


def device_spec(base: type[Any]) -> type[Any]:
    """Returns a backend named ``kvmem`` that builds upon another one."""

    class KvmemDeviceSpec(base):  # type: ignore[misc]
        """Another backend, with kvmem's host memory."""

        @property
        def backend_name(self) -> str:
            return NAME

        def is_available(self) -> bool:
            # Only if it was chosen: LMCache picks a second available backend, or rejects it.
            return is_chosen() and (self.device_type == "cpu" or bool(super().is_available()))

        @property
        def ops_cls(self) -> type[Any]:
            return memory_ops(super().ops_cls, self.device_type)

    return KvmemDeviceSpec


def _make() -> type[Any]:
    """Returns the class that the entry point names, and creates it on the first call."""
    try:
        check_version("lmcache", *SUPPORTED)
    except UnsupportedVersionError as error:
        raise BackendUnusedError(
            f"{error}, so LMCache's host memory is not kvmem's", remedy=error.remedy
        ) from error
    try:
        import lmcache  # noqa: F401
    except ImportError as error:
        raise BackendUnusedError(
            f"LMCache cannot be imported ({error})", remedy="pip install 'lmcache>=0.5.6,<0.6'"
        ) from error
    # That import may have called this function.
    made: type[Any] | None = globals().get("KvmemDeviceSpec")
    if made is not None:
        return made
    if is_chosen() and not _has_torch():
        raise BackendUnusedError(
            f"LMCACHE_DEVICE_BACKEND={NAME} is set, but PyTorch cannot be imported. Without it "
            "LMCache uses no backend, so its host memory is NOT kvmem's: install PyTorch, or unset "
            "the variable",
            remedy="pip install torch",
        )
    made = globals()["KvmemDeviceSpec"] = device_spec(base_spec())
    return made


def _has_torch() -> bool:
    if "torch" in sys.modules:
        return sys.modules["torch"] is not None
    try:
        return importlib.util.find_spec("torch") is not None
    except (ImportError, ValueError):
        return False


def __getattr__(name: str) -> Any:
    if name == "KvmemDeviceSpec":
        return _make()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def check_backend() -> None:
    """Raises :class:`BackendUnusedError` unless LMCache's host memory here is kvmem's."""
    if not is_chosen():
        chosen = os.environ.get("LMCACHE_DEVICE_BACKEND")
        raise BackendUnusedError(
            f"LMCACHE_DEVICE_BACKEND is {chosen!r}, not {NAME!r}: LMCache uses its own host memory",
            remedy=f"export LMCACHE_DEVICE_BACKEND={NAME}",
        )
    _make()
    lmcache = importlib.import_module("lmcache")
    operations = getattr(lmcache, "device_ops", None)
    if not isinstance(operations, MemoryOps):
        raise BackendUnusedError(
            "LMCache uses its own host memory: it was imported before "
            f"LMCACHE_DEVICE_BACKEND={NAME} was set, or rejected the backend (its operations are "
            f"{type(operations).__name__})",
            remedy="set the variable before LMCache is imported, and see LMCache's log",
        )
