"""The scheduler of vLLM's OffloadingConnector, as shipped, with made-up requests. One process is
the scheduler and the worker, as with one GPU.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from conftest import MIB, until
from node_server import Server
from vllm_process import release, vllm, with_oldest  # noqa: F401 (release)

ENGINE = """
import json, sys, types
import numpy as np
import vllm_engine
from vllm_engine import TENSORS, content
from vllm.distributed.kv_transfer.kv_connector.v1.offloading import common, scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
import torch

TOKENS = 16  # of a block
CHUNK = 2 * TOKENS
extra, page = json.loads(sys.argv[1]), 2048

class Request:
    # What the scheduler of the connector reads of a request.
    kv_transfer_params = kv_hints = None
    skip_reading_prefix_cache = False
    lora_request = None
    shared_prefix_boundary = None
    status = "running"

    def __init__(self, number, names, hints=None):
        self.request_id = f"request {number}"
        if hints is not None:
            self.kv_transfer_params = {"kvmem": hints}
        self.names = names
        hashes = [vllm_engine.offload_key(name)[:32] for name in names]
        self.block_hashes = [bytes([i]) + it[1:] for it in hashes for i in (0, 1)]
        self.num_prompt_tokens = self.num_tokens = len(names) * CHUNK + 1
        self.all_token_ids = [hash_[1] << 8 | at for hash_ in self.block_hashes
            for at in range(TOKENS)] + [0]
        self.num_computed_tokens = 0
        self.finished = False

    def is_finished(self):
        return self.finished

class Engine:
    def __init__(self, engine_id):
        options = dict(workers=1, page=page, blocks_per_chunk=2, gpu_chunks=64,
            engine_id=engine_id, extra=extra, events="announced" in sys.argv)
        self.worker = vllm_engine.Worker(options, 0)
        kv_spec = FullAttentionSpec(block_size=TOKENS, num_kv_heads=1, head_size=32,
            dtype=torch.uint8)
        group = types.SimpleNamespace(kv_cache_spec=kv_spec, is_eagle_group=False,
            layer_names=["layer.0", "layer.1"])
        caches = types.SimpleNamespace(kv_cache_groups=[group], cache_hit_alignment_tokens=None,
            num_blocks=128)
        config = types.SimpleNamespace(
            cache_config=types.SimpleNamespace(prefix_cache_retention_interval=None,
                enable_prefix_caching=True, hash_block_size=TOKENS, block_size=TOKENS),
            speculative_config=None,
            kv_transfer_config=types.SimpleNamespace(kv_connector_extra_config=extra),
            parallel_config=types.SimpleNamespace(world_size=1, decode_context_parallel_size=1,
                prefill_context_parallel_size=1, pipeline_parallel_size=1),
            scheduler_config=types.SimpleNamespace(async_scheduling=False),
            kv_events_config=None, model_config=types.SimpleNamespace(use_mla=False),
        )
        self.scheduler = scheduler.OffloadingConnectorScheduler(self.worker.spec, config, caches)
        vllm_engine.patient(self.scheduler.manager)
        self.number = 0
        self.events = []
        self.free = list(range(1, 128))

    def step(self, new=(), finished=()):
        # One step of the engine: what the scheduler decides, and all that the worker does.
        output = types.SimpleNamespace(
            scheduled_new_reqs=[types.SimpleNamespace(req_id=it.request_id, block_ids=(blocks,))
                for it, blocks in new],
            scheduled_cached_reqs=types.SimpleNamespace(req_ids=[], new_block_ids=[],
                resumed_req_ids=set(), num_computed_tokens=[], resumed_from_preemption=[]),
            num_scheduled_tokens={it.request_id: it.num_tokens - it.num_computed_tokens
                for it, _ in new},
            finished_req_ids=set(finished), preempted_req_ids=None, kv_cache_block_copies=None,
            kv_connector_block_state=None, total_num_scheduled_tokens=0,
        )
        meta = self.scheduler.build_connector_meta(output)
        done = {}
        for kind, jobs in (("load", meta.load_jobs), ("store", meta.store_jobs)):
            for number, job in jobs.items():
                if kind == "store":
                    for request, blocks in new:
                        self.fill(request, blocks)
                assert getattr(self.worker._worker, f"submit_{kind}")(
                    number, job.src_spec, job.dst_spec)
                self.worker._worker.wait({number})
                done[number] = 1
        assert {it.job_id for it in self.worker._worker.get_finished()} == set(done)
        self.scheduler.update_connector_output(types.SimpleNamespace(
            kv_connector_worker_meta=common.OffloadingWorkerMetadata(completed_jobs=done)))
        vllm_engine.settle_stores(self.scheduler.manager)
        self.events += self.scheduler.take_events()
        return meta

    def rows(self, request, blocks):
        for index, tensor in enumerate(self.worker._gpu):
            array = np.asarray(tensor)
            for at, name in enumerate(request.names):
                for half in (0, 1):
                    wanted = content(name, 0, index, 2 * page)[half * page : (half + 1) * page]
                    yield array[blocks[2 * at + half]], wanted

    def fill(self, request, blocks):
        for row, wanted in self.rows(request, blocks):
            row[...] = wanted

    def run(self, names, **hints):
        # Runs a request to its end. Returns the number of chunks that came from the tier.
        self.number += 1
        request = Request(self.number, names, hints or None)
        self.scheduler.on_new_request(request)
        for _ in range(2000):
            found, later = self.scheduler.get_num_new_matched_tokens(request, 0)
            if found is not None:
                break
            self.step()
        blocks = [self.free.pop(0) for _ in range(2 * len(names) + 1)]
        for tensor in self.worker._gpu:
            for block in blocks:
                tensor[block, ...] = 0
        objects = [types.SimpleNamespace(block_id=it, is_null=False, block_hash=None)
            for it in blocks]
        self.scheduler.update_state_after_alloc(
            request, types.SimpleNamespace(blocks=(objects,)), found)
        if found:
            assert later
            meta = self.step()
            assert len(meta.load_jobs) == 1 and found % CHUNK == 0
            chunks = found // CHUNK
            pairs = list(self.rows(Request(0, names[:chunks]), blocks))
            assert all(np.array_equal(row, wanted) for row, wanted in pairs)
            request.num_computed_tokens = found
        self.step(new=[(request, blocks)])
        request.num_computed_tokens = request.num_tokens
        request.finished = True
        self.scheduler.request_finished(request)
        self.step(finished=[request.request_id])
        self.step()
        self.free += blocks
        return found // CHUNK

    def settle(self):
        while self.scheduler.has_pending_push_work():
            self.step()

    def close(self):
        self.worker.close()
        self.scheduler.shutdown()

