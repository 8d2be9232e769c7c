"""*Cluster*: the chunks of a tier in a Mooncake cluster, for engines of several machines.

:class:`kvmem.mooncake.ClusterTier` stores, verifies and reads the chunks. Its client is a child
process, so no thread of the engine waits for longer than ``call_timeout``, and a call that takes
too long touches no row of the CPU tier.

*Look-ups.* The scheduler must not wait for the master (decision 0122). A look-up of an unknown name
puts it into a queue; vLLM looks it up again in its next step. One thread asks the master for all
names of the queue together. An answer holds from when it is first read on, for a short time."""

import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import InvalidArgumentError
from ..mooncake import engine as engines
from ..storage.cluster import connected_tier

_log = logging.getLogger("vllm.kvmem")

_MAX_NAMES = 512
"""Names that one call to the master looks for."""
_HIT_SECONDS, _MISS_SECONDS, _FAILED_SECONDS = 5.0, 0.5, 60.0
"""How long an answer holds, and that a chunk could not be loaded."""
_MAX_KNOWN = 1 << 16
"""Answers that are remembered."""
_STAGING_BYTES, _STAGED_ROWS = 128 << 20, 16
"""Memory through which rows go, and the rows that have room in it at least."""


class _Answer:
    """Whether the cluster has a chunk."""

    __slots__ = ("found", "seconds", "until")

    def __init__(self, found: bool, seconds: float) -> None:
        self.found = found
        self.seconds = seconds
        self.until: float | None = None
        """End of its time. None: nobody has read it."""


class ClusterRows:
    """Chunks of ``row_bytes`` bytes in a cluster. ``options`` has ``master``, ``namespace``, and
    those of :class:`kvmem.mooncake.EngineOptions`; ``encoding`` has ``codec`` and ``key_file``.
    Raises :class:`kvmem.mooncake.UnreachableError`, :class:`kvmem.mooncake.EngineMissingError` and
    :class:`InvalidArgumentError`."""

    def __init__(self, row_bytes: int, options: Mapping[str, Any], **encoding: Any) -> None:
        if not isinstance(options, Mapping) or not options.get("master"):
            raise InvalidArgumentError(
                f'mooncake is {options!r}: give a mapping with "master", the HOST:PORT of the '
                "cluster's master"
            )
        engine = dict(options)
        master, namespace = engine.pop("master"), engine.pop("namespace", "kvmem-vllm")
        self.path = f"mooncake://{master}"
        self._row_bytes = row_bytes
        self._lock = threading.Condition()
        self._stopping = self._is_down = False
        self._known: OrderedDict[bytes, _Answer] = OrderedDict()
        self._requested: deque[bytes] = deque()
        self._in_request: set[bytes] = set()
        self._tier = connected_tier(
            master,
            namespace,
            engine,
            staging_bytes=max(_STAGING_BYTES, _STAGED_ROWS * row_bytes),
            # A client ends a call that misses its deadline after twice that time.
            call_timeout=10.0 + 2 * float(engine.get("deadline", engines.DEADLINE)),
            **encoding,
        )
        self._thread = threading.Thread(target=self._ask, name="kvmem-tier-ask", daemon=True)
        self._thread.start()

    def is_down(self) -> bool:
        """Returns whether the master does not answer. The log says when that changes."""
        stats = self._tier.stats()
        is_down = stats.state != "working"
        with self._lock:
            if is_down != self._is_down and not self._stopping:
                self._is_down = is_down
                _log.warning(
                    "kvmem: %s %s: %s",
                    self.path,
                    "does not answer" if is_down else "answers again",
                    stats.last_report,
                )
        return is_down

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
            if self._stopping:
                return False
            if name not in self._in_request:
                self._in_request.add(name)
                self._requested.append(name)
                self._lock.notify_all()
        return None

    def missing(self, names: Sequence[bytes]) -> list[int]:
        """Returns the positions of names that the cluster does not have. Waits for the master."""
        return [at for at, found in enumerate(self._tier.ask(names)) if found is None]

    def _ask(self) -> None:
        while True:
            with self._lock:
                self._lock.wait_for(lambda: self._requested or self._stopping)
                if self._stopping:
                    return
                count = min(len(self._requested), _MAX_NAMES)
                names = [self._requested.popleft() for _ in range(count)]
            found = self._tier.ask(names)
            with self._lock:
                self._in_request.difference_update(names)
            for name, nbytes in zip(names, found):
                self._remember(name, nbytes == self._row_bytes)
            if not any(found):
                self.is_down()

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
        self, values: Sequence[tuple[bytes, memoryview]], *, data_type: str, **_: Any
    ) -> list[Any]:
        """Stores rows. Returns the names of those that were not. A cluster takes no other hints."""
        failed: list[Any] = self._tier.store(values, data_type=data_type)
        stored = {name for name, _ in values}.difference(failed)
        for name in stored:
            self._remember(name, True)
        if failed:
            self.is_down()
        return failed

    def fetch_into(self, names: Sequence[bytes], rows: Sequence[memoryview]) -> list[int | None]:
        """Reads chunks into rows, and verifies them. Returns their lengths; None for those that
        were not read, which are misses for a while."""
        found: list[int | None] = self._tier.fetch_into(names, rows)
        # A master that is back may have them all.
        seconds = _MISS_SECONDS if self.is_down() else _FAILED_SECONDS
        for name, nbytes in zip(names, found):
            if nbytes is None:
                self._remember(name, False, seconds)
        return found

    def remove(self, names: Sequence[bytes]) -> None:
        """Does nothing: the tier removes damaged chunks, and others are of use again."""

    # End.

    @property
    def closed(self) -> bool:
        """Whether it has been closed."""
        return self._tier.closed

    def checkpoint(self) -> None:
        """Does nothing: the cluster has the index."""

    def close(self) -> None:
        """Ends the look-ups and the client."""
        with self._lock:
            self._stopping = True
            self._lock.notify_all()
        self._thread.join()
        self._tier.close()
