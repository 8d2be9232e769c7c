#!/usr/bin/env python3
"""LMCache's multi-process server in experiments with faults, on the processor alone.

`LMCACHE_DIR`, `TORCH_DIR` and `LMCACHE_SERVER_DIR` name the folders of the wheels. The server has
its first level in shared memory, of which a chunk takes 1 MiB, and its default options where an
experiment names no other. Clients are processes with LMCache's request client; the experiment with
a server that hangs has the scheduler's adapter of LMCache's connector for vLLM."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing import resource_tracker, shared_memory
from pathlib import Path
from typing import Any

import numpy as np
from experiment import (
    LIMIT,
    VALUE,
    Peer,
    Verdict,
    main,
    serve,
    stopped_connections,
    value_of,
    version_of,
)
from lmcache_files import FOLDERS, version

CHUNK = 256
"""Tokens of a chunk: LMCache's default."""
MODEL = "a/model"


class Server:
    """A server whose first level has room for a number of chunks."""

    def __init__(self, folder: Path, chunks: int, limit: int = 0, **options: object) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.name = f"lmcache_l1_pool_faults{os.getpid()}"
        self.log = folder / f"server{self.port}.log"
        options = {
            "host": "127.0.0.1",
            "port": self.port,
            "l1-size-gb": chunks * VALUE / (1 << 30),
            "shm-name": self.name,
            "supported-transfer-mode": "engine_driven",
            "eviction-policy": "LRU",
            **{name.replace("_", "-"): value for name, value in options.items()},
        }
        words = [word for option, value in options.items() for word in (f"--{option}", str(value))]
        program = [sys.executable, "-m", "lmcache.v1.multiprocess.server", *words]
        program += ["--no-l1-use-lazy", "--disable-observability"]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(FOLDERS)}
        environment["LMCACHE_TRACK_USAGE"] = "false"
        wrap = ["prlimit", f"--nofile={limit}", "--"] if limit else []
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [*wrap, *program],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
        end = time.monotonic() + LIMIT
        while b"cache server is running on" not in self.log.read_bytes():
            if self.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"the server did not start: {self.log.read_text()[-500:]}")
            time.sleep(0.05)

    def signal(self, number: int) -> None:
        os.killpg(self.process.pid, number)

    def client(self, folder: Path, kind: str = "serve") -> Peer:
        number = len(list(folder.glob("client*.log")))
        peer = Peer([sys.executable, __file__, kind], folder / f"client{number}.log")
        peer("open", port=self.port, name=self.name)
        return peer

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.signal(signal.SIGKILL)
            self.process.wait()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"/dev/shm/{self.name}")


def tokens(prompt: int, chunks: int) -> tuple[int, ...]:
    return tuple(range(prompt * 100_000, prompt * 100_000 + chunks * CHUNK))


