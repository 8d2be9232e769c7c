"""*Engine*: NIXL's own agent: one call at a time, from its creation to its end.

In a forked child NIXL's agent must not even be destroyed: its threads do not exist there, and its
connections belong to the parent. A child therefore never frees it."""

import contextlib
import ctypes
import importlib
import logging
import os
import re
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .._kvmem import Pool
from ..errors import ClosedError, ForkedError, NotAvailableError, NotReadyError
from ..storage.versions import check_version
from .descriptors import TransferViews
from .errors import TransferError, UnregisteredError, raised

INSTALL = "pip install --no-deps {} nixl && pip install numpy"
WHEEL = "nixl-cu12"
"""Wheel that contains NIXL's library, unless an error names that of another CUDA version."""
SUPPORTED = ("1.5", "2")
"""First supported version of NIXL, and the first one that is not."""
log = logging.getLogger("kvmem.nixl")

CARDS = Path("/sys/class/infiniband")
"""Folder in which the kernel lists InfiniBand and RoCE devices."""


def avoid_ib(cards: Path = CARDS) -> bool:
    """Sets ``UCX_MODULES=^ib`` if there is no InfiniBand device, so UCX does not load its module
    ``ib``. Returns whether it set the variable.

    The wheels of NIXL 1.5.1 contain their own ``libibverbs``. If the system's drivers for it are
    installed (Debian's ``ibverbs-providers``), every process that has made an agent ends with
    SIGSEGV. If there is a device, or ``UCX_MODULES`` is set, nothing changes. Call this before UCX
    is loaded."""
    if "UCX_MODULES" in os.environ or (cards.is_dir() and any(cards.iterdir())):
        return False
    os.environ["UCX_MODULES"] = "^ib"
    log.warning(
        "no InfiniBand device in %s: UCX_MODULES=^ib is set, so UCX does not load its module for "
        "them",
        cards,
    )
    return True


def library() -> Any:
    """Imports NIXL's module. Unless NIXL_LOG_LEVEL is set, only its warnings are logged: by default
    it reports everything on standard output. Raises :class:`~kvmem.NotAvailableError` with the
    remedy, and :class:`~kvmem.storage.UnsupportedVersionError` for a version that is not supported.
    """
    raise_exceptions = logging.raiseExceptions
    avoid_ib()
    try:
        module = importlib.import_module("nixl._api")
    except ImportError as error:
        # If PyTorch is installed, NIXL requires and names the wheel of the same CUDA version,
        # although no CUDA is used.
        named = re.search(r"\bnixl-cu\d+\b", str(error))
        remedy = INSTALL.format(named[0] if named else WHEEL)
        raise NotAvailableError(
            f"NIXL cannot be imported ({error}): {remedy}", device="nixl", remedy=remedy
        ) from error
    finally:
        logging.raiseExceptions = raise_exceptions  # NIXL changes it for the whole program
    check_version("nixl", *SUPPORTED)
    if "NIXL_LOG_LEVEL" not in os.environ:
        logging.getLogger("nixl").setLevel(logging.WARNING)
    return module


class ActiveTransfer:
    """A transfer in NIXL, and the blocks that it reads or writes."""

    __slots__ = ("abandoned", "error", "handle", "peer", "views", "what")

    def __init__(self, what: str, peer: str, handle: Any, views: TransferViews) -> None:
        self.what, self.peer, self.handle, self.views = what, peer, handle, views
        self.error: Exception | None = None
        self.abandoned = False


