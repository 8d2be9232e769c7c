"""An engine for tests: a scheduler process and its workers, with vLLM's own factories, specs,
managers and workers. The scheduler is a process of the fork server, which has imported this module;
it forks its workers. Commands are lines of JSON on the standard input, and every one is answered by
a line.

Block ``b`` of a worker's cache is filled with the bytes of a key, stored, loaded into another
block, and compared: byte by byte, in each worker.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import sys
import time
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

LIMIT = 120.0
"""Seconds after which a wait fails. Only a fault takes as long, on a busy machine too."""
TENSORS = 2
"""Tensors of each worker's cache."""


def config(options: dict[str, Any], rank: int) -> Any:
    """Returns vLLM's configuration of an engine, as its connector would make it."""
    from vllm.v1.kv_offload import config as theirs

    world = options["workers"]
    return theirs.OffloadingConfig(
        groups=(theirs.OffloadingGroupConfig(16, ("layer.0", "layer.1"), 0),),
        worker_kv_bytes_per_block=options["page"] * TENSORS,
        enable_kv_cache_events=options.get("events", False),
        extra_config=options["extra"],
        engine_id=options["engine_id"],
        model=theirs.OffloadingModelConfig(options.get("model", "a/model"), "bfloat16"),
        cache=theirs.OffloadingCacheConfig(16, options["blocks_per_chunk"]),
        parallel=theirs.OffloadingParallelConfig(
            rank, world, world, 1, 1, 1, options.get("replica", 0), 1, None, False
        ),
    )


def node_manager(path: str, engine_id: str, priority: int = 0, **node: Any) -> tuple[Any, ...]:
    """Returns a spec with the memory of a node, its manager, a client of the node, and the value by
    which the manager knows that its worker lives.
    """
    import kvmem
    from kvmem.vllm import KvmemSharedSpec
    from kvmem.vllm.shared import worker_key

    options = {"workers": 1, "page": 8192, "blocks_per_chunk": 2, "engine_id": engine_id}
    spec = KvmemSharedSpec(config({**options, "extra": {"kvmem": {"socket": path, **node}}}, 0))
    manager = patient(spec.get_manager())
    client = kvmem.connect(path, namespace=spec._namespace())
    client.insert(worker_key(engine_id, 0), b"here", priority=priority)
    return spec, manager, client, client.get(worker_key(engine_id, 0))


def offload_key(name: str) -> bytes:
    return sha256(name.encode()).digest() + bytes(4)


def content(name: str, rank: int, tensor: int, nbytes: int) -> Any:
    """Returns the bytes of a key in one worker."""
    seed = int.from_bytes(sha256(f"{name}/{rank}/{tensor}".encode()).digest()[:8], "little")
    return np.random.default_rng(seed).integers(-128, 128, nbytes, np.int8)


def use_barrier(folder: str, rank: int, workers: int) -> None:
    """Gives vLLM a barrier of all workers, by files in a folder."""
    from vllm.v1.kv_offload.cpu import spec

    turn = itertools.count()

    def barrier() -> None:
        mine = f"{next(turn)}."
        Path(folder, f"{mine}{rank}").touch()
        while sum(name.startswith(mine) for name in os.listdir(folder)) < workers:
            time.sleep(0.001)

    spec._all_workers_barrier = barrier


