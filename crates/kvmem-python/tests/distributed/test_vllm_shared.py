"""Several engines of vLLM in the memory of one node."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import kvmem
import pytest
from conftest import MIB, until
from node_server import Server
from vllm_process import (
    Engine,
    EngineError,
    release,  # noqa: F401 (release)
    row_bytes,
    vllm,
    with_oldest,
)

NAMES = [f"chunk {i}" for i in range(20)]
ROW = row_bytes()
SPEC = "KvmemSharedSpec"


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(64 * MIB) as server:
        yield server


def engine(server: Server, **options: Any) -> Engine:
    node = {"socket": str(server.path), **options.pop("node", {})}
    return Engine(SPEC, {"kvmem": node}, **options)


@with_oldest
def test_two_engines_have_one_copy(server: Server) -> None:
    with (
        engine(server) as one,
        engine(server, replica=1) as two,
        kvmem.connect(server.path) as node,
    ):
        assert one("store", NAMES) == NAMES
        used = node.stats().used
        assert len(NAMES) * ROW <= used <= len(NAMES) * ROW + 8 * 4096
        assert two("store", [*NAMES, "more"]) == ["more"]
        assert node.stats().used == used + ROW
        for it in (two, one):
            assert it("lookup", [*NAMES, "more", "another"]) == [True] * 21 + [False]
            assert it("load", [*NAMES, "more"]) == 21 * ROW
        for it in (one, two):
            it("step")
            it("step")
        # Only the workers' own values are pinned. Releases arrive a little later.
        until(lambda: node.stats().pinned == 8)


@with_oldest
def test_the_look_ups_of_a_request_are_one_call(server: Server) -> None:
    """Whatever is there, and in both directions, look-ups say what the node has."""
    vllm(
        f"""
        import random, vllm_engine
        from vllm.v1.kv_offload import base
        from kvmem.vllm.shared import worker_key
        path = {str(server.path)!r}
        spec, manager, node, worker = vllm_engine.node_manager(path, "calls")
        row = bytes(spec.kv_bytes_per_chunk)
        calls = []

        class Counted:
            def __init__(self, cache):
                self.cache = cache
            def __getattr__(self, name):
                if name in ("acquire", "acquire_prefix"):
                    calls.append(name)
                return getattr(self.cache, name)

        manager._cache = Counted(manager._cache)
        step = base.ScheduleEndContext((), ())
        HIT, MISS = base.LookupResult.HIT, base.LookupResult.MISS

        def request(name, groups, chunks):
            context = base.ReqContext(name)
            keys = {{}}
            for group in range(groups):
                names = [("%s %d" % (name, at)).encode() for at in range(chunks)]
                keys[group] = [base.make_offload_key(it, group) for it in names]
                for at, key in enumerate(keys[group]):
                    context.set_offload_key_position(key, 32 * (at + 1))
            return context, keys

        context, keys = request("prefix", 1, 200)
        node.insert_batch({{key: row for key in keys[0][:150]}})
        manager.lookup(keys[0][0], context)
        assert calls == ["acquire_prefix"], calls
        found = [manager.lookup(key, context) for key in keys[0][:151]]
        assert found == [HIT] * 150 + [MISS] and len(calls) == 1, calls
        # In the next step the pins are there, and one call asks for what was missing.
        manager.on_schedule_end(step)
        assert [manager.lookup(key, context) for key in keys[0][:151]] == found
        assert len(calls) == 2, calls
        # A value that is stored meanwhile is found in a later step.
        node.insert(keys[0][150], row)
        assert manager.lookup(keys[0][150], context) is MISS
        manager.on_schedule_end(step)
        assert manager.lookup(keys[0][150], context) is HIT
        for _ in range(3):
            manager.on_schedule_end(step)
        assert not manager._active
        node.clear()
        worker = node.insert(worker_key("calls", 0), b"here")

        # The configuration of the test has one group of layers.
        manager._has_groups = True
        draw = random.Random(7)
        for round in range(60):
            context, keys = request("r%d" % round, 3, draw.randrange(1, 60))
            there = {{
                key for group in keys.values() for key in group
                if draw.random() < draw.choice((0.3, 0.9, 1.0))
            }}
            node.insert_batch({{key: row for key in there}})
            calls.clear()
            asked = 0
            for group in keys.values():
                order = group if draw.random() < 0.5 else group[::-1]
                for key in order:
                    asked += 1
                    result = manager.lookup(key, context)
                    assert result is (HIT if key in there else MISS), (round, key)
                    if result is MISS and order is group:
                        break
            assert len(calls) <= 3 + asked / 8, (len(calls), asked)
            loaded = sorted(there)[:5]
            if loaded and all(manager.lookup(key, context) is HIT for key in loaded):
                numbers = manager.prepare_load(loaded, context).block_ids.tolist()
                assert numbers == [node.get(key).offset // 4096 for key in loaded]
                manager.complete_load(loaded, context)
            for _ in range(draw.randrange(4)):
                manager.on_schedule_end(step)
        for _ in range(3):
            manager.on_schedule_end(step)
        assert not manager._active
        manager.shutdown()
        """
    )


def test_an_engine_killed_in_a_store_leaves_nothing_behind(server: Server) -> None:
    with engine(server) as other, kvmem.connect(server.path) as node:
        other("store", NAMES[:10])
        for _ in range(2):
            with engine(server, engine_id="a victim") as victim:
                victim("reserve", ["open", "more"])
                assert node.stats().reserved_bytes == 2 * ROW
                victim.send("store", NAMES)
                victim.kill()
            until(lambda: node.stats().reservations == 0)
            assert other("lookup", ["open", "more"]) == [False, False]
            assert other("load", NAMES[:10]) == 10 * ROW
        # The same engine starts again, and stores.
        with engine(server, engine_id="a victim") as victim:
            assert victim("store", ["again"]) == ["again"]
            assert victim("load", [*NAMES[:10], "again"]) == 11 * ROW
        assert set(other("store", ["open", "more"])) == {"open", "more"}
        assert other("load", ["open", "more"]) == 2 * ROW


def test_a_killed_server_is_followed_by_the_next(server: Server) -> None:
    with engine(server) as one, engine(server) as two:
        one("store", NAMES)
        for round in range(3):
            one("reserve", [f"open {round}"])
            server.kill()
            assert two("load", NAMES) == len(NAMES) * ROW
            assert one("load", NAMES) == len(NAMES) * ROW
            assert two("store", [f"after {round}"]) == [f"after {round}"]
            assert one("load", [f"after {round}"]) == ROW


def test_engines_go_on_without_a_server(server: Server) -> None:
    """Look-ups are misses then. A server with other memory is not used; the next engine is."""
    with engine(server) as one:
        one("store", NAMES)
        server.stop()
        for _ in range(2):
            assert one("lookup", NAMES[:3]) == [False] * 3
            # No rows, so vLLM does not ask for the same chunks in each step.
            assert one("store", ["new"]) == []
            one("step")
        server.start()
        with engine(server) as next:
            assert next("store", NAMES) == NAMES
            # Its workers have the old memory.
            assert one("load", NAMES) == -1
            assert next("load", NAMES) == len(NAMES) * ROW


def test_a_full_node_evicts_chunks_that_no_engine_uses() -> None:
    with Server(24 * ROW) as server, engine(server) as one, engine(server) as two:
        for at in range(0, 60, 10):
            names = [f"{at + i}" for i in range(10)]
            assert one("store", names) == names
            assert two("load", names) == 10 * ROW
        assert two("lookup", ["0", "59"]) == [False, True]
        # More than the node has: the start is stored, as far as there is room.
        names = [f"many {i}" for i in range(30)]
        stored = one("store", names)
        assert stored == names[: len(stored)] and 12 <= len(stored) < 24, stored
        assert one("store", ["a", "b"]) == ["a", "b"]


MANAGER = """
import json, sys, time, vllm_engine
from vllm.v1.kv_offload import base
spec, manager, node, worker = vllm_engine.node_manager(
    sys.argv[1], "pins", **json.loads(sys.argv[2]))
key = vllm_engine.offload_key
context = base.ReqContext("r")
HIT, MISS = base.LookupResult.HIT, base.LookupResult.MISS

def store(name):
    assert manager.prepare_store([key(name)], context).keys_to_store == [key(name)]
    manager.complete_store([key(name)], context)
    vllm_engine.settle_stores(manager)
"""


@with_oldest
def test_a_chunk_that_is_being_loaded_is_not_evicted() -> None:
    with Server(16 * MIB) as server:
        out = vllm(
            MANAGER
            + """
stored = manager.prepare_store([key("a"), key("b"), key("a")], context)
assert stored.keys_to_store == [key("a"), key("b")]
assert manager.lookup(key("a"), context) is base.LookupResult.HIT_PENDING
manager.complete_store([key("a")], context)
manager.complete_store([key("b")], context, success=False)
vllm_engine.settle_stores(manager)
assert manager.lookup(key("b"), context) is MISS
assert manager.lookup(key("a"), context) is HIT
step = base.ScheduleEndContext((), ())
manager.on_schedule_end(step)
chunks = manager.prepare_load([key("a")], context).block_ids.tolist()
assert manager.prepare_load([key("a")], context).block_ids.tolist() == chunks
for _ in range(3):
    manager.on_schedule_end(step)
def pinned(number):
    # A release is a message without an answer.
    end = time.monotonic() + 60
    while node.stats().pinned != number:
        assert time.monotonic() < end, node.stats()
        time.sleep(0.001)
pinned(2)
assert node.evict("16MiB") == 0
assert chunks == [node.get(key("a")).offset // 4096]
manager.complete_load([key("a")], context)
pinned(2)
manager.complete_load([key("a")], context)
pinned(1)
assert node.evict("16MiB") == spec.kv_bytes_per_chunk
assert manager.lookup(key("a"), context) is MISS
stats = manager.get_stats()
print(manager.config_info())
manager.shutdown()
""",
            str(server.path),
            "{}",
        )
    assert "cpu_num_chunks" in out or out.strip() == "[{}]"


def test_a_load_whose_pin_has_ended_fails(server: Server) -> None:
    out = vllm(
        MANAGER
        + """
import kvmem.vllm
from kvmem.vllm._answers import Answers
store("a")
store("b")
assert manager.lookup(key("a"), context) is HIT
assert manager.lookup(key("b"), context) is HIT
manager.prepare_load([key("a")], context)

class Ended:
    # Pins that a server has ended, because it took this process for ended.
    is_valid = False
    def __init__(self, batch):
        self.release = batch.release

answers = context.get_state(Answers)
for pins in answers.pins:
    pins.batch = Ended(pins.batch)
# The next look-up pins a chunk again.
manager.on_schedule_end(base.ScheduleEndContext((), ()))
assert manager.lookup(key("b"), context) is HIT
assert answers.found[key("b")].batch.is_valid
manager.prepare_load([key("b")], context)
manager.complete_load([key("b")], context)
try:
    manager.complete_load([key("a")], context)
except kvmem.vllm.PinLostError as error:
    assert error.chunks == 1
    print("lost:", error)
""",
        str(server.path),
        "{}",
    )
    assert "lost: the server of the node" in out


def test_a_damaged_chunk_is_a_miss_if_loads_are_verified(server: Server) -> None:
    program = (
        MANAGER
        + """
import ctypes
store("a")
store("b")
assert manager.lookup(key("b"), context) is HIT
with node.get(key("a")) as value:
    at = manager._cache.memory_address + value.offset + 100
ctypes.c_ubyte.from_address(at).value ^= 1
print("found:", manager.lookup(key("a"), context).name)
if sys.argv[3] == "MISS":
    # It can be stored again.
    store("a")
    assert manager.lookup(key("a"), context) is HIT
"""
    )
    for options, wanted in (("{}", "HIT"), ('{"verify": true}', "MISS")):
        assert f"found: {wanted}" in vllm(program, str(server.path), options, wanted)
        with kvmem.connect(server.path) as node:
            node.as_operator().clear()


def test_a_chunk_without_a_checksum_is_a_miss_if_loads_are_verified(server: Server) -> None:
    """A writer that calculates none cannot be verified: its chunks are stored again."""
    with (
        engine(server, node={"checksums": False}) as careless,
        engine(server, node={"verify": True}) as careful,
        engine(server) as other,
        kvmem.connect(server.path) as node,
    ):
        assert careless("store", NAMES[:3]) == NAMES[:3]
        assert other("lookup", NAMES[:3]) == [True] * 3
        assert careful("lookup", NAMES[:3]) == [False] * 3
        used = node.stats().used
        assert careful("store", NAMES[:3]) == NAMES[:3]
        # They take the place of the others, whose pins end two steps after the look-up.
        for it in (other, other):
            it("step")
        until(lambda: node.stats().used == used)
        # An engine without options writes checksums.
        assert other("store", NAMES[3:5]) == NAMES[3:5]
        for it in (careful, other, careless):
            assert it("lookup", NAMES[:5]) == [True] * 5
            assert it("load", NAMES[:5]) == 5 * ROW
    with pytest.raises(EngineError, match="would not find its own chunks"):
        engine(server, node={"checksums": False, "verify": True})


@with_oldest
def test_a_reset_leaves_the_shared_chunks_alone(server: Server) -> None:
    with engine(server) as one, engine(server) as two:
        one("store", NAMES)
        one("reserve", ["open"])
        one("reset")
        assert one("lookup", NAMES) == [False] * len(NAMES)
        assert one("store", NAMES) == NAMES
        assert one("load", NAMES) == len(NAMES) * ROW
        assert two("load", NAMES) == len(NAMES) * ROW
        assert two("lookup", ["open"]) == [False]


def test_other_models_find_nothing(server: Server) -> None:
    with engine(server) as one, engine(server, model="another/model") as two:
        one("store", NAMES)
        assert two("lookup", NAMES) == [False] * len(NAMES)
        assert two("store", NAMES) == NAMES
        assert two("load", NAMES) == len(NAMES) * ROW
        assert one("load", NAMES) == len(NAMES) * ROW
    with engine(server, workers=2) as half:
        assert half("lookup", NAMES[:2]) == [False, False]


def test_workers_of_other_memory_are_noticed(server: Server) -> None:
    out = vllm(
        f"""
        import vllm_engine
        from vllm.v1.kv_offload import base
        from kvmem.vllm import KvmemSharedSpec
        options = dict(workers=2, page=8192, blocks_per_chunk=2, engine_id="no worker",
            extra={{"kvmem": {{"socket": {str(server.path)!r}}}}})
        spec = KvmemSharedSpec(vllm_engine.config(options, 0))
        manager = vllm_engine.patient(spec.get_manager())
        context = base.ReqContext("r")
        key = vllm_engine.offload_key("a")
        assert manager.prepare_store([key], context) is None
        assert manager.lookup(key, context) is base.LookupResult.MISS
        """
    )
    assert "worker 0 has mapped other memory" in out


def test_what_is_wrong_is_an_error_at_the_start(server: Server) -> None:
    missing = {"kvmem": {"socket": "/nowhere/kvmem.sock", "connect_timeout": 0.3}}
    with pytest.raises(EngineError, match="NodeDisconnectedError"):
        Engine(SPEC, missing)
    with pytest.raises(EngineError, match="socket is missing"):
        Engine(SPEC, {})
    with pytest.raises(EngineError, match="has no option 'path': its names are socket"):
        Engine(SPEC, {"kvmem": {"path": "x"}})
    with pytest.raises(EngineError, match="longer than the memory of the node"):
        engine(server, page=1 << 24, gpu_chunks=1)


def test_another_user_may_not_connect(server: Server) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    options = {
        "workers": 1,
        "page": 8192,
        "blocks_per_chunk": 2,
        "engine_id": "other user",
        "extra": {"kvmem": {"socket": str(server.path), "connect_timeout": 0.3}},
    }
    out = vllm(
        f"""
        import json, os, vllm_engine
        import kvmem
        from kvmem.vllm import KvmemSharedSpec
        spec = KvmemSharedSpec(vllm_engine.config(json.loads({json.dumps(json.dumps(options))}), 0))
        os.setuid(65534)
        try:
            spec.get_manager()
        except kvmem.KvmemError as error:
            print("not allowed:", error)
        """
    )
    assert "not allowed:" in out
