"""*Engine*: one client of a cluster, as the wheel implements it.

This module hides five properties of the wheel from its users.

- Its first connection to a master that is gone or hangs is retried for up to a minute and a half,
  and holds the GIL all the time. This module first checks that the master answers, and limits the
  retries.
- Its calls wait half a minute for a peer that hangs, and Ctrl-C does not interrupt them. Worker
  threads make the calls, with a deadline (:mod:`kvmem._calls`), and a peer that failed is skipped
  for a while (:mod:`.circuit`). The engine's own limits are set to twice the deadline, unless the
  environment sets them: an abandoned call then ends soon, and its memory becomes free.
- Its ports answer on every address of the host. They are limited to one (:mod:`.ports`).
- It announces any address of the host to its peers. ``MC_TCP_BIND_ADDRESS`` names the address.
- In a forked child its threads do not exist: calls raise :class:`~kvmem.ForkedError` there."""

import contextlib
import ctypes
import importlib
import importlib.util
import logging
import math
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypedDict

from .._calls import CLOSED, Call, CallQueue, HeldViews
from ..errors import ClosedError, ForkedError, InvalidArgumentError, KvmemError
from ..storage.versions import check_version
from . import errors
from .circuit import Circuit, SegmentBackoff, circuit_open
from .ports import Ports

_log = logging.getLogger("kvmem.mooncake")

WHEEL = "mooncake-transfer-engine-non-cuda"
WHEELS = (WHEEL, "mooncake-transfer-engine", "mooncake-transfer-engine-cuda13")
"""Wheels that contain the engine, the one that is installed by default first."""
SUPPORTED = ("0.3.13", "0.4")
"""First supported version of Mooncake, and the first one that is not."""
LIBRARIES = "libibverbs1 libnuma1 libcurl4"
LOCAL = "127.0.0.1"
"""Default host: an address that only this machine can reach."""
MASTER = "127.0.0.1:50051"
"""Default address of a master."""
DEADLINE = 1.0
"""Default number of seconds that a call may take."""
RATE = 32 << 20
"""Bytes that a transfer may take one more second for, beyond the deadline."""
TIMEOUT = 10.0
"""Default number of seconds to wait for the master when connecting."""
START = 60.0
"""Seconds in which the client in a process of its own has to start."""
_MAX_CALL_WAIT = 5.0
"""Maximum number of seconds that closing waits for calls that have not ended."""
_MAX_CLOSE_WAIT = 20.0
"""Maximum number of seconds that closing then waits for the engine."""
_PROBE = "kvmem-probe"
"""Key that a probe looks up."""
_LIMITS = {
    "MC_RPC_TIMEOUT_MS": 1000,
    "MC_RPC_CONNECT_TIMEOUT_MS": 1000,
    "MC_TCP_PROGRESS_TIMEOUT_SEC": 1,
    "MC_TCP_STATUS_TIMEOUT_SEC": 1,
    "MC_HANDSHAKE_CONNECT_TIMEOUT": 1,
}
"""The engine's own limits, and their units per second. Each is set to twice the deadline."""
_SETUP_TRIES = "3"
"""Number of times that the engine tries to connect, each time on another port."""


def module() -> Any:
    """Imports the wheel's module. Raises :class:`EngineMissingError` with the remedy, and
    :class:`~kvmem.storage.UnsupportedVersionError` if the wheel's version is not supported."""
    try:
        found = importlib.import_module("mooncake.store")
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError)
        remedy = (
            f"pip install '{WHEEL}>={SUPPORTED[0]},<{SUPPORTED[1]}'"
            if missing
            else f"apt-get install --no-install-recommends {LIBRARIES}"
        )
        raise errors.EngineMissingError(
            f"Mooncake's engine cannot be imported ({error}): {remedy}"
        ) from error
    check_version(WHEELS, *SUPPORTED)
    return found


def address(master: str) -> tuple[str, int]:
    """Splits ``HOST:PORT``."""
    host, colon, port = master.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise ValueError(f"master={master!r} is no HOST:PORT: give one such as {MASTER}")
    return host.strip("[]"), int(port)


