"""The time that a step of vLLM's real scheduler spends in kvmem's manager, whatever is wrong with
the node: a call is a fraction of a millisecond, and no step waits for a server, a disk or a lock.

Hundreds of steps for each fault, with new requests, aborted ones and some that share prefixes. The
machine may take the processor away from the test, so the limits are those of a fault: a call that
waits for a server takes a quarter of a second or more. The printed figures are those of the
machine; ``cargo xtask bench-engine steps`` measures them.
"""

from __future__ import annotations

import logging
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from engine_node import MIB, Node, prompt, within
from engine_steps import NodeSteps, fill, run_mixed
from node_server import program

STEPS = 500
MORE_STEPS = 1000
USUAL = 0.001
"""Seconds that 98 % of the calls take at most."""
WORST = 0.1
"""Seconds that a call takes at most."""

Nodes = Callable[..., Node]


class OwnTier:
    """A server with a tier that is slow or full."""

    def __init__(self, folder: Path, size: int, read_ms: int, max_bytes: int) -> None:
        folder.mkdir()
        self.path = folder / "k.sock"
        arguments = [str(it) for it in (size, self.path, read_ms, max_bytes)]
        self._server = subprocess.Popen(
            [program("own_tier"), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._server.stdout is not None
        assert self._server.stdout.readline() == "serving\n"

    def signal(self, number: int) -> None:
        self._server.send_signal(number)

    def stop(self) -> None:
        assert self._server.stdin is not None
        self._server.stdin.close()
        self._server.wait()


class Engine(NodeSteps):
    """Steps of an engine at a node, and their limits."""

    def run(self, steps: int = STEPS) -> None:
        """Makes steps with other requests than before."""
        self._runs = getattr(self, "_runs", 0) + 1
        run_mixed(self.steps, steps, seed=self._runs)

    def check(self, what: str, capfd: Any) -> None:
        """Prints the slowest calls, and checks them."""
        timed = self.timed
        calls = sorted((it, name) for name, times in timed.times.items() for it in times)
        slow = [it for it, _ in calls if it > USUAL]
        steps = sorted(self.steps.steps)
        with capfd.disabled():
            worst = ", ".join(f"{name} {it * 1e3:.2f}" for it, name in calls[-1:-4:-1])
            at = calls[int(len(calls) * 0.999)][0]
            print(
                f"\n{what}: {len(steps)} steps, {len(calls)} calls; a step p50 "
                f"{steps[len(steps) // 2] * 1e3:.3f} ms, worst {steps[-1] * 1e3:.2f}; a call p99.9 "
                f"{at * 1e3:.2f}, worst {worst}; {dict(timed.results)}"
            )
        assert len(slow) <= len(calls) / 50, (what, slow[-20:])
        assert calls[-1][0] < WORST, (what, calls[-3:])


@pytest.fixture
def own_tier(tmp_path: Path) -> Iterator[Callable[..., OwnTier]]:
    made: list[OwnTier] = []

    def make(**options: int) -> OwnTier:
        made.append(OwnTier(tmp_path / f"own{len(made)}", **options))
        return made[-1]

    yield make
    for server in made:
        server.signal(signal.SIGCONT)
        server.stop()


def test_steps_without_faults(small_model: Path, node: Nodes, capfd: Any) -> None:
    engine = Engine(small_model, node(256 * MIB))
    fill(engine.steps, 3, 4096)
    engine.run()
    engine.check("no fault", capfd)
    assert engine.timed.results["HIT"] > 1000
    engine.close()


def test_a_stopped_server(small_model: Path, node: Nodes, capfd: Any) -> None:
    server = node(256 * MIB)
    engine = Engine(small_model, server)
    fill(engine.steps, 2, 4096)
    engine.run(200)
    server.signal(signal.SIGSTOP)
    engine.run()
    server.signal(signal.SIGCONT)
    engine.check("stopped", capfd)
    within(60, engine.manager._calls.is_usable)
    before = engine.timed.results["HIT"]
    engine.run(300)
    assert engine.timed.results["HIT"] > before, "the server is not used again"
    engine.close()


class Lines(logging.Handler):
    """The lines of loggers: vLLM's do not propagate to pytest's handler."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._loggers = [logging.getLogger(name) for name in names]

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.levelname} {record.getMessage()}")

    def __enter__(self) -> Lines:
        for logger in self._loggers:
            logger.setLevel(logging.INFO)
            logger.addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        for logger in self._loggers:
            logger.removeHandler(self)


def test_a_dead_server(small_model: Path, node: Nodes, capfd: Any) -> None:
    server = node(256 * MIB)
    engine = Engine(small_model, server)
    fill(engine.steps, 2, 4096)
    # kvmem, and vLLM's connector, which logs a line for each store that fails.
    own = "vllm.kvmem"
    connector = "vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler"
    with Lines(own) as of_kvmem, Lines(own, connector) as of_both:
        server.kill()
        engine.run(100)
        within(60, lambda: not engine.manager._calls.is_usable())
        before = len(of_both.lines)
        engine.run()
        engine.check("dead", capfd)
        assert of_both.lines[before:] == []
        server.start()
        within(60, engine.manager._calls.is_usable)
    first, last = of_kvmem.lines[0], of_kvmem.lines[-1]
    assert first.startswith("WARNING kvmem: no chunks until the server answers: "), first
    assert last.startswith("INFO kvmem: the server of the node answers again, after "), last
    about = [it for it in of_kvmem.lines if "are not stored" not in it]
    assert about == [first, last]
    before = engine.timed.results["HIT"]
    engine.run(300)
    assert engine.timed.results["HIT"] > before, "the server is not used again"
    engine.close()


def test_a_server_that_restarts_again_and_again(small_model: Path, node: Nodes, capfd: Any) -> None:
    server = node(256 * MIB)
    engine = Engine(small_model, server)
    fill(engine.steps, 2, 4096)
    ended = threading.Event()

    def restart() -> None:
        while not ended.wait(0.3):
            server.kill()
            server.start()

    thread = threading.Thread(target=restart)
    thread.start()
    engine.run()
    ended.set()
    thread.join()
    engine.check("restarting", capfd)
    engine.close()


def test_a_tier_that_takes_50_ms_a_read(
    small_model: Path, own_tier: Callable[..., OwnTier], capfd: Any
) -> None:
    server = own_tier(size=16 * MIB, read_ms=50, max_bytes=1024 * MIB)
    engine = Engine(small_model, server)
    fill(engine.steps, 12, 4096)
    engine.run(MORE_STEPS)
    engine.check("50 ms a read", capfd)
    stats = engine.node.stats()
    assert stats.tier_fetched_total > 100 and engine.timed.results["HIT"] > 1000, stats
    engine.close()


def test_prompts_of_8192_keys(small_model: Path, node: Nodes, capfd: Any) -> None:
    """The prompts of the scheduler are shorter, so the look-ups are made here."""
    from vllm.v1.kv_offload.base import (
        LookupResult,
        ReqContext,
        ScheduleEndContext,
        make_offload_key,
    )

    engine = Engine(small_model, node(256 * MIB, "--max-blocks", "20000"))
    keys = [f"{at}".encode() for at in range(8192)]
    request = ReqContext("long")
    named = [make_offload_key(key, 0) for key in keys]
    for at, key in enumerate(named):
        request.set_offload_key_position(key, 16 * (at + 1))
    row = bytes(engine.manager._row_bytes)
    for start in range(0, len(named), 1024):
        engine.node.insert_batch(dict.fromkeys(named[start : start + 1024], row))
    timed = engine.timed
    scans = []
    for _ in range(100):
        while True:
            before = time.perf_counter()
            found = []
            for key in named:
                found.append(timed.manager.lookup(key, request))
                if found[-1] is LookupResult.MISS:
                    break
            scans.append(time.perf_counter() - before)
            if found.count(LookupResult.HIT) == len(named):
                break
            assert LookupResult.RETRY in found
            timed.on_schedule_end(ScheduleEndContext((), ()))
            time.sleep(0.001)
        timed.on_schedule_end(ScheduleEndContext((), ()))
    scans.sort()
    with capfd.disabled():
        print(f"\n8,192 look-ups: p50 {scans[len(scans) // 2] * 1e3:.2f} ms, {scans[-1] * 1e3:.2f}")
    assert scans[len(scans) // 2] < 0.02
    engine.run()
    engine.check("8,192 keys", capfd)
    engine.close()


def test_prompts_that_memory_has_no_room_for(
    small_model: Path, node: Nodes, tmp_path: Path
) -> None:
    """Values that were fetched for a prompt are evicted for others of the same prompt. The request
    goes on, with these or without.
    """
    tier = f"disk:{tmp_path / 'tier'},256MiB"
    server = node(12 * MIB, "--max-blocks", "40000", "--tier", tier)
    engine = Engine(small_model, server)
    fill(engine.steps, 6, 4096)
    # A busy machine leaves some of 1,536 chunks out.
    within(60, lambda: engine.node.stats().tier_stored_total >= 1000)
    for seed in [*range(6)] * 5:
        engine.node.evict(12 * MIB)
        engine.steps.forget()
        engine.steps.add(prompt(seed, 4096), 4)
        ends_at = time.monotonic() + 60
        while engine.steps.scheduler.has_requests():
            if not engine.steps.step():
                time.sleep(0.001)
            assert time.monotonic() < ends_at, f"prompt {seed} waits for ever"
    assert engine.node.stats().tier_fetched_total > 500
    engine.close()


def test_a_full_tier(small_model: Path, own_tier: Callable[..., OwnTier], capfd: Any) -> None:
    server = own_tier(size=16 * MIB, read_ms=0, max_bytes=4 * MIB)
    engine = Engine(small_model, server)
    fill(engine.steps, 12, 4096)
    engine.run()
    engine.check("full disk", capfd)
    stats = engine.node.stats()
    # The tier has space for 512 values, and each prompt has 256.
    assert stats.tier_stored_total == 512 and stats.evicted_total > 500, stats
    engine.close()


def test_a_server_with_half_a_core(small_model: Path, node: Nodes, capfd: Any) -> None:
    server = node(256 * MIB)
    engine = Engine(small_model, server)
    fill(engine.steps, 3, 4096)
    ended = threading.Event()

    def throttle() -> None:
        # As the kernel's limit of a group does.
        while not ended.is_set():
            server.signal(signal.SIGSTOP)
            time.sleep(0.05)
            server.signal(signal.SIGCONT)
            time.sleep(0.05)

    thread = threading.Thread(target=throttle)
    thread.start()
    engine.run(MORE_STEPS)
    ended.set()
    thread.join()
    engine.check("half a core", capfd)
    assert engine.timed.results["HIT"] > 1000
    engine.close()
