"""*Cluster*: the chunks of a tier in a Mooncake cluster, for engines of several machines.

The rows of the CPU tier are registered with Mooncake's engine once, so each chunk goes between its
row and a segment of the cluster without a copy on this side. Behind the bytes of a chunk stands a
trailer with their checksum and that of the name: every load is verified.

*Look-ups.* The scheduler must not wait for the master. A look-up of an unknown name puts it into a
queue and says that it will be known later; vLLM asks again in its next step. One thread asks the
master for all names of the queue together. An answer holds from when it is first read on, for a
short time: other engines store and the cluster evicts meanwhile.

*Calls that take too long.* A call of Mooncake's engine that misses its deadline goes on, and may
still read or write its rows. The job ends when the call has ended and not before, so vLLM gives no
such row to another chunk.

*A master that is gone* makes look-ups misses and stores fail at once, until it answers again. The
log says both.
"""

from __future__ import annotations

import ctypes
import logging
import struct
import threading
import time
import zlib
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from typing import Any

from .._kvmem import Region
from ..errors import InvalidArgumentError, KvmemError
from ..mooncake import errors
from ..mooncake.calls import HeldViews
from ..mooncake.engine import Engine

_log = logging.getLogger("vllm.kvmem")

_TRAILER = struct.Struct("<8sQII8x")
_MAGIC = b"kvmem-s1"
_BATCH = 32
"""Chunks of one call."""
_MAX_NAMES = 512
"""Names that one call to the master looks for."""
_HIT_SECONDS, _MISS_SECONDS, _FAILED_SECONDS = 5.0, 0.5, 60.0
"""How long an answer holds, and that a chunk could not be loaded."""
_MAX_KNOWN = 1 << 16
"""Answers that are remembered."""
_EXISTS, _ABSENT, _LATE = -705, -704, errors.TIMED_OUT
_OPTIONS = ("master", "namespace")


class _Answer:
    """Whether the cluster has a chunk."""

    __slots__ = ("found", "seconds", "until")

    def __init__(self, found: bool, seconds: float) -> None:
        self.found = found
        self.seconds = seconds
        self.until: float | None = None
        """End of its time. None: nobody has read it."""


class _Trailers:
    """Registered memory for the trailers of one thread's calls."""

    def __init__(self) -> None:
        self.region = Region(_BATCH * _TRAILER.size, pages="4k", populate=1)
        self.view = memoryview(self.region).cast("B")

    def part(self, at: int) -> memoryview:
        return self.view[at * _TRAILER.size : (at + 1) * _TRAILER.size]

    def address(self, at: int) -> int:
        return self.region.ptr + at * _TRAILER.size


