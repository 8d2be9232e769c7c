"""*Engine processes*: vLLM in one process, which a test drives.

``python engine_process.py SOCKET`` imports vLLM once and waits at a socket. It forks a child for
each connection: an engine starts in a few seconds then, instead of half a minute. A child serves
one engine, or becomes vLLM's server for OpenAI's interface. Requests and answers are lines of JSON;
a request has the name of a method of :class:`Served` and its arguments.

The tests import this module without vLLM, for :class:`Engines` and :class:`Engine`.
"""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

LIMIT = 600.0
"""Seconds that an answer takes at most, on a busy machine too."""

ENVIRONMENT = {
    # The engine runs in the process of the test's child, which then is all that there is to kill.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "INFO",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


class EngineError(Exception):
    """An engine raised an exception, whose traceback this has, or has ended."""


class Engine:
    """An engine in a process of its own."""

    def __init__(self, channel: socket.socket) -> None:
        self._file = channel.makefile("rw", encoding="utf-8")
        channel.close()
        self.pid = int(self._answer())
        self.ended = False

    def _answer(self) -> Any:
        line = self._file.readline()
        if not line:
            raise EngineError("the engine has ended")
        answer = json.loads(line)
        if "error" in answer:
            raise EngineError(answer["error"])
        return answer["result"]

    def begin(self, method: str, *arguments: Any, **named: Any) -> None:
        """Begins a call. :meth:`end` returns its result."""
        self._file.write(json.dumps([method, arguments, named]) + "\n")
        self._file.flush()

    def end(self) -> Any:
        """Waits for the call that has begun, and returns its result."""
        return self._answer()

    def call(self, method: str, *arguments: Any, **named: Any) -> Any:
        """Calls a method of :class:`Served`."""
        self.begin(method, *arguments, **named)
        return self.end()

    def generate(self, *prompts: list[int], max_tokens: int = 8) -> list[dict[str, Any]]:
        """Returns for each prompt ``tokens``, their ``logprobs``, ``first`` (seconds to the first
        token), ``seconds`` and ``cached`` (tokens found in a cache).
        """
        results: list[dict[str, Any]] = self.call("generate", prompts, max_tokens)
        return results

    def kill(self) -> None:
        """Ends the process as the kernel does when memory is short."""
        os.kill(self.pid, signal.SIGKILL)
        self._wait()

    def bury(self) -> None:
        """Waits for the end of an engine that was killed otherwise."""
        self._wait()

    def close(self) -> None:
        """Shuts the engine down."""
        self.call("close")
        self._wait()

    def _wait(self) -> None:
        while self._file.readline():
            pass
        self._file.close()
        self.ended = True


class Engines:
    """The process that has imported vLLM, and the engines that are its children."""

    def __init__(self, folder: Path, python: str = sys.executable) -> None:
        self._path = str(folder / "engines.sock")
        self.log = folder / "engines.log"
        self._running: list[Engine] = []
        with socket.socket(socket.AF_UNIX) as listening, open(self.log, "w") as log:
            listening.bind(self._path)
            listening.listen()
            self._process = subprocess.Popen(
                [python, os.path.abspath(__file__), str(listening.fileno())],
                # vLLM starts Python with -m, which looks for modules here first.
                cwd=folder,
                env={**os.environ, **ENVIRONMENT},
                pass_fds=[listening.fileno()],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    @property
    def pid(self) -> int:
        """Process id of the process that forks."""
        return self._process.pid

    def _fork(self) -> Engine:
        channel = socket.socket(socket.AF_UNIX)
        channel.settimeout(LIMIT)
        channel.connect(self._path)
        return Engine(channel)

    def start(self, model: Path, extra: dict[str, Any] | None = None, **options: Any) -> Engine:
        """Starts an engine. ``extra`` are the options of the connector; None: no connector."""
        engine = self._fork()
        self._running.append(engine)
        engine.call("open", str(model), extra, **options)
        return engine

    def start_server(self, arguments: list[str], log: Path) -> Engine:
        """Starts vLLM's server for OpenAI's interface, with its processes in a group of their own.
        It answers no calls.
        """
        server = self._fork()
        server.call("become_group")
        server.begin("run_server", arguments, str(log))
        return server

    def stop(self) -> None:
        """Ends all engines."""
        for engine in self._running:
            if not engine.ended:
                engine.kill()
        self._running.clear()
        self._process.kill()
        self._process.wait()


class Served:
    """An engine in this process."""

    def open(
        self,
        model: str,
        extra: dict[str, Any] | None,
        environment: dict[str, str] | None = None,
        connector: str = "OffloadingConnector",
        **options: Any,
    ) -> None:
        """Starts it."""
        os.environ.update(environment or {})
        from vllm.config import KVTransferConfig
        from vllm.entrypoints.llm import LLM

        if "kv_events_config" in options:
            from vllm.config.kv_events import KVEventsConfig

            options["kv_events_config"] = KVEventsConfig(**options["kv_events_config"])
        transfer = None
        if connector.startswith("LMCache"):
            # LMCache imports llvmlite. vLLM asks the variables of every object of every module for
            # a name, and those of llvmlite's library are no mapping.
            from llvmlite.binding import ffi

            ffi._lib_fn_wrapper.get = lambda *_: None
        if extra is not None:
            transfer = KVTransferConfig(
                kv_connector=connector,
                kv_role="kv_both",
                kv_connector_extra_config=extra,
            )
        self._llm = LLM(
            model=model,
            **{
                # Outputs of two ways to the same KV cache are equal, digit for digit.
                "dtype": "float32",
                "max_model_len": 4096,
                "max_num_seqs": 8,
                "enforce_eager": True,
                "skip_tokenizer_init": True,
                "disable_log_stats": False,
                "kv_transfer_config": transfer,
                **options,
            },
        )

    def become_group(self) -> None:
        """Makes a process group of this process and those that it starts."""
        os.setsid()

    def run_server(self, arguments: list[str], log: str) -> None:
        """Runs ``python -m vllm.entrypoints.openai.api_server`` with these arguments."""
        with open(log, "a") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        # Its engine is a process of its own, as it is for users.
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1"
        sys.argv = ["api_server", *arguments]
        sys.modules.pop("vllm.entrypoints.openai.api_server", None)
        runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__")

    def generate(self, prompts: list[list[int]], max_tokens: int) -> list[dict[str, Any]]:
        """Generates for prompts at once."""
        from vllm.sampling_params import SamplingParams

        start = time.monotonic()
        outputs = self._llm.generate(
            [{"prompt_token_ids": tokens} for tokens in prompts],
            SamplingParams(max_tokens=max_tokens, temperature=0.0, detokenize=False, logprobs=0),
            use_tqdm=False,
        )
        seconds = time.monotonic() - start
        return [
            {
                "tokens": list(output.outputs[0].token_ids),
                "logprobs": [
                    one.logprob for step in output.outputs[0].logprobs for one in step.values()
                ],
                "first": output.metrics.first_token_latency,
                "seconds": seconds,
                "cached": output.num_cached_tokens,
            }
            for output in outputs
        ]

    def abort(self, tokens: list[int], steps: int) -> None:
        """Begins a request and aborts it after some steps."""
        from vllm.sampling_params import SamplingParams

        engine = self._llm.llm_engine
        engine.add_request(
            "aborted",
            {"prompt_token_ids": tokens},
            SamplingParams(max_tokens=1000, temperature=0.0, detokenize=False),
        )
        for _ in range(steps):
            engine.step()
        engine.abort_request(["aborted"])
        while engine.has_unfinished_requests():
            engine.step()

    def forget(self) -> None:
        """Empties vLLM's own prefix cache. Connectors may hold blocks of ended requests until a
        later step.
        """
        for _ in range(100):
            if self._llm.reset_prefix_cache():
                return
            self._llm.llm_engine.step()
            time.sleep(0.02)
        raise AssertionError("blocks of ended requests are not free after 100 steps")

    def close(self) -> None:
        """Shuts the engine down."""
        self._llm.llm_engine.engine_core.shutdown()


def _serve(channel: socket.socket) -> None:
    """Serves one engine until its client closes the connection."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    file = channel.makefile("rw", encoding="utf-8")

    def answer(**values: Any) -> None:
        file.write(json.dumps(values) + "\n")
        file.flush()

    served = Served()
    answer(result=os.getpid())
    for line in file:
        method, arguments, named = json.loads(line)
        try:
            answer(result=getattr(served, method)(*arguments, **named))
        except BaseException:
            answer(error=traceback.format_exc())
        if method in ("close", "run_server"):
            break


def _main(listening: socket.socket) -> None:
    """Imports vLLM, and forks a child for each connection."""
    # Modules that an engine with a small model imports when it starts.
    import kvmem.vllm
    import vllm.entrypoints.llm
    import vllm.entrypoints.openai.api_server
    import vllm.model_executor.models.qwen3
    import vllm.v1.engine.llm_engine
    import vllm.v1.executor.uniproc_executor
    import vllm.v1.worker.cpu_worker  # noqa: F401

    with contextlib.suppress(ImportError):
        kvmem.vllm.KvmemSharedSpec  # noqa: B018
        kvmem.vllm.KvmemTieringOffloadingSpec  # noqa: B018
        kvmem.vllm.KvmemTier  # noqa: B018
    # The kernel buries the children.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        channel, _ = listening.accept()
        if os.fork() == 0:
            listening.close()
            _serve(channel)
            # vLLM's own threads may live on.
            os._exit(0)
        channel.close()


if __name__ == "__main__":
    _main(socket.socket(fileno=int(sys.argv[1])))