def some(name, number):
    return [f"{name} {i}" for i in range(number)]
"""

PROGRAM = (
    ENGINE
    + """
names = [f"chunk {i}" for i in range(12)]
engine = Engine("connector")
assert engine.run(names) == 0
assert engine.run(names) == 12
assert engine.run(names[:5] + ["other"]) == 5
assert engine.run(["new", *names]) == 0
assert engine.run(names[:5] + ["other", "more"]) == 6
engine.settle()
print("stored and found")
engine.close()
if sys.argv[2] == "restart":
    engine = Engine("connector")
    assert engine.run(names) == 12
    assert engine.run(names[:5] + ["other", "more", "last"]) == 7
    engine.settle()
    engine.close()
    print("found after a restart")
"""
)


@with_oldest
@pytest.mark.parametrize("spec", ["KvmemOffloadingSpec", "KvmemTieringOffloadingSpec"])
def test_requests_are_stored_and_found_by_the_real_scheduler(spec: str, tmp_path: Path) -> None:
    tier = {"type": "KvmemTier", "module_path": "kvmem.vllm", "path": str(tmp_path / "tier")}
    extra = {
        "spec_name": spec,
        "spec_module_path": "kvmem.vllm",
        "cpu_bytes_to_use": MIB,
        "kvmem": {"pages": "4k"},
        "eviction_policy": "KvmemPolicy",
        "cache_policy_module_path": "kvmem.vllm",
    }
    if spec == "KvmemTieringOffloadingSpec":
        extra["secondary_tiers"] = [{**tier, "bytes": "16MiB"}]
    restart = "restart" if "secondary_tiers" in extra else "no"
    out = vllm(PROGRAM, json.dumps(extra), restart)
    assert "stored and found" in out
    assert ("found after a restart" in out) == (restart == "restart")


@with_oldest
def test_requests_find_what_a_node_has() -> None:
    with Server(32 * MIB) as server:
        extra = {
            "spec_name": "KvmemSharedSpec",
            "spec_module_path": "kvmem.vllm",
            "kvmem": {"socket": str(server.path)},
        }
        assert "found after a restart" in vllm(PROGRAM, json.dumps(extra), "restart")


POLICY = {
    "spec_name": "KvmemOffloadingSpec",
    "spec_module_path": "kvmem.vllm",
    "cpu_bytes_to_use": 24 * 8192,
    "kvmem": {"pages": "4k"},
    "eviction_policy": "KvmemPolicy",
    "cache_policy_module_path": "kvmem.vllm",
}
"""A tier of 24 chunks."""


@with_oldest
def test_hints_of_requests_reach_the_policy() -> None:
    out = vllm(
        ENGINE
        + """
