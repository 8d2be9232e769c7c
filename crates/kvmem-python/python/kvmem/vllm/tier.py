"""*Tier*: a disk, or a Mooncake cluster, after vLLM's CPU tier. Importing this module imports vLLM.

The scheduler's process owns the tier. Its calls only look into the index in memory and append to
two queues. One thread stores and one loads, each a job at a time; a job of many chunks is one call
of :class:`kvmem.DiskTier`, from and to the rows of the CPU tier without a copy.

Every load is verified. A damaged chunk is a failed load of that chunk: vLLM computes it again, and
its key is a miss from then on. A call that fails as a whole is a failed load of its chunks, which
stay on the disk. A store that does not fit into its queue is dropped, and the result of the job
says so. Loads are not limited: vLLM allocates their rows first."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from vllm.v1.kv_offload.base import (
    Locality,
    LookupResult,
    Medium,
    OffloadingEvent,
    RequestOffloadingContext,
)
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager

from .._kvmem import DiskTier, parse_size
from ..errors import InvalidArgumentError, InvalidBufferError, KvmemError, OutOfSpaceError
from ..storage.data_type import data_type_of
from ._hints import Hints, hints_of
from ._identity import identity

_log = logging.getLogger("vllm.kvmem")


def _taken(queue: deque[Any]) -> Iterator[Any]:
    """Yields and removes what is in a queue, also while another thread appends."""
    while queue:
        yield queue.popleft()


@dataclass
class _Job:
    """A job in a queue."""

    number: int
    keys: list[Any]
    rows: list[int]
    hints: Hints


class KvmemTier(SecondaryTierManager):  # type: ignore[misc]
    """Chunks in a :class:`kvmem.DiskTier`: verified, found again after a restart, evicted when the
    file is full. Or chunks in a Mooncake cluster, with ``mooncake``: ``master``, ``namespace``, and
    the names of :class:`kvmem.mooncake.EngineOptions`, in place of ``path`` (of a file or block
    device), ``bytes``, ``max_entries`` and ``format``. For both, give two tiers.
    docs/distributed/vllm.md describes the options."""

    medium: ClassVar[Medium] = Medium.STORAGE

    def __init__(
        self,
        offloading_spec: Any,
        primary_kv_view: memoryview,
        tier_type: str,
        path: str = "",
        bytes: int | str | None = None,
        max_entries: int | None = None,
        max_queued_bytes: int | str = "1GiB",
        format: bool = False,
        codec: str = "none",
        key_file: str | None = None,
        enable_kv_events: bool = False,
        locality: str | None = None,
        mooncake: Any = None,
        backpressure_detector: Any = None,
    ) -> None:
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        if bool(path) == (mooncake is not None):
            raise InvalidArgumentError(
                'the tier has no path, or a cluster as well: give "path", a file on a local disk, '
                'or "mooncake", and two tiers for both'
            )
        if mooncake is not None and (bytes, max_entries, format) != (None, None, False):
            raise InvalidArgumentError(
                '"bytes", "max_entries" and "format" are for a file, and the tier is a cluster: '
                "leave them out"
            )
        self.locality = None if locality is None else Locality(locality)
        events = enable_kv_events and offloading_spec.kv_events_config.enable_kv_cache_events
        # The store thread appends, and the scheduler takes from the front: no lock is needed.
        self._events: deque[Any] | None = deque() if events else None
        self._row_bytes = self.block_size_bytes
        self._max_queued = self._size(max_queued_bytes)
        self._identity = identity(offloading_spec)
        self._data_type = data_type_of(offloading_spec.config.model.dtype)
        self._rows = primary_kv_view.cast("B")
        encoding: Any = {"codec": codec, "key_file": key_file}
        self._cluster: Any = None
        if mooncake is not None:
            from ._cluster import ClusterRows

            self._cluster = ClusterRows(self._row_bytes, mooncake, **encoding)
            self._tier: Any = self._cluster
        else:
            parallel = offloading_spec.config.parallel
            if parallel.data_parallel_index:
                path = f"{path}.dp{parallel.data_parallel_index}"
            nbytes = None if bytes is None else self._size(bytes)
            if max_entries is None and nbytes is not None:
                max_entries = max(nbytes // self._row_bytes, 64)
            self._tier = DiskTier(
                path, bytes=nbytes, max_entries=max_entries, format=format, **encoding
            )
        self._lock = threading.Condition()
        self._stores: deque[_Job] = deque()
        self._loads: deque[_Job] = deque()
        self._running = 0
        self._queued = 0
        self._storing: dict[Any, int] = {}
        self._results: deque[Any] = deque()
        self._dropped = 0
        self._stopped = False
        self._threads = [
            threading.Thread(target=self._run, args=arguments, name=name, daemon=True)
            for name, arguments in (
                ("kvmem-tier-store", (self._stores, self._store)),
                ("kvmem-tier-load", (self._loads, self._load)),
            )
        ]
        for thread in self._threads:
            thread.start()
        if self._cluster is not None:
            _log.info("kvmem: tier %s", self._cluster.path)
            return
        _log.info(
            "kvmem: tier %s by %s%s, %s",
            self._tier.path,
            self._tier.engine,
            "" if self._tier.direct else ", through the page cache",
            self._tier.report,
        )

    @staticmethod
    def _size(value: int | str) -> int:
        return parse_size(value) if isinstance(value, str) else int(value)

    def _key(self, key: Any) -> Any:
        return self._identity + key

    def lookup(self, key: Any, req_context: Any) -> Any:
        """Returns HIT, RETRY while the chunk is being stored or the cluster has not answered, or
        MISS. Touches no disk, and waits for nothing."""
        if self._cluster is not None:
            if key in self._storing:
                return LookupResult.RETRY
            found = self._cluster.lookup(self._key(key))
            if found is None:
                return LookupResult.RETRY
            return LookupResult.HIT if found else LookupResult.MISS
        if self._key(key) in self._tier:
            return LookupResult.HIT
        return LookupResult.RETRY if key in self._storing else LookupResult.MISS

    def submit_store(self, job_metadata: Any) -> None:
        """Queues the store of chunks, or drops it if too many bytes wait."""
        job = self._job(job_metadata)
        nbytes = len(job.keys) * self._row_bytes
        with self._lock:
            # A job that is longer than the limit may wait alone.
            fits = self._queued == 0 or self._queued + nbytes <= self._max_queued
            if fits and not self._stopped and not self._is_down():
                self._queued += nbytes
                for key in job.keys:
                    self._storing[key] = self._storing.get(key, 0) + 1
                self._stores.append(job)
                self._lock.notify_all()
                return
        self._dropped += 1
        if self._dropped & (self._dropped - 1) == 0 and not self._is_down():
            _log.warning(
                "kvmem: %d stores dropped, because %d bytes wait for the disk",
                self._dropped,
                self._queued,
            )
        self._results.append(JobResult(job_id=job.number, success=False, transfer_bytes=0))

    def submit_load(self, job_metadata: Any) -> None:
        """Queues the load of chunks."""
        with self._lock:
            if not self._stopped:
                self._loads.append(self._job(job_metadata))
                self._lock.notify_all()
                return
        self._results.append(JobResult(job_id=job_metadata.job_id, success=False))

    def _is_down(self) -> bool:
        return self._cluster is not None and self._cluster.is_down()

    @staticmethod
    def _job(job_metadata: Any) -> _Job:
        keys, rows = list(job_metadata.keys), [int(row) for row in job_metadata.chunk_ids]
        assert len(keys) == len(rows), f"{len(keys)} keys and {len(rows)} rows"
        return _Job(job_metadata.job_id, keys, rows, hints_of(job_metadata.req_context))

    def get_finished_jobs(self) -> Iterable[Any]:
        """Returns the results of jobs that have ended since the last call."""
        return list(_taken(self._results))

    def take_events(self) -> Iterable[Any]:
        """Returns the chunks stored since the last call, as events."""
        return () if self._events is None else list(_taken(self._events))

    def on_new_request(self, req_context: Any) -> Any:
        """Wants new chunks only: those of a shared prefix are stored already."""
        return RequestOffloadingContext()

    def touch(self, keys: Collection[Any], req_context: Any) -> None:
        """Does nothing: a load counts as a use."""

    def drain_jobs(self) -> None:
        """Waits until every job has ended."""
        with self._lock:
            self._lock.wait_for(lambda: not (self._stores or self._loads or self._running))

    def shutdown(self) -> None:
        """Ends the threads after the jobs that run, and the tier. Jobs that wait fail."""
        with self._lock:
            waiting = [*self._stores, *self._loads]
            self._stores.clear()
            self._loads.clear()
            self._stopped = True
            self._lock.notify_all()
        self._results.extend(JobResult(job_id=job.number, success=False) for job in waiting)
        for thread in self._threads:
            thread.join()
        if not self._tier.closed:
            try:
                self._tier.checkpoint()
            except KvmemError as error:
                _log.warning("kvmem: the index of %s was not written: %s", self._tier.path, error)
            self._tier.close()
        self._rows.release()

    def _run(self, queue: deque[_Job], transfer: Callable[[_Job], Any]) -> None:
        while True:
            with self._lock:
                self._lock.wait_for(lambda: queue or self._stopped)
                if not queue:
                    return
                job = queue.popleft()
                self._running += 1
            try:
                result = transfer(job)
            except Exception as error:
                # The thread must live: a job without a result would keep its rows for ever.
                _log.exception("kvmem: a job of the tier failed: %s", error)
                result = JobResult(job_id=job.number, success=False)
            with self._lock:
                self._results.append(result)
                self._running -= 1
                self._lock.notify_all()

    def _store(self, job: _Job) -> Any:
        start = time.monotonic()
        missing = list(range(len(job.keys)))
        failed: set[Any] = set()
        why: object = "the cluster has no space or does not answer"
        try:
            missing = self._missing([self._key(key) for key in job.keys])
            if missing:
                values = [(self._key(job.keys[at]), self._row(job, at)) for at in missing]
                hints = job.hints
                failed.update(
                    self._tier.store(
                        values,
                        ttl=hints.ttl,
                        priority=hints.priority,
                        data_type=self._data_type,
                    )
                    or ()
                )
        except (OutOfSpaceError, KvmemError) as error:
            names = getattr(error, "failed", None) or [self._key(job.keys[at]) for at in missing]
            failed.update(names)
            why = error
        finally:
            with self._lock:
                self._queued -= len(job.keys) * self._row_bytes
                for key in job.keys:
                    self._storing[key] -= 1
                    if not self._storing[key]:
                        del self._storing[key]
        if failed:
            _log.warning("kvmem: %d of %d chunks not stored: %s", len(failed), len(missing), why)
        stored = [job.keys[at] for at in missing if self._key(job.keys[at]) not in failed]
        if self._events is not None and stored:
            self._events.append(
                OffloadingEvent(
                    keys=stored, medium=self.medium, removed=False, locality=self.locality
                )
            )
        return JobResult(
            job_id=job.number,
            success=not failed,
            transfer_time=time.monotonic() - start,
            transfer_bytes=len(stored) * self._row_bytes,
        )

    def _missing(self, names: list[Any]) -> list[int]:
        """Returns the positions of names that the tier does not have."""
        if self._cluster is not None:
            found: list[int] = self._cluster.missing(names)
            return found
        return [at for at, name in enumerate(names) if name not in self._tier]

    def _load(self, job: _Job) -> Any:
        start = time.monotonic()
        rows = [self._row(job, at) for at in range(len(job.keys))]
        try:
            found = self._tier.fetch_into([self._key(key) for key in job.keys], rows)
        except InvalidBufferError as error:
            _log.warning("kvmem: %d chunks not loaded: %s", len(job.keys), error)
            # One that is longer than a row fails every call that it is part of.
            self._remove_other_lengths(job.keys)
            return JobResult(job_id=job.number, success=False)
        except KvmemError as error:
            _log.warning("kvmem: %d chunks not loaded: %s", len(job.keys), error)
            return JobResult(job_id=job.number, success=False)
        finally:
            for row in rows:
                row.release()
        loaded = [key for key, nbytes in zip(job.keys, found) if nbytes == self._row_bytes]
        failed = len(job.keys) - len(loaded)
        if failed:
            # The tier itself removes a damaged chunk. One that is missing may just be stored again,
            # so only a chunk of another length is removed.
            self._remove_other_lengths(job.keys)
            _log.warning("kvmem: %d of %d chunks not loaded", failed, len(job.keys))
        return JobResult(
            job_id=job.number,
            success=not failed,
            successful_keys=tuple(loaded) if failed and loaded else None,
            transfer_time=time.monotonic() - start,
            transfer_bytes=len(loaded) * self._row_bytes,
        )

    def _remove_other_lengths(self, keys: list[Any]) -> None:
        """Removes the chunks that are not as long as a row: no engine of this identity stored
        them. A cluster removes them itself.
        """
        if self._cluster is None:
            names = [self._key(key) for key in keys]
            right = (None, self._row_bytes)
            self._tier.remove([name for name in names if self._tier.len_of(name) not in right])

    def _row(self, job: _Job, at: int) -> memoryview:
        first = job.rows[at] * self._row_bytes
        return self._rows[first : first + self._row_bytes]
