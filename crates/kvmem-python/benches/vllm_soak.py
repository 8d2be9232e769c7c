"""*Soak*: two engines of vLLM generate from a node with a disk for minutes or hours, while they and
the server are killed, stopped and damaged at random.

    cargo xtask bench-engine soak [-- --minutes 60 --seed 1 --record]

It runs in the environment of ``cargo xtask test engine``. A node has memory for a third of the
prompts' KV and a disk tier for all of it. Each engine sends one to three prompts at a time, and
sometimes empties its own prefix cache, or aborts a request. Meanwhile, every few seconds:

- an engine, the server, an engine with the server, or everything is killed with ``kill -9``, and
  started again after a while;
- the server or an engine is stopped (SIGSTOP) for up to some seconds, and goes on;
- bits of the node's memory or of the data on its disk are flipped, while no engine loads. The
  engines verify what they look up.

It checks that

- each output is that of computing, or that of the engine's own prefix cache, which an engine
  without a tier has generated beforehand;
- no engine raises an exception, and none ends that was not killed;
- nothing is left at the end: no sessions, pins, reservations or bytes of the node, no descriptors
  and memory of its server, no processes, sockets and files in ``/dev/shm``.

The status is 1 if there is a fault."""

import argparse
import os
import random
import signal
import struct
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "tests" / "engine")]

import engine_record  # noqa: E402
import kvmem  # noqa: E402
import model  # noqa: E402
from engine_node import MIB, TOKEN, Node, prompt, shared  # noqa: E402
from engine_process import Engine, EngineError, Engines  # noqa: E402

OPTIONS = {"dtype": "float32", "max_num_seqs": 4, "max_model_len": 2048}
TOLERANCE = 0.005
"""Between the logarithms of the probabilities of two ways to the same KV."""
LONGEST = 120.0
"""Seconds until everything that was killed has gone."""
MOST_FAULTS = 20
SERVER_GROWTH = 64 * MIB
"""Bytes of its own by which a server may be larger than the first one at rest."""
EVENTS = {
    "kill engine": 4,
    "kill server": 3,
    "kill engine and server": 2,
    "kill everything": 1,
    "stop server": 3,
    "stop engine": 2,
    "damage memory": 2,
    "damage disk": 2,
}
"""What happens, and how often."""


def anonymous(pid: int) -> int:
    """Returns the bytes that are a process's own."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def naming(text: str) -> list[int]:
    """Returns the processes with a text in their command line, without this one."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            try:
                if text.encode() in Path("/proc", entry, "cmdline").read_bytes():
                    found.append(int(entry))
            except OSError:
                continue
    return found


def children(parent: int) -> list[int]:
    """Returns the processes that a process has started and that live."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                fields = Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == parent and fields[0] != "Z":
                found.append(int(entry))
    return found


def data_of(superblock: bytes) -> tuple[int, int]:
    """Returns offset and length of the data in the file of a disk tier (docs/format)."""
    assert superblock[:8] == b"KvmemDsk", superblock[:8]
    offset, length = struct.unpack_from("<QQ", superblock, 128 + 4 * 16)
    return offset, length


def is_one_of(output: dict[str, Any], right: list[dict[str, Any]]) -> bool:
    """Whether an output is one of the right ones."""
    return any(
        output["tokens"] == each["tokens"]
        and all(abs(a - b) < TOLERANCE for a, b in zip(output["logprobs"], each["logprobs"]))
        for each in right
    )


class Faults:
    """What went wrong, from all threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.found: list[str] = []

    def add(self, text: str) -> None:
        with self._lock:
            self.found.append(text)
            print(f"FAULT: {text}", file=sys.stderr, flush=True)


