"""*Engine*: a client of the cluster, as the wheel has it.

Five things of it are kept from users.

- Its first connection to a master that is not there, or hangs, is tried for up to a minute and a
  half, and nothing else in the program runs meanwhile, for it keeps the GIL. So here the master is
  asked for a sign of life first, and the tries are few.
- Its calls wait half a minute for a peer that hangs, and Ctrl-C does not end them: here worker
  threads make them, with a deadline (see :mod:`.calls`), and what has failed is not asked again for
  a while (see :mod:`.circuit`). The engine's own limits are set to twice the deadline, by
  ``MC_RPC_TIMEOUT_MS`` and its siblings, unless the environment has them: then a call that nobody
  waits for any more ends soon, and its memory is free again.
- Its ports answer on every address: here they are limited to the one that is named (see
  :mod:`.ports`).
- The address that it tells its peers is one of the host's unless it is told: here it is told by
  ``MC_TCP_BIND_ADDRESS``.
- In a forked child its threads are not there: so a child is refused.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import logging
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ..errors import ForkedError, InvalidArgumentError
from . import errors
from .calls import Call, Calls, Held
from .circuit import Circuit, Segments, circuit_open
from .ports import Ports

_log = logging.getLogger("kvmem.mooncake")

WHEEL = "mooncake-transfer-engine-non-cuda"
LIBRARIES = "libibverbs1 libnuma1 libcurl4"
LOCAL = "127.0.0.1"
"""Where nobody else can reach it."""
MASTER = "127.0.0.1:50051"
"""Where a master listens unless it is told otherwise."""
DEADLINE = 1.0
"""Seconds that a call may take unless it is told otherwise."""
RATE = 32 << 20
"""Bytes a second that a transfer is granted beyond the deadline."""
_GOODBYE = 5.0
"""Seconds at most that closing waits for calls that have not ended."""
_CLOSING = 20.0
"""Seconds at most that it waits for the engine then."""
_PROBE = "kvmem-probe"
"""The key that a probe looks for."""
_LIMITS = {
    "MC_RPC_TIMEOUT_MS": 1000,
    "MC_RPC_CONNECT_TIMEOUT_MS": 1000,
    "MC_TCP_PROGRESS_TIMEOUT_SEC": 1,
    "MC_TCP_STATUS_TIMEOUT_SEC": 1,
    "MC_HANDSHAKE_CONNECT_TIMEOUT": 1,
}
_SETUP_TRIES = "3"
"""How often the engine tries to connect, on a port of its own each time; it would be 20 times."""
"""Limits of the engine's own, and their units in parts of a second. Each is twice the deadline,
which so comes first.
"""


def module() -> Any:
    """The wheel's module."""
    try:
        return importlib.import_module("mooncake.store")
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError)
        remedy = (
            f"pip install '{WHEEL}>=0.3.13'"
            if missing
            else f"apt-get install --no-install-recommends {LIBRARIES}"
        )
        raise errors.EngineMissingError(
            f"Mooncake's engine cannot be imported ({error}): {remedy}"
        ) from error


def address(master: str) -> tuple[str, int]:
    """``HOST:PORT`` in two."""
    host, colon, port = master.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise ValueError(f"{master!r} is no HOST:PORT of a master, such as {MASTER}")
    return host.strip("[]"), int(port)


def answers(master: str, timeout: float = 1.0) -> bool:
    """Whether a master answers there.

    That somebody listens is not enough: of a process that hangs, the kernel still accepts
    connections. So this says something that is no request, upon which a master closes the
    connection.
    """
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


