"""SGLang's own cache controller, its threads and its factory of backends, from its wheel, keep
pages in kvmem's stores.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import store_contract
from cluster import Cluster, cluster
from conftest import MIB
from engines import run_forked, run_with
from node_server import Server
from store_contract import Adapter, disk, node

__all__ = ["cluster"]

TESTS = Path(__file__).parents[1]
PRELUDE = f"sys.path.append({str(TESTS)!r}); import standins; standins.sglang_storage(sys.path[1])"

IMPORTS = """
import logging, os, signal, sys
logging.basicConfig(level=logging.WARNING)
import kvmem
from sglang_engine import Engine, HostPool, MODULE, PAGE
prompt = list(range(40 * PAGE))
"""


def sglang(program: str) -> str:
    return run_forked("sglang", PRELUDE, IMPORTS, program)


STORED = """
class Stored:
    def __init__(self, **options):
        self.source = HostPool(64 * PAGE, seed=1)
        self.engine = Engine(self.source, **MODULE, kvmem=options)
        self.backend = self.engine.storage_backend

    def use(self, pool):
        self.engine.mem_pool_host = self.engine.storage_host_pool = pool
        self.backend.register_mem_pool_host(pool)
        return pool

    def store(self, count):
        self.use(self.source)
        before = self.backend.stats().stored
        tokens = self.engine.back_up(prompt[: count * PAGE])
        return self.backend.stats().stored - before if tokens == count * PAGE else None

    def load(self, count):
        target = self.use(HostPool(64 * PAGE))
        tokens = self.engine.prefetch_tokens(prompt[: count * PAGE])
        assert target.tokens(0, tokens) == self.source.tokens(0, tokens)
        assert not any(target.tokens(tokens, PAGE))
        return list(range(tokens // PAGE))

    def fill(self, turn):
        self.use(self.source)
        self.engine.back_up([turn] * len(prompt))

    def page(self, number):
        return self.source.tokens(number * PAGE, PAGE)

    def status(self):
        return self.backend.stats()

    def close(self):
        self.engine.detach_storage_backend()
"""
ADAPTER = Adapter(sglang, STORED, ("sglang", "0.6.1", "sglang>=0.5.23,<0.6"))


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(64 * MIB) as server:
        yield server


@pytest.mark.parametrize("interface", [0, 1])
@pytest.mark.parametrize("kind", ["node", "disk"])
def test_pages_go_through_sglangs_controller(kind: str, interface: int, tmp_path: Path) -> None:
    with Server(64 * MIB) as server:
        where = node(server) if kind == "node" else disk(tmp_path)
        out = sglang(
            f"""
MODULE["interface_v1"] = {interface}
source = HostPool(64 * PAGE, seed=1)
engine = Engine(source, **MODULE, kvmem={where})
assert type(engine.storage_backend).__name__ == "KvmemStorage"
assert engine.back_up(prompt, 64) == len(prompt)
# The same prefix from another place: its pages are stored already.
assert engine.back_up(prompt[: 8 * PAGE], 64) == 8 * PAGE
engine.detach_storage_backend()

target = HostPool(64 * PAGE)
engine = Engine(target, **MODULE, kvmem={where})
assert engine.prefetch_tokens(prompt, 16) == len(prompt)
assert target.tokens(16, len(prompt)) == source.tokens(64, len(prompt))
assert not any(target.tokens(0, 16)) and not any(target.tokens(16 + len(prompt), PAGE))
# Half a prompt that differs afterwards.
other = prompt[: 10 * PAGE] + [7] * (10 * PAGE)
assert engine.prefetch_tokens(other, 0) == 10 * PAGE
assert engine.prefetch_tokens([9] * PAGE, 0) == 0
backend = engine.storage_backend
print(backend.stats())
assert backend.exists("no such page") is False and backend.clear()
assert engine.prefetch_tokens(prompt, 16) == 0
engine.detach_storage_backend()
"""
        )
        assert "hits=50, misses=0" in out, out


def test_engines_of_other_models_ranks_and_layouts_share_nothing(server: Server) -> None:
    sglang(
        f"""
source = HostPool(64 * PAGE, seed=1)
where = {node(server)}
engine = Engine(source, "a/model", **MODULE, kvmem=where)
assert engine.back_up(prompt) == len(prompt)
def finds(model="a/model", change=None, **extra):
    pool = HostPool(64 * PAGE)
    for name, value in (change or {{}}).items():
        setattr(pool, name, value)
    other = Engine(pool, model, **MODULE, kvmem=where, **extra)
    found = other.prefetch_tokens(prompt)
    other.detach_storage_backend()
    return found
assert finds() == len(prompt)
assert finds("another/model") == 0
assert finds(extra_backend_tag="canary") == 0
for change in ({{"layout": "page_first_direct"}}, {{"head_num": 8}}, {{"layer_num": 2}},
    {{"dtype": __import__("numpy").dtype("int16")}}, {{"storage_format_tag": "fp8"}}):
    assert finds(change=change) == 0, change
MODULE["interface_v1"] = 0
assert finds() == 0, "a page of addresses is no flat page"
MODULE["interface_v1"] = 1
import sglang.srt.runtime_context as context
rank = context.get_parallel()
rank.tp_size, rank.tp_rank = 2, 1
assert finds() == 0
rank.tp_size, rank.tp_rank, rank.pp_size = 1, 0, 2
assert finds() == 0
where["namespace"] = "other"
rank.pp_size = 1
assert finds() == 0
"""
    )


ARGUMENTS = """
import types
import sglang.srt.runtime_context as context
def arguments(model, **more):
    context.get_server_args = lambda: types.SimpleNamespace(model_path=model, **more)
source = HostPool(64 * PAGE, seed=1)
def finds(where, name="served"):
    engine = Engine(HostPool(64 * PAGE), name, **MODULE, kvmem=where)
    found = engine.prefetch_tokens(prompt)
    engine.detach_storage_backend()
    return found == len(prompt)
def stores(where, name="served"):
    engine = Engine(source, name, **MODULE, kvmem=where)
    assert engine.back_up(prompt) == len(prompt)
    engine.detach_storage_backend()
"""
"""Programs with these lines have arguments of SGLang's server."""


def weights(folder: Path, content: bytes) -> str:
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(content)
    os.utime(folder / "model.safetensors", ns=(0, 0))
    return str(folder)


def test_engines_with_other_weights_of_one_name_share_nothing(
    server: Server, tmp_path: Path
) -> None:
    one = weights(tmp_path / "one", b"some weights")
    two = weights(tmp_path / "two", b"more weights")
    out = sglang(
        f"""
{ARGUMENTS}
where, one, two = {node(server)}, {one!r}, {two!r}
arguments(one)
stores(where)
assert finds(where)
arguments(two)
assert not finds(where), "other bytes, of one length and time"
arguments(one)
assert finds(where)
for change in (dict(quantization="fp8"), dict(kv_cache_dtype="fp8_e5m2"), dict(dtype="half"),
    dict(quantization_param_path=two), dict(json_model_override_args='{{"a": 1}}')):
    arguments(one, **change)
    assert not finds(where), change
adapter = types.SimpleNamespace(lora_name="a", lora_path=one)
arguments(one, lora_paths=[adapter])
assert not finds(where)
stores(where)
assert finds(where)
adapter.lora_path = two
assert not finds(where), "an adapter of one name with other weights"
# A draft model changes the pages of its own pools only.
arguments(one, speculative_draft_model_path=two)
assert finds(where)

# The option replaces what the files say.
given = {{**where, "weights": "v1"}}
arguments(one)
stores(given)
arguments(two)
assert finds(given) and not finds({{**where, "weights": "v2"}})
"""
    )
    assert "are not visible" not in out


def test_a_draft_model_counts_for_the_pools_of_drafts(tmp_path: Path) -> None:
    one = weights(tmp_path / "one", b"some weights")
    two = weights(tmp_path / "two", b"more weights")
    sglang(
        f"""
{ARGUMENTS}
from kvmem.sglang.storage import server_args, weights_identity
from kvmem.storage import StorageOptions
config, options = types.SimpleNamespace(model_name="m"), StorageOptions()
arguments({one!r})
alone = weights_identity(config, options, server_args())
arguments({one!r}, speculative_draft_model_path={one!r})
drafted = weights_identity(config, options, server_args())
arguments({one!r}, speculative_draft_model_path={two!r})
other = weights_identity(config, options, server_args())
assert alone[0] == drafted[0] == other[0] and len({{alone[1], drafted[1], other[1]}}) == 3
"""
    )


def test_weights_that_are_not_visible_are_reported_once(server: Server) -> None:
    out = sglang(
        f"""
{ARGUMENTS}
where = {node(server)}
arguments("s3://bucket/model")
stores(where, "a/model")
assert finds(where, "a/model")
assert finds({{**where, "weights": "v1"}}, "a/model") is False
"""
    )
    assert out.count("the weights of 's3://bucket/model' are not visible") == 1, out
    assert 'set "weights" of "kvmem"' in out


def test_an_engine_that_replaces_its_weights_leaves_its_pages(server: Server) -> None:
    out = sglang(
        f"""
# SGLang's updater needs its kernels. Its methods of one name make these calls.
import ast, pathlib, types
from kvmem.sglang.storage import UPDATED, UPDATER
path = pathlib.Path(sys.path[1], *UPDATER[0].split(".")).with_suffix(".py")
tree = ast.parse(path.read_text())
updater = next(it for it in tree.body if getattr(it, "name", "") == UPDATER[1])
calls = {{it.name for it in updater.body if isinstance(it, ast.FunctionDef)
    and f"self.{{UPDATED}}(" in ast.unparse(it)}}
assert calls == {{f"update_weights_from_{{it}}" for it in ("disk", "distributed", "tensor", "ipc")}}

module = types.ModuleType(UPDATER[0])
class Updater:
    def update(self):
        return self.flush_cache_after_weight_update()
    def flush_cache_after_weight_update(self):
        return "flushed", ""
setattr(module, UPDATER[1], Updater)
sys.modules[UPDATER[0]] = module
running = Updater()

where = {node(server)}
engine = Engine(HostPool(64 * PAGE, seed=1), **MODULE, kvmem=where)
other = Engine(HostPool(64 * PAGE), **MODULE, kvmem=where)
assert engine.back_up(prompt) == len(prompt) == other.prefetch_tokens(prompt)
del other.storage_backend
import gc
gc.collect()
assert running.update() == ("flushed", "")
assert engine.prefetch_tokens(prompt) == 0, "pages of the old weights"
assert engine.back_up(prompt) == len(prompt)
assert engine.prefetch_tokens(prompt) == len(prompt)
third = Engine(HostPool(64 * PAGE), **MODULE, kvmem=where)
first = third.storage_backend._kv_keys(["page"])
assert engine.storage_backend._kv_keys(["page"]) != first
running.update()
assert third.storage_backend._kv_keys(["page"]) != first
"""
    )
    assert out.count("has replaced the weights") == 2, out


def test_names_are_those_of_sglangs_files() -> None:
    sglang(
        """
import itertools, tempfile
from sglang.srt.mem_cache.hicache_storage import HiCacheFile, HiCacheStorageConfig
from kvmem.sglang.storage import identity
for mla, (tp, tps), (pp, pps), (cp, cps), dcp in itertools.product(
    (False, True), ((0, 1), (1, 2)), ((0, 1), (1, 3)), ((0, 1), (1, 2)), (1, 2)
):
    if dcp > 1 and not (mla and tps == 2):
        continue
    config = HiCacheStorageConfig(
        tp_rank=tp, tp_size=tps, pp_rank=pp, pp_size=pps, attn_cp_rank=cp, attn_cp_size=cps,
        is_mla_model=mla, enable_storage_metrics=False, is_page_first_layout=True,
        model_name="org/model", dcp_size=dcp, dcp_rank=tp % dcp, logical_page_size=32)
    theirs = HiCacheFile(config, tempfile.mkdtemp())
    assert identity(config) == (theirs.tp_config_suffix, theirs.config_suffix)
"""
    )


def test_several_pools_are_moved_in_one_call(tmp_path: Path) -> None:
    sglang(
        f"""
import numpy as np
from standins import tensor
from sglang.srt.mem_cache.hicache_storage import HiCacheFile, PoolHitPolicy, PoolName, PoolTransfer
from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig
import tempfile, types

class Mamba(HostPool):
    "A pool of states without addresses: one slot for each page."
    page_size = 1
    get_page_buffer_meta = None
    device_pool = types.SimpleNamespace(dtype="torch.float8_e4m3fn")

def pools(seed):
    return HostPool(64 * PAGE, seed), HostPool(64 * PAGE, seed and seed + 1), Mamba(64, seed)

source, target = pools(5), pools(None)
engine = Engine(source[0], **MODULE, kvmem={disk(tmp_path)})
backend = engine.storage_backend
theirs = HiCacheFile(HiCacheStorageConfig(0, 1, 0, 1, 0, 1, False, False, True, "m"),
    tempfile.mkdtemp())
for each in (backend, theirs):
    each.register_mem_host_pool_v2(source[0], PoolName.KV)
    each.register_mem_host_pool_v2(source[1], PoolName.SWA)
    each.register_mem_host_pool_v2(source[2], PoolName.MAMBA)
keys = [f"{{n:064x}}" for n in range(10)]
slots = lambda pages, size: tensor(np.concatenate(
    [np.arange(page * size, (page + 1) * size) for page in pages]))
stored = [
    PoolTransfer(PoolName.KV, slots(range(8), PAGE), keys=keys[:8]),
    PoolTransfer(PoolName.SWA, slots([2, 3, 6, 7], PAGE), keys=[keys[n] for n in (2, 3, 6, 7)]),
    PoolTransfer(PoolName.MAMBA, slots([3, 7], 1), keys=[keys[3], keys[7]]),
]
calls, kinds = [], set()
put = backend.store.put
def noting(values):
    calls.append(len(values))
    kinds.update(value.data_type for value in values)
    return put(values)
backend.store.put = noting
expected = {{t.name: [True] * len(t.keys) for t in stored}}
assert backend.batch_set_v2(stored) == expected == theirs.batch_set_v2(stored)
assert sorted(calls) == [2, 12], "the pools with addresses in one call"
# The pool of a device knows the type of 8-bit floats, which the host has as bytes.
assert kinds == {{"float16", "float8_e4m3fn"}}, kinds

# What exists is what SGLang's own backend says.
for policies in ((PoolHitPolicy.ALL_PAGES,) * 2, (PoolHitPolicy.TRAILING_PAGES,) * 2):
    for window in (1, 2):
        asked = [PoolTransfer(name, keys=keys[:window], hit_policy=policy) for name, policy in
            zip((PoolName.SWA, PoolName.MAMBA), policies)]
        for count in range(1, 11):
            ours = backend.batch_exists_v2(keys[:count], asked)
            assert ours == theirs.batch_exists_v2(keys[:count], asked), (policies, window, count)
assert ours.kv_hit_pages == 0 and backend.batch_exists_v2(keys, asked[:1]).kv_hit_pages == 8

for pool, name in zip(target, (PoolName.KV, PoolName.SWA, PoolName.MAMBA)):
    backend.register_mem_host_pool_v2(pool, name)
got = backend.batch_get_v2(stored)
assert got == expected
assert target[0].tokens(0, 8 * PAGE) == source[0].tokens(0, 8 * PAGE)
assert target[1].tokens(6 * PAGE, 2 * PAGE) == source[1].tokens(6 * PAGE, 2 * PAGE)
assert not any(target[1].tokens(0, 2 * PAGE)) and target[2].tokens(7, 1) == source[2].tokens(7, 1)
missing = [PoolTransfer(PoolName.SWA, slots([0, 1], PAGE), keys=keys[1:3])]
assert backend.batch_get_v2(missing) == {{PoolName.SWA: [False, True]}}
short = [PoolTransfer(PoolName.SWA, slots([0], PAGE), keys=keys[1:3])]
assert backend.batch_get_v2(short) == {{PoolName.SWA: [False, False]}}
try:
    backend.batch_get_v2([PoolTransfer(PoolName.INDEXER, slots([0], PAGE), keys=keys[:1])])
except kvmem.InvalidArgumentError as error:
    assert "indexer" in str(error) and error.value == "indexer"
else:
    raise AssertionError
engine.detach_storage_backend()
"""
    )


def test_two_engines_share_one_node_and_one_that_starts_again_finds_its_pages(
    server: Server,
) -> None:
    store_contract.share_a_node(ADAPTER, server)


def test_an_engine_killed_while_it_stores_starts_again_with_a_disk(tmp_path: Path) -> None:
    store_contract.killed_while_it_stores(ADAPTER, tmp_path)


def test_an_engine_outlives_its_node(server: Server) -> None:
    store_contract.outlives_its_node(ADAPTER, server)


def test_without_a_node_an_engine_starts_and_misses(tmp_path: Path) -> None:
    out = store_contract.misses_without_a_node(ADAPTER, tmp_path)
    assert "does not answer yet" in out and "reachable=False" in out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("None", '"kvmem"'),
        ("{'nod': '/a'}", "did you mean 'node'"),
        ("{'disk': '/a/b'}", "write {rank} into the path"),
        ("{'disk': '/no/such/folder/{rank}'}", "DiskTierError"),
    ],
)
def test_wrong_options_end_the_start_with_a_reason(options: str, words: str) -> None:
    out = sglang(
        f"""
import sglang.srt.runtime_context as context
context.get_parallel().tp_size = 2
try:
    Engine(HostPool(PAGE), **MODULE, kvmem={options})
except (kvmem.InvalidArgumentError, kvmem.DiskTierError) as error:
    print(type(error).__name__, error)
else:
    raise AssertionError
"""
    )
    assert words in out, out