class Worker:
    """A worker: vLLM's, over the region that the spec makes."""

    def __init__(self, options: dict[str, Any], rank: int) -> None:
        import vllm_standins
        from vllm.v1.kv_offload import base
        from vllm.v1.kv_offload.factory import OffloadingSpecFactory

        self._base, self._rank, self._options = base, rank, options
        self._page = options["page"]
        self._per_chunk = options["blocks_per_chunk"]
        blocks = options["gpu_chunks"] * self._per_chunk
        self._gpu = [vllm_standins.gpu(blocks, self._page) for _ in range(TENSORS)]
        if "libcuda" in options:
            vllm_standins.use_driver(options["libcuda"], self._gpu, rank % 2)
        if "piece" in options:
            from kvmem.vllm import _rows

            _rows._PIECE = options["piece"]
        # Without the time of the imports.
        OffloadingSpecFactory.get_spec_cls(options["extra"])
        if "barrier" in options:
            use_barrier(options["barrier"], rank, options["workers"])
        self.start = time.monotonic()
        self.spec = OffloadingSpecFactory.create_spec(config(options, rank))
        self._worker = self.spec.get_worker(
            base.CanonicalKVCaches(
                [base.CanonicalKVCacheTensor(tensor, self._page) for tensor in self._gpu],
                [[base.CanonicalKVCacheRef(index, self._page) for index in range(TENSORS)]],
            )
        )
        self.end = time.monotonic()
        self._job = 0

    def _blocks(self, chunks: int) -> Any:
        count = chunks * self._per_chunk
        return self._base.GPULoadStoreSpec(list(range(count)), [count], [0])

    def _transfer(self, kind: str, source: Any, target: Any) -> None:
        self._job += 1
        submit = getattr(self._worker, f"submit_{kind}")
        assert submit(self._job, source, target)
        self._worker.wait({self._job})
        (result,) = self._worker.get_finished()
        assert result.success and result.job_id == self._job

    def store(self, names: list[str], chunks: list[int]) -> None:
        from vllm.v1.kv_offload.cpu.common import CPULoadStoreSpec

        self._fill(names)
        self._transfer("store", self._blocks(len(names)), CPULoadStoreSpec(chunks))

    def load(self, names: list[str], chunks: list[int]) -> int:
        """Returns the number of bytes that were compared."""
        from vllm.v1.kv_offload.cpu.common import CPULoadStoreSpec

        for tensor in self._gpu:
            tensor[...] = 0
        self._transfer("load", CPULoadStoreSpec(chunks), self._blocks(len(names)))
        compared = 0
        for index, tensor in enumerate(self._gpu):
            rows = np.asarray(tensor).reshape(-1, self._per_chunk * self._page)
            for row, name in zip(rows, names):
                wanted = content(name, self._rank, index, row.size)
                assert np.array_equal(row, wanted), f"{name}: other bytes in worker {self._rank}"
                compared += row.size
        return compared

    def _fill(self, names: list[str]) -> None:
        for index, tensor in enumerate(self._gpu):
            rows = np.asarray(tensor).reshape(-1, self._per_chunk * self._page)
            for row, name in zip(rows, names):
                row[...] = content(name, self._rank, index, row.size)

    def page_tables(self) -> int:
        """Returns the bytes of page tables of this process."""
        for line in open("/proc/self/status"):
            if line.startswith("VmPTE"):
                return int(line.split()[1]) * 1024
        raise AssertionError

    def resident_seconds(self) -> float | None:
        """Returns the seconds in which this worker has mapped the region and made it resident, if
        it has made one of kvmem.
        """
        from kvmem.vllm import OffloadRegion

        region = self._worker._mmap_region
        if not isinstance(region, OffloadRegion) or region._creator is None:
            return None
        return sum(float(it["seconds"]) for it in region.region.receipt["ranges"])

    def driver(self, *names: str) -> list[int]:
        """Returns numbers of the stand-in for the driver, of which ``vllm`` counts the pieces that
        vLLM has registered.
        """
        import vllm_standins

        return [vllm_standins.driver_number(name) for name in names]

    def policies(self) -> list[list[int]]:
        """Returns mode and nodes of the kernel's policy in the middle of this worker's slot of
        each row.
        """
        from kvmem.vllm import _placement

        # With PyTorch the caches are in host memory, for which kvmem has a worker of its own.
        region = getattr(self._worker, "_mmap_region", None) or self._worker._region
        slot = region.cpu_page_size
        middle = region._base.data_ptr() + region.rank * slot + slot // 2
        rows = range(0, region.num_chunks * region._row_stride, region._row_stride)
        return [list(_placement.policy_of(middle + row)) for row in rows]

    def close(self) -> None:
        self._worker.shutdown()