class Prompts:
    """Prompts with common beginnings, and their right outputs."""

    def __init__(self, count: int, seed: int) -> None:
        draw = random.Random(seed)
        self.texts: list[list[int]] = []
        for number in range(count):
            tokens = prompt(seed * 1000 + number, draw.randrange(300, 1500))
            if number % 3 == 2:
                other = self.texts[draw.randrange(number)]
                at = min(len(other), len(tokens)) // 2
                tokens = other[:at] + tokens[at:]
            self.texts.append(tokens)
        self.right: list[list[dict[str, Any]]] = []

    def learn(self, engine: Engine) -> None:
        """Generates the right outputs: computed, and from the engine's own prefix cache."""
        for tokens in self.texts:
            engine.call("forget")
            (cold,) = engine.generate(tokens)
            (own,) = engine.generate(tokens)
            assert not cold["cached"] and own["cached"], "the engine's own cache is not used"
            self.right.append([cold, own])

    @property
    def kv_bytes(self) -> int:
        return sum(map(len, self.texts)) * TOKEN


class Replica(threading.Thread):
    """An engine, which starts again when it was killed, and what it is asked."""

    def __init__(self, soak: "Soak", number: int) -> None:
        super().__init__(name=f"replica {number}", daemon=True)
        self._soak = soak
        self._draw = random.Random(f"{soak.seed}/{number}")
        self.gate = threading.Lock()
        """Held while a request runs."""
        self.engine: Engine | None = None
        self.was_killed = False
        self.counts: Counter[str] = Counter()
        self.longest = 0.0

    def kill(self, number: int = signal.SIGKILL) -> bool:
        """Sends a signal to the engine, if there is one."""
        engine = self.engine
        if engine is None or (self.was_killed and number == signal.SIGKILL):
            return False
        self.was_killed |= number == signal.SIGKILL
        os.kill(engine.pid, number)
        return True

    def run(self) -> None:
        while not self._soak.is_over():
            # A lock alone would be taken again before the thread that waits for it runs.
            self._soak.going.wait()
            try:
                with self.gate:
                    self._step()
            except (EngineError, OSError, ValueError) as error:
                engine, self.engine = self.engine, None
                if not self.was_killed:
                    self._soak.faults.add(f"{self.name}: {error!r}\n{traceback.format_exc()}")
                    if engine is not None:
                        engine.kill()
                elif engine is not None:
                    self.counts["engines killed"] += 1
                    engine.bury()
                self.was_killed = False

    def _step(self) -> None:
        if self.engine is None:
            self.was_killed = False
            self.engine = self._soak.start_engine()
            self.counts["engines started"] += 1
        draw, prompts = self._draw, self._soak.prompts
        if draw.random() < 0.6:
            self.engine.call("forget")
        if draw.random() < 0.05:
            self.engine.call("abort", draw.choice(prompts.texts), draw.randrange(4))
            self.counts["requests aborted"] += 1
        chosen = [draw.randrange(len(prompts.texts)) for _ in range(draw.randrange(1, 4))]
        start = time.monotonic()
        outputs = self.engine.generate(*(prompts.texts[number] for number in chosen))
        self.longest = max(self.longest, time.monotonic() - start)
        for number, output in zip(chosen, outputs):
            self.counts["outputs"] += 1
            self.counts["prompt tokens"] += len(prompts.texts[number])
            self.counts["cached tokens"] += output["cached"] or 0
            if not is_one_of(output, prompts.right[number]):
                self.counts["wrong outputs"] += 1
                right = [each["tokens"] for each in prompts.right[number]]
                self._soak.faults.add(
                    f"{self.name}: prompt {number}, {output['cached']} tokens cached: "
                    f"{output['tokens']} in place of {right}"
                )

    def settle(self) -> None:
        """Lets stores and loads end. The gate is held."""
        if self.engine is not None and not self.was_killed:
            for seed in (3, 4):
                self.engine.generate(prompt(seed, 16))

    def end(self) -> None:
        if self.engine is not None:
            self.engine.kill()
            self.engine = None


