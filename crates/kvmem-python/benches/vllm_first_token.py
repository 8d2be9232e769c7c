"""*First token*: seconds until vLLM has the first token of a prompt, cold and from each cache.

    cargo xtask bench-engine first-token [-- --tokens 2048,8192,16384 --rounds 5 --record]

It runs in the environment of ``cargo xtask test engine``, with a wheel and a command of the profile
``bench`` (``KVMEM_COMMAND`` names the command). vLLM runs whole, on the CPU, with a small model in
float32: processors without instructions for bfloat16 compute that much more slowly, which would
flatter every cache. A token has 24 KiB of KV.

- *cold*: computed, by an engine without a connector, and by one that stores to a node meanwhile.
- *own cache*: again, from the prefix cache of the engine without a connector.
- *node*: from ``kvmem serve``, after the engine's own prefix cache was emptied. *Engine killed*:
  the first long prompt of a new engine, after ``kill -9`` of the one before. *Both killed*: after
  ``kill -9`` of the engine and of the server.
- *disk*: the same three, from the disk tier below a node whose memory has room for all prompts:
  others have pushed all values to the disk before each.
- *disk, half the memory*: from a node whose memory has room for half of the prompt, and a disk
  tier. The memory cannot hold all chunks that one request loads, so some tokens are computed; the
  column of cached tokens says how many are not.
- *vLLM's file tier*: from vLLM's own tier of files, in an engine that has started anew, after a
  kill. Its CPU tier is kvmem's, because vLLM has none on this platform.
- *LMCache's server*: from LMCache's multi-process server by LMCache's own connector, in the same
  engine, after the engine's own prefix cache was emptied and after ``kill -9`` of the engine.
  ``LMCACHE_DIR`` names the folder of its wheel. LMCache's connector of one process
  (``LMCacheConnectorV1``) has no device "cpu". The server that is killed loses its memory.

Engines take turns within a round, and a round has prompts of its own. Figures are medians of the
rounds. *cached* is the least number of tokens of the prompt that were not computed. Each output is
compared with that of the first engine, and differing ones are counted."""

import argparse
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "tests" / "engine")]

import engine_record  # noqa: E402
import kvmem  # noqa: E402
import model  # noqa: E402
from engine_node import BLOCK, MIB, TOKEN, Node, prompt, shared  # noqa: E402
from engine_process import Engine, EngineError, Engines  # noqa: E402

COLD, OWN = "cold", "own cache"
WAYS = (
    COLD,
    "cold, stores to a node",
    OWN,
    "node",
    "node, engine killed",
    "node, both killed",
    "disk",
    "disk, engine killed",
    "disk, both killed",
    "disk, half the memory",
    "vLLM's file tier, engine killed",
    "LMCache's server",
    "LMCache's server, engine killed",
)
GROUPS = ("node", "disk", "half", "files", "lmcache")
OPTIONS = {"dtype": "float32", "max_num_seqs": 4}
FILLING = 4 * MIB
"""Bytes of a value that pushes others out of the memory of a node."""
KILLED_LIMIT = 0.1
"""First token after a kill, over computing it."""
NODE_LIMIT = 1.3
"""First token from a node, over the engine's own prefix cache."""


class Measurement:
    """The figures of all rounds."""

    def __init__(self, lengths: list[int]) -> None:
        self.seconds: dict[tuple[str, int], list[float]] = defaultdict(list)
        self.cached: dict[tuple[str, int], list[int]] = defaultdict(list)
        self.expected: dict[tuple[int, int], list[int]] = {}
        self.differing = self.outputs = 0
        self.lengths = lengths

    def take(self, way: str, engine: Engine, turn: int, lengths: list[int] | None = None) -> None:
        """Generates for the prompts of a round, and notes the seconds to the first tokens."""
        assert way in WAYS
        for tokens in lengths or self.lengths:
            (output,) = engine.generate(of_round(turn, tokens), max_tokens=4)
            assert not way.startswith(COLD) or output["cached"] == 0, (way, tokens, output)
            self.seconds[way, tokens].append(output["first"])
            self.cached[way, tokens].append(output["cached"] or 0)
            expected = self.expected.setdefault((turn, tokens), output["tokens"])
            self.outputs += 1
            self.differing += expected != output["tokens"]
            print(
                f"  {way}: {tokens} tokens, {output['cached']} cached, {output['first']:.3f} s",
                file=sys.stderr,
                flush=True,
            )

    def rows(self) -> list[dict[str, Any]]:
        """Returns the medians, with their ratios to computing."""
        rows = []
        for tokens in self.lengths:
            cold = statistics.median(self.seconds[COLD, tokens])
            own = statistics.median(self.seconds[OWN, tokens])
            for way in WAYS:
                turns = self.seconds[way, tokens]
                if turns:
                    median = statistics.median(turns)
                    row = {"tokens": tokens, "way": way, "seconds": median}
                    row.update(of_cold=median / cold, of_own=median / own)
                    cached = self.cached[way, tokens]
                    rows.append({**row, "cached": min(cached), "turns": turns, "cacheds": cached})
        return rows