def answers() -> Iterator[dict[str, Any]]:
    for line in sys.stdin:
        yield json.loads(line)


def reply(**message: Any) -> None:
    print(json.dumps(message), flush=True)


def worker(options: dict[str, Any], rank: int) -> None:
    made = Worker(options, rank)
    reply(
        ready=True, start=made.start, end=made.end, page_tables=made.page_tables(), pid=os.getpid()
    )
    for call in answers():
        result = getattr(made, call["do"])(*call["with"])
        reply(result=result)
        if call["do"] == "close":
            return


class WorkerProcess:
    """The process of a worker, which is forked, and the pipes to it."""

    def __init__(self, options: dict[str, Any], rank: int, others: list[WorkerProcess]) -> None:
        (commands, to_worker), (from_worker, replies) = os.pipe(), os.pipe()
        self.stdin, self.stdout = os.fdopen(to_worker, "w"), os.fdopen(from_worker)
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            # The input of a worker ends with the scheduler, so no other worker may hold it.
            for one in [*others, self]:
                one.stdin.close()
                one.stdout.close()
            os.dup2(commands, 0)
            os.dup2(replies, 1)
            os.close(commands)
            os.close(replies)
            worker(options, rank)
            sys.exit()
        os.close(commands)
        os.close(replies)

    def wait(self) -> None:
        os.waitpid(self.pid, 0)


def patient(manager: Any) -> Any:
    """Returns a manager whose steps wait until the server of the node has answered, so that a busy
    machine changes no result.
    """
    if hasattr(manager, "_patience"):
        manager._patience = manager._patience_with_many = LIMIT
    return manager


def settle_stores(manager: Any) -> None:
    """Waits until the server of the node has answered for all stores that are complete."""
    for _, question in getattr(manager, "_committing", ()):
        assert question.wait(LIMIT)


