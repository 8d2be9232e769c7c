"""LMCache's own plug-in loader and store controller, from its wheel, keep objects in kvmem's
stores by the adapter of the second level.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import store_contract
from conftest import MIB
from engines import run_forked
from node_server import Server
from store_contract import Adapter

TESTS = Path(__file__).parents[1]
PRELUDE = f"sys.path.append({str(TESTS)!r}); import standins; standins.lmcache_l2()"

IMPORTS = """
import logging, os, signal, sys
logging.basicConfig(level=logging.INFO)
import kvmem
from lmcache_engine import CHUNK, SLOT, Memory, Object, Server, config_of, content, keys
from lmcache.v1.distributed.l2_adapters import create_l2_adapter
def region():
    return kvmem.Region("32MiB", pages="4k", shared=True, populate=1)
"""


def lmcache(program: str) -> str:
    return run_forked("lmcache", PRELUDE, IMPORTS, program)


STORED = """
class Stored:
    def __init__(self, **options):
        self.memory = Memory(region())
        self.engine = Server(self.memory, **options)

    def objects(self, count, fill):
        self.memory.next = self.memory.region.ptr
        made = self.memory.allocate(count)
        for n, each in enumerate(made):
            each.byte_array[:] = bytes(CHUNK) if fill is None else content(fill + n)
        return made

    def store(self, count, first=0):
        result = self.engine.store_result(keys(count, first), self.objects(count, first))
        return result.bytes_transferred() // CHUNK if result.is_successful() else None

    def load(self, count):
        target = self.objects(count, None)
        self.engine.look_up(keys(count))
        found = self.engine.load(keys(count), target)
        self.engine.adapter.submit_unlock(keys(count))
        for n, each in enumerate(target):
            assert each.byte_array == (content(n) if n in found else bytes(CHUNK)), n
        return found

    def fill(self, turn):
        self.store(8, first=turn * 100)

    def page(self, number):
        return content(number)

    def status(self):
        return self.engine.adapter.report_status()

    def close(self):
        self.engine.adapter.close()
"""
ADAPTER = Adapter(lmcache, STORED, ("lmcache", "0.5.5", "lmcache>=0.5.6,<0.6"))


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(64 * MIB) as server:
        yield server


def node(server: Server) -> str:
    return f"**{store_contract.node(server)}"


def disk(folder: Path, **more: object) -> str:
    return f"**{store_contract.disk(folder, **more)}"


@pytest.mark.parametrize("kind", ["node", "disk"])
def test_objects_go_through_lmcaches_loader_and_controller(kind: str, tmp_path: Path) -> None:
    with Server(64 * MIB) as server:
        where = node(server) if kind == "node" else disk(tmp_path)
        out = lmcache(
            f"""
memory = Memory(region())
engine = Server(memory, {where})
adapter = engine.adapter
assert type(adapter).__module__ == "kvmem.lmcache.l2"
descriptors = {{adapter.get_store_event_fd(), adapter.get_lookup_and_lock_event_fd(),
    adapter.get_load_event_fd()}}
assert len(descriptors) == 3
some = keys(20)
engine.store(some, fill=1)
assert engine.listener.stored == dict.fromkeys(some, CHUNK)
assert engine.look_up([*some[:3], *keys(2, first=99), some[19]]) == [0, 1, 2, 5]
if {kind!r} == "node":
    assert adapter.store.locked == 4
target = memory.allocate(22)
assert engine.load([*some, *keys(2, first=99)], target) == list(range(20))
assert all(each.byte_array == content(1 + n) for n, each in enumerate(target[:20]))
assert not any(target[20].byte_array) and set(engine.listener.accessed) == set(some)
adapter.submit_unlock([*some[:3], some[19]])
assert getattr(adapter.store, "locked", 0) == 0

# What is stored already is not transferred again.
again = engine.store_result(some[:5], memory.allocate(5))
assert again.is_successful() and again.bytes_transferred() == 0
assert engine.listener.stored[some[0]] == 0
usage = adapter.get_usage()
assert usage.total_bytes_used >= 20 * CHUNK and 0 < usage.usage_fraction < 1, usage
assert usage.bytes_by_cache_salt[""] == 20 * CHUNK
adapter.delete([*some[:2], *keys(1, first=99)])
assert engine.listener.deleted == some[:2] and engine.look_up(some[:3]) == [2]
assert adapter.get_usage().bytes_by_cache_salt[""] == 18 * CHUNK
from kvmem.lmcache.l2 import value_of
class Typed(Object):
    def get_dtypes(self):
        return self.types
