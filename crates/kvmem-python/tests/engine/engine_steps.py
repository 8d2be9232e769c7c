"""*Steps*: vLLM's real scheduler with its connector and the manager of a spec, without a model.

The steps of an engine are those of the scheduler: what it decides, and what workers would answer.
Their copies take one step, and each request generates a token a step. Each call of the manager is
timed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import engine_process
import kvmem
from engine_node import prompt, shared

TOKENS = 16
"""Tokens of a block, and of a chunk."""
BLOCKS = 4096
"""Blocks of the engine's own cache."""
STEP = 0.002
"""Seconds that the model of a step would take."""

METHODS = (
    "lookup",
    "prepare_load",
    "complete_load",
    "prepare_store",
    "complete_store",
    "touch",
    "on_new_request",
    "on_request_finished",
    "on_schedule_end",
    "get_stats",
    "take_events",
)


class Timed:
    """A manager whose calls are timed."""

    def __init__(self, manager: Any) -> None:
        self.manager = manager
        self.times: dict[str, list[float]] = defaultdict(list)
        self.results: Counter[Any] = Counter()
        self.step = 0.0
        for name in METHODS:
            setattr(self, name, self._timed(name, getattr(manager, name)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.manager, name)

    def restart(self) -> None:
        """Forgets what was timed."""
        for times in self.times.values():
            times.clear()
        self.results.clear()

    def _timed(self, name: str, method: Any) -> Any:
        times = self.times[name]

        def timed(*arguments: Any) -> Any:
            before = time.perf_counter()
            result = method(*arguments)
            spent = time.perf_counter() - before
            times.append(spent)
            self.step += spent
            if name == "lookup":
                self.results[result.name] += 1
            return result

        return timed


class Steps:
    """An engine without workers and without a model."""

    def __init__(self, model: Path, extra: dict[str, Any], engine_id: str) -> None:
        os.environ.update(engine_process.ENVIRONMENT)
        # The connector logs a line for each store that fails, in each step.
        logging.getLogger("vllm.distributed").setLevel(logging.ERROR)
        import torch
        from vllm.config import KVTransferConfig, set_current_vllm_config
        from vllm.engine.arg_utils import EngineArgs
        from vllm.utils.hashing import sha256
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
        from vllm.v1.core.sched.scheduler import Scheduler
        from vllm.v1.kv_cache_interface import (
            FullAttentionSpec,
            KVCacheConfig,
            KVCacheGroupSpec,
            KVCacheTensor,
        )
        from vllm.v1.structured_output import StructuredOutputManager

        transfer = KVTransferConfig(
            kv_connector="OffloadingConnector",
            kv_role="kv_both",
            engine_id=engine_id,
            kv_connector_extra_config={"block_size": TOKENS, **extra},
        )
        config = EngineArgs(
            model=str(model),
            block_size=TOKENS,
            max_num_batched_tokens=8192,
            max_num_seqs=64,
            max_model_len=16_384,
            kv_transfer_config=transfer,
            async_scheduling=False,
            skip_tokenizer_init=True,
        ).create_engine_config()
        config.cache_config.num_gpu_blocks = BLOCKS
        layer = FullAttentionSpec(
            block_size=TOKENS, num_kv_heads=1, head_size=64, dtype=torch.float32
        )
        page = layer.page_size_bytes
        caches = KVCacheConfig(
            num_blocks=BLOCKS,
            kv_cache_tensors=[
                KVCacheTensor(
                    size=page * BLOCKS,
                    layers=["layer"],
                    offset=0,
                    layer_stride=page * BLOCKS,
                    block_stride=page,
                )
            ],
            kv_cache_groups=[KVCacheGroupSpec(["layer"], layer)],
        )
        with set_current_vllm_config(config):
            self.scheduler = Scheduler(
                config, caches, StructuredOutputManager(config), TOKENS, log_stats=False
            )
        init_none_hash(sha256)
        self._hasher = get_request_block_hasher(TOKENS, sha256)
        inner = self.scheduler.connector.connector_scheduler
        self.timed = inner.manager = Timed(inner.manager)
        self.steps: list[float] = []
        self._jobs: dict[int, int] = {}
        self._loading: dict[str, int] = {}
        self._number = 0

    def add(self, prompt: list[int], outputs: int = 4) -> str:
        """Adds a request."""
        from vllm.sampling_params import SamplingParams
        from vllm.v1.request import Request

        self._number += 1
        name = f"request {self._number}"
        parameters = SamplingParams(max_tokens=outputs, ignore_eos=True)
        parameters.update_from_generation_config({}, 1)
        request = Request(
            request_id=name,
            prompt_token_ids=prompt,
            sampling_params=parameters,
            pooling_params=None,
            block_hasher=self._hasher,
        )
        self.scheduler.add_request(request)
        return name

    def abort(self, name: str) -> None:
        """Ends a request as the client's end does."""
        from vllm.v1.request import RequestStatus

        self.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)

    def step(self) -> int:
        """Makes a step. Returns the number of tokens that were scheduled."""
        from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import (
            OffloadingWorkerMetadata,
        )
        from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput

        self.timed.step = 0.0
        output = self.scheduler.schedule()
        jobs, self._jobs = self._jobs, {}
        received = set(self._loading)
        self._loading = {}
        meta = output.kv_connector_metadata
        for number, job in meta.load_jobs.items():
            self._jobs[number] = 1
            self._loading[job.req_id] = number
        self._jobs.update(dict.fromkeys(meta.store_jobs, 1))
        names = list(output.num_scheduled_tokens)
        requests = self.scheduler.requests
        sampled = []
        for name in names:
            request = requests[name]
            is_done = request.num_computed_tokens >= request.num_tokens
            sampled.append([7] if is_done else [])
        result = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: at for at, name in enumerate(names)},
            sampled_token_ids=sampled,
            kv_connector_output=KVConnectorOutput(
                finished_recving=received or None,
                kv_connector_worker_meta=OffloadingWorkerMetadata(completed_jobs=jobs),
            ),
        )
        self.scheduler.update_from_output(output, result)
        self.scheduler.connector.get_kv_connector_stats()
        list(self.timed.take_events())
        self.steps.append(self.timed.step)
        tokens: int = output.total_num_scheduled_tokens
        return tokens

    def run(self, most: int = 10_000) -> int:
        """Makes steps until no request is left. Returns their number."""
        for number in range(most):
            if not self.scheduler.has_requests():
                return number
            if not self.step():
                # As vLLM's engine does in a step without work.
                time.sleep(0.001)
        raise AssertionError(f"requests are left after {most} steps")

    def forget(self) -> None:
        """Empties the engine's own cache."""
        assert self.scheduler.reset_prefix_cache()

    def close(self) -> None:
        self.scheduler.shutdown()