def goals(rows: list[dict[str, Any]]) -> Iterator[engine_record.Goal]:
    """Returns the goals of the rows."""
    for row in rows:
        at = f"{row['way']}, {row['tokens']}"
        if row["way"] in ("node, engine killed", "node, both killed"):
            name = "first token after a kill over computing it"
            yield engine_record.Goal(name, row["of_cold"], KILLED_LIMIT, at)
        elif row["way"] == "node":
            name = "first token from a node over the engine's own cache"
            yield engine_record.Goal(name, row["of_own"], NODE_LIMIT, at)


def lines(rows: list[dict[str, Any]]) -> list[str]:
    """Returns the table of the rows."""
    cells = []
    for row in rows:
        figures = [f"{row['seconds']:.3f}", f"{row['of_cold']:.3f}", f"{row['of_own']:.2f}"]
        least, most = f"{min(row['turns']):.3f}", f"{max(row['turns']):.3f}"
        cells.append([str(row["tokens"]), row["way"], *figures, least, most, str(row["cached"])])
    head = ["tokens", "from", "seconds", "of cold", "of own", "least", "most", "cached"]
    return engine_record.table(head, cells)


def of_round(turn: int, tokens: int) -> list[int]:
    """Returns the prompt of this length of a round, with a token more: an engine computes at least
    one, and a whole block if the prompt ends with one."""
    return prompt(turn * 100_000 + tokens, tokens + 1)


def warm(engine: Engine) -> None:
    """Takes what only the first steps of an engine do out of the figures."""
    for seed in (1, 2):
        engine.generate(prompt(seed, 300), max_tokens=2)


def settle(engine: Engine) -> None:
    """Lets the stores of an engine end, which they do in later steps."""
    for seed in (3, 4, 5):
        engine.generate(prompt(seed, 16), max_tokens=8)