one = Typed(memory.allocate(1)[0].data_ptr)
for one.types, kind in ((["torch.float8_e5m2"], "float8_e5m2"), (["torch.uint8"], "unknown"),
        (["torch.bfloat16", "torch.bfloat16"], "bfloat16"),
        (["torch.bfloat16", "torch.uint8"], "unknown")):
    assert value_of(b"key", one).data_type == kind
print(adapter.report_status())
adapter.close(); adapter.close()
import os
for fd in descriptors:
    try:
        os.fstat(fd)
    except OSError:
        pass
    else:
        raise AssertionError("a descriptor is open")
try:
    adapter.submit_store_task(some, target[:20])
except kvmem.ClosedError as error:
    print(error)
else:
    raise AssertionError
"""
        )
        assert "'is_healthy': True" in out and f"'store': '{kind}'" in out
        assert "the adapter is closed" in out


def test_lmcaches_shared_memory_is_registered_with_the_rings(tmp_path: Path) -> None:
    out = lmcache(
        f"""
# Memory as LMCache has it with --shm-name: a named segment, which other processes open.
import mmap
from kvmem.lmcache import HostMemory
host = HostMemory(devices="")
at = host.allocate_shared(32 << 20, f"lmcache_l1_pool_kvmem_{{os.getpid()}}")
import atexit
atexit.register(host.close)
memory = Memory(host.region(at))
assert memory.description.stable_registration_size is None, "LMCache takes it for unsuitable"
engine = Server(memory, {disk(tmp_path)})
tier = engine.adapter.store.tier
some = keys(8)
whole = 262144
source, target = memory.allocate(8, whole), memory.allocate(8, whole)
for n, each in enumerate(source):
    each.byte_array[:] = content(n)[:whole]
assert engine.store_result(some, source).bytes_transferred() == 8 * whole
assert engine.load(some, target) == list(range(8))
# Another process reads what the kernel has read into the segment.
with open(f"/dev/shm/lmcache_l1_pool_kvmem_{{os.getpid()}}", "rb") as file:
    for n, each in enumerate(target):
        file.seek(each.data_ptr - at)
        assert file.read(whole) == content(n)[:whole]
stats = tier.stats()
print("engine", tier.engine, "registered", engine.adapter.registered, stats.fixed_buffer_bytes,
    "transfers", stats.fixed_buffer_transfers)
if engine.adapter.registered:
    assert engine.adapter.registered == stats.fixed_buffer_bytes == 32 << 20
    assert stats.fixed_buffer_transfers == 16, stats
engine.adapter.close()
host.close()
assert not os.path.exists(f"/dev/shm/lmcache_l1_pool_kvmem_{{os.getpid()}}")
"""
    )
    assert "engine io_uring" not in out or "registered 33554432" in out or "without fixed" in out


def test_keys_of_other_models_ranks_groups_and_salts_are_others() -> None:
    lmcache(
        """
from itertools import combinations
from kvmem.lmcache.l2 import digest
from lmcache.v1.distributed.api import ObjectKey
hash_ = bytes(32)
different = [ObjectKey(hash_, "m", 1), ObjectKey(hash_, "n", 1), ObjectKey(hash_, "m", 2),
    ObjectKey(hash_, "m", 1, 1), ObjectKey(hash_, "m", 1, 0, "salt"), ObjectKey(b"x", "m", 1),
    ObjectKey(hash_, "m", 0x11), ObjectKey(hash_, "m", 1, 0x11)]
names = {digest(key, weights) for key in different for weights in ("v1", "v2")}
assert len(names) == 2 * len(different)
one = digest(different[0], "v1")
assert digest(ObjectKey(hash_, "m", 1), "v1") == one and len(one) == 32
"""
    )


def weights(folder: Path, content: bytes) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "model.safetensors").write_bytes(content)
    os.utime(folder / "model.safetensors", ns=(0, 0))
    return str(folder)


def test_objects_of_other_weights_of_one_name_are_misses(server: Server, tmp_path: Path) -> None:
    model = weights(tmp_path / "model", b"some weights")
    out = lmcache(
        f"""
import kvmem.lmcache.l2 as l2
def server(**more):
    return Server(Memory(region()), {node(server)}, **more)
def finds(engine, model={model!r}):
    found = engine.look_up(keys(4, model=model))
    locked = engine.adapter.store.locked
    assert locked == len(found)
    engine.adapter.submit_unlock(keys(4, model=model))
    assert engine.adapter.store.locked == 0
    return found == [0, 1, 2, 3]
one = server()
one.store(keys(4, model={model!r}), fill=1)
assert finds(one) and finds(server())

