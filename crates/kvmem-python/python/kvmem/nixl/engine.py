"""*Engine*: NIXL's own agent, one call at a time, from its beginning to its end.

In a forked child it must not even be destroyed: its threads are not there, and its connections are the parent's. So a child keeps it for ever.
"""

from __future__ import annotations

import ctypes
import importlib
import logging
import os
import re
import threading
import time
import weakref
from pathlib import Path
from typing import Any

from .._kvmem import Pool
from ..errors import ClosedError, ForkedError, NotAvailableError, NotReadyError
from .descriptors import Pieces
from .errors import TransferError, UnregisteredError, raised

INSTALL = "pip install --no-deps {} nixl && pip install numpy"
WHEEL = "nixl-cu12"
"""What has NIXL's library, where nothing asks for that of another CUDA."""
log = logging.getLogger("kvmem.nixl")

CARDS = Path("/sys/class/infiniband")
"""Where the kernel lists InfiniBand and RoCE devices."""


def avoid_ib(cards: Path = CARDS) -> bool:
    """Keeps UCX from loading its module ``ib`` where it has nothing to do: sets
    ``UCX_MODULES=^ib``, and returns whether it did.

    The wheels of NIXL 1.5.1 bring their own ``libibverbs``. Beside the system's drivers for it
    (Debian's ``ibverbs-providers``) every process that has made an agent ends with SIGSEGV. Where
    there is a device, or ``UCX_MODULES`` is set, nothing is changed. It is for the time before UCX
    is loaded.
    """
    if "UCX_MODULES" in os.environ or (cards.is_dir() and any(cards.iterdir())):
        return False
    os.environ["UCX_MODULES"] = "^ib"
    log.warning(
        "no InfiniBand device in %s: UCX_MODULES=^ib is set, so UCX does not load its module for them",
        cards,
    )
    return True


def library() -> Any:
    """NIXL's module. It says what it does on standard output, unless NIXL_LOG_LEVEL is set; here only warnings."""
    raise_exceptions = logging.raiseExceptions
    avoid_ib()
    try:
        module = importlib.import_module("nixl._api")
    except ImportError as error:
        # With PyTorch there it wants the wheel of the same CUDA, and names it, though no CUDA is used.
        named = re.search(r"\bnixl-cu\d+\b", str(error))
        remedy = INSTALL.format(named[0] if named else WHEEL)
        raise NotAvailableError(
            f"NIXL cannot be imported ({error}): {remedy}", device="nixl", remedy=remedy
        ) from error
    finally:
        logging.raiseExceptions = raise_exceptions  # which it sets for the whole program
    if "NIXL_LOG_LEVEL" not in os.environ:
        logging.getLogger("nixl").setLevel(logging.WARNING)
    return module


class Flight:
    """A transfer as NIXL has it, and the blocks that it reads or writes."""

    __slots__ = ("error", "forgotten", "handle", "peer", "pieces", "what")

    def __init__(self, what: str, peer: str, handle: Any, pieces: Pieces) -> None:
        self.what, self.peer, self.handle, self.pieces = what, peer, handle, pieces
        self.error: Exception | None = None
        self.forgotten = False