def answers(master: str, timeout: float = 1.0) -> bool:
    """Returns whether a master answers at an address. A listening socket proves too little: the
    kernel still accepts connections for a process that hangs. The function therefore sends bytes
    that are no request, upon which a master closes the connection."""
    try:
        with socket.create_connection(address(master), timeout) as connection:
            connection.settimeout(timeout)
            connection.sendall(bytes(64))
            connection.recv(1)
    except ConnectionResetError:
        return True
    except OSError:
        return False
    return True


def check(master: str, timeout: float) -> None:
    """Checks without a client that one could connect: that the wheel is installed, and that the
    master answers within ``timeout`` seconds. Raises as :func:`module`, and
    :class:`UnreachableError`."""
    if "mooncake.store" not in sys.modules and importlib.util.find_spec("mooncake") is not None:
        check_version(WHEELS, *SUPPORTED)
    else:
        module()
    wait_for(master, timeout)


def wait_for(master: str, timeout: float) -> None:
    """Waits until a master answers. Raises :class:`UnreachableError` after ``timeout`` seconds."""
    until = time.monotonic() + timeout
    while not answers(master):
        if time.monotonic() >= until:
            raise errors.error(errors.MASTER_GONE, f"connect to the master at {master}")
        time.sleep(0.1)


class EngineOptions(TypedDict, total=False):
    """How :func:`serve` and :class:`Store` connect to a cluster: their keyword arguments."""

    host: str
    """Address of this host for others, the only one that the ports answer on: 127.0.0.1."""
    protocol: str
    """Transport of the bytes. Default: ``tcp``."""
    devices: str
    """Network devices that the transport uses, in the engine's words. Default: chosen by it."""
    metadata: str
    """Metadata service of the cluster. Default: ``P2PHANDSHAKE``, which needs none."""
    timeout: float
    """Seconds to wait for the master when connecting. Default: 10."""
    deadline: float
    """Seconds that each later call may take. Default: 1."""
    expose: bool
    """Leave the ports open on every address of this machine. Default: no."""
    peers: str | Iterable[str]
    """Networks, such as ``10.0.0.0/24``, that the ports answer to. Default: any."""


