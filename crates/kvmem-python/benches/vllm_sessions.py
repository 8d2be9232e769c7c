"""*Sessions*: tokens a second of vLLM with multi-turn sessions whose KV is four times what its own
cache holds, and the share of tokens that no tier, or a tier, has saved.

    cargo xtask bench-engine sessions [-- --rounds 3 --record]
    cargo xtask bench-engine sessions -- --trace FILE

It runs as ``vllm_first_token.py`` does. Sessions take turns: a turn sends what the session has so
far and something new, and the engine generates an answer. What a session has so far was evicted
from the engine's own cache by the other sessions meanwhile.

- *no tier*: what is evicted is computed again.
- *vLLM's file tier*: vLLM's own tier of files, below memory of the engine that is as large as the
  engine's own cache. That memory is kvmem's, because vLLM has none on this platform.
- *node*: ``kvmem serve`` with memory for all sessions.
- *node, disk*: ``kvmem serve`` with memory as large as the engine's own cache, and a disk tier.

The text of all turns is drawn beforehand, the answers too, so that all ways get the same prompts.
Without ``--trace`` a session grows by equal steps. With it, sessions are cut from a trace of
requests (a line of JSON each, with ``hash_ids`` of blocks, ``input_length`` and ``output_length``,
as Mooncake published them): a request that begins with all whole blocks of an earlier one is its
next turn. A block of 512 tokens becomes one of ``--block`` tokens.

Ways take turns within a round, each with an engine and a tier of its own that start empty. A round
has sessions of its own. *tokens/s* counts prompts and answers, over the time from the first turn to
the last, medians of the rounds. *cached* is the share of the prompts' tokens that were not
computed. *wrong* counts answers that differ from those without a tier."""

import argparse
import json
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "tests" / "engine")]

import engine_record  # noqa: E402
import model  # noqa: E402
from engine_node import BLOCK, MIB, TOKEN, Node, prompt, shared  # noqa: E402
from engine_process import Engine, Engines  # noqa: E402

NO_TIER = "no tier"
WAYS = (NO_TIER, "vLLM's file tier", "node", "node, disk")
TRACE_BLOCK = 512
"""Tokens of a block of a trace."""


@dataclass
class Turn:
    """A request of a session."""

    tokens: list[int]
    """The prompt."""
    answer: int
    """Tokens to generate."""


@dataclass
class Session:
    """Turns, each of which begins with the one before."""

    turns: list[Turn] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        """Tokens of its longest prompt, with the answer."""
        return max(len(turn.tokens) + turn.answer for turn in self.turns)


def synthetic(seed: int, sessions: int, turns: int, step: int, answer: int) -> list[Session]:
    """Returns sessions that grow by ``step`` tokens with each turn, the answer included. All begin
    with the same block."""
    made = []
    for number in range(sessions):
        draw = random.Random(f"{seed}/{number}")
        text = prompt(seed, BLOCK)
        session = Session()
        for _ in range(turns):
            text = text + [draw.randrange(2, model.VOCABULARY) for _ in range(step - answer)]
            session.turns.append(Turn(text, answer))
            text = text + [draw.randrange(2, model.VOCABULARY) for _ in range(answer)]
        made.append(session)
    return made


def of_trace(
    lines: Iterable[str], seed: int, sessions: int, turns: int, block: int, answer: int, most: int
) -> list[Session]:
    """Cuts sessions of at least two turns from a trace: the first ``sessions`` ones, each of at
    most ``turns`` turns and ``most`` tokens."""
    open_sessions: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
    chains: list[list[tuple[int, ...]]] = []
    for line in lines:
        ids = tuple(json.loads(line)["hash_ids"])
        # The last block is not whole, as a rule.
        whole = ids[:-1]
        if not whole or (len(ids) * block + answer) > most:
            continue
        before = next(
            (whole[:at] for at in range(len(whole), 0, -1) if whole[:at] in open_sessions), None
        )
        # Many requests begin with the first block, which is the instruction to the model.
        if before is not None and len(before) > 1:
            chain = open_sessions.pop(before)
        else:
            chain = []
            chains.append(chain)
        chain.append(ids)
        open_sessions[whole] = chain
    long = [chain for chain in chains if len(chain) > 1][:sessions]
    made = []
    for chain in long:
        session = Session()
        for ids in chain[:turns]:
            text: list[int] = []
            for number in ids:
                draw = random.Random(f"{seed}/{number}")
                text += [draw.randrange(2, model.VOCABULARY) for _ in range(block)]
            session.turns.append(Turn(text, answer))
        made.append(session)
    return made


