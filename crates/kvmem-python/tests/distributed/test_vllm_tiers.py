"""A disk below vLLM's CPU tier, and an eviction policy in it, driven by vLLM's own managers."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Any

import pytest
import vllm_engine
from engines import unpacked
from kvmem.vllm._identity import weights
from vllm_process import (
    PAGE,
    Engine,
    EngineError,
    release,  # noqa: F401 (release)
    row_bytes,
    vllm,
    with_oldest,
)

NAMES = [f"chunk {i}" for i in range(20)]
WORKERS = 2
ROW = row_bytes(WORKERS)


def tiers(path: Path, **options: Any) -> dict[str, Any]:
    tier = {"type": "KvmemTier", "module_path": "kvmem.vllm", "path": str(path), "bytes": "32MiB"}
    return {"kvmem": {"pages": "4k"}, "secondary_tiers": [{**tier, **options}]}


def engine(path: Path, rows: int = 64, **options: Any) -> Engine:
    return Engine("KvmemTieringOffloadingSpec", tiers(path, **options), workers=WORKERS, rows=rows)


@with_oldest
def test_chunks_come_back_from_the_disk_and_after_kills(tmp_path: Path) -> None:
    path = tmp_path / "tier"
    with engine(path) as first:
        assert first("store", NAMES) == NAMES
        first("settle")
        first("reset")
        assert first("lookup", [NAMES[0], "another", NAMES[9]]) == [True, False, True]
        assert first("load", NAMES) == len(NAMES) * ROW
        first.kill()
    for _ in range(2):
        with engine(path) as next:
            assert next("load", NAMES) == len(NAMES) * ROW
            assert next("store", ["new"]) == ["new"]
            next("settle")
            next.kill()
    with engine(path) as last:
        assert last("load", [*NAMES, "new"]) == (len(NAMES) + 1) * ROW


def test_a_kill_in_a_store_leaves_whole_chunks_only(tmp_path: Path) -> None:
    path = tmp_path / "tier"
    for round in range(2):
        names = [f"{round}: {name}" for name in NAMES]
        with engine(path) as victim:
            victim("store", names)
            victim.kill()  # the disk has some of them
        with engine(path) as next:
            found = [name for name, hit in zip(names, next("lookup", names)) if hit]
            if found:
                assert next("load", found) == len(found) * ROW


def test_a_small_cpu_tier_serves_a_large_disk(tmp_path: Path) -> None:
    with engine(tmp_path / "tier", rows=8) as small:
        for at in range(0, 20, 4):
            small("store", NAMES[at : at + 4])
            small("settle")
        for at in range(0, 20, 4):
            assert small("load", NAMES[at : at + 4]) == 4 * ROW


def damage(path: Path, name: str, worker: int, tensor: int) -> None:
    """Changes a bit of a chunk in the file of a tier."""
    first = vllm_engine.content(name, worker, tensor, 2 * PAGE).tobytes()
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as bytes_:
        at = bytes_.find(first[:64])
        assert at > 0, "the bytes are not in the file"
        bytes_[at + 40] ^= 1


@with_oldest
def test_a_damaged_chunk_is_never_loaded(tmp_path: Path) -> None:
    path = tmp_path / "tier"
    with engine(path) as writer:
        writer("store", NAMES)
        writer("settle")
    damaged = NAMES[4]
    damage(path, damaged, worker=1, tensor=0)
    damage(path, NAMES[7], worker=0, tensor=1)
    with engine(path) as reader:
        # The promotion fails, and the chunk is a miss from then on. The others are right.
        assert reader("lookup", [damaged]) == [False]
        # Another fails alone, in one job with others, which are loaded.
        assert reader("load", NAMES[:4] + NAMES[5:]) == -1
        assert reader("lookup", NAMES) == [name not in (damaged, NAMES[7]) for name in NAMES]
        assert reader("store", [damaged, NAMES[7]]) == [damaged, NAMES[7]]
        reader("settle")
        reader("reset")
        assert reader("load", NAMES) == len(NAMES) * ROW


def test_a_full_disk_evicts_and_serves_what_it_has(tmp_path: Path) -> None:
    with engine(tmp_path / "tier", bytes="2MiB", rows=16) as full:
        for at in range(40):
            full("store", [f"{at}-{i}" for i in range(4)])
            full("settle")
        full("reset")
        names = [f"{at}-{i}" for at in range(40) for i in range(4)]
        found = [name for name, hit in zip(names, full("lookup", names[-16:])) if hit]
        assert full("lookup", names[:4]) == [False] * 4
        hits = [name for name in names[-8:] if full("lookup", [name]) == [True]]
        assert hits and full("load", hits) == len(hits) * ROW, found


def test_other_models_find_nothing(tmp_path: Path) -> None:
    path = tmp_path / "tier"
    with engine(path) as one:
        one("store", NAMES)
        one("settle")
    for changed in ({"model": "another/model"}, {"page": 2 * PAGE}, {"blocks_per_chunk": 4}):
        with Engine("KvmemTieringOffloadingSpec", tiers(path), workers=WORKERS, **changed) as other:
            assert other("lookup", NAMES) == [False] * len(NAMES)
    with engine(path) as same:
        assert same("lookup", NAMES) == [True] * len(NAMES)


def test_other_weights_at_the_same_path_find_nothing(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    path = tmp_path / "tier"
    options: dict[str, Any] = {"workers": WORKERS, "model": str(model)}
    (model / "model.safetensors").write_bytes(b"old weights")

    def found(**more: Any) -> list[bool]:
        extra = {**tiers(path), **more}
        with Engine("KvmemTieringOffloadingSpec", extra, **options) as engine:
            hits: list[bool] = engine("lookup", NAMES[:2])
            engine("store", NAMES[:2])
            engine("settle")
        return hits

    assert found() == [False, False]
    assert found() == [True, True]
    (model / "model.safetensors").write_bytes(b"new weights are longer")
    assert found() == [False, False]
    named = {"kvmem": {"pages": "4k", "weights": "step 3"}}
    assert found(**named) == [False, False]
    assert found(**named) == [True, True]


def test_the_commit_of_the_hubs_cache_tells_weights_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert weights("a/model", {}) is None
    refs = tmp_path / "models--a--model" / "refs"
    refs.mkdir(parents=True)
    (refs / "main").write_text("0123abcd\n")
    assert weights("a/model", {}) == "0123abcd"
    assert weights("a/model", {"kvmem": {"weights": "mine"}}) == "mine"
    assert weights("../a/model", {}) is None


def test_what_the_file_cannot_do_is_an_error_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "other").write_bytes(b"something else" * 100_000)
    for path, words in (
        (tmp_path / "missing" / "tier", "No such file"),
        (tmp_path / "folder", "DiskTierError"),
        (tmp_path / "other", "DiskTierError"),
    ):
        with pytest.raises(EngineError, match=words):
            engine(path)
    with engine(tmp_path / "tier") as owner:
        with pytest.raises(EngineError, match="DiskTierError"):
            engine(tmp_path / "tier")
        assert owner("store", NAMES) == NAMES
    with pytest.raises(EngineError, match="the tier has no path"):
        nameless = {"type": "KvmemTier", "module_path": "kvmem.vllm"}
        Engine("KvmemTieringOffloadingSpec", {"secondary_tiers": [nameless]}, workers=WORKERS)


def test_a_file_of_another_user_is_an_error_that_leaves_nothing(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    program = (
        ALONE
        + """