class Engine:
    """NIXL's agent with one backend, the registration of a pool, and the active transfers."""

    def __init__(self, pool: Pool, name: str, backend: str) -> None:
        api = library()
        self.name = name
        self.pid = os.getpid()
        self.lock = threading.RLock()
        self.active: set[ActiveTransfer] = set()
        self.peers: set[str] = set()
        self.agent: Any = None
        self.hold = pool.hold()
        try:
            if pool.initializing:
                raise NotReadyError(
                    "the pool is still being initialized, and is registered as a whole: call "
                    "pool.wait_ready() first",
                    ready=pool.ready_bytes,
                    capacity=pool.capacity,
                )
            self.start, self.stop = pool.ptr, pool.ptr + pool.capacity
            self.agent = _open(api, name, backend)
            try:
                region = [(self.start, self.stop - self.start, 0, "")]
                self.registered = self.agent.register_memory(
                    region, mem_type="DRAM", backends=[backend]
                )
            except Exception as error:
                raise raised(
                    f"cannot register the pool's {self.stop - self.start} bytes", error
                ) from error
        except BaseException:
            self.agent = None
            self.hold.release()
            raise
        _engines.add(self)

    def use(self) -> Any:
        """Returns NIXL's agent. Raises :class:`ForkedError` or :class:`ClosedError`."""
        if os.getpid() != self.pid:
            raise ForkedError(
                "the agent was made before this process was forked, and stays with the parent: "
                "make a new one here"
            )
        if self.agent is None:
            raise ClosedError("the agent has been closed")
        return self.agent

    @contextlib.contextmanager
    def calling(self, doing: str) -> Iterator[Any]:
        """Yields NIXL's agent under the lock, and converts its errors."""
        with self.lock:
            agent = self.use()
            try:
                yield agent
            except Exception as error:
                raise raised(doing, error) from error

    def is_over(self, transfer: ActiveTransfer) -> bool:
        """Polls a transfer and returns whether it is over. Its blocks are then released."""
        with self.lock:
            if transfer not in self.active or transfer.error is not None:
                return True
            try:
                state = self.use().check_xfer_state(transfer.handle)
            except (ClosedError, ForkedError):
                raise
            except Exception as error:
                failure = raised(transfer.what, error)
                if isinstance(failure, UnregisteredError):
                    # NIXL has forgotten the peer, but UCX has not: it may use the memory until the
                    # agent ends.
                    transfer.error = failure
                else:
                    self.finish(transfer, failure)
                return True
            if state == "PROC":
                return False
            failed = TransferError(
                f"{transfer.what}: the transfer failed; see NIXL's output on standard error"
            )
            self.finish(transfer, failed if state != "DONE" else None)
            return True

    def finish(self, transfer: ActiveTransfer, error: Exception | None) -> None:
        """Releases a transfer that is over, in NIXL, and its blocks."""
        self.active.discard(transfer)
        transfer.error = error
        try:
            if transfer.handle is not None:
                transfer.handle.release()
        except Exception as failure:
            log.warning("NIXL did not release a transfer that is over: %s", failure)
        transfer.handle = None
        transfer.views.release()

    def poll_abandoned(self) -> None:
        """Polls transfers whose :class:`Transfer` was dropped."""
        for transfer in [transfer for transfer in self.active if transfer.abandoned]:
            self.is_over(transfer)

    def end(self, timeout: float) -> int:
        """Waits at most ``timeout`` seconds for the active transfers, then ends the agent. Returns
        how many transfers were ended; 0 on a second call."""
        if self.agent is None or os.getpid() != self.pid:
            return 0
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            with self.lock:
                over = [
                    self.agent is None or self.is_over(transfer) for transfer in list(self.active)
                ]
                if all(over):
                    break
            time.sleep(0.001)
        with self.lock:
            over = [self.agent is None or self.is_over(transfer) for transfer in list(self.active)]
            agent, self.agent = self.agent, None
            if agent is None:
                return 0
            ended = list(self.active)
            for transfer in ended:
                # NIXL may use the memory until the agent is gone, whatever this returns.
                _quietly("release a transfer", transfer.handle.release)
                transfer.handle = None
            for peer in self.peers:
                _quietly(f"forget {peer}", agent.remove_remote_agent, peer)
            _quietly("deregister the pool", agent.deregister_memory, self.registered)
            del agent
            self.registered = None
            error = TransferError(
                "the agent was closed before the transfer was over: the content of the blocks is "
                "undefined"
            )
            for transfer in ended:
                self.finish(transfer, transfer.error or error)
            self.hold.release()
        running = over.count(False)
        if running:
            log.warning("%s was closed with %d running transfer(s)", self.name, running)
        return running


def _quietly(doing: str, call: Any, *arguments: Any) -> None:
    try:
        call(*arguments)
    except Exception as error:
        log.warning("NIXL did not %s: %s", doing, error)


def _open(api: Any, name: str, backend: str) -> Any:
    """Creates an agent with one backend."""
    try:
        agent = api.nixl_agent(name, api.nixl_agent_config(backends=[]))
    except Exception as error:
        raise NotAvailableError(f"NIXL cannot create an agent: {error}", device="nixl") from error
    plugins = ", ".join(agent.get_plugin_list())
    if backend not in agent.get_plugin_list():
        raise NotAvailableError(
            f"NIXL has no backend {backend!r}: choose one of {plugins}",
            device="nixl",
            remedy=f"one of {plugins}",
        )
    try:
        agent.create_backend(backend)
    except Exception as error:
        raise NotAvailableError(
            f"NIXL's backend {backend} cannot be started on this machine: {error}", device="nixl"
        ) from error
    kinds = agent.get_backend_mem_types(backend)
    if "DRAM_SEG" not in kinds:
        message = f"NIXL's backend {backend} does not support host memory, only {', '.join(kinds)}"
        raise NotAvailableError(message, device="nixl", remedy="use UCX")
    return agent


_engines: weakref.WeakSet[Engine] = weakref.WeakSet()


def _keep_for_ever() -> None:
    """Keeps the objects of every engine alive forever, in a forked child."""
    for engine in list(_engines):
        objects = [
            getattr(engine.agent, "agent", None),
            *(transfer.handle for transfer in engine.active),
        ]
        engine.lock = threading.RLock()  # the owner of the old one may not exist here
        for value in objects:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))


os.register_at_fork(after_in_child=_keep_for_ever)