def batches(sessions: list[Session], size: int) -> list[list[tuple[int, Turn]]]:
    """Returns the turns in the order in which they are sent: the first turn of all sessions, the
    second of all, and so on; ``size`` at a time. A turn has the number of its session."""
    longest = max(len(session.turns) for session in sessions)
    order = []
    for at in range(longest):
        of_turn = [
            (number, session.turns[at])
            for number, session in enumerate(sessions)
            if at < len(session.turns)
        ]
        order += [of_turn[first : first + size] for first in range(0, len(of_turn), size)]
    return order


@dataclass
class Run:
    """The figures of a way in a round."""

    seconds: float = 0.0
    prompts: int = 0
    generated: int = 0
    cached: int = 0
    firsts: list[float] = field(default_factory=list)
    answers: list[list[int]] = field(default_factory=list)

    def serve(self, engine: Engine, sessions: list[Session], at_once: int) -> None:
        """Sends all turns."""
        for batch in batches(sessions, at_once):
            answer = max(turn.answer for _, turn in batch)
            start = time.monotonic()
            outputs = engine.generate(*(turn.tokens for _, turn in batch), max_tokens=answer)
            self.seconds += time.monotonic() - start
            for (_, turn), output in zip(batch, outputs):
                self.prompts += len(turn.tokens)
                self.generated += len(output["tokens"])
                self.cached += output["cached"] or 0
                self.firsts.append(output["first"])
                self.answers.append(output["tokens"])

    def row(self) -> dict[str, Any]:
        return {
            "seconds": self.seconds,
            "tokens_per_s": (self.prompts + self.generated) / self.seconds,
            "generated_per_s": self.generated / self.seconds,
            "cached_share": self.cached / self.prompts,
            "first_median": statistics.median(self.firsts),
        }


