"""*Steps*: what a step of vLLM's scheduler spends in the manager of its tier, without faults.

    cargo xtask bench-engine steps [-- --rounds 5 --record]

vLLM's real scheduler and its connector run without a model. Requests come, share prefixes, generate
a token a step and sometimes end early; workers' copies take one step. The manager is kvmem's, with
a node, or vLLM's own of memory of the engine, which needs no other process: it is the floor. Both
get the same requests, in turns.

*a step* is the time of all calls of the manager in a step, *a call* that of one. *128K tokens* is
the time of the 8,192 look-ups of a prompt, all of which are hits: the first scan of the prompt
after a step."""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
# The folder of this program has a module vllm, too: it comes after the packages.
sys.path[:] = [str(HERE.parent / "tests" / "engine"), *sys.path[1:], str(HERE)]

import engine_record  # noqa: E402
import model  # noqa: E402
from engine_node import MIB, Node  # noqa: E402
from engine_steps import NodeSteps, Steps, fill, run_mixed  # noqa: E402

NODE = "kvmem, a node"
OWN = "vLLM's own, in the engine"
KEYS = 8192


def own_steps(folder: Path) -> Steps:
    """Returns steps with vLLM's own manager, which needs no worker."""
    extra = {"spec_name": "CPUOffloadingSpec", "cpu_bytes_to_use": 256 * MIB}
    return Steps(folder, extra, f"own-{time.monotonic_ns()}")


def mixed(steps: Steps, number: int, seed: int) -> dict[str, float]:
    """Returns figures of steps with many requests, in microseconds."""
    fill(steps, 3, 4096)
    steps.steps.clear()
    steps.timed.restart()
    run_mixed(steps, number, seed=seed)
    calls = sorted(it for times in steps.timed.times.values() for it in times)
    ends = sorted(steps.steps)
    return {
        "step p50": ends[len(ends) // 2] * 1e6,
        "step p99": ends[int(len(ends) * 0.99)] * 1e6,
        "step max": ends[-1] * 1e6,
        "call p99.9": calls[int(len(calls) * 0.999)] * 1e6,
        "call max": calls[-1] * 1e6,
        "hits": float(steps.timed.results["HIT"]),
    }


def long_prompt(manager: Any, scans: int) -> float:
    """Returns the microseconds of the look-ups of a prompt, the median of several scans."""
    from vllm.v1.kv_offload.base import (
        LookupResult,
        ReqContext,
        ScheduleEndContext,
        make_offload_key,
    )

    keys = [make_offload_key(at.to_bytes(32, "big"), 0) for at in range(KEYS)]
    end = ScheduleEndContext((), ())
    context = ReqContext("long")
    for at, key in enumerate(keys):
        context.set_offload_key_position(key, 16 * (at + 1))
    manager.on_new_request(context)
    for start in range(0, KEYS, 512):
        part = keys[start : start + 512]
        while manager.prepare_store(part, context) is None:
            manager.on_schedule_end(end)
            time.sleep(0.001)
        manager.complete_store(part, context)
    times: list[float] = []
    while len(times) < scans:
        before = time.perf_counter()
        for key in keys:
            found = manager.lookup(key, context)
            if found is not LookupResult.HIT:
                break
        else:
            times.append(time.perf_counter() - before)
        manager.on_schedule_end(end)
        time.sleep(0.001)
    return statistics.median(times) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=1000)
    engine_record.add_options(parser)
    options = parser.parse_args()
    record = engine_record.Record("vllm-steps", options)
    figures: dict[str, list[dict[str, float]]] = {NODE: [], OWN: []}
    with tempfile.TemporaryDirectory(prefix="kvmem-steps-") as folder:
        small = model.write(Path(folder) / "small", dtype="float32")
        for number in range(options.rounds):
            node = Node(Path(folder) / f"node{number}", 256 * MIB, "--max-blocks", "40000")
            try:
                at_node = NodeSteps(small, node)
                row = mixed(at_node.steps, options.steps, number)
                row["128K tokens"] = long_prompt(at_node.manager, 20)
                figures[NODE].append(row)
                at_node.close()
            finally:
                node.stop()
            own = own_steps(small)
            row = mixed(own, options.steps, number)
            row["128K tokens"] = long_prompt(own.timed.manager, 20)
            figures[OWN].append(row)
            own.close()
            print(f"round {number + 1} of {options.rounds}", file=sys.stderr, flush=True)
    names = [*figures[NODE][0]]
    lines = []
    for way, rows in figures.items():
        medians = {name: round(statistics.median(row[name] for row in rows), 1) for name in names}
        record.rows.append({"way": way, **medians})
        lines.append([way, *(f"{medians[name]:.0f}" for name in names)])
    of_node = record.rows[0]
    record.goals += [
        engine_record.Goal("a call at p99.9, µs", of_node["call p99.9"], 1000, NODE),
        engine_record.Goal("the longest call, µs", of_node["call max"], 5000, NODE),
        engine_record.Goal("8,192 look-ups, µs", of_node["128K tokens"], 2000, NODE),
    ]
    record.finish(engine_record.table(["microseconds", *names], lines, left=1))


if __name__ == "__main__":
    main()