class Engine:
    """A client that is connected until it is closed."""

    def __init__(
        self,
        master: str,
        host: str,
        *,
        protocol: str,
        devices: str,
        metadata: str,
        timeout: float,
        deadline: float = DEADLINE,
        expose: bool = False,
        peers: str | Iterable[str] = (),
    ) -> None:
        if not 0 < deadline < math.inf:
            raise InvalidArgumentError(
                f"deadline={deadline!r} is no deadline: say more than 0 seconds"
            )
        store = module()
        until = time.monotonic() + timeout
        while not answers(master):
            if time.monotonic() >= until:
                raise errors.error(errors.MASTER_GONE, f"connect to the master at {master}")
            time.sleep(0.1)
        self.master = master
        self.deadline = deadline
        self.reach = "the engine's ports answer on every address of this host"
        """Where its ports answer, in words."""
        self.timeouts = 0
        """Calls that took longer than their deadline."""
        self.segments = Segments()
        self.circuit = Circuit(self.probe)
        self._pid = os.getpid()
        self._calls = Calls("store")
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
        with _environment(host, self.deadline) as told:
            ports = None if expose else Ports(host, told, peers=peers)
            # Neither memory of the engine's own to serve nor to copy through.
            call = self._calls.begin(lambda: self._client.setup(*arguments))
            until = time.monotonic() + seconds
            if ports is not None:
                while not call.wait_over(0.001) and time.monotonic() < until:
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
                _log.warning("expose: %s, and nobody asks for credentials there", self.reach)
            else:
                ports.check()
                self.reach = str(ports)
                _log.info("the engine's %s", self.reach)

    @property
    def client(self) -> Any:
        """The wheel's object. Its calls are made by :meth:`call`."""
        if not self.is_ours():
            raise ForkedError(
                "the connection to the cluster stays with the parent: make another one in the child"
            )
        return self._client

    def is_ours(self) -> bool:
        """Whether it was made in this process, not before a fork."""
        return os.getpid() == self._pid

    # Calls.

    @property
    def late(self) -> int:
        """Calls that nobody waits for any more, and that have not ended."""
        return self._calls.late

    def call(
        self,
        doing: str,
        work: Callable[[Any], Any],
        *,
        key: str | None = None,
        held: Held | None = None,
        nbytes: int | None = None,
    ) -> Any:
        """What ``work`` returns, given the client. ``nbytes``: bytes that it transfers; None: it
        only talks to the master.

        Raises :class:`CircuitOpenError` if the circuit is open, and :class:`DeadlineError`.
        """
        client = self.client
        if self.circuit.is_open:
            raise circuit_open(self.circuit, doing, key)
        seconds = self.deadline + (nbytes or 0) / RATE
        call = self._calls.begin(lambda: work(client), held)
        try:
            return self._wait(call, doing, key, seconds, seconds)
        except errors.DeadlineError as error:
            if nbytes is None:
                self.circuit.fail(error)
            else:
                self.circuit.suspect()
            raise

    def call_without_deadline(self, work: Callable[[Any], Any]) -> Any:
        """The same for what takes as long as it takes, such as registering memory. Ctrl-C ends the
        wait.
        """
        client = self.client
        return self._calls.begin(lambda: work(client)).wait()

    def _wait(self, call: Call, doing: str, key: str | None, seconds: float, told: float) -> Any:
        try:
            return call.wait(max(seconds, 0))
        except TimeoutError:
            self.timeouts += 1
        what = doing if key is None else f"{doing} {key!r}"
        raise errors.DeadlineError(
            f"cannot {what}: it took longer than {told:.3g} s (code {errors.TIMED_OUT}); the engine's call goes on, and what it "
            "brings is dropped",
            code=errors.TIMED_OUT,
            key=key,
            seconds=told,
            call=call,
        )

    def check(self, code: int, doing: str, key: str | None = None) -> int:
        """The number itself unless it is a failure; what fails by its transport is noted."""
        if code < 0:
            raise self.noted(errors.error(code, doing, key))
        return code

    def check_all(
        self, codes: list[int], doing: str, keys: list[str], *, but: tuple[int, ...] = ()
    ) -> list[int]:
        """The same for many."""
        try:
            return errors.check_all(codes, doing, keys, but=but)
        except errors.BatchError as error:
            for one in error.failed.values():
                self.noted(one)
            raise

    def noted(self, error: errors.StoreError) -> errors.StoreError:
        """Opens the circuit, or has the master probed, if the error is of that kind."""
        if errors.is_master(error.code):
            self.circuit.fail(error)
        elif errors.is_transfer(error.code):
            self.circuit.suspect()
        return error

    def probe(self) -> None:
        """Asks the master for something. Raises :class:`UnreachableError` if it does not answer
        within the deadline.
        """
        doing = f"reach the master at {self.master}"
        if not answers(self.master, self.deadline):
            raise errors.error(errors.MASTER_GONE, doing)
        client = self.client
        call = self._calls.begin(lambda: client.is_exist(_PROBE))
        try:
            code = call.wait(self.deadline)
        except TimeoutError:
            # One probe at a time: the next when this one has ended.
            while not call.wait_over(0.1) and not self._calls.closed:
                pass
            raise errors.error(errors.TIMED_OUT, doing) from None
        if errors.is_master(code):
            raise errors.error(code, doing)

    # Its end.

    def close(
        self, before: Callable[[], object] = lambda: None, then: Callable[[], object] = lambda: None
    ) -> bool:
        """Ends it when the last call has ended: calls ``before``, closes, and calls ``then``. In a
        forked child it does nothing.

        Returns whether that is done. It waits some seconds for it; otherwise a worker does it
        later.
        """
        if not self.is_ours():
            return True
        self.circuit.end()
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
        call.wait_begun(min(2 * self.deadline + 2, _GOODBYE))
        done = call.wait_over(_CLOSING if call.begun else 0)
        if not done:
            # Not even its destructor may run before its calls have ended.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(client))
            _log.warning(
                "the engine has not ended %d call(s) yet: its memory is kept until it has",
                max(self.late, 1),
            )
        return done


_environment_lock = threading.Lock()
_set: dict[str, str] = {}
"""What was set here."""


@contextlib.contextmanager
def _environment(host: str, deadline: float) -> Iterator[str]:
    """Sets what the engine reads, where the user has not. It stays: some of it is read with the
    first transfer.

    Gives the address that peers are told.
    """
    wanted = {name: str(max(1, math.ceil(2 * deadline * unit))) for name, unit in _LIMITS.items()}
    wanted["MC_STORE_CLIENT_SETUP_RETRIES"] = _SETUP_TRIES
    wanted["MC_TCP_BIND_ADDRESS"] = host
    with _environment_lock:
        for name, value in wanted.items():
            if os.environ.get(name) == _set.get(name):
                os.environ[name] = _set[name] = value
        yield os.environ["MC_TCP_BIND_ADDRESS"]