from kvmem.vllm import KvmemPolicy
now = 1000.0
KvmemPolicy.clock = staticmethod(lambda: now)
number = iter(range(1000))

def flood(chunks, **hints):
    for _ in range(0, chunks, 4):
        engine.run(some(f"once {next(number)}", 4), **hints)

engine = Engine("hints")
policy = engine.scheduler.manager._policy
assert isinstance(policy, KvmemPolicy) and policy.cache_capacity == 24
# Without hints a flood takes all.
engine.run(some("plain", 6))
flood(24)
assert engine.run(some("plain", 6)) == 0
# A priority outlives it, however often it comes.
engine.run(some("system", 6), priority=2)
flood(80)
assert engine.run(some("system", 6)) == 6
# A time to live that is over gives the chunks up before all others.
engine.scheduler.reset_cache()
engine.run(some("old", 8))
engine.run(some("short", 8), ttl=60, priority=3)
now += 59
engine.run(some("more", 8))
now += 2
engine.run(some("new", 8))
assert engine.run(some("old", 8)) == 8 and engine.run(some("short", 8)) == 0
# So does the end of a session. What another session has used stays.
engine.scheduler.reset_cache()
engine.run(some("both", 2) + some("one", 6), session="one")
engine.run(some("both", 2) + some("two", 6), session="two")
engine.run(some("both", 2) + some("one", 6) + some("last", 2), session="one", session_ends=True)
engine.run(some("more", 8))
engine.run(some("new", 8))
assert engine.run(some("both", 2) + some("two", 6)) == 8
assert engine.run(some("both", 2) + some("one", 6)) == 2
# A tenant keeps what it has in its share.
for tenant, wanted in ((None, 0), ("a", 8)):
    engine.scheduler.reset_cache()
    engine.run(some("mine", 8), **({} if tenant is None else {"tenant": tenant}))
    flood(60, **({} if tenant is None else {"tenant": "b"}))
    assert engine.run(some("mine", 8)) == wanted, tenant
# Wrong hints change nothing.
engine.scheduler.reset_cache()
for wrong in ({"priority": 9}, {"ttl": -1}, {"tenant": 7}, {"colour": "red"}, {"priority": True}):
    assert engine.run(some("mine", 4), **wrong) in (0, 4)