class Client:
    """A worker of an engine: chunk `i` of prompt `p` has the value of the key 100 p + i."""

    def __init__(self, port: int, name: str) -> None:
        sys.path[1:1] = FOLDERS
        os.environ["LMCACHE_TRACK_USAGE"] = "false"
        answers = os.dup(1)
        os.dup2(2, 1)  # what the imports print
        from lmcache.v1.multiprocess import custom_types
        from lmcache.v1.multiprocess.transport.factory import RequestClientFactory

        self.types, self.me, self.requests = custom_types, os.getpid(), 0
        self.client = RequestClientFactory.create(f"tcp://127.0.0.1:{port}")
        payload = custom_types.RegisterEngineDrivenContextPayload(
            instance_id=self.me,
            model_name=MODEL,
            world_size=1,
            block_size=16,
            num_layers=1,
            hidden_dim_size=VALUE // CHUNK,
            dtype_str="uint8",
            use_mla=True,
        )
        self.client.register_kv_cache_engine_driven_context(payload).result(LIMIT)
        self.memory = shared_memory.SharedMemory(name=name)
        resource_tracker.unregister(f"/{name}", "shared_memory")
        os.dup2(answers, 1)

    def key(self, prompt: int, chunks: int, worker: int | None = 0, request: str = "") -> Any:
        self.requests += 1
        return self.types.IPCCacheServerKey(
            model_name=MODEL,
            world_size=1,
            worker_id=worker,
            token_ids=tokens(prompt, chunks),
            start=0,
            end=chunks * CHUNK,
            request_id=request or f"{self.me}-{self.requests}",
            num_kv_readers=1,
        )

    def store(
        self, prompt: int, chunks: int, version: int = 1, commit: bool = True
    ) -> dict[str, Any]:
        """Stores a prompt. Returns the number of chunks for which the server has room."""
        key = self.key(prompt, chunks)
        slots = self.client.prepare_store(key, self.me).result(LIMIT).context["slots"]
        for i, slot in enumerate(slots):
            at = slot["offset"]
            self.memory.buf[at : at + VALUE] = value_of(prompt * 100 + i, version).data
        if commit:
            self.client.commit_store(key, self.me, b"").result(LIMIT)
            self.client.end_session(key.request_id).result(LIMIT)
        return {"slots": len(slots)}

    def look(self, prompt: int, chunks: int, free: bool = False) -> dict[str, Any]:
        """Looks up a prompt, whose chunks are then locked."""
        key = self.key(prompt, chunks, None)
        self.client.lookup(key, 1).result(LIMIT)
        found = self.client.wait_prefetch_status(key.request_id, LIMIT).result(LIMIT)
        if free:
            self.client.free_lookup_locks(key, 1).result(LIMIT)
            self.client.end_session(key.request_id).result(LIMIT)
        self.request = key.request_id
        return {"found": found}

    def begin_read(self, prompt: int, chunks: int) -> dict[str, Any]:
        found = self.look(prompt, chunks)["found"]
        if not found:
            return {"slots": 0}
        self.reading = self.key(prompt, found, 0, self.request)
        answer = self.client.prepare_retrieve(self.reading, self.me).result(LIMIT)
        self.slots = answer.context.get("slots", [])
        return {"slots": len(self.slots)}

    def end_read(self, prompt: int) -> dict[str, Any]:
        """Copies the chunks, and ends the read. Returns how many had other bytes."""
        other, room = 0, np.empty(VALUE, np.uint8)
        for i, slot in enumerate(self.slots):
            room[:] = np.frombuffer(self.memory.buf, np.uint8, VALUE, slot["offset"])
            other += version_of(prompt * 100 + i, room) is None
        committed = self.client.commit_retrieve(self.reading, self.me).result(LIMIT)
        self.client.end_session(self.reading.request_id).result(LIMIT)
        return {"other": other, "committed": bool(committed)}


class Scheduler:
    """The scheduler of an engine: LMCache's adapter, which its connector for vLLM has."""

    def __init__(self, port: int, name: str) -> None:
        sys.path[1:1] = FOLDERS
        os.environ["LMCACHE_TRACK_USAGE"] = "false"
        answers = os.dup(1)
        os.dup2(2, 1)
        import zmq
        from lmcache.integration.vllm import vllm_multi_process_adapter as theirs

        strategy = theirs.ParallelStrategy(True, 1, 0, tp_size=1, pp_size=1, n_servers=1)
        url = f"tcp://127.0.0.1:{port}"
        self.adapter = theirs.LMCacheMPSchedulerAdapter(
            [url], zmq.Context.instance(), MODEL, 16, strategy
        )
        os.dup2(answers, 1)

    def look(self, request: str, prompt: int) -> dict[str, Any]:
        """Polls a look-up as the steps of a scheduler do, until it is answered."""
        begin, longest, result = time.monotonic(), 0.0, None
        while result is None and time.monotonic() < begin + LIMIT:
            start = time.monotonic()
            self.adapter.maybe_submit_lookup_request(request, list(tokens(prompt, 4)))
            result = self.adapter.check_lookup_result(request)
            longest = max(longest, time.monotonic() - start)
            time.sleep(0.01)
        seconds = time.monotonic() - begin
        return {"result": result, "seconds": seconds, "longest": longest}


