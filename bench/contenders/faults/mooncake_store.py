#!/usr/bin/env python3
"""Mooncake Store in experiments with faults: a master, a process that lends memory, and clients,
over TCP on the loopback interface. The options of the master are the defaults where an experiment
names no other."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from experiment import (
    LIMIT,
    VALUE,
    Call,
    Peer,
    Verdict,
    main,
    serve,
    stopped_connections,
    value_of,
    version_of,
)

LOCAL = "127.0.0.1"
BIG = 64 * VALUE


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOCAL, 0))
        return int(probe.getsockname()[1])


class Master:
    def __init__(self, folder: Path, limit: int = 0, port: int = 0, **options: object) -> None:
        self.folder, self.port = folder, port or free_port()
        options = {
            "rpc_address": LOCAL,
            "rpc_port": self.port,
            "metrics_host": LOCAL,
            "metrics_port": free_port(),
            "enable_metric_reporting": "false",
            **options,
        }
        program = [sys.executable, "-P", "-m", "mooncake.cli"]
        program += [f"-{name}={value}" for name, value in options.items()]
        wrap = ["prlimit", f"--nofile={limit}", "--"] if limit else []
        with open(folder / "master.log", "ab") as log:
            self.process = subprocess.Popen(
                [*wrap, *program],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "MC_TCP_BIND_ADDRESS": LOCAL},
                start_new_session=True,
            )
        end = time.monotonic() + LIMIT
        while True:
            with contextlib.suppress(OSError), socket.create_connection((LOCAL, self.port), 1):
                break
            if self.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError("the master did not start")
            time.sleep(0.05)

    def signal(self, number: int) -> None:
        os.killpg(self.process.pid, number)

    def client(self, lent: int = 0) -> Peer:
        """Starts a client that lends this many bytes to the store."""
        number = len(list(self.folder.glob("client*.log")))
        log = self.folder / f"client{number}.log"
        program = [sys.executable, __file__, "serve"]
        peer = Peer(program, log, MC_TCP_BIND_ADDRESS=LOCAL)
        peer("open", port=self.port, lent=lent)
        return peer

    def __enter__(self) -> Master:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.signal(signal.SIGKILL)
        self.process.wait()


class Client:
    def __init__(self, port: int, lent: int) -> None:
        answers = os.dup(1)
        os.dup2(2, 1)  # what the library prints
        from mooncake.store import MooncakeDistributedStore

        self.store = MooncakeDistributedStore()
        master = f"{LOCAL}:{port}"
        result = self.store.setup(
            f"{LOCAL}:{free_port()}", "P2PHANDSHAKE", lent, 2 * BIG, "tcp", "", master
        )
        if result != 0:
            raise RuntimeError(f"setup returns {result}")
        self.big = np.zeros(BIG, np.uint8)
        if self.store.register_buffer(self.big.ctypes.data, BIG) != 0:
            raise RuntimeError("register_buffer failed")
        os.dup2(answers, 1)

    def put(self, keys: list[int], version: int = 1) -> dict[str, Any]:
        def one(key: int) -> int:
            result = self.store.put(str(key), value_of(key, version).data)
            if result != 0:
                raise RuntimeError(f"put returns {result}")
            return version

        return Call().each(keys, one)

    def get(self, keys: list[int]) -> dict[str, Any]:
        def one(key: int) -> int | None:
            value = self.store.get(str(key))
            if not value:
                return None
            version = version_of(key, np.frombuffer(value, np.uint8))
            return -1 if version is None else version

        return Call().each(keys, one)

    def exists(self, keys: list[int]) -> dict[str, Any]:
        return Call().each(keys, lambda key: self.store.is_exist(str(key)) == 1 or None)

    def remove(self, key: int) -> dict[str, Any]:
        return {"result": self.store.remove(str(key))}

    def reserve(self, keys: list[int]) -> dict[str, Any]:
        names = [str(key) for key in keys]
        return {"results": self.store.batch_put_session_start(names, [VALUE] * len(keys))}

    def put_big(self, key: int, version: int = 1) -> dict[str, Any]:
        self.big[:] = value_of(key, version, BIG)
        return {"result": self.store.put_from(str(key), self.big.ctypes.data, BIG)}

    def get_big(self, key: int) -> dict[str, Any]:
        self.big[:] = 0
        result = self.store.get_into(str(key), self.big.ctypes.data, BIG)
        other = result == BIG and version_of(key, self.big) is None
        return {"result": result, "other": bool(other)}


def timed(peer: Peer, call: str, **arguments: Any) -> tuple[float, Any]:
    """Returns the seconds of a call, LIMIT at most, and its answer or None."""
    import select

    begin = time.monotonic()
    peer.begin(call, **arguments)
    assert peer.process.stdout is not None
    ready, _, _ = select.select([peer.process.stdout], [], [], LIMIT)
    answer = peer.answer() if ready else None
    return time.monotonic() - begin, answer


def hung_server(folder: Path) -> Verdict:
    """The master is stopped, and goes on later."""
    with Master(folder) as master, master.client(256 * VALUE), master.client() as client:
        client("put", keys=[1, 2])
        others = [master.client() for _ in range(3)]
        master.signal(signal.SIGSTOP)
        try:
            calls = (("get", [1]), ("exists", [1]), ("put", [3]))
            took = {}
            for other, (call, keys) in zip(others, calls):
                seconds, answer = timed(other, call, keys=keys)
                took[call] = (seconds, answer is not None)
        finally:
            master.signal(signal.SIGCONT)
            for other in others:
                other.kill()
        time.sleep(2)
        seconds, later = timed(client, "put", keys=[4])
        left = client("get", keys=[1, 2])["done"]
    why = ", ".join(
        f"{call} {'ends after' if ended else 'has not ended after'} {seconds:.0f} s"
        for call, (seconds, ended) in took.items()
    )
    works = later is not None and later["done"] == [4]
    why += f"; afterwards a client {'stores again' if works else 'does not store'}"
    why += f", and finds {len(left)} of 2 earlier values"
    ok = all(ended for _, ended in took.values()) and works
    return ("yes" if ok else "no"), why


def hung_owner(folder: Path) -> Verdict:
    """The process that lends the memory is stopped."""
    with Master(folder) as master, master.client(256 * VALUE) as owner, master.client() as client:
        client("put", keys=[1, 2])
        owner.signal(signal.SIGSTOP)
        seconds, answer = timed(client, "get", keys=[1])
        owner.signal(signal.SIGCONT)
    ended = "ends" if answer else "has not ended"
    return ("yes" if answer else "no"), f"get {ended} after {seconds:.0f} s"


def open_reservation(folder: Path) -> Verdict:
    """A client is killed between the reservation and the end of a store; another stores the key."""
    with Master(folder) as master, master.client(256 * VALUE), master.client() as client:
        with master.client() as victim:
            reserved = victim("reserve", keys=[1])["results"]
            victim.kill()
        begin, said = time.monotonic(), ""
        while time.monotonic() < begin + LIMIT:
            answer = client("put", keys=[1], version=2)
            found = client("get", keys=[1])
            if answer["done"] and found["versions"] == [2]:
                break
            said = said or answer["said"] or "put is done, and get misses"
            time.sleep(1)
        seconds = time.monotonic() - begin
    if reserved != [0]:
        return "failed", f"the reservation returns {reserved}"
    if not found["versions"]:
        return "no", f"{LIMIT:.0f} s later the key is not stored: {said}"
    why = f"another client stores the key after {seconds:.0f} s"
    why += f"; before: {said}" if said else ""
    return ("yes" if seconds < 2 else "late"), why


def room_after_deaths(folder: Path, **options: object) -> int:
    """Returns how many of 30 values fit in a memory of 64 after 10 clients died with 5 each."""
    with Master(folder, **options) as master:
        with master.client(64 * VALUE), master.client() as client:
            for number in range(10):
                with master.client() as victim:
                    victim("reserve", keys=list(range(number * 10 + 100, number * 10 + 105)))
                    victim.kill()
            time.sleep(10)
            return len(client("put", keys=list(range(1, 31)))["done"])


def leaked_reservations(folder: Path) -> Verdict:
    """Ten clients are killed between the reservations and the ends of their stores."""
    normal = room_after_deaths(folder)
    short = {"put_start_discard_timeout_sec": 2, "put_start_release_timeout_sec": 3}
    soon = room_after_deaths(folder, **short)
    why = f"10 s later {normal} of 30 values fit in a memory of 64: space is released after 600 s "
    why += f"by default; with -put_start_release_timeout_sec=3 {soon} fit"
    return ("yes" if normal == 30 else "late" if soon == 30 else "no"), why


def aborted_pins(folder: Path) -> Verdict:
    """A client looks a key up, which leases it, and is killed; another removes the key."""
    with Master(folder) as master, master.client(256 * VALUE), master.client() as client:
        client("put", keys=[1])
        with master.client() as victim:
            victim("exists", keys=[1])
            victim.kill()
        begin = time.monotonic()
        first = result = client("remove", key=1)["result"]
        while result != 0 and time.monotonic() < begin + LIMIT:
            time.sleep(0.5)
            result = client("remove", key=1)["result"]
        seconds = time.monotonic() - begin
    why = f"remove returns {first}, and 0 after {seconds:.0f} s"
    return ("no" if result else "yes" if seconds < 2 else "late"), why


def lease_ends(folder: Path) -> Verdict:
    """A reader is stopped in a read for longer than its lease, while others store."""
    chance, other, failed, right = random.Random(1), 0, 0, 0
    with Master(folder, default_kv_lease_ttl=500, client_ttl=600) as master:
        with master.client(3 * BIG + 32 * VALUE), master.client() as writer:
            with master.client() as reader:
                for round in range(10):
                    key = round * 10 + 1
                    end = time.monotonic() + LIMIT
                    while writer("put_big", key=key)["result"] != 0:
                        if time.monotonic() > end:
                            raise RuntimeError("the value is not stored")
                        time.sleep(0.2)
                    reader.begin("get_big", key=key)
                    time.sleep(chance.uniform(0.01, 0.04))
                    reader.signal(signal.SIGSTOP)
                    time.sleep(1)
                    for further in range(1, 7):
                        writer("put_big", key=key + further)
                        time.sleep(0.2)
                    reader.signal(signal.SIGCONT)
                    answer = reader.answer()
                    other += answer["other"]
                    failed += answer["result"] != BIG
                    right += answer["result"] == BIG and not answer["other"]
    why = f"of 10 reads {right} are right, {failed} fail, and {other} are called right with bytes "
    return ("no" if other else "yes"), why + "of other values"


def killed_owner(folder: Path) -> Verdict:
    """The process that lends the memory is killed; another one takes its place."""
    with Master(folder) as master, master.client() as client:
        with master.client(128 * VALUE) as owner:
            client("put", keys=[1, 2, 3])
            owner.kill()
        seconds, answer = timed(client, "get", keys=[1])
        with master.client(128 * VALUE):
            begin, stored = time.monotonic(), False
            while not stored and time.monotonic() < begin + LIMIT:
                _, put = timed(client, "put", keys=[4])
                found = client("get", keys=[4]) if put else {"done": []}
                stored = bool(put and put["done"] and found["done"])
                time.sleep(0.5)
            after = time.monotonic() - begin
            last = client("get", keys=[1, 2, 3])
    what = "no answer" if answer is None else "a miss" if answer["misses"] else "an error"
    if answer and answer["other"]:
        return "no", "the get returns other bytes"
    why = f"the get is {what} after {seconds:.0f} s; with another process values are stored after "
    why += f"{after:.0f} s, and {len(last['other'])} have other bytes"
    return ("yes" if answer and stored and not last["other"] else "no"), why


def killed_server(folder: Path) -> Verdict:
    """The master is killed, and starts again at the same address."""
    before = set(os.listdir("/dev/shm"))
    with Master(folder) as master, master.client(128 * VALUE), master.client() as client:
        client("put", keys=[1, 2, 3])
        master.signal(signal.SIGKILL)
        master.process.wait()
        with Master(folder, port=master.port):
            begin, stored, after = time.monotonic(), False, {"done": [], "other": []}
            while not stored and time.monotonic() < begin + LIMIT:
                seconds, put = timed(client, "put", keys=[4, 5, 6])
                stored = bool(put and put["done"] == [4, 5, 6])
                time.sleep(0.5)
            if stored:
                after = client("get", keys=[1, 2, 3, 4, 5, 6])
            seconds = time.monotonic() - begin
    left = set(os.listdir("/dev/shm")) - before
    why = f"values are stored {seconds:.0f} s later; {after['done']} of 1 to 6 are found, "
    why += f"{len(after['other'])} with other bytes; {len(left)} files are left in /dev/shm"
    return ("yes" if stored and not after["other"] and not left else "no"), why


def dead_sessions(folder: Path) -> Verdict:
    """Connections of a stopped process take all descriptors of the master."""
    with Master(folder, limit=256) as master:
        holder, held = stopped_connections(master.port)
        try:
            peer = Peer([sys.executable, __file__, "serve"], folder / "client.log")
            with peer:
                try:
                    _, answer = timed(peer, "open", port=master.port, lent=16 * VALUE)
                    served = answer is not None
                except RuntimeError:
                    served = False
        finally:
            holder.kill()
            holder.wait()
        time.sleep(2)
        if master.process.poll() is not None:
            return "no", f"the master ended with status {master.process.poll()}"
        try:
            with master.client(16 * VALUE) as client:
                later = client("put", keys=[1])["done"] == [1]
        except RuntimeError:
            later = False
    why = f"with {held} connections of a stopped process another client is "
    why += f"{'served' if served else 'not served'}; when it has ended, "
    return ("yes" if served else "no"), why + ("one is served" if later else "none is served")


def idle(folder: Path) -> Verdict:
    """Master and clients without requests use no processor."""

    def spent(pid: int) -> float:
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")

    with Master(folder) as master, master.client(128 * VALUE) as owner:
        owner("put", keys=[1])
        time.sleep(2)
        children = Path(f"/proc/{master.process.pid}/task/{master.process.pid}/children")
        pids = [master.process.pid, *map(int, children.read_text().split())]
        before = [sum(map(spent, pids)), spent(owner.process.pid)]
        time.sleep(10)
        after = [sum(map(spent, pids)), spent(owner.process.pid)]
    shares = [(b - a) / 10 for a, b in zip(before, after)]
    why = f"the master {shares[0]:.2%} of a core in 10 s, a client {shares[1]:.2%}"
    return ("no" if max(shares) > 0.003 else "yes"), why


EXPERIMENTS = (
    hung_server,
    hung_owner,
    open_reservation,
    leaked_reservations,
    aborted_pins,
    lease_ends,
    killed_owner,
    killed_server,
    dead_sessions,
    idle,
)

if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        serve(Client)
    else:
        version = importlib.metadata.version("mooncake-transfer-engine-non-cuda")
        main(f"Mooncake Store {version}", {one.__name__: one for one in EXPERIMENTS})