import kvmem
folder = sys.argv[1]
if sys.argv[2] == "other":
    os.setuid(65534)
try:
    tier = make()
except kvmem.KvmemError as error:
    print("not allowed:", type(error).__name__, error)
else:
    tier.submit_store(job(0, [1], [1]))
    assert wait(tier, 1)[0].success
    tier.shutdown()
    print("stored")
"""
    )
    tmp_path.chmod(0o700)
    assert "not allowed: " in vllm(program, str(tmp_path), "other")
    assert not list(tmp_path.iterdir())
    assert "stored" in vllm(program, str(tmp_path), "owner")
    # It has a file of its own now, and the other user still none.
    out = vllm(program, str(tmp_path), "other")
    assert "not allowed: " in out and "ermission denied" in out
    assert "stored" in vllm(program, str(tmp_path), "owner")


def test_replicas_have_files_of_their_own(tmp_path: Path) -> None:
    extra = tiers(tmp_path / "tier")
    options: dict[str, Any] = {"workers": 1, "rows": 16}
    with (
        Engine("KvmemTieringOffloadingSpec", extra, replica=0, **options),
        Engine("KvmemTieringOffloadingSpec", extra, replica=1, **options),
    ):
        assert sorted(file.name for file in tmp_path.iterdir()) == ["tier", "tier.dp1"]


ALONE = """
import os, sys, tempfile, threading, time
import numpy as np
import vllm_engine
from vllm.v1.kv_offload import base
from vllm.v1.kv_offload.tiering.base import TransferJob
from kvmem.vllm import KvmemOffloadingSpec, KvmemTier
ROW = 8192
options = dict(workers=1, page=2048, blocks_per_chunk=2, engine_id="alone",
    extra={"cpu_bytes_to_use": 64 * ROW, "kvmem": {}})
