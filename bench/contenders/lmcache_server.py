#!/usr/bin/env python3
"""LMCache's multi-process server as a contender of `kvmem-lab bench node`, on the processor alone.

The head of lab/src/bench/node/mod.rs says how the two talk. The program starts LMCache's server as
a process, with its first level in shared memory, and is its only client, by LMCache's own request
client over ZeroMQ, which the server binds to a TCP port of the loopback interface. `LMCACHE_DIR`,
`TORCH_DIR` and `LMCACHE_SERVER_DIR` name the folders of the wheels.

A value is a chunk of a prompt, and its key the hash of the tokens up to its end, so a call has one
prompt of N chunks. That is LMCache's best case: N values that do not follow each other in one
prompt take N calls. A prompt is sent as its tokens, as engines send it. A store is to prepare,
copy into the server's memory, and commit. A value under the key of an earlier one is a new prompt,
because the key is the content. The server evicts the earlier ones by a clock of its own, and
refuses values until then, so it has several times the memory of the values, and a store that was
refused counts for nothing. A look-up asks for the prefix, waits for the answer, and releases the
locks that it takes. The ends of sessions are outside of the time."""

import itertools
import os
import socket
import subprocess
import sys
import time
from multiprocessing import resource_tracker, shared_memory
from typing import Any

FOLDERS = [os.environ[name] for name in ("LMCACHE_DIR", "TORCH_DIR", "LMCACHE_SERVER_DIR")]
sys.path[1:1] = FOLDERS
os.environ["LMCACHE_TRACK_USAGE"] = "false"

from lines import serve  # noqa: E402

CHUNK = 256
"""Tokens of a chunk: LMCache's default."""
INSTANCE = 1
MODEL = "bench"
LIMIT = 60.0
"""Seconds after which a call fails."""
MEMORY = 3
"""Memory as a multiple of that of the values: the server evicts when 80 % of it are in use."""