def hung_server(folder: Path) -> Verdict:
    """The server is stopped, and goes on later."""
    with Server(folder, 64) as server, server.client(folder) as worker:
        worker("store", prompt=1, chunks=4)
        with server.client(folder, "scheduler") as scheduler:
            first = scheduler("look", request="1", prompt=1)
            server.signal(signal.SIGSTOP)
            hung = scheduler("look", request="2", prompt=1)
            server.signal(signal.SIGCONT)
            end = time.monotonic() + LIMIT
            number = 3
            while True:
                later = scheduler("look", request=str(number), prompt=1)
                if later["result"] or time.monotonic() > end:
                    break
                number += 1
                time.sleep(1)
    why = (
        f"a look-up of a stopped server is answered with a miss after {hung['seconds']:.0f} s, and "
        f"no call of the scheduler takes more than {hung['longest'] * 1000:.0f} ms; later it "
        f"finds {later['result']} tokens again"
    )
    ok = first["result"] and hung["result"] == 0 and hung["longest"] < 1 and later["result"]
    return ("yes" if ok else "no"), why


def press(client: Peer, seconds: float, prompts: Iterator[int]) -> int:
    """Stores prompts of 4 chunks for some time. Returns the number of chunks stored."""
    stored, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        stored += client("store", prompt=next(prompts), chunks=4)["slots"]
        time.sleep(0.2)
    return stored


def pinned_after_death(folder: Path, **options: object) -> int:
    """Returns how many of 8 chunks, locked by a process that was killed, survive 15 s of stores."""
    with Server(folder, 24, **options) as server, server.client(folder) as client:
        client("store", prompt=1, chunks=8)
        with server.client(folder) as victim:
            assert victim("look", prompt=1, chunks=8)["found"] == 8
            victim.kill()
        press(client, 15, iter(range(2, 1000)))
        return int(client("look", prompt=1, chunks=8, free=True)["found"])


def aborted_pins(folder: Path) -> Verdict:
    """A process looks up a prompt, and is killed before it reads it."""
    normal = pinned_after_death(folder)
    short = pinned_after_death(folder, l1_read_ttl_seconds=3)
    why = f"after 15 s of stores {normal} of 8 chunks are still locked, which ends after 300 s by "
    why += f"default; with --l1-read-ttl-seconds 3 {short} of 8 are left"
    return ("yes" if normal < 8 else "late" if short < 8 else "no"), why


def open_reservation(folder: Path) -> Verdict:
    """A process is killed between the reservation and the commit; another stores that prompt."""
    slots = []
    for options in ({}, {"l1_write_ttl_seconds": 3}):
        with Server(folder, 64, **options) as server:
            with server.client(folder) as victim:
                victim("store", prompt=1, chunks=4, commit=False)
                victim.kill()
            time.sleep(5)
            with server.client(folder) as client:
                slots.append(client("store", prompt=1, chunks=4)["slots"])
    why = f"5 s later another process can store {slots[0]} of the 4 chunks; reservations end after "
    why += f"600 s by default, and with --l1-write-ttl-seconds 3 it can store {slots[1]}"
    return ("yes" if slots[0] == 4 else "late" if slots[1] == 4 else "no"), why


def stored_after_deaths(folder: Path, deaths: int, **options: object) -> int:
    """Returns how many chunks are stored in 15 s after processes died with 4 reserved each."""
    with Server(folder, 48, **options) as server:
        for number in range(deaths):
            with server.client(folder) as victim:
                victim("store", prompt=100 + number, chunks=4, commit=False)
                victim.kill()
        with server.client(folder) as client:
            time.sleep(5)
            return press(client, 15, iter(range(200, 1000)))


def leaked_reservations(folder: Path) -> Verdict:
    """Eleven processes are killed between their reservations and commits."""
    healthy = stored_after_deaths(folder, 0)
    normal = stored_after_deaths(folder, 11)
    short = stored_after_deaths(folder, 11, l1_write_ttl_seconds=3)
    why = f"{normal} chunks are stored in 15 s, without deaths {healthy}; reservations end after "
    why += f"600 s by default, and with --l1-write-ttl-seconds 3 {short} are stored"
    half = healthy / 2
    return ("yes" if normal > half else "late" if short > half else "no"), why