spec = KvmemOffloadingSpec(vllm_engine.config(options, 0))
memory = np.random.default_rng(1).integers(-128, 128, (64, ROW), np.int8)
context = base.ReqContext("r")
key = lambda i: vllm_engine.offload_key(f"key {i}")
folder = tempfile.mkdtemp()

def make(**options):
    return KvmemTier(spec, memoryview(memory), "KvmemTier", path=folder + "/tier", bytes="8MiB",
        **options)

def job(number, keys, rows, load=False):
    return TransferJob(number, [key(i) for i in keys], np.array(rows, np.int32), load, context)

def wait(tier, number):
    end = time.monotonic() + 60
    results = []
    while len(results) < number:
        assert time.monotonic() < end, results
        results += tier.get_finished_jobs()
        time.sleep(0.001)
    return {it.job_id: it for it in results}

class Gate:
    # A tier whose transfers wait until the gate is open.
    def __init__(self, tier):
        self._tier, self.open = tier, threading.Event()
    def __getattr__(self, name):
        return getattr(self._tier, name)
    def __contains__(self, key):
        return key in self._tier
    def store(self, values, **hints):
        assert self.open.wait(60)
        return self._tier.store(values, **hints)
    def fetch_into(self, keys, buffers):
        assert self.open.wait(60)
        return self._tier.fetch_into(keys, buffers)
"""


def test_no_call_waits_for_the_disk() -> None:
    vllm(
        ALONE
        + """
tier = make()
gate = tier._tier = Gate(tier._tier)
LookupResult = base.LookupResult
for i in range(8):
    tier.submit_store(job(i, [i], [i]))
assert list(tier.get_finished_jobs()) == []
assert tier.lookup(key(3), context) is LookupResult.RETRY
assert tier.lookup(key(9), context) is LookupResult.MISS
drained = threading.Event()
threading.Thread(target=lambda: (tier.drain_jobs(), drained.set())).start()
assert not drained.wait(0.2)
gate.open.set()
assert drained.wait(60)
results = wait(tier, 8)
assert all(it.success and it.transfer_bytes == ROW for it in results.values())
assert tier.lookup(key(3), context) is LookupResult.HIT
gate.open.clear()
saved = memory[:8].copy()
tier.submit_load(job(9, [0, 1, 2], [50, 51, 52], load=True))
assert list(tier.get_finished_jobs()) == []
gate.open.set()
assert wait(tier, 1)[9].success
assert (memory[50:53] == saved[:3]).all()
# A store of chunks that are there writes nothing.
tier.submit_store(job(10, [0, 1], [0, 1]))
assert wait(tier, 1)[10].transfer_bytes == 0
tier.shutdown()
"""
    )


def test_a_call_that_fails_removes_no_chunk() -> None:
    """It says nothing about the chunks on the disk. A chunk that is longer than a row is removed:
    it would fail every call that it is part of.
    """
    vllm(
        ALONE
        + """