class Engine:
    """NIXL's agent with one backend, the registration of a pool, and what is in flight."""

    def __init__(self, pool: Pool, name: str, backend: str) -> None:
        api = library()
        self.name = name
        self.pid = os.getpid()
        self.lock = threading.RLock()
        self.flights: set[Flight] = set()
        self.peers: set[str] = set()
        self.agent: Any = None
        self.hold = pool.hold()
        try:
            if pool.initializing:
                raise NotReadyError(
                    "the pool is still being made ready, and is registered as a whole: pool.wait_ready() first",
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
                    f"the pool's {self.stop - self.start} bytes were not registered", error
                ) from error
        except BaseException:
            self.agent = None
            self.hold.release()
            raise
        _engines.add(self)

    def use(self) -> Any:
        """NIXL's agent, if it can be used. The caller has the lock."""
        if os.getpid() != self.pid:
            raise ForkedError(
                "the agent was made before this process was forked, and stays with the parent: make a new one here"
            )
        if self.agent is None:
            raise ClosedError("the agent has been closed")
        return self.agent

    def is_over(self, flight: Flight) -> bool:
        """Whether a flight has landed or failed. Its blocks are let go of then."""
        with self.lock:
            if flight not in self.flights or flight.error is not None:
                return True
            try:
                state = self.use().check_xfer_state(flight.handle)
            except (ClosedError, ForkedError):
                raise
            except Exception as error:
                failure = raised(flight.what, error)
                if isinstance(failure, UnregisteredError):
                    # NIXL has forgotten the peer, and UCX has not: the memory is theirs until the agent ends.
                    flight.error = failure
                else:
                    self.land(flight, failure)
                return True
            if state == "PROC":
                return False
            failed = TransferError(
                f"{flight.what}: it has failed; see what NIXL wrote to standard error"
            )
            self.land(flight, failed if state != "DONE" else None)
            return True

    def land(self, flight: Flight, error: Exception | None) -> None:
        """It is over: NIXL forgets it, and its blocks are free to be freed."""
        self.flights.discard(flight)
        flight.error = error
        try:
            if flight.handle is not None:
                flight.handle.release()
        except Exception as refused:
            log.warning("NIXL did not release a transfer that is over: %s", refused)
        flight.handle = None
        flight.pieces.let_go()

    def sweep(self) -> None:
        """Looks after transfers that nobody waits for any more."""
        for flight in [flight for flight in self.flights if flight.forgotten]:
            self.is_over(flight)

    def end(self, timeout: float) -> int:
        """Waits for what is in flight, then ends it with the agent: returns how many were ended. Never twice."""
        if self.agent is None or os.getpid() != self.pid:
            return 0
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            with self.lock:
                if self.agent is None or all(
                    [self.is_over(flight) for flight in list(self.flights)]
                ):
                    break
            time.sleep(0.001)
        with self.lock:
            over = [self.agent is None or self.is_over(flight) for flight in list(self.flights)]
            agent, self.agent = self.agent, None
            if agent is None:
                return 0
            ended = list(self.flights)
            for flight in ended:
                # The memory is theirs until the agent is gone, whatever this returns.
                _quietly("release a transfer", flight.handle.release)
                flight.handle = None
            for peer in self.peers:
                _quietly(f"forget {peer}", agent.remove_remote_agent, peer)
            _quietly("deregister the pool", agent.deregister_memory, self.registered)
            del agent
            self.registered = None
            error = TransferError(
                "the agent was closed before the transfer was over: what the blocks hold is not determined"
            )
            for flight in ended:
                self.land(flight, flight.error or error)
            self.hold.release()
        under_way = over.count(False)
        if under_way:
            log.warning("%s was closed with %d transfer(s) under way", self.name, under_way)
        return under_way


def _quietly(doing: str, call: Any, *arguments: Any) -> None:
    try:
        call(*arguments)
    except Exception as error:
        log.warning("NIXL did not %s: %s", doing, error)


def _open(api: Any, name: str, backend: str) -> Any:
    """An agent with one backend."""
    try:
        agent = api.nixl_agent(name, api.nixl_agent_config(backends=[]))
    except Exception as error:
        raise NotAvailableError(f"NIXL cannot make an agent: {error}", device="nixl") from error
    plugins = ", ".join(agent.get_plugin_list())
    if backend not in agent.get_plugin_list():
        raise NotAvailableError(
            f"NIXL has no backend {backend!r}, only {plugins}",
            device="nixl",
            remedy=f"one of {plugins}",
        )
    try:
        agent.create_backend(backend)
    except Exception as error:
        raise NotAvailableError(
            f"NIXL's backend {backend} cannot be started here: {error}", device="nixl"
        ) from error
    kinds = agent.get_backend_mem_types(backend)
    if "DRAM_SEG" not in kinds:
        message = f"NIXL's backend {backend} does not take host memory, only {', '.join(kinds)}"
        raise NotAvailableError(message, device="nixl", remedy="UCX does")
    return agent


_engines: weakref.WeakSet[Engine] = weakref.WeakSet()


def _keep_for_ever() -> None:
    """In a forked child."""
    for engine in list(_engines):
        kept = [getattr(engine.agent, "agent", None), *(flight.handle for flight in engine.flights)]
        engine.lock = threading.RLock()  # whose owner may not be here
        for value in kept:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))


os.register_at_fork(after_in_child=_keep_for_ever)
