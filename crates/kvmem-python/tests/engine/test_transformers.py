"""Transformers with prefixes in a node: what is restored generates the tokens that computing
generates, and damage, other weights and other settings are misses.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kvmem
import model as model_files
import pytest
from engine_node import MIB, Node, prompt

pytest.importorskip("torch", reason="PyTorch is missing: cargo xtask test engine")
pytest.importorskip("transformers", reason="Transformers is missing: cargo xtask test engine")

import torch
from kvmem.transformers import KvmemCache, UnsupportedModelError
from transformers_process import best, generate, load

Nodes = Callable[..., Node]
Output = tuple[list[int], list[float]]
BLOCK = 64


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("transformers") / "small"
    return model_files.write(folder, layers=2, dtype="float32")


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    return load(str(folder))


@pytest.fixture
def node_cache(node: Nodes) -> Iterator[kvmem.NodeCache]:
    with kvmem.connect(node(256 * MIB).path, verify=True) as cache:
        yield cache


def cold(model: Any, tokens: list[int]) -> Output:
    return best(generate(model, tokens), len(tokens))


def warm(model: Any, node_cache: kvmem.NodeCache, tokens: list[int]) -> tuple[KvmemCache, Output]:
    cache = KvmemCache(node_cache, model, tokens)
    restored = cache.restored
    output = best(generate(model, tokens, cache), len(tokens))
    assert cache.restored == restored
    return cache, output


def same(found: Output, expected: Output) -> None:
    """Checks that outputs are equal: tokens exactly, and scores to what the order of additions in
    other shapes changes.
    """
    assert found[0] == expected[0]
    assert found[1] == pytest.approx(expected[1], abs=0.005)


def test_outputs_depend_on_all_of_the_cache(model: Any) -> None:
    first = prompt(0, 700)
    expected = cold(model, first)
    for at in (3, 350, 690):
        changed = [*first]
        changed[at] ^= 1
        assert cold(model, changed) != expected


def test_prefixes_come_back(model: Any, node_cache: kvmem.NodeCache) -> None:
    first = prompt(1, 700)
    other = [*first[:300], *prompt(2, 200)]
    expected, expected_other = cold(model, first), cold(model, other)
    cache, found = warm(model, node_cache, first)
    assert cache.restored == 0
    same(found, expected)
    assert cache.store() == 10 * BLOCK
    cache, found = warm(model, node_cache, first)
    assert cache.restored == 10 * BLOCK
    same(found, expected)
    # With what was generated: the last token has no keys and values.
    whole = [*first, *found[0]]
    assert cache.store(torch.tensor([whole])) == len(whole[:-1]) // BLOCK * BLOCK == 11 * BLOCK
    assert KvmemCache(node_cache, model, [*whole, 5]).restored == 11 * BLOCK
    # A part of the prompt is that of another one.
    cache, found = warm(model, node_cache, other)
    assert cache.restored == 4 * BLOCK
    same(found, expected_other)
    assert cache.store() == 7 * BLOCK
    assert KvmemCache(node_cache, model, prompt(3, 200)).restored == 0
    # At least one token is left to compute.
    assert KvmemCache(node_cache, model, first[: 2 * BLOCK]).restored == BLOCK
    assert KvmemCache(node_cache, model, first[: 2 * BLOCK + 1]).restored == 2 * BLOCK
    assert KvmemCache(node_cache, model, first[:1]).restored == 0
    assert KvmemCache(node_cache, model, []).restored == 0
    assert node_cache.stats().reservations == 0


def test_another_process_finds_the_prefix(
    model: Any, folder: Path, node_cache: kvmem.NodeCache
) -> None:
    tokens = prompt(4, 600)
    cache, expected = warm(model, node_cache, tokens)
    assert cache.store() == 9 * BLOCK
    program = Path(__file__).with_name("transformers_process.py")
    done = subprocess.run(
        [sys.executable, str(program), str(node_cache.path), str(folder), "4", "600"],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    assert answer["restored"] == 9 * BLOCK
    same((answer["tokens"], answer["scores"]), expected)


def test_other_weights_and_settings_share_nothing(
    model: Any, folder: Path, tmp_path: Path, node_cache: kvmem.NodeCache
) -> None:
    tokens = prompt(5, 400)
    cache, expected = warm(model, node_cache, tokens)
    assert cache.store() == 6 * BLOCK
    assert KvmemCache(node_cache, model, tokens).restored == 6 * BLOCK
    other = load(str(model_files.write(tmp_path / "small", seed=2, layers=2, dtype="float32")))
    expected_other = cold(other, tokens)
    assert expected_other != expected
    cache, found = warm(other, node_cache, tokens)
    assert cache.restored == 0
    same(found, expected_other)
    # A step of training changes the weights in place.
    trained = load(str(folder))
    assert KvmemCache(node_cache, trained, tokens).restored == 6 * BLOCK
    with torch.no_grad():
        for parameter in trained.parameters():
            parameter.mul_(1.001)
    assert KvmemCache(node_cache, trained, tokens).restored == 0
    options: list[dict[str, Any]] = [
        {"block": 32},
        {"settings": {"adapter": "a"}},
        {"weights": "others"},
    ]
    for others in options:
        assert KvmemCache(node_cache, model, tokens, **others).restored == 0, others


def test_bfloat16_and_its_blocks(folder: Path, node_cache: kvmem.NodeCache) -> None:
    halved = load(str(folder)).to(torch.bfloat16)
    tokens = prompt(6, 300)
    cache = KvmemCache(node_cache, halved, tokens)
    generate(halved, tokens, cache, 2)
    assert cache.store() == 4 * BLOCK
    found = KvmemCache(node_cache, halved, tokens)
    assert found.restored == 4 * BLOCK
    for one, other in zip(found.layers, cache.layers):
        assert one.keys.dtype == torch.bfloat16
        assert torch.equal(one.keys, other.keys[:, :, : 4 * BLOCK])
        assert torch.equal(one.values, other.values[:, :, : 4 * BLOCK])


def test_damage_is_a_miss(model: Any, node: Nodes) -> None:
    damaged = node(256 * MIB)
    tokens = prompt(7, 400)
    expected = cold(model, tokens)
    with kvmem.connect(damaged.path, verify=True) as node_cache:
        cache, _ = warm(model, node_cache, tokens)
        assert cache.store() == 6 * BLOCK
        damaged.damage()
        cache, found = warm(model, node_cache, tokens)
        assert cache.restored == 0
        same(found, expected)
        # It is stored anew.
        assert cache.store() == 6 * BLOCK
        cache, found = warm(model, node_cache, tokens)
        assert cache.restored == 6 * BLOCK
        same(found, expected)


def test_a_value_of_another_layout_ends_the_prefix(model: Any, node_cache: kvmem.NodeCache) -> None:
    tokens = prompt(8, 400)
    cache, _ = warm(model, node_cache, tokens)
    assert cache.store() == 6 * BLOCK
    keys = kvmem.prefix_keys(tokens, BLOCK, cache._salt)
    node_cache.insert(keys[3], b"something else")
    assert KvmemCache(node_cache, model, tokens).restored == 3 * BLOCK
    node_cache.insert(keys[0], b"kvmem hf\xff\xff\xff\xff" + bytes(100))
    assert KvmemCache(node_cache, model, tokens).restored == 0


def test_a_node_that_is_full_or_away_costs_misses(model: Any, node: Nodes) -> None:
    tokens = prompt(9, 700)
    expected = cold(model, tokens)
    # A block has half a MiB: some fit.
    small = node(4 * MIB)
    with kvmem.connect(small.path, retry_for=0.1) as node_cache:
        cache, found = warm(model, node_cache, tokens)
        same(found, expected)
        stored = cache.store()
        assert BLOCK <= stored < 10 * BLOCK, "the start of the prompt fits, and the end does not"
        assert node_cache.stats().reservations == 0
        cache, found = warm(model, node_cache, tokens)
        assert cache.restored == stored
        same(found, expected)
        small.stop()
        again, found = warm(model, node_cache, tokens)
        assert again.restored == 0 and again.store() == 0
        same(found, expected)


def test_models_whose_cache_cannot_be_cut_raise(node_cache: kvmem.NodeCache) -> None:
    from transformers import Gemma2Config, Gemma2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

    small = {
        "vocab_size": 64,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 16,
    }
    windows = Gemma2ForCausalLM(Gemma2Config(**small, sliding_window=16))
    with pytest.raises(UnsupportedModelError, match="layer 0 has a DynamicSlidingWindowLayer"):
        KvmemCache(node_cache, windows, [1, 2, 3])
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10_000.0}
    growing = Qwen3ForCausalLM(Qwen3Config(**small, rope_parameters=rope))
    with pytest.raises(UnsupportedModelError, match="'dynamic'") as caught:
        KvmemCache(node_cache, growing, [1, 2, 3])
    assert caught.value.remedy == "use a DynamicCache"


def test_arguments_are_checked(model: Any, node_cache: kvmem.NodeCache) -> None:
    tokens = prompt(10, 200)
    with pytest.raises(kvmem.InvalidArgumentError, match="2 sequences"):
        KvmemCache(node_cache, model, torch.tensor([tokens, tokens]))
    with pytest.raises(kvmem.InvalidArgumentError, match="block is 0"):
        KvmemCache(node_cache, model, tokens, block=0)
    cache, _ = warm(model, node_cache, tokens)
    with pytest.raises(kvmem.InvalidArgumentError, match="has 211 tokens"):
        cache.load(tokens)
    with pytest.raises(kvmem.InvalidArgumentError, match="does not begin with the prompt"):
        cache.store(prompt(11, 200))
    cache.batch_repeat_interleave(2)
    with pytest.raises(kvmem.InvalidArgumentError, match="2 sequences"):
        cache.store()
    empty = KvmemCache(node_cache, model)
    assert empty.store() == 0 and empty.load(tokens) == 0 and empty.restored == 0


def test_the_page_runs(
    folder: Path, node_cache: kvmem.NodeCache, capsys: pytest.CaptureFixture[str]
) -> None:
    page = Path(__file__).parents[4] / "docs" / "distributed" / "transformers.md"
    text = page.read_text(encoding="utf-8")
    code, output = (
        "\n".join(re.findall(rf"^```{kind}\n(.*?)^```$", text, re.M | re.S))
        for kind in ("python", "text")
    )
    code = code.replace("/run/kvmem.sock", str(node_cache.path))
    code = code.replace('"model"', repr(str(folder)))
    exec(compile(code, str(page), "exec"), {"__name__": "page"})
    assert capsys.readouterr().out == output