import kvmem
tier = make()
tier.submit_store(job(0, range(4), range(4)))
assert wait(tier, 1)[0].success
real = tier._tier

class Failing(Gate):
    def fetch_into(self, keys, buffers):
        raise kvmem.DiskTierError("the drive does not answer")

tier._tier = Failing(real)
tier.submit_load(job(1, range(4), range(50, 54), load=True))
failed = wait(tier, 1)[1]
assert not failed.success and not failed.successful_keys
assert all(tier.lookup(key(i), context) is base.LookupResult.HIT for i in range(4))
tier._tier = real
saved = memory[:4].copy()
tier.submit_load(job(2, range(4), range(50, 54), load=True))
assert wait(tier, 1)[2].success and (memory[50:54] == saved).all()
real.store([(tier._key(key(2)), bytes(ROW + 1))])
tier.submit_load(job(3, range(4), range(50, 54), load=True))
assert not wait(tier, 1)[3].success
found = [tier.lookup(key(i), context) is base.LookupResult.HIT for i in range(4)]
assert found == [True, True, False, True], found
tier.shutdown()
"""
    )


def test_stores_that_find_the_queue_full_are_dropped() -> None:
    vllm(
        ALONE
        + """
import logging
seen = []
handler = logging.Handler()
handler.emit = lambda record: seen.append(record.getMessage())
logging.getLogger("vllm.kvmem").addHandler(handler)
tier = make(max_queued_bytes=4 * ROW)
gate = tier._tier = Gate(tier._tier)
for i in range(10):
    tier.submit_store(job(i, [i], [i]))
dropped = {it.job_id for it in tier.get_finished_jobs()}
assert dropped == set(range(4, 10)), dropped
assert any("stores dropped" in it for it in seen), seen
gate.open.set()
assert all(it.success for it in wait(tier, 4).values())
# One job that is longer than the queue may wait alone.
tier.submit_store(job(20, range(20, 30), range(10)))
assert wait(tier, 1)[20].success
tier.shutdown()
"""
    )


def test_a_load_of_a_missing_chunk_removes_no_chunk_that_is_stored_meanwhile() -> None:
    vllm(
        ALONE
        + """
class Late(Gate):
    # The store ends between the read of a load and the end of the load.
    def fetch_into(self, keys, buffers):
        found = self._tier.fetch_into(keys, buffers)
        self.open.set()
        while tier._storing:
            time.sleep(0.001)
        return found

tier = make()
tier._tier = Late(tier._tier)
tier.submit_store(job(0, [0], [0]))
tier.submit_load(job(1, [0], [9], load=True))
results = wait(tier, 2)
assert results[0].success and not results[1].success, results
assert tier.lookup(key(0), context) is base.LookupResult.HIT
tier.shutdown()
"""
    )


def test_jobs_that_wait_at_the_end_fail() -> None:
    vllm(
        ALONE
        + """
tier = make()
gate = tier._tier = Gate(tier._tier)
for i in range(5):
    tier.submit_store(job(i, [i], [i]))
    while not tier._running:
        time.sleep(0.001)  # the queue has room for the other four
tier.submit_load(job(5, [0], [0], load=True))
tier.submit_load(job(6, [1], [1], load=True))
while tier._running < 2:
    time.sleep(0.001)
def open_at_the_end():
    while not tier._stopped:
        time.sleep(0.001)
    gate.open.set()