class Soak:
    """The node, the engines, and what happens to them."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self.seed: int = options.seed
        self._draw = random.Random(options.seed)
        self._pause: float = options.pause
        self._end = 0.0
        self._minutes: float = options.minutes
        self.faults = Faults()
        self.counts: Counter[str] = Counter()
        self.prompts = Prompts(options.prompts, options.seed)
        self._small = model.write(folder / "model", dtype="float32")
        self._tier = folder / "tier"
        self._shm = set(os.listdir("/dev/shm"))
        self.engines = Engines(folder)
        alone = self.engines.start(self._small, None, **OPTIONS)
        self.prompts.learn(alone)
        alone.kill()
        nbytes = self.prompts.kv_bytes // 3
        tier = f"disk:{self._tier},{self.prompts.kv_bytes * 3 + 256 * MIB}"
        self.node = Node(folder / "node", nbytes, "--tier", tier)
        self._rest()
        self.first = self._size()
        self.going = threading.Event()
        """Not set while requests wait, because something is damaged."""
        self.going.set()
        self.replicas = [Replica(self, number) for number in range(2)]

    def start_engine(self) -> Engine:
        return self.engines.start(self._small, shared(self.node, verify=True), **OPTIONS)

    def is_over(self) -> bool:
        return time.monotonic() >= self._end or len(self.faults.found) >= MOST_FAULTS

    def _size(self) -> dict[str, int]:
        """Returns what the processes of the node have, and the one that forks engines."""
        server, forking = self.node.pid, self.engines.pid
        return {
            "server descriptors": descriptors(server),
            "server bytes": anonymous(server),
            "engines' parent descriptors": descriptors(forking),
            "own descriptors": descriptors(os.getpid()),
        }

    def _rest(self) -> None:
        """Runs an engine once, so that the first sizes are those of processes that have worked."""
        engine = self.start_engine()
        for tokens in self.prompts.texts:
            engine.generate(tokens)
        engine.kill()
        self._await("the first engine has gone", self._nobody)

    def _nobody(self) -> bool:
        with kvmem.connect(self.node.path) as client:
            stats = client.stats()
            others = [one for one in client.as_operator().sessions() if one.pid != os.getpid()]
        held = stats.pinned or stats.reservations or stats.fenced_bytes
        return not others and not held

    def _await(self, what: str, true: Callable[[], object]) -> None:
        end = time.monotonic() + LONGEST
        while not true():
            if time.monotonic() > end:
                self.faults.add(f"not within {LONGEST:.0f} s: {what}")
                return
            time.sleep(0.1)

    def run(self) -> None:
        self._end = time.monotonic() + self._minutes * 60
        for replica in self.replicas:
            replica.start()
        reported = time.monotonic()
        while not self.is_over():
            time.sleep(min(self._draw.expovariate(1 / self._pause), 4 * self._pause))
            (event,) = self._draw.choices([*EVENTS], [*EVENTS.values()])
            if self.is_over():
                break
            if self._happens(event):
                self.counts[event] += 1
            if time.monotonic() - reported > 30:
                reported = time.monotonic()
                outputs = sum(each.counts["outputs"] for each in self.replicas)
                print(
                    f"{self._end - reported:.0f} s remain: {outputs} outputs, "
                    f"{self.counts.total()} events, {len(self.faults.found)} faults",
                    file=sys.stderr,
                    flush=True,
                )
        for replica in self.replicas:
            replica.join(600)
            if replica.is_alive():
                self.faults.add(f"{replica.name} hangs")

    def _happens(self, event: str) -> bool:
        """Does it. Returns whether there was something to do it to."""
        draw = self._draw
        one = draw.choice(self.replicas)
        kind, _, who = event.partition(" ")
        if kind == "kill":
            done = False
            for each in self.replicas if who == "everything" else [one] * who.startswith("engine"):
                done |= each.kill()
            if who in ("server", "engine and server", "everything"):
                self.node.kill()
                time.sleep(draw.choice([0.0, 0.2, 1.0, 4.0]))
                self.node.start()
                done = True
            return done
        if kind == "stop":
            seconds = draw.choice([0.1, 0.5, 3.0, 6.0])
            if who == "server":
                self.node.signal(signal.SIGSTOP)
                time.sleep(seconds)
                self.node.signal(signal.SIGCONT)
                return True
            done = one.kill(signal.SIGSTOP)
            time.sleep(seconds)
            return done and one.kill(signal.SIGCONT)
        return self._damage(who)

    def _damage(self, what: str) -> bool:
        """Flips bits while no engine loads."""
        self.going.clear()
        for replica in self.replicas:
            replica.gate.acquire()
        try:
            for replica in self.replicas:
                replica.settle()
            if what == "memory":
                self.node.damage(self._draw.choice([1, 1, 4, 16, 64]))
            else:
                self._damage_disk()
        except (EngineError, OSError, ValueError) as error:
            self.faults.add(f"while it was quiet: {error!r}\n{traceback.format_exc()}")
        finally:
            for replica in self.replicas:
                replica.gate.release()
            self.going.set()
        return True

    def _damage_disk(self) -> None:
        with open(self._tier, "r+b", buffering=0) as file:
            offset, length = data_of(file.read(4096))
            for _ in range(self._draw.choice([1, 16, 256])):
                at = offset + self._draw.randrange(length)
                file.seek(at)
                byte = file.read(1)
                if byte:
                    file.seek(at)
                    file.write(bytes([byte[0] ^ 0x40]))

    def finish(self) -> None:
        """Asks everything once more, and looks for what is left."""
        for replica in self.replicas:
            replica.end()
        engine = self.start_engine()
        for number, tokens in enumerate(self.prompts.texts):
            (output,) = engine.generate(tokens)
            self.counts["outputs at the end"] += 1
            self.counts["cached tokens at the end"] += output["cached"] or 0
            if not is_one_of(output, self.prompts.right[number]):
                self.faults.add(f"at the end, prompt {number}: {output['tokens']}")
        engine.kill()
        self._await("sessions, pins and reservations of killed engines are gone", self._nobody)
        last = self._size()
        for name, first in self.first.items():
            spare = SERVER_GROWTH if name.endswith("bytes") else 0
            if last[name] > first + spare:
                self.faults.add(f"{name}: {first} at first, and {last[name]} at the end")
        self.last = last
        with kvmem.connect(self.node.path) as client:
            self.node_stats = client.stats()
            client.as_operator().clear()
            self._await("the memory of an empty node is free", lambda: client.stats().used == 0)
        left = children(self.engines.pid)
        if left:
            self.faults.add(f"engines live on: processes {left}")
        self.engines.stop()
        self.node.stop()
        self._await("no process of the node is left", lambda: not naming(str(self.node.path)))
        new = sorted(set(os.listdir("/dev/shm")) - self._shm)
        mine = [name for name in new if str(os.getpid()) in name or "kvmem" in name]
        if mine:
            self.faults.add(f"files in /dev/shm: {mine}")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--prompts", type=int, default=24, help="different prompts")
    parser.add_argument("--pause", type=float, default=4, help="seconds between events, on average")
    engine_record.add_options(parser)
    options = parser.parse_args()
    record = engine_record.Record("vllm-soak", options)
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="kvmem-soak-") as folder:
        soak = Soak(Path(folder), options)
        try:
            soak.run()
            soak.finish()
        finally:
            soak.engines.stop()
            soak.node.stop()
    counts = sum((each.counts for each in soak.replicas), soak.counts)
    longest = max(each.longest for each in soak.replicas)
    stats = soak.node_stats
    record.rows = [{"what": name, "count": count} for name, count in sorted(counts.items())]
    record.more = {
        "longest_request_seconds": longest,
        "sizes": {"first": soak.first, "last": soak.last},
        "last_server": {
            name: getattr(stats, name)
            for name in ("values", "hits", "misses", "evicted", "damaged", "tier_stored")
        },
        "faults": soak.faults.found,
    }
    lines = [f"{row['count']:10}  {row['what']}" for row in record.rows]
    lines += [f"{longest:10.1f}  seconds of the longest request"]
    lines += [
        f"{soak.last[name]:10}  {name} at the end, {first} at first"
        for name, first in soak.first.items()
    ]
    lines += ["", f"{len(soak.faults.found)} faults", *soak.faults.found]
    record.finish(lines)
    return 1 if soak.faults.found else 0


if __name__ == "__main__":
    sys.exit(main())