class NodeSteps:
    """Steps of an engine at a node, and the sign of life of its worker."""

    def __init__(self, model: Path, node: Any, **options: Any) -> None:
        from kvmem.vllm.shared import worker_key

        name = f"engine-{time.monotonic_ns()}"
        extra = {"spec_module_path": "kvmem.vllm", **shared(node, **options)}
        self.steps = Steps(model, extra, name)
        self.timed = self.steps.timed
        self.manager = self.timed.manager
        self.node = kvmem.connect(str(node.path), namespace=self.manager._cache.namespace)
        self.node.insert(worker_key(name, 0), b"here")
        self._worker = self.node.get(worker_key(name, 0))

    def close(self) -> None:
        """Ends the engine."""
        self.steps.close()
        if self._worker is not None:
            # A server that is gone has ended it.
            with contextlib.suppress(kvmem.KvmemError):
                self._worker.release()
        self.node.close()


def fill(steps: Steps, prompts: int, tokens: int) -> None:
    """Stores prompts, one after the other."""
    for seed in range(prompts):
        steps.add(prompt(seed, tokens), 8)
        while steps.scheduler.has_requests():
            steps.step()
            time.sleep(STEP)
        steps.forget()


def run_mixed(steps: Steps, number: int, tokens: int = 4096, seed: int = 5) -> None:
    """Makes steps with requests that come, share prefixes, and sometimes end early."""
    draw = random.Random(seed)
    names: list[str] = []
    for at in range(number):
        if at % 10 == 0:
            whole = prompt(draw.randrange(12), tokens)
            rest = prompt(1000 * seed + at, 64)
            names.append(
                steps.add(whole[: draw.randrange(64, tokens)] + rest, draw.randrange(1, 30))
            )
        if at % 35 == 0:
            steps.abort(draw.choice(names))
        if at % 50 == 0:
            # Only possible while no request runs, and tried nevertheless.
            steps.scheduler.reset_prefix_cache()
        steps.step()
        time.sleep(STEP)