engine.number += 1
request = Request(engine.number, [])
request.kv_transfer_params = {"kvmem": "loud"}
engine.scheduler.on_new_request(request)
assert all(it.priority == 0 and it.expires is None for it in policy._chunks.values())
engine.close()
print("hints were used")
""",
        json.dumps(POLICY),
    )
    assert "hints were used" in out
    assert "priority is 9: give a whole number from 0 to 3" in out


@with_oldest
def test_a_request_of_vllm_carries_hints() -> None:
    """vLLM's own request and context, from what an API server gives the engine."""
    vllm(
        ENGINE
        + """
from vllm.v1.request import Request as Theirs
from kvmem.vllm import _hints
extra_args = {"kv_transfer_params": {"kvmem": {"tenant": "t", "priority": 1}}}
parameters = types.SimpleNamespace(
    max_tokens=1, extra_args=extra_args, structured_outputs=None, skip_reading_prefix_cache=False
)
action = types.SimpleNamespace(action_type="kvmem", payload={"priority": 3, "ttl": 5})
other = types.SimpleNamespace(action_type="other", payload={"priority": 2})
for actions, wanted in (
    (None, _hints.Hints(tenant="t", priority=1)),
    ([other, action], _hints.Hints(tenant="t", priority=3, ttl=5)),
):
    hints = None if actions is None else types.SimpleNamespace(actions=actions)
    request = Theirs("r", [1, 2, 3], parameters, None, priority=7, cache_salt="s", kv_hints=hints)
    context = scheduler._create_req_context(request)
    assert _hints.hints_of(context) == wanted, context
    assert _hints.hints_of(context) is _hints.hints_of(context)
    # The docs say that these do not arrive.
    assert not {"priority", "cache_salt", "lora_request", "session_id"} & set(vars(context))
""",
        json.dumps(POLICY),
    )


@with_oldest
def test_hints_of_requests_reach_a_node(tmp_path: Path) -> None:
    command = os.environ.get("KVMEM_COMMAND")
    if not command:
        pytest.skip("KVMEM_COMMAND does not name the built command")
    path = tmp_path / "kvmem.sock"
    # Nothing outlives the server.
    serve = [command, "serve", "--size", "8MiB", "--socket", str(path), "--pages", "4k"]
    serve += ["--retain", "none", "--quota", f"engine@small={6 * 8192 + 4096}"]
    server = subprocess.Popen(serve)
    try:
        until(path.exists)
        extra = {
            "spec_name": "KvmemSharedSpec",
            "spec_module_path": "kvmem.vllm",
            "kvmem": {
                "socket": str(path),
                "namespace": "engine",
                "tenants": True,
                "max_tenants": 2,
            },
        }
        out = vllm(
            ENGINE
            + """
import time
import kvmem
engine = Engine("tenants")
assert engine.run(some("shared", 4)) == 0
assert engine.run(some("shared", 4), tenant="a") == 0
assert engine.run(some("shared", 4), tenant="a") == 4
assert engine.run(some("shared", 4)) == 4
# The server evicts this tenant's chunks at its quota, and only these.
for i in range(4):
    engine.run(some(f"prompt {i}", 4), tenant="small")
listed = {}
node = kvmem.connect(extra["kvmem"]["socket"])
for it in node.as_operator().list():
    listed.setdefault(it.namespace, []).append(it)
assert len(listed["engine@small"]) <= 6 and len(listed["engine@a"]) == 4, listed.keys()
assert engine.run(some("shared", 4), tenant="a") == 4
# More tenants than are open at a time: idle ones are closed, and found again.
for i in range(5):
    assert engine.run(some("own", 2), tenant=f"tenant {i}") == 0
for i in range(5):
    assert engine.run(some("own", 2), tenant=f"tenant {i}") == 2
assert len(engine.scheduler.manager._tenants) == 2
# Priorities and times to live are those of the node's values.
engine.run(some("high", 3), priority=2)
engine.run(some("short", 3), ttl=0.5)
priorities = [it.priority for it in node.as_operator().list() if it.namespace == "engine"]
assert priorities.count(2) == 3, priorities
# The next requests find, and do not store: their times to live do not begin again.
engine.scheduler.manager.prepare_store = lambda keys, context: None
end = time.monotonic() + 60
while engine.run(some("short", 3)):
    assert time.monotonic() < end
assert engine.run(some("high", 3)) == 3
engine.close()
print("the node knows")
""",
            json.dumps(extra),
        )
        assert "the node knows" in out
    finally:
        server.terminate()
        server.wait(60)


EVENTS = (
    ENGINE
    + """
import time
from vllm.distributed.kv_events import BlockRemoved, BlockStored

def within(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)

class Router:
    # A router's index, made of an engine's events.
    def __init__(self, engine):
        self.engine, self.stored, self.known = engine, [], {}

    def look(self):
        self.engine.step()
        events, self.engine.events = self.engine.events, []
        for event in events:
            if isinstance(event, BlockStored):
                self.stored.append(event)
                self.known.update(dict.fromkeys(event.block_hashes, event.medium))
            else:
                assert isinstance(event, BlockRemoved)
                for block in event.block_hashes:
                    assert self.known.pop(block) == event.medium
        return self.known

def hashes(names):
    return set(Request(0, names).block_hashes)

names = [f"chunk {i}" for i in range(6)]
"""
)