class Scheduler:
    """The scheduler: vLLM's manager, and the processes of the workers."""

    def __init__(self, options: dict[str, Any]) -> None:
        from vllm.v1.kv_offload import base

        self._base = base
        start = time.monotonic()
        self._workers: list[WorkerProcess] = []
        for rank in range(options["workers"]):
            self._workers.append(WorkerProcess(options, rank, self._workers))
        if options.get("scheduler_first"):
            self._manager = self._make_manager(options)
        self.ready = [self._answer(worker) for worker in self._workers]
        # As vLLM does: the scheduler comes after the workers.
        if not options.get("scheduler_first"):
            self._manager = self._make_manager(options)
        self.seconds = time.monotonic() - start
        self._request = 0

    def _make_manager(self, options: dict[str, Any]) -> Any:
        from vllm.v1.kv_offload.factory import OffloadingSpecFactory

        return patient(OffloadingSpecFactory.create_spec(config(options, 0)).get_manager())

    def _answer(self, worker: WorkerProcess) -> Any:
        line = worker.stdout.readline()
        assert line, f"worker {worker.pid} has ended"
        return json.loads(line)

    def _all(self, do: str, *arguments: Any) -> list[Any]:
        for worker in self._workers:
            print(json.dumps({"do": do, "with": arguments}), file=worker.stdin, flush=True)
        return [self._answer(worker)["result"] for worker in self._workers]

    def _step(self) -> None:
        with self._manager.lock if hasattr(self._manager, "lock") else open(os.devnull):
            self._manager.on_schedule_end(self._base.ScheduleEndContext((), ()))

    def _new_request(self) -> Any:
        self._request += 1
        context = self._base.ReqContext(f"{os.getpid()}-{self._request}")
        self._manager.on_new_request(context)
        return context

    def store(self, names: list[str]) -> list[str] | None:
        """Stores the chunks of keys. Returns those that were not there; None: there is no space."""
        context = self._new_request()
        keys = {offload_key(name): name for name in names}
        for position, key in enumerate(keys):
            context.set_offload_key_position(key, position)
        prepared = self._manager.prepare_store(list(keys), context)
        stored = None
        if prepared is not None:
            stored = [keys[key] for key in prepared.keys_to_store]
            if stored:
                self._all("store", stored, prepared.store_spec.block_ids.tolist())
                self._manager.complete_store(prepared.keys_to_store, context)
                settle_stores(self._manager)
        self._manager.on_request_finished(context)
        self._step()
        return stored

    def reserve(self, names: list[str]) -> int:
        """Prepares a store and leaves it open. Returns the number of chunks."""
        context = self._new_request()
        prepared = self._manager.prepare_store([offload_key(name) for name in names], context)
        self._all("store", names, prepared.store_spec.block_ids.tolist())
        return len(prepared.keys_to_store)

    def lookup(self, names: list[str], seconds: float = LIMIT) -> list[bool]:
        """Returns which keys are hits, after all promotions."""
        context = self._new_request()
        hits = []
        for name in names:
            hits.append(self._found(name, context, time.monotonic() + seconds))
        self._manager.on_request_finished(context)
        self._step()
        return hits

    def _found(self, name: str, context: Any, end: float) -> bool:
        result = self._base.LookupResult
        while True:
            found = self._manager.lookup(offload_key(name), context)
            if found in (result.HIT, result.MISS):
                return bool(found == result.HIT)
            assert time.monotonic() < end, found
            self._step()
            time.sleep(0.001)

    def load(self, names: list[str]) -> int:
        """Loads and compares the chunks of keys. Returns the number of bytes compared, or -1 if one
        of them is a miss.
        """
        context = self._new_request()
        keys = [offload_key(name) for name in names]
        end = time.monotonic() + LIMIT
        while True:
            # All of a request are promoted together, and then looked up in one step.
            result = self._base.LookupResult
            found = [self._manager.lookup(key, context) for key in keys]
            # A miss behind an answer that defers the request says nothing.
            if not {result.RETRY, result.HIT_PENDING} & set(found[: _ended(found, result)]):
                break
            assert time.monotonic() < end, found
            self._step()
            time.sleep(0.001)
        if result.MISS in found:
            self._manager.on_request_finished(context)
            self._step()
            return -1
        spec = self._manager.prepare_load(keys, context)
        self._step()
        compared = self._all("load", names, spec.block_ids.tolist())
        self._manager.complete_load(keys, context)
        self._manager.on_request_finished(context)
        self._step()
        return sum(compared)

    def workers(self, do: str, *arguments: Any) -> list[Any]:
        """Calls a method of each worker."""
        return self._all(do, *arguments)

    def settle(self) -> None:
        """Steps until the tiers below have nothing to do."""
        end = time.monotonic() + LIMIT
        while self._manager.has_pending_work():
            assert time.monotonic() < end
            self._step()
            time.sleep(0.001)

    def reset(self) -> None:
        self._manager.reset_cache()
        if hasattr(self._manager, "on_reset_flushed"):
            self._manager.on_reset_flushed()

    def step(self) -> None:
        self._step()

    def close(self) -> None:
        self._all("close")
        self._manager.shutdown()
        # Their memory is free then.
        for worker in self._workers:
            worker.wait()


def _ended(found: list[Any], result: Any) -> int:
    """Returns the number of look-ups up to the first miss."""
    return found.index(result.MISS) if result.MISS in found else len(found)


def scheduler(options: str) -> None:
    made = Scheduler(json.loads(options))
    pids = [worker["pid"] for worker in made.ready]
    starts = [worker["start"] for worker in made.ready]
    ends = [worker["end"] for worker in made.ready]
    seconds = max(ends) - min(starts)
    tables = [worker["page_tables"] for worker in made.ready]
    times = {"worker_seconds": seconds, "starts": starts, "ends": ends}
    reply(ready=True, seconds=made.seconds, page_tables=tables, pids=pids, **times)
    for call in answers():
        try:
            reply(result=getattr(made, call["do"])(*call["with"]))
        except Exception as error:
            logging.getLogger("vllm").exception("the call failed")
            reply(error=f"{type(error).__name__}: {error}")
        if call["do"] == "close":
            return