class Engine:
    """A client that is connected until it is closed. See :class:`EngineOptions`."""

    def __init__(
        self,
        master: str,
        *,
        host: str = LOCAL,
        protocol: str = "tcp",
        devices: str = "",
        metadata: str = "P2PHANDSHAKE",
        timeout: float = TIMEOUT,
        deadline: float = DEADLINE,
        expose: bool = False,
        peers: str | Iterable[str] = (),
    ) -> None:
        if not 0 < deadline < math.inf:
            raise InvalidArgumentError(
                f"deadline={deadline!r} is no deadline: give a number of seconds above 0"
            )
        store = module()
        wait_for(master, timeout)
        self.master = master
        self.protocol = protocol
        self.deadline = deadline
        self.reach = "the engine's ports answer on every address of this host"
        """Addresses that its ports answer on, in words."""
        self.timeouts = 0
        """Number of calls that took longer than their deadline."""
        self.segments = SegmentBackoff()
        self.circuit = Circuit(self.probe)
        self._pid = os.getpid()
        self._calls = CallQueue("store")
        self._client: Any = store.MooncakeDistributedStore()
        try:
            self._connect(
                host,
                (host, metadata, 0, 0, protocol, devices, master),
                max(timeout, deadline),
                expose,
                peers,
            )
        except BaseException:
            self.close()
            raise

    def _connect(
        self,
        host: str,
        arguments: tuple[Any, ...],
        seconds: float,
        expose: bool,
        peers: str | Iterable[str],
    ) -> None:
        with _environment(host, self.deadline) as announced:
            ports = None if expose else Ports(host, announced, peers=peers)
            # The two zeros: the engine gets no memory of its own, neither to serve nor to copy
            # through.
            call = self._calls.submit(lambda: self._client.setup(*arguments))
            until = time.monotonic() + seconds
            if ports is not None:
                while not call.wait_ended(0.001) and time.monotonic() < until:
                    ports.limit()
            code = self._wait(
                call,
                f"connect to the master at {self.master}",
                None,
                until - time.monotonic(),
                seconds,
            )
            errors.check(-abs(code), f"connect to the master at {self.master}")
            if ports is None:
                _log.warning("expose: %s, and they ask for no credentials", self.reach)
            else:
                ports.check()
                self.reach = str(ports)
                _log.info("the engine's %s", self.reach)

    @property
    def client(self) -> Any:
        """Client object of the wheel. :meth:`call` makes its calls."""
        if not self.is_ours():
            raise ForkedError(
                "the connection to the cluster was made before this process was forked, and stays "
                "with the parent: make another one here"
            )
        return self._client

    def is_ours(self) -> bool:
        """Returns whether the engine was made in this process, and not before a fork."""
        return os.getpid() == self._pid

    # Calls.

    @property
    def abandoned(self) -> int:
        """Number of abandoned calls that have not ended."""
        return self._calls.abandoned

    def call(
        self,
        doing: str,
        work: Callable[[Any], Any],
        key: str | None = None,
        held: HeldViews | None = None,
        nbytes: int | None = None,
    ) -> Any:
        """Calls ``work`` with the client and returns its result. ``nbytes`` is the number of bytes
        that it transfers; None means that it only calls the master. Raises
        :class:`~kvmem.ClosedError`, :class:`CircuitOpenError` and :class:`DeadlineError`."""
        client = self.client
        if self._calls.closed:
            raise ClosedError(CLOSED)
        if self.circuit.is_open:
            raise circuit_open(self.circuit, doing, key)
        seconds = self.deadline + (nbytes or 0) / RATE
        call = self._calls.submit(lambda: work(client), held)
        try:
            return self._wait(call, doing, key, seconds, seconds)
        except errors.DeadlineError as error:
            if nbytes is None:
                self.circuit.fail(error)
            else:
                self.circuit.suspect()
            raise

    def checked_call(
        self,
        doing: str,
        work: Callable[[Any], int],
        key: str | None = None,
        held: HeldViews | None = None,
        nbytes: int | None = None,
    ) -> int:
        """Makes a :meth:`call` whose result is a code. Returns it, or raises if it is an error."""
        return self.check(self.call(doing, work, key, held, nbytes), doing, key)

    def call_without_deadline(self, work: Callable[[Any], Any]) -> Any:
        """Calls ``work`` without a deadline, such as to register memory. Ctrl-C ends the wait."""
        client = self.client
        return self._calls.submit(lambda: work(client)).wait()

    def _wait(
        self, call: Call, doing: str, key: str | None, seconds: float, deadline: float
    ) -> Any:
        try:
            return call.wait(max(seconds, 0))
        except TimeoutError:
            self.timeouts += 1
        what = doing if key is None else f"{doing} {key!r}"
        raise errors.DeadlineError(
            f"cannot {what}: the call took longer than {deadline:.3g} s (code {errors.TIMED_OUT}); "
            "the engine's call goes on, and its result is dropped: try again, or set a later one",
            code=errors.TIMED_OUT,
            key=key,
            seconds=deadline,
            call=call,
        )

    def check(self, code: int, doing: str, key: str | None = None) -> int:
        """Returns the code, or raises if it is an error. Reports the error to the circuit."""
        if code < 0:
            raise self.report(errors.error(code, doing, key))
        return code

    def check_all(
        self, codes: list[int], doing: str, keys: list[str], *, but: tuple[int, ...] = ()
    ) -> list[int]:
        """Returns the codes, or raises if some of them are errors. Reports them to the circuit."""
        try:
            return errors.check_all(codes, doing, keys, but=but)
        except errors.BatchError as error:
            for one in error.failed.values():
                self.report(one)
            raise

    def replicas(self, keys: list[str]) -> dict[str, tuple[list[str], int | None]]:
        """Returns the segments of objects that exist, and their lengths in bytes."""
        found = self.call("look for", lambda it: it.batch_get_replica_desc(keys), keys[0])
        return {key: _replicas(replicas) for key, replicas in found.items()}

    def blame(self, keys: list[str]) -> None:
        """Skips the segments of objects for a while, because a transfer failed."""
        if keys:
            # The master may be at fault.
            with contextlib.suppress(KvmemError):
                for segments, _ in self.replicas(keys).values():
                    self.segments.fail(segments)

    def report(self, error: errors.StoreError) -> errors.StoreError:
        """Opens the circuit or starts a probe, if the error is of that kind. Returns the error."""
        if errors.is_master(error.code):
            self.circuit.fail(error)
        elif errors.is_transfer(error.code):
            self.circuit.suspect()
        return error

    def probe(self) -> None:
        """Calls the master. Raises :class:`UnreachableError` if it misses the deadline."""
        doing = f"reach the master at {self.master}"
        if not answers(self.master, self.deadline):
            raise errors.error(errors.MASTER_GONE, doing)
        client = self.client
        call = self._calls.submit(lambda: client.is_exist(_PROBE))
        try:
            code = call.wait(self.deadline)
        except TimeoutError:
            # One probe at a time: the next one starts when this one has ended.
            while not call.wait_ended(0.1) and not self._calls.closed:
                pass
            raise errors.error(errors.TIMED_OUT, doing) from None
        if errors.is_master(code):
            raise errors.error(code, doing)

    # End.

    def close(
        self, before: Callable[[], object] = lambda: None, then: Callable[[], object] = lambda: None
    ) -> bool:
        """Closes the engine when the last call has ended: calls ``before``, closes the client, and
        calls ``then``. Does nothing in a forked child. Waits some seconds and returns whether the
        engine is closed. If not, a worker closes it later."""
        if not self.is_ours():
            return True
        self.circuit.stop()
        client = self._client

        def last() -> None:
            try:
                before()
                client.close()
            except Exception as error:
                _log.warning("the engine was not closed: %s", error)
            finally:
                then()

        call = self._calls.close(last)
        call.wait_started(min(2 * self.deadline + 2, _MAX_CALL_WAIT))
        done = call.wait_ended(_MAX_CLOSE_WAIT if call.started else 0)
        if not done:
            # The client's destructor must not run before its calls have ended.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(client))
            _log.warning(
                "the engine has %d call(s) that have not ended: its memory is held until they have",
                max(self.abandoned, 1),
            )
        return done