@with_oldest
def test_events_of_a_node_describe_the_chunks_of_all_its_engines() -> None:
    with Server(32 * MIB) as server:
        extra = {
            "spec_name": "KvmemSharedSpec",
            "spec_module_path": "kvmem.vllm",
            "kvmem": {"socket": str(server.path)},
        }
        vllm(
            EVENTS
            + """
one, two = Engine("one"), Engine("two")
routers = [Router(one), Router(two)]
one.run(names)
one.settle()
two.run(["other"])
two.settle()
wanted = hashes(names) | hashes(["other"])
for router in routers:
    within(lambda: set(router.look()) == wanted)
    assert set(router.known.values()) == {"CPU"}
    by_first = {it.block_hashes[0]: it for it in router.stored}
    assert len(by_first) == len(router.stored) == 7
    chain, request = None, Request(0, names)
    for at in range(6):
        blocks = request.block_hashes[2 * at : 2 * at + 2]
        event = by_first[blocks[0]]
        assert event.block_hashes == blocks and event.parent_block_hash == chain
        assert event.token_ids == request.all_token_ids[CHUNK * at : CHUNK * (at + 1)]
        assert (event.block_size, event.group_idx, event.lora_id) == (TOKENS, 0, None)
        assert event.kv_cache_spec_kind == "full_attention", event.kv_cache_spec_kind
        chain = blocks[1]
# An engine that has reset its cache finds none of them.
two.scheduler.reset_cache()
within(lambda: not routers[1].look())
assert len(routers[0].look()) == len(wanted)
one.run(["later"])
one.settle()
within(lambda: hashes(["later"]) <= set(routers[0].look()))
two.close(); one.close()
# One that starts announces what is there, and one with `off` does not.
three = Router(Engine("three"))
within(lambda: set(three.look()) == wanted | hashes(["later"]))
assert all(it.token_ids for it in three.stored)
extra["kvmem"]["announce"] = "off"
four = Router(Engine("four"))
time.sleep(1)
assert not four.look() and not four.engine.scheduler.has_pending_push_work()
# With `server` it announces nothing, and others know the tokens.
extra["kvmem"]["announce"] = "server"
silent = Router(Engine("silent"))
silent.engine.run(["described"])
silent.engine.settle()
within(lambda: hashes(["described"]) <= set(three.look()))
assert all(it.token_ids for it in three.stored)
assert not silent.look() and not silent.engine.scheduler.has_pending_push_work()
silent.engine.close()
extra["kvmem"]["announce"] = "loudly"
try:
    Engine("five")
except Exception as error:
    assert "kvmem.announce is 'loudly'" in str(error), error
else:
    raise AssertionError("any word will do")
three.engine.close(); four.engine.close()
""",
            json.dumps(extra),
            "announced",
            # Hashes as they are. By default vLLM announces 64 bits of each.
            VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES="0",
        )


@with_oldest
def test_other_specs_keep_vllms_own_events() -> None:
    with Server(32 * MIB) as server:
        extra = {
            "spec_name": "KvmemSharedSpec",
            "spec_module_path": "kvmem.vllm",
            "kvmem": {"socket": str(server.path)},
        }
        vllm(
            EVENTS
            + """
shared = Engine("shared")
extra = {"spec_name": "KvmemOffloadingSpec", "spec_module_path": "kvmem.vllm",
    "cpu_bytes_to_use": 1 << 20, "kvmem": {"pages": "4k"}, "self_describing_kv_events": True}
own = Router(Engine("own"))
own.engine.run(names)
own.engine.settle()
assert set(own.look()) == hashes(names) and all(it.token_ids for it in own.stored)
own.engine.close(); shared.close()
""",
            json.dumps(extra),
            "announced",
            # Hashes as they are. By default vLLM announces 64 bits of each.
            VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES="0",
        )
