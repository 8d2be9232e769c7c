"""The scheduler of vLLM's OffloadingConnector, as shipped, with made-up requests. One process is
the scheduler and the worker, as with one GPU.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import MIB
from node_server import Server
from vllm_process import release, vllm  # noqa: F401 (release)

PROGRAM = """
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
    shared_prefix_boundary = None
    status = "running"

    def __init__(self, number, names):
        self.request_id = f"request {number}"
        self.names = names
        hashes = [vllm_engine.offload_key(name)[:32] for name in names]
        self.block_hashes = [bytes([i]) + it[1:] for it in hashes for i in (0, 1)]
        self.num_prompt_tokens = self.num_tokens = len(names) * CHUNK + 1
        self.num_computed_tokens = 0
        self.finished = False

    def is_finished(self):
        return self.finished

class Engine:
    def __init__(self, engine_id):
        options = dict(workers=1, page=page, blocks_per_chunk=2, gpu_chunks=64,
            engine_id=engine_id, extra=extra)
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
        self.number = 0
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

    def run(self, names):
        # Runs a request to its end. Returns the number of chunks that came from the tier.
        self.number += 1
        request = Request(self.number, names)
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


def test_requests_find_what_a_node_has() -> None:
    with Server(32 * MIB) as server:
        extra = {
            "spec_name": "KvmemSharedSpec",
            "spec_module_path": "kvmem.vllm",
            "kvmem": {"socket": str(server.path)},
        }
        assert "found after a restart" in vllm(PROGRAM, json.dumps(extra), "restart")
