"""vLLM on the CPU, whole and unpatched, with kvmem as its tier: what comes from the tier generates
the tokens that computing generates, whatever is killed, damaged, full or away.

The model has float32 weights: in bfloat16 vLLM's own prefix cache already differs from computing
in the last digits. Outputs are equal if their tokens are, and the logarithms of their probabilities
to 0.005. One changed token of the prompt changes them by more.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import model
import pytest
from engine_node import BLOCK, MIB, TOKEN, Node, prompt, shared, within
from engine_process import Engine, Engines

Nodes = Callable[..., Node]


def equal(found: dict[str, Any], expected: dict[str, Any]) -> bool:
    """Whether two outputs are equal, as far as both go."""
    pairs = [*zip(found["logprobs"], expected["logprobs"])]
    tokens = [*zip(found["tokens"], expected["tokens"])]
    return all(a == b for a, b in tokens) and all(abs(a - b) < 0.005 for a, b in pairs)


def same(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    """Checks that the outputs are equal, and that the prompts came from a cache."""
    for one, other in zip(found, expected):
        assert equal(one, other), (one, other)
        assert one["cached"] >= 1024 - BLOCK, "computed again"


def computed(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    """Checks that the outputs are equal, and that nothing came from a cache."""
    for one, other in zip(found, expected):
        assert equal(one, other), (one, other)
        assert one["cached"] == 0


@pytest.fixture(scope="module")
def expected(engines: Engines, small_model: Path) -> dict[int, list[dict[str, Any]]]:
    """Outputs of vLLM alone, by the seed of the prompt."""
    engine = engines.start(small_model)
    outputs = {seed: engine.generate(prompt(seed, 1100)) for seed in range(6)}
    again = engine.generate(prompt(0, 1100))
    same(again, outputs[0])
    for at in (3, 500, 1000):
        changed = prompt(0, 1100)
        changed[at] ^= 1
        assert not equal(engine.generate(changed)[0], outputs[0][0]), "the KV is not used"
    engine.kill()
    return outputs


class Running(NamedTuple):
    """A node, the path of the model, and an engine that runs there."""

    node: Node
    model: Path
    engine: Engine


@pytest.fixture(scope="module")
def running(
    engines: Engines, small_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    """An engine at a node, for the tests that do not kill it: a start takes some ten seconds. Each
    test has prompts of its own, or begins with what others have stored.
    """
    folder = tmp_path_factory.mktemp("running")
    model_path = folder / "model"
    model_path.symlink_to(small_model)
    node = Node(folder / "node", 512 * MIB)
    try:
        engine = engines.start(model_path, shared(node))
        yield Running(node, model_path, engine)
        engine.kill()
    finally:
        node.stop()


def test_a_prefix_outlives_engine_and_server(
    engines: Engines, small_model: Path, node: Nodes, expected: dict[int, Any]
) -> None:
    first, shared_node = prompt(0, 1100), node()
    engine = engines.start(small_model, shared(shared_node))
    computed(engine.generate(first), expected[0])
    same(engine.generate(first), expected[0])
    engine.call("forget")
    same(engine.generate(first), expected[0])
    # The server alone: the engine's pins and mapping go on with the next one.
    shared_node.kill()
    shared_node.start()
    engine.call("forget")
    within(120, lambda: engine.generate(first)[0]["cached"] or engine.call("forget"))
    # The engine alone.
    engine.kill()
    engine = engines.start(small_model, shared(shared_node))
    same(engine.generate(first), expected[0])
    # Both.
    shared_node.kill()
    engine.kill()
    assert shared_node.start()["recovered"]["values"] >= 1024 // BLOCK
    engine = engines.start(small_model, shared(shared_node))
    same(engine.generate(first), expected[0])
    engine.kill()
    # The kernel tells the server that the process has ended: nothing stays pinned.
    within(120, lambda: shared_node.stats().pinned == 0)
    assert shared_node.stats().fenced_total == shared_node.reservations() == 0


def test_two_engines_share_one_copy(
    engines: Engines, running: Running, expected: dict[int, Any]
) -> None:
    shared_node, model_path, one = running
    two = engines.start(model_path, shared(shared_node))
    computed(one.generate(prompt(1, 1100)), expected[1])
    # Stores end with a later step.
    one.generate(prompt(9, 16))
    before = shared_node.stats().values
    same(two.generate(prompt(1, 1100)), expected[1])
    two.generate(prompt(9, 16))
    # One value for each block, and none more: only the presence of each worker is apart.
    assert shared_node.stats().values == before
    # At once.
    one.begin("generate", [prompt(2, 1100), prompt(3, 1100)], 8)
    two.begin("generate", [prompt(3, 1100), prompt(2, 1100)], 8)
    for engine, seeds in ((one, (2, 3)), (two, (3, 2))):
        for output, seed in zip(engine.end(), seeds):
            assert equal(output, expected[seed][0])
    two.kill()


def test_aborted_requests_leave_nothing(running: Running, expected: dict[int, Any]) -> None:
    shared_node, _, engine = running
    engine.generate(prompt(0, 1100))
    for steps in range(4):
        engine.call("forget")
        engine.call("abort", prompt(0, 1100), steps)
        engine.call("abort", prompt(10 + steps, 1100), steps)
    engine.call("forget")
    same(engine.generate(prompt(0, 1100)), expected[0])
    engine.generate(prompt(9, 16))
    engine.generate(prompt(8, 16))
    # The presence of the worker alone, once the server knows the ends of other engines.
    within(120, lambda: shared_node.stats().pinned == 1)
    assert shared_node.stats().fenced_total == shared_node.reservations() == 0


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_server_that_is_away_delays_no_token(
    running: Running, expected: dict[int, Any], how: signal.Signals
) -> None:
    shared_node, _, engine = running
    engine.generate(prompt(0, 1100))
    engine.call("forget")
    engine.begin("generate", [prompt(seed, 1100) for seed in range(3)], 40)
    time.sleep(0.3)
    shared_node.signal(how)
    outputs = engine.end()
    for seed in range(3):
        assert equal(outputs[seed], expected[seed][0])
    start = time.monotonic()
    engine.generate(prompt(4, 16), max_tokens=40)
    assert time.monotonic() - start < 30
    if how == signal.SIGKILL:
        shared_node.kill()
        shared_node.start()
    else:
        shared_node.signal(signal.SIGCONT)

    def found() -> bool:
        engine.call("forget")
        (output,) = engine.generate(prompt(0, 1100))
        assert equal(output, expected[0][0])
        return bool(output["cached"])

    within(120, found)


def test_other_weights_under_the_same_name_share_nothing(
    engines: Engines, small_model: Path, running: Running, expected: dict[int, Any], tmp_path: Path
) -> None:
    shared_node, current, engine = running
    assert equal(engine.generate(prompt(0, 1100))[0], expected[0][0])
    engine.generate(prompt(9, 16))
    other_model = model.write(tmp_path / "other", seed=2, dtype="float32")
    current.unlink()
    current.symlink_to(other_model)
    try:
        other = engines.start(current, shared(shared_node))
        (output,) = other.generate(prompt(0, 1100))
        assert output["cached"] == 0
        assert not equal(output, expected[0][0])
        other.kill()
    finally:
        current.unlink()
        current.symlink_to(small_model)


def test_damage_is_found_by_engines_that_verify(
    engines: Engines, running: Running, expected: dict[int, Any]
) -> None:
    # The last test at this node.
    shared_node, model_path, engine = running
    assert equal(engine.generate(prompt(5, 1100))[0], expected[5][0])
    engine.generate(prompt(9, 16))
    shared_node.damage()
    engine.call("forget")
    # The damage is in what is read: an engine that verifies nothing shows it.
    assert not equal(engine.generate(prompt(5, 1100))[0], expected[5][0])
    engine = engines.start(model_path, shared(shared_node, verify=True))
    computed(engine.generate(prompt(5, 1100)), expected[5])
    engine.generate(prompt(9, 16))
    engine.call("forget")
    same(engine.generate(prompt(5, 1100)), expected[5])
    engine.kill()


def test_evicted_values_come_back_from_the_disk(
    engines: Engines, small_model: Path, node: Nodes, expected: dict[int, Any], tmp_path: Path
) -> None:
    # Two prompts fit into the memory.
    shared_node = node(60 * MIB, "--tier", f"disk:{tmp_path / 'tier'},512MiB")
    engine = engines.start(small_model, shared(shared_node))
    for seed in range(6):
        computed(engine.generate(prompt(seed, 1100)), expected[seed])
        # A prompt is a third of the memory. What the memory needs for it before the disk has the
        # values is lost.
        chunks = 8 * (seed + 1) if seed else 0
        within(60, lambda: shared_node.stats().tier_stored_total >= chunks)
    assert shared_node.stats().evicted_total > 0
    engine.call("forget")
    for seed in range(6):
        same(engine.generate(prompt(seed, 1100)), expected[seed])
    engine.kill()


def test_a_full_node_costs_nothing_but_hits(
    engines: Engines, small_model: Path, node: Nodes, expected: dict[int, Any]
) -> None:
    # Less than one prompt.
    shared_node = node(16 * MIB)
    assert 1100 * TOKEN > 16 * MIB
    engine = engines.start(small_model, shared(shared_node))
    for seed in (0, 1, 0):
        engine.call("forget")
        assert equal(engine.generate(prompt(seed, 1100))[0], expected[seed][0])
    engine.kill()


def test_memory_of_one_engine_is_a_tier_as_well(
    engines: Engines, small_model: Path, expected: dict[int, Any]
) -> None:
    extra = {"spec_name": "KvmemOffloadingSpec", "cpu_bytes_to_use": 256 * MIB}
    engine = engines.start(small_model, extra)
    computed(engine.generate(prompt(0, 1100)), expected[0])
    engine.generate(prompt(9, 16))
    engine.call("forget")
    same(engine.generate(prompt(0, 1100)), expected[0])
    engine.close()


def test_a_disk_tier_outlives_the_engine(
    engines: Engines, small_model: Path, expected: dict[int, Any], tmp_path: Path
) -> None:
    # The other engines have chunks of one block.
    blocks = 3
    extra = {
        "spec_name": "KvmemTieringOffloadingSpec",
        "cpu_bytes_to_use": 128 * MIB,
        "blocks_per_chunk": blocks,
        "secondary_tiers": [
            {"type": "KvmemTier", "path": str(tmp_path / "tier"), "bytes": "512MiB"}
        ],
    }
    engine = engines.start(small_model, extra)
    computed(engine.generate(prompt(0, 1100)), expected[0])
    for _ in range(20):
        engine.generate(prompt(9, 16))
        time.sleep(0.05)
    engine.kill()
    engine = engines.start(small_model, extra)
    (output,) = engine.generate(prompt(0, 1100))
    assert equal(output, expected[0][0])
    assert output["cached"] >= 1024 - blocks * BLOCK
    engine.close()