def test_an_mla_model_on_several_ranks_needs_a_node(tmp_path: Path) -> None:
    out = sglang(
        f"""
from kvmem.sglang.storage import checked, rank_of
from kvmem.storage import StorageOptions
from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig
config = HiCacheStorageConfig(1, 2, 0, 1, 0, 1, True, False, True, "m")
print(rank_of(config))
try:
    checked(StorageOptions.parse({disk(tmp_path)}, ""), config)
except kvmem.InvalidArgumentError as error:
    print(error, error.value, error.limit)
"""
    )
    assert "dp0-pp0-cp0-tp1" in out and 'give "node" instead of "disk" 2 1' in out


def test_versions_and_permissions_are_errors_that_name_the_remedy(tmp_path: Path) -> None:
    store_contract.errors_name_the_remedy(ADAPTER, tmp_path)


def test_a_damaged_page_ends_the_prefix(tmp_path: Path) -> None:
    store_contract.damage_is_a_miss(ADAPTER, tmp_path, left=[0])


def test_a_cluster_holds_pages_for_other_machines(cluster: Cluster, tmp_path: Path) -> None:
    lender = cluster.serve()
    options = json.dumps(
        {"mooncake": {"master": cluster.address}, "memory": "32MiB", "deadline": 10.0}
    )
    write = f"""
source = HostPool(64 * PAGE, seed=1)
engine = Engine(source, **MODULE, kvmem={options})
assert engine.back_up(prompt) == len(prompt)
assert engine.storage_backend.store.flush(60)
print(engine.storage_backend.store.tier_stats())
engine.detach_storage_backend()
"""
    assert "stored=40" in sglang(write)
    read = f"""
target = HostPool(64 * PAGE)
engine = Engine(target, **MODULE, kvmem={options})
assert engine.prefetch_tokens(prompt) == len(prompt)
assert target.tokens(0, len(prompt)) == HostPool(64 * PAGE, seed=1).tokens(0, len(prompt))
engine.detach_storage_backend()
"""
    sglang(read)
    # A disk above the cluster: what it has is read without the cluster.
    above = json.loads(options)
    above.update(disk=str(tmp_path / "above"), disk_bytes="64MiB")
    sglang(
        write.replace(options, json.dumps(above))
        .replace("seed=1", "seed=2")
        .replace("back_up(prompt)", "back_up(prompt[::-1])")
    )
    cluster.end(lender)
    other = read.replace(options, json.dumps(above)).replace("seed=1", "seed=2")
    sglang(other.replace("prefetch_tokens(prompt)", "prefetch_tokens(prompt[::-1])"))