def evict(node: Node) -> None:
    """Moves all values that are not pinned from the memory of a node to its disk.

    Other values of their namespace push them out, slowly: a node stores what it would evict next,
    and a value that must go before it is stored is lost. The other values are removed then."""
    filling = bytes(FILLING)
    with kvmem.connect(node.path) as client:
        largest = max(client.stats().namespaces, key=lambda each: each.bytes)
    with kvmem.connect(node.path, namespace=largest.name) as client:
        keys = [at.to_bytes(8, "big") for at in range(client.memory_len // FILLING)]
        for key in keys:
            client.insert(key, filling)
            before = -1
            while (stored := client.stats().tier_stored_total) != before:
                before = stored
                time.sleep(0.03)
        client.remove_batch(keys)
        left = client.stats()
    if left.values > left.pinned:
        print(f"  {left.values} values are still in the memory", file=sys.stderr, flush=True)


class LmcacheError(Exception):
    """LMCache's server has not started. Has the end of its log."""


class LmcacheServer:
    """LMCache's multi-process server, on the processor alone."""

    def __init__(self, log: Path, nbytes: int) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        options = {
            "host": "127.0.0.1",
            "port": self.port,
            "chunk-size": BLOCK,
            # It evicts when 80 % are in use.
            "l1-size-gb": nbytes / (1 << 30) + 1,
            "shm-name": f"lmcache_l1_pool_first_token{os.getpid()}",
            "supported-transfer-mode": "engine_driven",
            "eviction-policy": "LRU",
        }
        words = [word for option, value in options.items() for word in (f"--{option}", str(value))]
        command = [sys.executable, "-m", "lmcache.v1.multiprocess.server", *words]
        command += ["--no-l1-use-lazy", "--disable-observability"]
        environment = {**os.environ, "LMCACHE_TRACK_USAGE": "false"}
        with open(log, "wb") as output:
            self._process = subprocess.Popen(
                command, env=environment, cwd=log.parent, stdout=output, stderr=output
            )
        end = time.monotonic() + 300
        while b"cache server is running on" not in log.read_bytes():
            if self._process.poll() is not None or time.monotonic() > end:
                self.stop()
                last = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
                raise LmcacheError(f"its server has not started: {''.join(last)}")
            time.sleep(0.1)

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


class Bench:
    """The engines and nodes of a run."""

    def __init__(self, folder: Path, lengths: list[int], record: engine_record.Record) -> None:
        self.folder = folder
        self.found = Measurement(lengths)
        self._record = record
        self._small = model.write(folder / "model", dtype="float32")
        self.engines = Engines(folder)
        self._options = {**OPTIONS, "max_model_len": max(lengths) + 128}
        self._nodes: list[Node] = []
        self.round_bytes = sum(lengths) * TOKEN

    def start(
        self,
        extra: dict[str, Any] | None,
        environment: dict[str, str] | None = None,
        **options: Any,
    ) -> Engine:
        # A few percent more than a round: the outputs, and the prompts that warm an engine.
        space = -(-self.round_bytes * 5 // 4 // (1 << 30))
        environment = {"VLLM_CPU_KVCACHE_SPACE": str(space), **(environment or {})}
        options = {**self._options, "environment": environment, **options}
        engine = self.engines.start(self._small, extra, **options)
        warm(engine)
        return engine

    def node(self, name: str, nbytes: int, *options: str) -> Node:
        node = Node(self.folder / name, nbytes, *options)
        self._nodes.append(node)
        return node

    def tier(self, name: str) -> list[str]:
        return ["--tier", f"disk:{self.folder / name},{4 * self.round_bytes + 1024 * MIB}"]

    def stop(self) -> None:
        self.engines.stop()
        for node in self._nodes:
            node.stop()

    def killed(self, way: str, node: Node, engine: Engine, turn: int) -> None:
        """Kills the engine, and then both, and takes the figures of the next ones."""
        is_disk = way == "disk"
        for who in ("engine", "both"):
            if is_disk:
                settle(engine)
                evict(node)
            engine.kill()
            if who == "both":
                node.kill()
                node.start()
            engine = self.start(shared(node))
            self.found.take(f"{way}, {who} killed", engine, turn)
        engine.kill()

    def of_node(self, turn: int) -> None:
        """From the memory of a node."""
        node = self.node(f"node{turn}", self.round_bytes * 5 // 4 + 256 * MIB)
        engine = self.start(shared(node))
        self.found.take("cold, stores to a node", engine, turn)
        settle(engine)
        engine.call("forget")
        self.found.take("node", engine, turn)
        self.killed("node", node, engine, turn)
        node.stop()

    def of_disk(self, turn: int) -> None:
        """From the disk below a node."""
        nbytes = self.round_bytes * 5 // 4 + 256 * MIB
        node = self.node(f"disk{turn}", nbytes, *self.tier(f"tier{turn}"))
        engine = self.start(shared(node))
        for tokens in self.found.lengths:
            engine.generate(of_round(turn, tokens), max_tokens=4)
        settle(engine)
        evict(node)
        engine.call("forget")
        self.found.take("disk", engine, turn)
        self.killed("disk", node, engine, turn)
        node.stop()
        (self.folder / f"tier{turn}").unlink(missing_ok=True)

    def of_half(self, turn: int) -> None:
        """From a node whose memory has room for half of the prompt, and from its disk."""
        for tokens in self.found.lengths:
            # A value more for the presence of the worker, and a block that is being stored.
            nbytes = (tokens // BLOCK // 2 + 2) * BLOCK * TOKEN
            name = f"half{turn}-{tokens}"
            node = self.node(name, nbytes, *self.tier(f"{name}.tier"))
            engine = self.start(shared(node))
            engine.generate(of_round(turn, tokens), max_tokens=4)
            settle(engine)
            engine.call("forget")
            self.found.take("disk, half the memory", engine, turn, [tokens])
            engine.kill()
            node.stop()
            (self.folder / f"{name}.tier").unlink(missing_ok=True)

    def of_files(self, turn: int) -> None:
        """From vLLM's tier of files."""
        files = self.folder / f"files{turn}"
        extra = {
            "spec_name": "KvmemTieringOffloadingSpec",
            "cpu_bytes_to_use": self.round_bytes * 5 // 4 + 256 * MIB,
            "secondary_tiers": [{"type": "fs", "root_dir": str(files)}],
        }
        engine = self.start(extra)
        for tokens in self.found.lengths:
            engine.generate(of_round(turn, tokens), max_tokens=4)
        settle(engine)
        self._written(files, engine)
        engine.kill()
        engine = self.start(extra)
        self.found.take("vLLM's file tier, engine killed", engine, turn)
        engine.kill()
        shutil.rmtree(files, ignore_errors=True)

    def _written(self, files: Path, engine: Engine) -> None:
        """Waits until the files of a tier do not change any more."""
        before, end = None, time.monotonic() + 60
        while time.monotonic() < end:
            engine.generate(prompt(3, 16), max_tokens=2)
            now = sorted(str(it) for it in files.rglob("*") if it.is_file())
            if now == before and not any(name.endswith(".tmp") for name in now):
                return
            before = now
            time.sleep(0.2)

    def of_lmcache(self, turn: int) -> None:
        """From LMCache's server, by LMCache's connector in the same engine."""
        if not os.environ.get("LMCACHE_DIR"):
            self._record.skip("LMCache", "LMCACHE_DIR names no folder with its wheel")
            return
        try:
            server = LmcacheServer(self.folder / f"lmcache{turn}.log", self.round_bytes * 2)
        except LmcacheError as error:
            self._record.skip("LMCache", str(error))
            return
        extra = {"lmcache.mp.host": "tcp://127.0.0.1", "lmcache.mp.port": server.port}
        environment = {"LMCACHE_TRACK_USAGE": "false"}
        try:
            engine = self.start(extra, environment, connector="LMCacheMPConnector")
            for tokens in self.found.lengths:
                engine.generate(of_round(turn, tokens), max_tokens=4)
            settle(engine)
            engine.call("forget")
            self.found.take("LMCache's server", engine, turn)
            engine.kill()
            engine = self.start(extra, environment, connector="LMCacheMPConnector")
            self.found.take("LMCache's server, engine killed", engine, turn)
            engine.kill()
        except EngineError as error:
            self._record.skip("LMCache", str(error).strip().splitlines()[-1])
        finally:
            server.stop()

    def measure(self, rounds: int, groups: list[str]) -> None:
        alone = self.start(None)
        for turn in range(rounds):
            self.found.take(COLD, alone, turn)
            self.found.take(OWN, alone, turn)
            for group in groups:
                getattr(self, f"of_{group}")(turn)
            # Its own cache has room for one round.
            alone.call("forget")
            print(f"round {turn + 1} of {rounds}", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tokens", default="2048,8192,16384", help="lengths of the prompts")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--groups", default=",".join(GROUPS), help="measured next to computing")
    engine_record.add_options(parser)
    options = parser.parse_args()
    lengths = [int(it) for it in options.tokens.split(",")]
    groups = [it for it in options.groups.split(",") if it]
    unknown = sorted(set(groups) - set(GROUPS))
    if unknown:
        parser.error(f"--groups has no {', '.join(unknown)}: its names are {', '.join(GROUPS)}")
    if folder := os.environ.get("LMCACHE_DIR"):
        # The engines and the server find it there, behind the programs' own folders.
        known = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = os.pathsep.join([*([known] if known else []), folder])
    record = engine_record.Record("vllm-first-token", options)
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="kvmem-first-token-") as folder:
        bench = Bench(Path(folder), lengths, record)
        try:
            bench.measure(options.rounds, groups)
        finally:
            bench.stop()
    found = bench.found
    record.rows = found.rows()
    record.goals = [*goals(record.rows)]
    record.more = {"outputs": found.outputs, "differing": found.differing}
    text = lines(record.rows)
    text += ["", f"{found.differing} of {found.outputs} outputs differ from the first engine's."]
    record.finish(text)


if __name__ == "__main__":
    main()