# The files are replaced while the server runs. What is locked is unlocked all the same.
assert one.look_up(keys(4, model={model!r})) == [0, 1, 2, 3]
path = {model!r} + "/model.safetensors"
open(path, "wb").write(b"more weights")
os.utime(path, ns=(0, 1))
l2._FRESH = 0.0
one.adapter.submit_unlock(keys(4, model={model!r}))
assert one.adapter.store.locked == 0
assert not finds(one) and not finds(server())
one.store(keys(4, model={model!r}), fill=2)
assert finds(one)
open(path, "wb").write(b"some weights")
os.utime(path, ns=(0, 0))
target = one.memory.allocate(4)
assert finds(one) and one.load(keys(4, model={model!r}), target) == [0, 1, 2, 3]
assert all(each.byte_array == content(1 + n) for n, each in enumerate(target))

# The option replaces what the files say, for all models or for one.
given = server(weights={{{model!r}: "v1"}})
assert not finds(given)
given.store(keys(4, model={model!r}), fill=3)
assert finds(server(weights="v1")) and not finds(server(weights="v2"))
assert not finds(server(weights={{"another": "v1"}}), "another")
print("NOW")
unseen = server()
unseen.store(keys(4, model="org/unseen"), fill=1)
assert finds(unseen, "org/unseen") and finds(server(), "org/unseen")
"""
    )
    assert out.count("the weights of 'org/unseen' are not visible") == 1, out
    assert repr(model) not in out and 'set "weights" of "adapter_params"' in out


def test_two_servers_share_one_node_and_a_restart_finds_it_warm(server: Server) -> None:
    store_contract.share_a_node(ADAPTER, server)


def test_a_locked_object_is_not_evicted(server: Server) -> None:
    lmcache(
        f"""
import time
memory = Memory(region())
engine = Server(memory, {node(server)})
engine.store(keys(4), fill=3)
assert engine.look_up(keys(4)) == [0, 1, 2, 3]
with kvmem.connect({str(server.path)!r}) as other:
    for n in range(400):
        other.insert(n, bytes(300_000))
assert engine.load(keys(4), memory.allocate(4)) == [0, 1, 2, 3]
with kvmem.connect({str(server.path)!r}) as other:
    assert other.stats().pinned == 4
    engine.adapter.submit_unlock(keys(4))
    end = time.monotonic() + 60
    while other.stats().pinned:
        assert time.monotonic() < end
        time.sleep(0.02)
engine.adapter.close()
"""
    )


def test_a_server_killed_while_it_stores_starts_again_with_its_disk(tmp_path: Path) -> None:
    store_contract.killed_while_it_stores(ADAPTER, tmp_path)


def test_a_server_outlives_its_node(server: Server) -> None:
    store_contract.outlives_its_node(ADAPTER, server)


def test_without_a_node_tasks_end_and_the_status_says_why(tmp_path: Path) -> None:
    out = store_contract.misses_without_a_node(ADAPTER, tmp_path)
    assert "'is_healthy': False" in out and "does not answer yet" in out


def test_a_damaged_object_is_a_miss(tmp_path: Path) -> None:
    store_contract.damage_is_a_miss(ADAPTER, tmp_path, left=[0, *range(2, 10)])


def test_a_full_tier_stores_what_fits(tmp_path: Path) -> None:
    lmcache(
        f"""
memory = Memory(region())
engine = Server(memory, {disk(tmp_path, disk_bytes="8MiB")})
huge = Object(memory.region.ptr, 12 << 20)
small = memory.allocate(1)
result = engine.store_result(keys(2), [huge, *small])
assert not result.is_successful() and engine.look_up(keys(2)) == [1]
# It evicts for what comes later.
for turn in range(1, 10):
    assert engine.store_result(keys(10, first=turn * 100), memory.allocate(1) * 10).is_successful()
assert engine.adapter.get_usage().usage_fraction <= 1
engine.adapter.close()
"""
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("", "names no store"),
        ("nod='/a'", "did you mean 'node'"),
        ("node='/a', threads=0", "threads is 0"),
        ("node='/a', threads=True", "threads is True"),
        ("disk='/no/such/folder/tier'", "DiskTierError"),
    ],
)
def test_wrong_options_end_the_start_with_a_reason(options: str, words: str) -> None:
    out = lmcache(
        f"""
try:
    create_l2_adapter(config_of({options}))
except (kvmem.InvalidArgumentError, kvmem.DiskTierError) as error:
    print(type(error).__name__, error)
else:
    raise AssertionError
"""
    )
    assert words in out, out


def test_versions_and_permissions_are_errors_that_name_the_remedy(tmp_path: Path) -> None:
    store_contract.errors_name_the_remedy(ADAPTER, tmp_path)