class Contender:
    """A server with values of one length."""

    def __init__(self, dir: str, bytes: int, value_bytes: int, batch: int) -> None:
        # What the imports and the server print must not be among the answers.
        sys.stdout, answers = sys.stderr, sys.stdout
        from lmcache.v1.multiprocess import custom_types
        from lmcache.v1.multiprocess.transport.factory import RequestClientFactory

        self.types = custom_types
        self.batch, self.value_bytes = batch, value_bytes
        self.value = memoryview(bytearray(os.urandom(value_bytes)))
        self.prompts: dict[int, tuple[tuple[int, ...], int]] = {}
        self.tokens = itertools.count()
        self.requests = itertools.count()
        name = f"lmcache_l1_pool_bench{os.getpid()}"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.log = open(os.path.join(dir, "lmcache.log"), "w+b")
        options = {
            "host": "127.0.0.1",
            "port": port,
            "chunk-size": CHUNK,
            "l1-size-gb": MEMORY * bytes / (1 << 30),
            "shm-name": name,
            "supported-transfer-mode": "engine_driven",
            "eviction-policy": "LRU",
        }
        words = [word for option, value in options.items() for word in (f"--{option}", str(value))]
        self.server = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "lmcache.v1.multiprocess.server",
                *words,
                "--no-l1-use-lazy",
                "--disable-observability",
            ],
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=self.log,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(FOLDERS)},
        )
        try:
            self.wait_for_server()
            self.client = RequestClientFactory.create(f"tcp://127.0.0.1:{port}")
            payload = custom_types.RegisterEngineDrivenContextPayload(
                instance_id=INSTANCE,
                model_name=MODEL,
                world_size=1,
                block_size=16,
                num_layers=1,
                hidden_dim_size=value_bytes // CHUNK,
                dtype_str="uint8",
                use_mla=True,
            )
            answer = self.client.register_kv_cache_engine_driven_context(payload).result(LIMIT)
            if answer.shm_name.lstrip("/") != name:
                raise RuntimeError(f"the server has no shared memory: {answer}")
        except BaseException:
            self.close()
            raise
        finally:
            sys.stdout = answers
        self.memory = shared_memory.SharedMemory(name=name)
        # It belongs to the server.
        resource_tracker.unregister(f"/{name}", "shared_memory")
        # Each page is mapped before it is used.
        for at in range(0, len(self.memory.buf), 4096):
            self.memory.buf[at]

    def wait_for_server(self) -> None:
        """Waits until the server serves: its memory is there long before."""
        end = time.monotonic() + LIMIT
        while b"cache server is running on" not in self.logged():
            if self.server.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"LMCache's server ended: {self.logged()[-2000:]!r}")
            time.sleep(0.05)

    def logged(self) -> bytes:
        return os.pread(self.log.fileno(), 1 << 20, 0)

    def key(self, tokens: tuple[int, ...], worker: int | None = 0) -> Any:
        return self.types.IPCCacheServerKey(
            model_name=MODEL,
            world_size=1,
            worker_id=worker,
            token_ids=tokens,
            start=0,
            end=len(tokens),
            request_id=f"request-{next(self.requests)}",
            num_kv_readers=1,
        )

    def store(self, first: int, count: int) -> dict[str, float]:
        seconds, end = 0.0, time.monotonic() + LIMIT
        for start in range(first, first + count, self.batch):
            numbers = range(start, min(start + self.batch, first + count))
            while (took := self.try_to_store(numbers)) is None:
                if time.monotonic() > end:
                    raise RuntimeError(f"the server has no room for {len(numbers)} values")
                time.sleep(0.1)
            seconds += took
        return {"seconds": seconds}

    def try_to_store(self, numbers: range) -> float | None:
        """Stores a prompt. Returns the seconds, or None if the server refuses a part of it."""
        tokens = tuple(itertools.islice(self.tokens, len(numbers) * CHUNK))
        begin = time.perf_counter()
        key = self.key(tokens)
        slots = self.client.prepare_store(key, INSTANCE).result(LIMIT).context["slots"]
        for slot, number in zip(slots, numbers):
            at = slot["offset"]
            self.value[:8] = number.to_bytes(8, "little")
            self.memory.buf[at : at + self.value_bytes] = self.value
        self.client.commit_store(key, INSTANCE, b"").result(LIMIT)
        seconds = time.perf_counter() - begin
        self.client.end_session(key.request_id).result(LIMIT)
        if len(slots) != len(numbers):
            return None
        for index, number in enumerate(numbers):
            self.prompts[number] = (tokens, index)
        return seconds

    def found(self, tokens: tuple[int, ...]) -> tuple[Any, int]:
        """Looks up a prompt, whose chunks are then locked."""
        key = self.key(tokens, None)
        self.client.lookup(key, 1).result(LIMIT)
        return key, self.client.wait_prefetch_status(key.request_id, LIMIT).result(LIMIT)

    def read(self, numbers: list[int]) -> dict[str, float]:
        """Reads values by whole prompts, each once, in the order of their first values."""
        room = bytearray(self.value_bytes)
        seconds, wanted = 0.0, {self.prompts[number][0]: [] for number in numbers}
        for number in numbers:
            wanted[self.prompts[number][0]].append(number)
        for tokens, chosen in wanted.items():
            begin = time.perf_counter()
            key, _ = self.found(tokens)
            key = self.types.IPCCacheServerKey(
                **{**vars(key), "worker_id": 0, "request_id": key.request_id}
            )
            answer = self.client.prepare_retrieve(key, INSTANCE).result(LIMIT)
            slots = answer.context.get("slots", [])
            heads = []
            for number in chosen if slots else []:
                at = slots[self.prompts[number][1]]["offset"]
                room[:] = self.memory.buf[at : at + self.value_bytes]
                heads.append(int.from_bytes(room[:8], "little"))
            self.client.commit_retrieve(key, INSTANCE).result(LIMIT)
            seconds += time.perf_counter() - begin
            self.client.end_session(key.request_id).result(LIMIT)
            if heads != chosen:
                raise RuntimeError(f"values {chosen[:3]} are missing, or are {heads[:3]}")
        return {"seconds": seconds}

    def lookup(self, numbers: list[int], times: int) -> dict[str, float]:
        # As many chunks as there are numbers, in one prompt.
        tokens = next(
            tokens
            for tokens, _ in (self.prompts[number] for number in sorted(self.prompts)[::-1])
            if len(tokens) >= len(numbers) * CHUNK or len(tokens) == self.batch * CHUNK
        )[: len(numbers) * CHUNK]
        seconds = 0.0
        for _ in range(times):
            begin = time.perf_counter()
            key, chunks = self.found(tokens)
            self.client.free_lookup_locks(key, 1).result(LIMIT)
            seconds += time.perf_counter() - begin
            self.client.end_session(key.request_id).result(LIMIT)
            if chunks * CHUNK != len(tokens):
                raise RuntimeError(f"{chunks} chunks of {len(tokens) // CHUNK} were found")
        return {"seconds": seconds}

    def close(self) -> None:
        if hasattr(self, "memory"):
            self.memory.close()
        if hasattr(self, "client"):
            self.client.close()
        self.server.terminate()
        try:
            self.server.wait(30)
        except subprocess.TimeoutExpired:
            self.server.kill()
            self.server.wait()


if __name__ == "__main__":
    serve(Contender)
