"""Engines of vLLM with a Mooncake cluster below their CPU tiers: a master, a server with a segment,
and the processes of the engines, all of them real.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster, cluster  # noqa: F401 (cluster)
from conftest import until
from engines import require
from vllm_process import (
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


def engine(of: Cluster, namespace: str, rows: int = 32, **options: Any) -> Engine:
    mooncake = {"master": of.address, "namespace": namespace}
    if "timeout" in options:
        mooncake["timeout"] = options.pop("timeout")
    tier = {"type": "KvmemTier", "module_path": "kvmem.vllm", "mooncake": mooncake}
    tier |= options.pop("encoding", {})
    extra = {"kvmem": {"pages": "4k"}, "secondary_tiers": [tier, *options.pop("more", ())]}
    return Engine("KvmemTieringOffloadingSpec", extra, workers=WORKERS, rows=rows, **options)


@pytest.fixture(scope="module")
def served(cluster: Cluster) -> Cluster:  # noqa: F811
    """A cluster with a segment."""
    cluster.serve("64MiB")
    return cluster


@with_oldest
def test_an_engine_finds_what_another_has_stored(served: Cluster, tmp_path: Path) -> None:
    disk = {"type": "KvmemTier", "module_path": "kvmem.vllm", "path": str(tmp_path / "tier")}
    with (
        engine(served, "two") as one,
        engine(served, "two", more=[{**disk, "bytes": "16MiB"}]) as two,
    ):
        assert two("lookup", NAMES) == [False] * len(NAMES)
        assert one("store", NAMES) == NAMES
        one("settle")
        # Answers of the master hold for a moment.
        until(lambda: all(two("lookup", NAMES)))
        assert two("load", NAMES) == len(NAMES) * ROW
        two("settle")
        one.kill()
    # A third one finds them after both.
    with engine(served, "two") as three, engine(served, "another") as other:
        assert three("load", NAMES) == len(NAMES) * ROW
        assert other("lookup", NAMES[:2]) == [False, False]


def test_an_engine_with_the_key_finds_what_another_has_encrypted(
    served: Cluster, tmp_path: Path
) -> None:
    encoding = {"codec": "auto", "key_file": str(tmp_path / "keys")}
    (tmp_path / "keys").write_text("5" * 64)
    (tmp_path / "keys").chmod(0o400)
    with engine(served, "sealed", encoding=encoding) as one:
        assert one("store", NAMES) == NAMES
        one("settle")
        one.kill()
    with engine(served, "sealed") as without:
        assert without("load", NAMES[:1]) == -1
    with engine(served, "sealed", encoding=encoding) as two:
        assert two("load", NAMES) == len(NAMES) * ROW


def test_an_engine_killed_in_a_store_leaves_whole_chunks_only(served: Cluster) -> None:
    for round in range(2):
        names = [f"{name}, {round}" for name in NAMES]
        with engine(served, "victim", engine_id="a cluster's victim") as victim:
            if round:
                victim("store", names)
                victim.send("settle")
            else:
                victim.send("store", names)
            victim.kill()
        # Nothing is in the way of the same engine, which finds all of a chunk or nothing.
        with engine(served, "victim", engine_id="a cluster's victim") as again:
            for name in names:
                assert again("load", [name]) in (ROW, -1)
            again("store", names)
            again("settle")
            assert again("load", names) == len(names) * ROW


def test_a_full_cluster_costs_chunks_and_no_engine(tmp_path: Path) -> None:
    require("mooncake")
    with Cluster(tmp_path) as own:
        own.serve("16MiB")
        with engine(own, "full", rows=64) as one:
            # Three times as many as the segment has room for.
            for at in range(0, 768, 32):
                names = [f"{i}" for i in range(at, at + 32)]
                assert one("store", names) == names
                one("settle")
            assert one("load", [f"{i}" for i in range(736, 768)]) == 32 * ROW
            found = [one("load", [f"{i}"]) for i in range(0, 768, 24)]
            assert set(found) <= {ROW, -1} and -1 in found
        with engine(own, "full", rows=64, engine_id=one.id) as again:
            assert again("store", ["new"]) == ["new"]
            assert again("load", ["new"]) == ROW


def test_an_engine_goes_on_without_its_master(tmp_path: Path) -> None:
    require("mooncake")
    with Cluster(tmp_path) as own:
        own.serve("64MiB")
        with engine(own, "killed") as one, engine(own, "killed") as two:
            one("store", NAMES)
            one("settle")
            own.kill(own.master)
            # The CPU tier serves what it has; the cluster serves nothing.
            assert one("load", NAMES) == len(NAMES) * ROW
            assert two("lookup", NAMES) == [False] * len(NAMES)
            assert one("store", ["new"]) == ["new"]
            one("settle")
            assert two("store", NAMES[:4]) == NAMES[:4]
            assert two("load", NAMES[:4]) == 4 * ROW
            # It starts again without anything to clean up, as soon as there is a master.
            one.kill()
            with pytest.raises(EngineError, match="UnreachableError"):
                engine(own, "killed", engine_id=one.id, timeout=0.5)
            own.start_master()
            with engine(own, "killed", engine_id=one.id) as again:
                assert again("store", NAMES) == NAMES
                assert again("load", NAMES) == len(NAMES) * ROW
        assert f"mooncake://{own.address} does not answer" in one.errors
        assert "does not answer" in two.errors


ALONE = """
import json, os, sys, threading, time
import numpy as np
import vllm_engine
from vllm.v1.kv_offload import base
from vllm.v1.kv_offload.tiering.base import TransferJob
from kvmem.vllm import KvmemTier, KvmemTieringOffloadingSpec
key = lambda i: vllm_engine.offload_key(str(i))
master = sys.argv[1]
options = dict(workers=1, page=8192, blocks_per_chunk=2, engine_id="alone", extra=dict(
    spec_name="KvmemTieringOffloadingSpec", cpu_bytes_to_use=1 << 20, kvmem={"pages": "4k"},
    secondary_tiers=[{"type": "KvmemTier", "module_path": "kvmem.vllm",
        "mooncake": {"master": master, "namespace": f"alone-{os.getpid()}"},
        **json.loads(sys.argv[2])}]))