def lease_ends(folder: Path) -> Verdict:
    """A reader is stopped for longer than its lease, while others store; then it copies."""
    with Server(folder, 24, l1_read_ttl_seconds=3) as server:
        with server.client(folder) as writer, server.client(folder) as reader:
            writer("store", prompt=1, chunks=8)
            slots = reader("begin_read", prompt=1, chunks=8)["slots"]
            reader.signal(signal.SIGSTOP)
            press(writer, 15, iter(range(2, 1000)))
            reader.signal(signal.SIGCONT)
            answer = reader("end_read", prompt=1)
    why = f"{answer['other']} of {slots} chunks are those of others when the reader copies them, "
    why += f"and the end of the read says {'that all is well' if answer['committed'] else 'so'}"
    return ("no" if answer["other"] and answer["committed"] else "yes"), why


def killed_server(folder: Path) -> Verdict:
    """The server is killed. What does it leave, and does it start again?"""
    with Server(folder, 64) as server:
        server.signal(signal.SIGKILL)
        server.process.wait()
        left = Path("/dev/shm", server.name)
        size = left.stat().st_size if left.exists() else 0
        try:
            with Server(folder, 64) as again, again.client(folder) as client:
                slots = client("store", prompt=1, chunks=4)["slots"]
        except RuntimeError as error:
            return "no", f"/dev/shm has {size >> 20} MiB left; the next server: {error}"
    why = f"/dev/shm has {size >> 20} MiB left, until a server of that name starts, which "
    return ("no" if size else "yes"), why + f"stores {slots} of 4 chunks"


def dead_sessions(folder: Path) -> Verdict:
    """Connections of a stopped process take all descriptors of the server."""
    with Server(folder, 64, limit=256) as server:
        holder, held = stopped_connections(server.port)
        try:
            try:
                with server.client(folder) as client:
                    client("store", prompt=1, chunks=4)
                meanwhile = "another client is served"
            except RuntimeError as error:
                meanwhile = f"another client is not served in {LIMIT:.0f} s ({str(error)[:60]})"
        finally:
            holder.kill()
            holder.wait()
        time.sleep(2)
        if server.process.poll() is not None:
            return "no", f"the server ended with status {server.process.poll()}"
        try:
            with server.client(folder) as client:
                client("store", prompt=2, chunks=4)
            later = "one is served"
        except RuntimeError:
            later = "none is served"
    why = f"with {held} connections of a stopped process {meanwhile}; when it has ended, {later}"
    return ("yes" if "is served" in meanwhile else "no"), why


def prefix_order(folder: Path) -> Verdict:
    """A prompt is read from its start and then pressed out: what is left is its start."""
    with Server(folder, 32) as server, server.client(folder) as client:
        client("store", prompt=1, chunks=20)
        client("begin_read", prompt=1, chunks=20)
        client("end_read", prompt=1)
        for prompt in (2, 3):
            client("store", prompt=prompt, chunks=4)
        time.sleep(10)
        left = client("look", prompt=1, chunks=20, free=True)["found"]
    return ("yes" if 0 < left < 20 else "no"), f"{left} of 20 chunks are found, from the start on"


def other_weights(folder: Path) -> Verdict:
    """Another process has other weights under the same name of the model."""
    with Server(folder, 64) as server:
        with server.client(folder) as old:
            old("store", prompt=1, chunks=4, version=1)
        # The weights are not among what a worker registers with, or a key is made of.
        with server.client(folder) as new:
            found = new("look", prompt=1, chunks=4, free=True)["found"]
    if found:
        return "no", f"{found} chunks are hits: keys are tokens, model's name and rank alone"
    return "yes", "a miss"


def idle(folder: Path) -> Verdict:
    """A server without requests uses no processor."""
    with Server(folder, 64) as server, server.client(folder) as client:
        client("store", prompt=1, chunks=4)
        time.sleep(2)

        def spent() -> float:
            stat = Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()
            return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")

        before = spent()
        time.sleep(10)
        share = (spent() - before) / 10
    return ("no" if share > 0.003 else "yes"), f"{share:.2%} of a core in 10 s"


EXPERIMENTS = (
    hung_server,
    aborted_pins,
    open_reservation,
    leaked_reservations,
    lease_ends,
    killed_server,
    dead_sessions,
    prefix_order,
    other_weights,
    idle,
)

if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        serve(Client)
    elif sys.argv[1:] == ["scheduler"]:
        serve(Scheduler)
    else:
        main(f"LMCache {version()}, server", {one.__name__: one for one in EXPERIMENTS})