def _replicas(replicas: Sequence[Any]) -> tuple[list[str], int | None]:
    """Returns the segments of an object, and its length."""
    memory = [one.get_memory_descriptor() for one in replicas if one.is_memory_replica()]
    parts = [one.buffer_descriptor for one in memory]
    if parts:
        return [one.transport_endpoint for one in parts], int(parts[0].size)
    disks = [one.get_disk_descriptor() for one in replicas if one.is_disk_replica()]
    return [], int(disks[0].object_size) if disks else None


_environment_lock = threading.Lock()
_set: dict[str, str] = {}
"""Variables that this module has set, with their values."""


@contextlib.contextmanager
def _environment(host: str, deadline: float) -> Iterator[str]:
    """Sets the variables that the engine reads, except those that the user has set. They stay set,
    because the engine reads some of them with the first transfer. Yields the address that the
    engine announces to its peers."""
    wanted = {name: str(max(1, math.ceil(2 * deadline * unit))) for name, unit in _LIMITS.items()}
    wanted["MC_STORE_CLIENT_SETUP_RETRIES"] = _SETUP_TRIES
    wanted["MC_TCP_BIND_ADDRESS"] = host
    with _environment_lock:
        for name, value in wanted.items():
            if os.environ.get(name) == _set.get(name):
                os.environ[name] = _set[name] = value
        yield os.environ["MC_TCP_BIND_ADDRESS"]