class Bench:
    """The engines and tiers of a run."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self._folder = folder
        self._options = options
        self._small = model.write(folder / "model", dtype="float32")
        self._engines = Engines(folder)
        self.runs: dict[str, list[Run]] = defaultdict(list)
        self.differing: dict[str, int] = defaultdict(int)

    def sessions(self, turn: int) -> list[Session]:
        given = self._options
        if given.trace is None:
            return synthetic(turn, given.sessions, given.turns, given.step, given.answer)
        most = model.LENGTH - 128
        with open(given.trace, encoding="utf-8") as lines:
            sizes = (given.sessions, given.turns, given.block, given.answer, most)
            found = of_trace(lines, turn, *sizes)
        if len(found) < given.sessions:
            raise SystemExit(
                f"{given.trace} has {len(found)} sessions of two turns or more, and "
                f"--sessions is {given.sessions}: give fewer"
            )
        return found

    def take(self, way: str, turn: int) -> None:
        """Runs a way with an engine and a tier of its own."""
        sessions = self.sessions(turn)
        total = sum(session.tokens for session in sessions)
        # A fourth of what the sessions have, and no less than the requests at once need.
        longest = max(session.tokens for session in sessions)
        blocks = max(total // 4 // BLOCK, (longest // BLOCK + 2) * self._options.at_once + 1)
        place = self._folder / f"{way.replace(' ', '-')}{turn}"
        place.mkdir()
        node: Node | None = None
        extra: dict[str, Any] | None = None
        memory = blocks * BLOCK * TOKEN
        if way.startswith("node"):
            tier = ["--tier", f"disk:{place / 'tier'},{2 * total * TOKEN + 512 * MIB}"]
            is_small = way == "node, disk"
            nbytes = memory if is_small else total * TOKEN * 5 // 4 + 64 * MIB
            node = Node(place / "node", nbytes, *(tier if is_small else []))
            extra = shared(node)
        elif way != NO_TIER:
            extra = {
                "spec_name": "KvmemTieringOffloadingSpec",
                "cpu_bytes_to_use": memory,
                "secondary_tiers": [{"type": "fs", "root_dir": str(place / "files")}],
            }
        try:
            engine = self._engines.start(
                self._small,
                extra,
                dtype="float32",
                max_num_seqs=self._options.at_once,
                max_model_len=longest + 2 * BLOCK,
                num_gpu_blocks_override=blocks,
            )
            for seed in (1, 2):
                engine.generate(prompt(seed, 300), max_tokens=2)
            run = Run()
            run.serve(engine, sessions, self._options.at_once)
            engine.kill()
        finally:
            if node is not None:
                node.stop()
        shutil.rmtree(place, ignore_errors=True)
        self.runs[way].append(run)
        expected = self.runs[NO_TIER][-1].answers
        self.differing[way] += sum(a != b for a, b in zip(run.answers, expected))
        row = run.row()
        print(
            f"  {way}: {row['tokens_per_s']:.0f} tokens/s, {row['cached_share']:.1%} cached",
            file=sys.stderr,
            flush=True,
        )

    def rows(self) -> list[dict[str, Any]]:
        """Returns the medians of the rounds, with their ratios to no tier."""
        found = []
        for way in WAYS:
            each = [run.row() for run in self.runs[way]]
            row: dict[str, Any] = {"way": way}
            for name in each[0]:
                row[name] = statistics.median(one[name] for one in each)
            row.update(differing=self.differing[way], turns=[one["tokens_per_s"] for one in each])
            found.append(row)
        base = found[0]["tokens_per_s"]
        return [{**row, "times": row["tokens_per_s"] / base} for row in found]

    def stop(self) -> None:
        self._engines.stop()


def lines(rows: list[dict[str, Any]]) -> list[str]:
    """Returns the table of the rows."""
    head = ["way", "tokens/s", "times", "least", "most", "answers/s", "cached", "first", "wrong"]
    cells = [
        [
            row["way"],
            f"{row['tokens_per_s']:.0f}",
            f"{row['times']:.2f}",
            f"{min(row['turns']):.0f}",
            f"{max(row['turns']):.0f}",
            f"{row['generated_per_s']:.1f}",
            f"{row['cached_share']:.1%}",
            f"{row['first_median']:.3f} s",
            str(row["differing"]),
        ]
        for row in rows
    ]
    return engine_record.table(head, cells, left=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sessions", type=int, default=16)
    parser.add_argument("--turns", type=int, default=6, help="turns of a session, at most")
    parser.add_argument("--step", type=int, default=512, help="tokens that a turn adds")
    parser.add_argument("--answer", type=int, default=16, help="tokens that are generated a turn")
    parser.add_argument("--at-once", type=int, default=2, help="requests at a time")
    parser.add_argument("--trace", type=Path, help="cut the sessions from a trace")
    parser.add_argument("--block", type=int, default=128, help="tokens of a block of the trace")
    parser.add_argument("--rounds", type=int, default=3)
    engine_record.add_options(parser)
    options = parser.parse_args()
    record = engine_record.Record("vllm-sessions", options)
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="kvmem-sessions-") as folder:
        bench = Bench(Path(folder), options)
        try:
            for turn in range(options.rounds):
                for way in WAYS:
                    bench.take(way, turn)
                print(f"round {turn + 1} of {options.rounds}", file=sys.stderr, flush=True)
        finally:
            bench.stop()
        sessions = bench.sessions(0)
    record.rows = bench.rows()
    tokens = sum(session.tokens for session in sessions)
    turns = sum(len(session.turns) for session in sessions)
    record.more = {"sessions": len(sessions), "session_turns": turns, "session_tokens": tokens}
    text = [
        f"{len(sessions)} sessions of {turns} turns in all, {tokens} tokens, "
        f"{tokens * TOKEN / (1 << 30):.2f} GiB of KV; vLLM's own cache holds a fourth",
        "",
        *lines(record.rows),
    ]
    record.finish(text)


if __name__ == "__main__":
    main()