threading.Thread(target=open_at_the_end).start()
tier.shutdown()
results = wait(tier, 7)
assert results[0].success and not any(results[i].success for i in (1, 2, 3, 4, 6))
tier.submit_store(job(7, [7], [7]))
tier.submit_load(job(8, [7], [7], load=True))
assert not any(it.success for it in wait(tier, 2).values())
again = make()
assert again.lookup(key(0), context) is base.LookupResult.HIT
assert again.lookup(key(1), context) is base.LookupResult.MISS
again.shutdown()
"""
    )


def test_chunks_are_compressed_and_encrypted_on_request() -> None:
    vllm(
        ALONE
        + """
import kvmem
keys = folder + "/keys"
with open(os.open(keys, os.O_CREAT | os.O_WRONLY, 0o400), "w") as file:
    file.write("7" * 64)
memory[1] = np.tile(np.array([3, 63], np.int8), ROW // 2)
before = memory[1].copy()
encoded = dict(codec="auto", key_file=keys)
tier = make(**encoded)
tier.submit_store(job(0, [1], [1]))
assert wait(tier, 1)[0].success
stats = tier._tier.stats()
assert stats.encoded_before_bytes == ROW > 1.5 * stats.encoded_after_bytes, stats
tier.shutdown()
memory[1] = 0
tier = make(**encoded)
tier.submit_load(job(1, [1], [1], load=True))
assert wait(tier, 1)[1].success and (memory[1] == before).all()
tier.shutdown()
tier = make()
tier.submit_load(job(2, [1], [1], load=True))
assert not wait(tier, 1)[2].success
tier.shutdown()
assert kvmem.DiskTier.inspect(folder + "/tier").encrypted == 1
"""
    )


def test_hints_of_a_request_are_those_of_the_values_on_the_disk() -> None:
    vllm(
        ALONE
        + """
tier = make()
seen = []

class Noting(Gate):
    def store(self, values, **hints):
        seen.append(hints)
        return self._tier.store(values, **hints)

tier._tier = Noting(tier._tier)
tier.submit_store(job(0, [1], [1]))
wait(tier, 1)
context = base.ReqContext("r", kv_transfer_params={"kvmem": {"priority": 2, "ttl": 60}})
tier.submit_store(job(1, [2], [2]))
wait(tier, 1)
kind = {"data_type": "bfloat16"}
expected = [{"ttl": None, "priority": 0, **kind}, {"ttl": 60, "priority": 2, **kind}]
assert seen == expected, seen
tier.shutdown()
"""
    )


def test_stored_chunks_are_events_if_they_are_enabled() -> None:
    vllm(
        ALONE
        + """
for enabled in (False, True):
    object.__setattr__(spec.kv_events_config, "enable_kv_cache_events", enabled)
    tier = make(enable_kv_events=True, locality="LOCAL", format=True)
    tier.submit_store(job(0, [1, 2], [1, 2]))
    wait(tier, 1)
    events = list(tier.take_events())
    assert [it.keys for it in events] == ([[key(1), key(2)]] if enabled else [])
    assert not list(tier.take_events())
    tier.shutdown()
assert events[0].medium is base.Medium.STORAGE and events[0].locality is base.Locality.LOCAL
"""
    )


def test_an_event_of_a_store_that_ends_while_events_are_taken_is_kept() -> None:
    vllm(
        ALONE
        + """
from kvmem.vllm import tier as module
made = module.OffloadingEvent
reached, go_on = threading.Event(), threading.Event()

def gated(**named):
    reached.set()
    assert go_on.wait(60)
    return made(**named)

module.OffloadingEvent = gated
object.__setattr__(spec.kv_events_config, "enable_kv_cache_events", True)
tier = make(enable_kv_events=True)
tier.submit_store(job(0, [1, 2], [1, 2]))
assert reached.wait(60)
assert not list(tier.take_events())
go_on.set()
wait(tier, 1)
assert [it.keys for it in tier.take_events()] == [[key(1), key(2)]]
tier.shutdown()
"""
    )


def test_the_chunks_of_a_store_that_failed_are_not_looked_for_one_by_one() -> None:
    """A store of many chunks would take a time that grows with the square of their number."""
    vllm(
        ALONE
        + """
import kvmem

class Names(list):
    def __contains__(self, name):
        raise AssertionError("a search in a list")

class Failing(Gate):
    def store(self, values, **hints):
        error = kvmem.DiskTierError("the drive is full")
        error.failed = Names(name for name, _ in values[:2])
        raise error

tier = make()
real, tier._tier = tier._tier, Failing(tier._tier)
tier.submit_store(job(0, range(4), range(4)))
result = wait(tier, 1)[0]
assert not result.success and result.transfer_bytes == 2 * ROW, result
tier.shutdown()
"""
    )


POLICY = """
import random
from vllm.v1.kv_offload import base
from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager
from vllm.v1.kv_offload.cpu.policies.base import ChunkStatus
from kvmem.vllm import KvmemPolicy
import vllm_engine
key = lambda i: vllm_engine.offload_key(str(i))
HIT = base.LookupResult.HIT
number = iter(range(10**9))

def request(manager, ids):
    # Returns the length of the prefix that was found, and stores the rest.
    context = base.ReqContext(str(next(number)))
    keys = [key(i) for i in ids]
    for position, it in enumerate(keys):
        context.set_offload_key_position(it, position)
    manager.on_new_request(context)
    hits = next((at for at, it in enumerate(keys) if manager.lookup(it, context) != HIT), len(keys))
    if hits:
        manager.prepare_load(keys[:hits], context)
        manager.complete_load(keys[:hits], context)
    prepared = manager.prepare_store(keys, context)
    if prepared is not None:
        manager.complete_store(prepared.keys_to_store, context)
    manager.on_request_finished(context)
    return hits

def check(policy):
    inside = [it for ring in policy._rings for it in ring]
    assert len(inside) == len(set(inside)) and not set(inside) & policy._aside
    assert set(inside) | policy._aside == set(policy._chunks)
    assert all(policy._chunks[it].chunk.ref_cnt != 0 for it in policy._aside)
    tenants = [it.tenant for it in policy._chunks.values()]
    assert {name: it.chunks for name, it in policy._tenants.items()} == {
        name: tenants.count(name) for name in tenants}
    assert set(policy._spent) <= {key for key, it in policy._chunks.items() if it.spent}
    assert len(policy._expiries) <= 4 * policy.cache_capacity + 65
"""


def test_a_scan_does_not_empty_the_cache() -> None:
    out = vllm(
        POLICY
        + """
for name in ("lru", "KvmemPolicy"):
    manager = CPUOffloadingManager(1000, name, "kvmem.vllm")
    hits = wanted = 0
    for round in range(60):
        for user in range(20):
            ids = [f"user {user}, {i}" for i in range(20)]
            found = request(manager, ids)
            if round >= 10:
                hits, wanted = hits + found, wanted + len(ids)
            request(manager, [f"once {round} {user} {i}" for i in range(40)])
    print(name, round, hits / wanted)
    if name == "KvmemPolicy":
        check(manager._policy)
"""
    )
    words = [line.split() for line in out.splitlines() if line.startswith(("lru", "KvmemPolicy"))]
    figures = {name: float(share) for name, _, share in words}
    assert figures["lru"] < 0.1 and figures["KvmemPolicy"] > 0.9, figures


def test_the_policy_keeps_its_contract_in_random_runs() -> None:
    vllm(
        POLICY
        + """
for seed in range(60):
    random.seed(seed)
    capacity = random.choice([1, 2, 8, 50])
    policy = KvmemPolicy(capacity)
    now = 0.0
    policy.clock = lambda: now
    hints = [None, {"tenant": "a"}, {"tenant": "b", "priority": 3}, {"ttl": 5}, {"priority": 1},
        {"session": "s"}, {"session": "s", "session_ends": True}, {"tenant": "a", "ttl": 2}]
    # Half of the runs have no hints.
    contexts = [base.ReqContext("r", kv_transfer_params={"kvmem": it}) for it in hints]
    contexts = contexts if seed % 2 else contexts[:1]
    pinned, ids = {}, iter(range(10**6))
    for step in range(400):
        now += random.random()
        context = random.choice(contexts)
        held = list(policy._chunks)
        match random.randrange(8):
            case 0 | 1:
                if len(held) < capacity:
                    it = key(random.randrange(3 * capacity))
                    if policy.get(it) is None:
                        chunk = ChunkStatus(next(ids))
                        policy.insert(it, chunk, context)
                        assert policy.get(it) is chunk
                        pinned[it] = -1
            case 2 if pinned:
                it = random.choice(list(pinned))
                chunk = policy.get(it)
                if pinned[it] == -1 and random.random() < 0.3:
                    policy.remove(it)
                    assert policy.get(it) is None
                    del pinned[it]
                else:
                    chunk.ref_cnt = 0
                    policy.mark_evictable(it)
                    del pinned[it]
            case 3 if held:
                it = random.choice(held)
                if it not in pinned:
                    policy.mark_non_evictable(it)
                    policy.get(it).ref_cnt = 1
                    pinned[it] = 1
            case 4:
                policy.touch(random.sample(held, min(len(held), 5)), context)
            case 5:
                keys = random.sample(held, min(len(held), 5)) + [key("absent")]
                policy.on_request_finished([keys], set(keys[:2]), set(keys[2:]), context)
            case _:
                protected = set(random.sample(held, random.randrange(len(held) + 1)))
                can = [it for it in held if it not in pinned and it not in protected]
                n = random.randrange(capacity + 2)
                order = [list(ring) for ring in policy._rings]
                evicted = policy.evict(n, protected)
                if n > len(can):
                    assert evicted is None and set(policy._chunks) == set(held)
                else:
                    gone = [it for it, _ in evicted]
                    assert len(set(gone)) == n and set(gone) <= set(can)
                    assert all(policy.get(it) is None for it in gone)
                    assert all(chunk.ref_cnt == 0 for _, chunk in evicted)
        check(policy)
    policy.clear()
    assert policy.get(key(1)) is None
    check(policy)
"""
    )


def test_pinned_chunks_are_passed_once() -> None:
    """An eviction that meets pinned chunks moves them aside, so that the next one does not meet
    them again."""
    vllm(
        POLICY
        + """
policy = KvmemPolicy(2000)
context = base.ReqContext("r")
for i in range(2000):
    chunk = ChunkStatus(i)
    policy.insert(key(i), chunk, context)
    chunk.ref_cnt = 1 if i < 1000 else 0
steps = 0
choose = policy._victim
def counted():
    global steps
    steps += 1
    return choose()
policy._victim = counted
assert len(policy.evict(1, set())) == 1
assert 1000 <= steps <= 1002
steps = 0
for _ in range(100):
    policy.evict(1, set())
assert steps <= 110, steps
# They return to the front.
for i in range(1000):
    policy.get(key(i)).ref_cnt = 0
    policy.mark_evictable(key(i))
assert {it for it, _ in policy.evict(500, set())} <= {key(i) for i in range(1000)}
check(policy)
"""
    )


@with_oldest
def test_the_policy_serves_an_engine() -> None:
    unpacked("vllm")
    extra = {
        "kvmem": {"pages": "4k"},
        "eviction_policy": "KvmemPolicy",
        "cache_policy_module_path": "kvmem.vllm",
    }
    for spec in ("KvmemOffloadingSpec", "KvmemTieringOffloadingSpec"):
        with Engine(spec, extra, workers=WORKERS, rows=16) as engine:
            for at in range(0, 20, 4):
                assert engine("store", NAMES[at : at + 4]) == NAMES[at : at + 4]
            hits = [name for name, hit in zip(NAMES, engine("lookup", NAMES)) if hit]
            assert len(hits) == 16 and engine("load", hits) == 16 * ROW