class ClusterRows:
    """Chunks in a cluster, from and to rows. ``options`` has ``master``, ``namespace``, and those
    of :class:`kvmem.mooncake.EngineOptions`.

    Raises :class:`kvmem.mooncake.UnreachableError`, :class:`kvmem.mooncake.EngineMissingError` and
    :class:`InvalidArgumentError`.
    """

    def __init__(self, rows: memoryview, row_bytes: int, options: Mapping[str, Any]) -> None:
        if not isinstance(options, Mapping) or not options.get("master"):
            raise InvalidArgumentError(
                f'mooncake is {options!r}: give a mapping with "master", the HOST:PORT of the '
                "cluster's master"
            )
        self.path = f"mooncake://{options['master']}"
        self.closed = False
        self._stopping = False
        self._prefix = f"{options.get('namespace', 'kvmem-vllm')}/"
        self._rows = rows
        self._row_bytes = row_bytes
        self._start = ctypes.addressof(ctypes.c_ubyte.from_buffer(rows))
        self._lock = threading.Condition()
        self._known: OrderedDict[bytes, _Answer] = OrderedDict()
        self._requested: deque[bytes] = deque()
        self._in_request: set[bytes] = set()
        self._trailers = {"store": _Trailers(), "load": _Trailers()}
        try:
            self._engine = Engine(
                options["master"],
                **{name: value for name, value in options.items() if name not in _OPTIONS},
            )
        except TypeError as error:
            raise InvalidArgumentError(f"the option mooncake: {error}") from error
        self._registered = [
            (self._start, rows.nbytes),
            *((it.region.ptr, it.region.nbytes) for it in self._trailers.values()),
        ]
        try:
            for address, nbytes in self._registered:
                self._register(address, nbytes)
        except BaseException:
            self._engine.close()
            raise
        self._was_open = False
        self._engine.circuit.listen(self._circuit_changed)
        self._thread = threading.Thread(target=self._ask, name="kvmem-tier-ask", daemon=True)
        self._thread.start()

    def __str__(self) -> str:
        return f"{self.path}, {self._engine.reach}"

    @property
    def is_down(self) -> bool:
        """Whether the master does not answer."""
        return self._engine.circuit.is_open

    def _register(self, address: int, nbytes: int) -> None:
        def work(client: Any) -> int:
            return int(client.register_buffer(address, nbytes))

        code = self._engine.call_without_deadline(work)
        self._engine.check(-abs(code), f"register {nbytes} bytes of the rows")

    # Look-ups.

    def lookup(self, name: bytes) -> bool | None:
        """Returns whether the cluster has a chunk. None: it is not known yet."""
        now = time.monotonic()
        with self._lock:
            answer = self._known.get(name)
            if answer is not None:
                if answer.until is None:
                    answer.until = now + answer.seconds
                if now < answer.until:
                    return answer.found
                del self._known[name]
            if self._engine.circuit.is_open or self._stopping:
                return False
            if name not in self._in_request:
                self._in_request.add(name)
                self._requested.append(name)
                self._lock.notify_all()
        return None

    def missing(self, names: Sequence[bytes]) -> list[int]:
        """Returns the positions of names that the cluster does not have. Waits for the master."""
        found = self._exist(names)
        return [at for at, name in enumerate(names) if not found.get(name)]

    def _exist(self, names: Sequence[bytes]) -> dict[bytes, bool]:
        found: dict[bytes, bool] = {}
        for first in range(0, len(names), _MAX_NAMES):
            part = names[first : first + _MAX_NAMES]
            codes = self._look_for([self._object(name) for name in part])
            for name, code in zip(part, codes):
                if code < 0:
                    self._engine.report(errors.error(code, "look for"))
                found[name] = code == 1
        return found

    def _look_for(self, keys: list[str]) -> list[int]:
        codes: list[int] = self._engine.call("look for", lambda client: client.batch_is_exist(keys))
        return codes

    def _ask(self) -> None:
        while True:
            with self._lock:
                self._lock.wait_for(lambda: self._requested or self._stopping)
                if self._stopping:
                    return
                names = [
                    self._requested.popleft() for _ in range(min(len(self._requested), _MAX_NAMES))
                ]
            try:
                found = self._exist(names)
            except KvmemError as error:
                found = {}
                _log.info("kvmem: look-ups are misses: %s", error)
            with self._lock:
                self._in_request.difference_update(names)
            for name in names:
                self._remember(name, found.get(name, False))

    def _remember(self, name: bytes, found: bool, seconds: float | None = None) -> None:
        if seconds is None:
            seconds = _HIT_SECONDS if found else _MISS_SECONDS
        with self._lock:
            self._known[name] = _Answer(found, seconds)
            self._known.move_to_end(name)
            while len(self._known) > _MAX_KNOWN:
                self._known.popitem(last=False)

    # Transfers.

    def store(
        self, values: Sequence[tuple[bytes, memoryview]], **_: Any
    ) -> tuple[set[bytes], KvmemError | None]:
        """Stores rows under their names. Returns the names of those that were not, and the last
        error. The cluster has neither priorities nor times to live.
        """
        failed: set[bytes] = set()
        last: KvmemError | None = None
        trailers = self._trailers["store"]
        for first in range(0, len(values), _BATCH):
            part = values[first : first + _BATCH]
            names = [name for name, _ in part]
            for at, (name, row) in enumerate(part):
                trailers.part(at)[:] = self._trailer(name, row)
            try:
                codes = self._transfer("put", "batch_put_from_multi_buffers", part, trailers)
            except KvmemError as error:
                failed.update(names)
                last = error
                continue
            for name, code in zip(names, codes):
                if code < 0 and code != _EXISTS:
                    failed.add(name)
                    last = self._engine.report(errors.error(code, "put", self._object(name)))
                else:
                    self._remember(name, True)
        return failed, last

    def fetch_into(self, names: Sequence[bytes], rows: Sequence[memoryview]) -> list[int | None]:
        """Reads chunks into rows, and verifies them. Returns their lengths; None for those that
        were not read.
        """
        found: list[int | None] = []
        trailers = self._trailers["load"]
        values = list(zip(names, rows))
        for first in range(0, len(values), _BATCH):
            part = values[first : first + _BATCH]
            for at in range(len(part)):
                trailers.part(at)[:] = bytes(_TRAILER.size)
            try:
                codes = self._transfer("get", "batch_get_into_multi_buffers", part, trailers)
            except KvmemError as error:
                _log.warning("kvmem: %d chunks not loaded: %s", len(part), error)
                # A master that is back may have them all.
                codes = [_ABSENT if self.is_down else _LATE] * len(part)
            damaged = []
            for at, ((name, row), code) in enumerate(zip(part, codes)):
                good = code >= 0 and trailers.part(at) == self._trailer(name, row)
                found.append(self._row_bytes if good else None)
                if not good:
                    gone = code == _ABSENT
                    self._remember(name, False, _MISS_SECONDS if gone else _FAILED_SECONDS)
                    if code >= 0:
                        damaged.append(name)
                    elif code not in (_ABSENT, _LATE):
                        self._engine.report(errors.error(code, "get", self._object(name)))
            if damaged:
                _log.warning("kvmem: %s has %d damaged chunks", self.path, len(damaged))
                self._remove_damaged(damaged)
        return found

    def remove(self, names: Sequence[bytes]) -> None:
        """Does nothing: :meth:`fetch_into` removes damaged chunks, and others are of use again."""

    def _remove_damaged(self, names: Sequence[bytes]) -> None:
        keys = [self._object(name) for name in names]
        try:
            self._engine.call("remove", lambda client: client.batch_remove(keys, True))
        except KvmemError as error:
            _log.warning("kvmem: damaged chunks stay in %s: %s", self.path, error)

    def _transfer(
        self,
        doing: str,
        function: str,
        part: Sequence[tuple[bytes, memoryview]],
        trailers: _Trailers,
    ) -> list[int]:
        keys = [self._object(name) for name, _ in part]
        places = [[self._address(row), trailers.address(at)] for at, (_, row) in enumerate(part)]
        lengths = [[self._row_bytes, _TRAILER.size]] * len(part)
        nbytes = len(part) * (self._row_bytes + _TRAILER.size)

        def work(client: Any) -> list[int]:
            return [int(code) for code in getattr(client, function)(keys, places, lengths)]

        with HeldViews([*(row for _, row in part), trailers.view]) as held:
            try:
                codes: list[int] = self._engine.call(doing, work, None, held, nbytes)
            except errors.DeadlineError as error:
                # Until then the rows are the call's. A closed tier has views of them.
                while error.call is not None and not error.call.wait_ended(0.2):
                    if self._stopping:
                        break
                raise
        return codes

    def _trailer(self, name: bytes, row: memoryview) -> bytes:
        named = zlib.crc32(self._object(name).encode())
        return _TRAILER.pack(_MAGIC, self._row_bytes, zlib.crc32(row), named)

    def _object(self, name: bytes) -> str:
        return f"{self._prefix}b:{name.hex()}"

    def _address(self, row: memoryview) -> int:
        return ctypes.addressof(ctypes.c_ubyte.from_buffer(row))

    # State and end.

    def _circuit_changed(self) -> None:
        circuit = self._engine.circuit
        if circuit.is_open == self._was_open:
            return
        self._was_open = circuit.is_open
        if circuit.is_open:
            _log.warning(
                "kvmem: %s does not answer: nothing is stored there or found until it does: %s",
                self.path,
                circuit.last_error,
            )
        else:
            _log.warning("kvmem: %s answers again", self.path)

    def checkpoint(self) -> None:
        """Does nothing: the cluster has the index."""

    def stop(self) -> None:
        """Waits for no call any more, from any thread."""
        with self._lock:
            self._stopping = True
            self._lock.notify_all()

    def close(self) -> None:
        """Ends the connection when the last call has ended."""
        self.stop()
        self._thread.join()
        self.closed = True
        self._engine.circuit.unlisten(self._circuit_changed)
        client = self._engine.client

        def unregister() -> None:
            for address, _ in self._registered:
                client.unregister_buffer(address)

        held = HeldViews([self._rows, *(it.view for it in self._trailers.values())])
        self._engine.close(before=unregister, then=held.release)
