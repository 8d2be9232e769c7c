"""llama.cpp with prefixes in a node: what is restored generates the tokens that computing
generates, and damage, other weights and other settings are misses.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kvmem
import pytest
from engine_node import MIB, Node, prompt
from kvmem.llama_cpp import PrefixCache

pytest.importorskip("xllamacpp", reason="libllama is missing: cargo xtask test engine")
pytest.importorskip("gguf", reason="gguf is missing: cargo xtask test engine")

import llama_model
from llama_model import F32, VOCABULARY, Llama

Nodes = Callable[..., Node]
Output = tuple[list[int], list[float]]
TOLERANCE = 0.005


def prompt_of(seed: int, count: int) -> list[int]:
    return [token % VOCABULARY for token in prompt(seed, count)]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("llama")


@pytest.fixture(scope="module")
def model(models: Path) -> Path:
    return llama_model.write(models / "small.gguf")


@pytest.fixture(scope="module")
def llama(model: Path) -> Iterator[Llama]:
    llama = Llama(model)
    yield llama
    llama.close()


@pytest.fixture
def cache(node: Nodes) -> Iterator[kvmem.NodeCache]:
    with kvmem.connect(node(256 * MIB).path, verify=True) as cache:
        yield cache


def cold(llama: Llama, tokens: list[int], count: int = 12) -> Output:
    llama.clear()
    return llama.generate(tokens, count)


def same(found: Output, expected: Output) -> None:
    """Checks that outputs are equal: tokens exactly, and logits to what another order of additions
    changes. One changed token of the prompt changes them by more.
    """
    assert found[0] == expected[0]
    assert found[1] == pytest.approx(expected[1], abs=TOLERANCE)


def warm(llama: Llama, prefixes: PrefixCache, tokens: list[int]) -> tuple[int, Output]:
    """Restores a prompt, and returns the number of restored tokens and the output."""
    llama.clear()
    restored = prefixes.load(tokens)
    return restored, llama.generate(tokens[restored:])


def test_outputs_depend_on_all_of_the_cache(llama: Llama) -> None:
    first = prompt_of(0, 1000)
    expected = cold(llama, first)
    assert cold(llama, first) == expected
    for at in (3, 500, 990):
        changed = [*first]
        changed[at] ^= 1
        found = cold(llama, changed)
        assert found[0] != expected[0] or found[1] != pytest.approx(expected[1], abs=TOLERANCE)


def test_prefixes_of_several_lengths_come_from_one_state(
    llama: Llama, model: Path, cache: kvmem.NodeCache
) -> None:
    first = prompt_of(1, 1000)
    other = [*first[:600], *prompt_of(2, 300)]
    expected, expected_other = cold(llama, first), cold(llama, other)
    prefixes = PrefixCache(cache, llama.context, model, block=128)
    assert prefixes.cuts
    assert warm(llama, prefixes, first) == (0, expected)
    # The sequence has the generated tokens, too, except the last one.
    whole = [*first, *expected[0]]
    assert prefixes.store(whole) == len(whole) - 1
    assert prefixes.stats().stored == 1
    restored, found = warm(llama, prefixes, first)
    assert restored == 7 * 128
    same(found, expected)
    # A prompt that goes on behind the stored tokens has all of them.
    llama.clear()
    assert prefixes.load([*whole[:-1], 5, 6]) == len(whole) - 1
    # The common part of another prompt is 600 tokens, of which 4 blocks are complete.
    restored, found = warm(llama, prefixes, other)
    assert restored == 4 * 128
    same(found, expected_other)
    # Nothing in common, too short, and empty.
    assert warm(llama, prefixes, prompt_of(3, 300))[0] == 0
    llama.clear()
    assert prefixes.load(first[:128]) == 0 and prefixes.load(first[:129]) == 128
    llama.clear()
    assert prefixes.load([]) == 0
    stats = prefixes.stats()
    assert (stats.hits, stats.rejected, stats.failures) == (4, 0, 0)


def test_a_state_is_stored_once(llama: Llama, model: Path, cache: kvmem.NodeCache) -> None:
    tokens = prompt_of(4, 400)
    prefixes = PrefixCache(cache, llama.context, model)
    llama.clear()
    assert prefixes.store(tokens) == 0, "nothing is decoded"
    llama.decode(tokens[:200])
    assert prefixes.store(tokens) == 0, "no block is complete"
    llama.decode(tokens[200:])
    assert prefixes.store(tokens) == prefixes.store(tokens) == 400
    stats = prefixes.stats()
    assert (stats.stored, stats.present) == (1, 1)
    with pytest.raises(kvmem.InvalidArgumentError, match="has 400 tokens, and 399 were passed"):
        prefixes.store(tokens[:399])


def test_another_process_finds_the_state(llama: Llama, model: Path, cache: kvmem.NodeCache) -> None:
    tokens = prompt_of(5, 1500)
    expected = cold(llama, tokens)
    PrefixCache(cache, llama.context, model).store([*tokens, *expected[0]])
    program = Path(__file__).with_name("llama_process.py")
    done = subprocess.run(
        [sys.executable, str(program), str(cache.path), str(model), "5", "1500"],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    assert answer["restored"] == 5 * 256
    same((answer["tokens"], answer["logits"]), expected)


def test_other_weights_and_settings_share_nothing(
    llama: Llama, model: Path, models: Path, cache: kvmem.NodeCache
) -> None:
    tokens = prompt_of(6, 600)
    cold(llama, tokens, 1)
    prefixes = PrefixCache(cache, llama.context, model)
    assert prefixes.store(tokens) == 600
    # The same prompt again: all but its last token.
    assert warm(llama, PrefixCache(cache, llama.context, model), tokens)[0] == 599
    for others in ({"settings": {"type_k": "q8_0"}}, {"weights": "others"}, {"block": 128}):
        assert PrefixCache(cache, llama.context, model, **others).load(tokens) == 0, others
    # The same name, length and time, and other weights in it.
    (models / "others").mkdir()
    other_file = llama_model.write(models / "others" / model.name, seed=2)
    assert other_file.stat().st_size == model.stat().st_size
    times = model.stat()
    os.utime(other_file, ns=(times.st_atime_ns, times.st_mtime_ns))
    other = Llama(other_file)
    expected = cold(other, tokens)
    theirs = PrefixCache(cache, other.context, other_file)
    restored, found = warm(other, theirs, tokens)
    assert restored == 0
    same(found, expected)
    other.close()


def test_a_state_of_another_type_is_rejected(
    llama: Llama, model: Path, cache: kvmem.NodeCache
) -> None:
    """Without the setting that tells the types apart, libllama does."""
    tokens = prompt_of(7, 600)
    cold(llama, tokens, 1)
    assert PrefixCache(cache, llama.context, model).store(tokens) == 600
    other = Llama(model, kv=F32)
    expected = cold(other, tokens)
    prefixes = PrefixCache(cache, other.context, model)
    restored, found = warm(other, prefixes, tokens)
    assert restored == 0 and prefixes.stats().rejected == 1
    same(found, expected)
    other.close()


def test_a_context_that_is_too_short_takes_no_state(
    llama: Llama, model: Path, cache: kvmem.NodeCache
) -> None:
    tokens = prompt_of(8, 2000)
    cold(llama, tokens, 1)
    assert PrefixCache(cache, llama.context, model).store(tokens) == 2000
    short = Llama(model, length=1024)
    prefixes = PrefixCache(cache, short.context, model)
    assert warm(short, prefixes, tokens[:700])[0] == 0
    assert prefixes.stats().rejected == 0, "it is not tried"
    short.close()


def test_damage_is_a_miss(llama: Llama, model: Path, node: Nodes) -> None:
    damaged = node(256 * MIB)
    tokens = prompt_of(9, 700)
    expected = cold(llama, tokens)
    with kvmem.connect(damaged.path, verify=True) as cache:
        prefixes = PrefixCache(cache, llama.context, model)
        prefixes.store([*tokens, *expected[0]])
        assert warm(llama, prefixes, tokens)[0] == 512
        damaged.damage()
        restored, found = warm(llama, prefixes, tokens)
        assert restored == 0
        same(found, expected)
        # It is stored anew.
        prefixes.store([*tokens, *expected[0]])
        restored, found = warm(llama, prefixes, tokens)
        assert restored == 512
        same(found, expected)


def test_a_node_that_is_full_or_away_costs_misses(llama: Llama, model: Path, node: Nodes) -> None:
    tokens = prompt_of(10, 1000)
    expected = cold(llama, tokens)
    small = node(1 * MIB)
    with kvmem.connect(small.path, retry_for=0.1) as cache:
        prefixes = PrefixCache(cache, llama.context, model)
        assert prefixes.store([*tokens, *expected[0]]) == 0, "the state is longer than the node"
        assert warm(llama, prefixes, tokens)[0] == 0
        assert prefixes.stats().failures == 1
        small.stop()
        restored, found = warm(llama, prefixes, tokens)
        assert restored == 0 and prefixes.stats().failures == 2
        same(found, expected)
        assert prefixes.store([*tokens, *expected[0]]) == 0


def test_states_that_are_evicted_are_misses(llama: Llama, model: Path, node: Nodes) -> None:
    with kvmem.connect(node(4 * MIB).path, verify=True) as cache:
        prefixes = PrefixCache(cache, llama.context, model)
        kept = []
        for seed in range(20, 26):
            tokens = prompt_of(seed, 600)
            expected = cold(llama, tokens)
            assert prefixes.store([*tokens, *expected[0]]) == 611
            kept.append((tokens, expected))
        hits = 0
        for tokens, expected in kept:
            restored, found = warm(llama, prefixes, tokens)
            hits += restored == 512
            same(found, expected)
        assert 0 < hits < len(kept)


def test_a_sliding_window_restores_whole_states_only(models: Path, cache: kvmem.NodeCache) -> None:
    file = llama_model.write(models / "window.gguf", window=200)
    llama = Llama(file)
    tokens = prompt_of(11, 900)
    prefixes = PrefixCache(cache, llama.context, file)
    assert not prefixes.cuts
    longer = [*tokens, *prompt_of(12, 50)]
    expected, expected_longer = cold(llama, tokens), cold(llama, longer)
    llama.clear()
    llama.decode(tokens)
    assert prefixes.store(tokens) == 900
    # All of its tokens, and more: the state fits. A part of them: it cannot be cut.
    restored, found = warm(llama, prefixes, longer)
    assert restored == 900
    same(found, expected_longer)
    restored, found = warm(llama, prefixes, tokens)
    assert restored == 0
    same(found, expected)
    llama.close()


def test_arguments_are_checked(llama: Llama, model: Path, cache: kvmem.NodeCache) -> None:
    for block in (0, -1, 1.5):
        with pytest.raises(kvmem.InvalidArgumentError, match="block"):
            PrefixCache(cache, llama.context, model, block=block)  # type: ignore[arg-type]
    for context in (0, None, "context", 1.5):
        with pytest.raises(kvmem.InvalidArgumentError, match="context"):
            PrefixCache(cache, context, model)
    with pytest.raises(kvmem.NotInstalledError, match=r"libllama|llama_get_model"):
        PrefixCache(cache, llama.context, model, library="/no/libllama.so")
    with pytest.raises(kvmem.NotInstalledError, match="llama_get_model"):
        PrefixCache(cache, llama.context, model, library="libc.so.6")
    prefixes = PrefixCache(cache, llama.context, model)
    with pytest.raises(kvmem.InvalidArgumentError, match="a token is"):
        prefixes.load([2**40] * 300)
