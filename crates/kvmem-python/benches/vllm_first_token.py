"""*First token*: seconds until vLLM has the first token of a prompt, cold and from each cache.

    python benches/vllm_first_token.py [--tokens 2048,8192,16384] [--rounds 3] [--json FILE]

It runs in the environment of ``cargo xtask test engine``, with a wheel and a command of the release
profile (``KVMEM_COMMAND`` names the command). vLLM runs whole, on the CPU, with a small model in
float32: processors without instructions for bfloat16 compute that much more slowly, which would
flatter every cache.

- *Cold*: computed, by an engine without a connector, and by one that stores to a node meanwhile.
- *Own cache*: again, from the prefix cache of the engine without a connector.
- *Node*: from ``kvmem serve``, after the engine's own prefix cache was emptied.
- *Engine killed*: the first long prompt of a new engine, after ``kill -9`` of the one before.
- *Both killed*: the same, after ``kill -9`` of the engine and of the server.
- *vLLM's file tier*: from vLLM's own tier of files, in an engine that has started anew. Its CPU
  tier is kvmem's, because vLLM has none on this platform.

Engines take turns within a round, and a round has prompts of its own. Figures are medians of the
rounds. Each output is compared with that of the first engine, and differing ones are counted.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "tests" / "engine")]

import model  # noqa: E402
from engine_node import MIB, Node, prompt, shared  # noqa: E402
from engine_process import Engine, Engines  # noqa: E402

WAYS = (
    ("cold, no connector", "computed"),
    ("cold, stores to a node", "computed"),
    ("own cache", "cached"),
    ("node", "cached"),
    ("engine killed", "cached"),
    ("both killed", "cached"),
    ("vLLM's file tier", "cached"),
)
OPTIONS = {"dtype": "float32", "max_num_seqs": 4}


class Measurement:
    """The figures of all rounds."""

    def __init__(self, lengths: list[int]) -> None:
        self.seconds: dict[tuple[str, int], list[float]] = defaultdict(list)
        self.expected: dict[tuple[int, int], list[int]] = {}
        self.differing = self.outputs = 0
        self.lengths = lengths

    def take(self, way: str, engine: Engine, turn: int) -> None:
        """Generates for the prompts of a round, and notes the seconds to the first tokens."""
        kind = dict(WAYS)[way]
        for tokens in self.lengths:
            (output,) = engine.generate(prompt(turn * 100_000 + tokens, tokens), max_tokens=4)
            if kind == "cached":
                assert output["cached"] >= tokens - 256, f"{way}: {output['cached']} of {tokens}"
            else:
                assert output["cached"] == 0, f"{way}: {output['cached']} of {tokens}"
            self.seconds[way, tokens].append(output["first"])
            expected = self.expected.setdefault((turn, tokens), output["tokens"])
            self.outputs += 1
            self.differing += expected != output["tokens"]

    def rows(self) -> list[dict[str, Any]]:
        """Returns the medians, with their ratios to computing."""
        rows = []
        for tokens in self.lengths:
            cold = statistics.median(self.seconds["cold, no connector", tokens])
            for way, _ in WAYS:
                turns = self.seconds[way, tokens]
                if turns:
                    median = statistics.median(turns)
                    row = {"tokens": tokens, "way": way, "seconds": median}
                    rows.append({**row, "of_cold": median / cold, "turns": turns})
        return rows


def warm(engine: Engine) -> None:
    """Takes what only the first steps of an engine do out of the figures."""
    for seed in (1, 2):
        engine.generate(prompt(seed, 300), max_tokens=2)


def settle(engine: Engine) -> None:
    """Lets the stores of an engine end, which they do in later steps."""
    for seed in (3, 4, 5):
        engine.generate(prompt(seed, 16), max_tokens=8)


def measure(folder: Path, lengths: list[int], rounds: int) -> Measurement:
    small = model.write(folder / "model", dtype="float32")
    engines = Engines(folder)
    found = Measurement(lengths)
    options = {**OPTIONS, "max_model_len": max(lengths) + 128}

    def start(extra: dict[str, Any] | None) -> Engine:
        engine = engines.start(small, extra, **options)
        warm(engine)
        return engine

    node = Node(folder / "node", 2048 * MIB)
    try:
        alone = start(None)
        for turn in range(rounds):
            found.take("cold, no connector", alone, turn)
            found.take("own cache", alone, turn)
            engine = start(shared(node))
            found.take("cold, stores to a node", engine, turn)
            settle(engine)
            engine.call("forget")
            found.take("node", engine, turn)
            engine.kill()
            engine = start(shared(node))
            found.take("engine killed", engine, turn)
            engine.kill()
            node.kill()
            node.start()
            engine = start(shared(node))
            found.take("both killed", engine, turn)
            engine.kill()
            files = folder / f"files{turn}"
            extra = {
                "spec_name": "KvmemTieringOffloadingSpec",
                "cpu_bytes_to_use": 1024 * MIB,
                "secondary_tiers": [{"type": "fs", "root_dir": str(files)}],
            }
            engine = start(extra)
            Measurement(lengths).take("cold, stores to a node", engine, turn)
            settle(engine)
            engine.close()
            engine = start(extra)
            found.take("vLLM's file tier", engine, turn)
            engine.close()
            shutil.rmtree(files, ignore_errors=True)
            print(f"round {turn + 1} of {rounds}", file=sys.stderr, flush=True)
    finally:
        engines.stop()
        node.stop()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", default="2048,8192,16384")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--folder", help="a folder on the disk to measure")
    options = parser.parse_args()
    lengths = [int(it) for it in options.tokens.split(",")]
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="kvmem-first-token-") as folder:
        found = measure(Path(folder), lengths, options.rounds)
    print("  tokens  way                      seconds  of cold")
    for row in found.rows():
        print(f"{row['tokens']:8}  {row['way']:24} {row['seconds']:7.3f}  {row['of_cold']:7.3f}")
    print(f"{found.differing} of {found.outputs} outputs differ from the first engine's")
    if options.json:
        machine = {"processors": os.cpu_count(), "name": processor()}
        text = json.dumps(
            {"machine": machine, "rows": found.rows(), "differing": found.differing}, indent=1
        )
        options.json.write_text(text + "\n", encoding="utf-8")


def processor() -> str:
    """Returns the name of the processor."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "unknown"


if __name__ == "__main__":
    main()