def test_shared_host_pools_are_regions_that_may_have_huge_pages() -> None:
    out = run_with(
        "sglang",
        "import standins; standins.sglang(sys.path[1])",
        """
import os
import torch
from sglang.srt.plugins import load_plugins
load_plugins()
from sglang.srt.mem_cache.pool_host import common
import kvmem
allocator = common.get_allocator_from_storage("shm")
assert type(allocator).__name__ == "SharedRegionHostTensorAllocator"
assert isinstance(allocator, common.ShmHostTensorAllocator)
tensor = common.alloc_with_host_register((4, 1 << 20), torch.uint8, "cpu", False, allocator)
assert tuple(tensor.shape) == (4, 1 << 20) and not tensor.any()
tensor[3, 5] = 77
# Another mapping of the descriptor has the same bytes.
with kvmem.Region.attach(allocator.fd) as other:
    assert memoryview(other)[(3 << 20) + 5] == 77
    assert other.nbytes == allocator.mm.nbytes >= 4 << 20
print("pages:", allocator.mm.receipt)
assert len(allocator.fds) == len(allocator.mms) == 1
fd = allocator.fd
del allocator
try:
    os.fstat(fd)
except OSError:
    print("closed")
os.environ["KVMEM_SGLANG_SHARED"] = "0"
assert type(common.get_allocator_from_storage("shm")) is common.ShmHostTensorAllocator
""",
    )
    assert "requested 2M" in out and "shared" in out and "closed" in out, out