spec = KvmemTieringOffloadingSpec(vllm_engine.config(options, 0))
manager = spec.get_manager()
tier, = manager.secondary_tiers
rows = np.asarray(manager.primary_tier.get_kv_memoryview())
context = base.ReqContext("r")
HIT, MISS, RETRY = base.LookupResult.HIT, base.LookupResult.MISS, base.LookupResult.RETRY

def job(number, keys, at, load=False):
    return TransferJob(number, [key(i) for i in keys], np.array(at, np.int32), load, context)

def results(number):
    end, found = time.monotonic() + 60, []
    while len(found) < number:
        assert time.monotonic() < end
        found += tier.get_finished_jobs()
        time.sleep(0.001)
    return {it.job_id: it for it in found}

def answer(i):
    end = time.monotonic() + 60
    while (found := tier.lookup(key(i), context)) is RETRY:
        assert time.monotonic() < end
        time.sleep(0.001)
    return found
"""


def test_no_call_waits_for_the_cluster(served: Cluster) -> None:
    vllm(
        ALONE
        + """
gate, real = threading.Event(), tier._cluster._tier
class Gated:
    def __getattr__(self, name):
        assert name in ("stats", "closed") or gate.wait(60)
        return getattr(real, name)
tier._cluster._tier = Gated()
rows[0] = 7
tier.submit_store(job(0, [0], [0]))
tier.submit_store(job(1, [1], [1]))
tier.submit_load(job(2, [0], [2], load=True))
assert tier.lookup(key(0), context) is RETRY and tier.lookup(key(9), context) is RETRY
assert not list(tier.get_finished_jobs())
# What waits is bounded: 64 KiB are two rows here.
tier.submit_store(job(3, [3], [3]))
assert [it.job_id for it in tier.get_finished_jobs() if not it.success] == [3]
gate.set()
found = results(3)
assert found[0].success and found[1].success
assert answer(0) is HIT and answer(9) is MISS
tier.submit_load(job(4, [0], [2], load=True))
assert results(1)[4].success and (rows[2] == 7).all()
manager.shutdown()
""",
        served.address,
        '{"max_queued_bytes": "64KiB"}',
    )


def test_a_damaged_chunk_of_a_cluster_fails_alone(served: Cluster) -> None:
    vllm(
        ALONE
        + """
import kvmem
from kvmem.mooncake import Store
for i in range(4):
    rows[i] = i + 1
tier.submit_store(job(0, range(4), range(4)))
assert results(1)[0].success
cluster = tier._cluster
with kvmem.Pool("1MiB", pages="4k") as pool, Store(pool, master=master) as store:
    name_of = lambda i: f"alone-{os.getpid()}/{tier._key(key(i)).hex()}"
    name = name_of(1)
    nbytes = store.size(name)
    assert nbytes == cluster._row_bytes + 32
    # The bytes of another chunk, with its trailer.
    other = store.get(name_of(2))
    store.put(name, other, replace=True)
    rows[8:12] = 0
    tier.submit_load(job(1, range(4), range(8, 12), load=True))
    result = results(1)[1]
    assert not result.success
    assert list(result.successful_keys) == [key(0), key(2), key(3)]
    assert [int(rows[at][0]) for at in (8, 10, 11)] == [1, 3, 4]
    assert tier.lookup(key(1), context) is MISS
    end = time.monotonic() + 60
    while store.exists(name):
        assert time.monotonic() < end
        time.sleep(0.01)
    del other
manager.shutdown()
""",
        served.address,
        "{}",
    )


def test_what_a_cluster_cannot_do_is_an_error_at_the_start(served: Cluster) -> None:
    def fails(words: str, **tier: Any) -> None:
        one = {"type": "KvmemTier", "module_path": "kvmem.vllm", **tier}
        with pytest.raises(EngineError, match=words):
            Engine("KvmemTieringOffloadingSpec", {"secondary_tiers": [one]}, workers=1)

    fails("give a mapping with", mooncake={"namespace": "x"})
    fails("or a cluster as well", mooncake={"master": served.address}, path="/tmp/x")
    fails('"max_entries" and "format" are for a file', mooncake={"master": "x:1"}, bytes="1MiB")
    fails("is no HOST:PORT", mooncake={"master": "nowhere"})
    fails("engine has the option .*colour", mooncake={"master": served.address, "colour": "red"})
    fails("the master does not answer", mooncake={"master": "127.0.0.1:9", "timeout": 0.2})
