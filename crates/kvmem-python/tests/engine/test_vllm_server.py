"""vLLM behind its server for OpenAI's interface, and an engine of several workers."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from engine_node import BLOCK, Node, prompt, shared, within
from engine_process import Engines

LIMIT = 600.0


class ApiServer:
    """vLLM's server: its own process, the engine's, and the worker's."""

    def __init__(
        self, engines: Engines, folder: Path, small_model: Path, extra: dict[str, Any]
    ) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        connector = {
            "kv_connector": "OffloadingConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": extra,
        }
        arguments = ["--model", str(small_model), "--served-model-name", "small"]
        arguments += ["--host", "127.0.0.1", "--port", str(self._port), "--dtype", "float32"]
        arguments += ["--max-model-len", "4096", "--max-num-seqs", "8", "--enforce-eager"]
        arguments += ["--enable-prompt-tokens-details"]
        arguments += ["--kv-transfer-config", json.dumps(connector)]
        self._log = folder / "vllm.log"
        self._server = engines.start_server(arguments, self._log)
        within(LIMIT, self._answers)

    def _answers(self) -> bool:
        text = self._log.read_text() if self._log.exists() else ""
        assert Path(f"/proc/{self._server.pid}").exists(), text[-5000:]
        with contextlib.suppress(OSError):
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/health", timeout=5):
                return True
        return False

    def complete(self, tokens: list[int], max_tokens: int = 8) -> tuple[str, float, int]:
        """Returns the text, the seconds to the first token, and the cached tokens of a prompt."""
        body = {
            "model": "small",
            "prompt": tokens,
            "max_tokens": max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._port}/v1/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        start, first, text, cached = time.monotonic(), 0.0, "", 0
        with urllib.request.urlopen(request, timeout=LIMIT) as lines:
            for line in lines:
                data = line.decode().removeprefix("data: ").strip()
                if not data or data == "[DONE]":
                    continue
                part = json.loads(data)
                first = first or time.monotonic() - start
                text += "".join(choice["text"] for choice in part["choices"])
                details = (part.get("usage") or {}).get("prompt_tokens_details") or {}
                cached = details.get("cached_tokens") or cached
        return text, first, cached

    def kill(self) -> None:
        """Ends all of its processes as the kernel does when memory is short."""
        if not self._server.ended:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._server.pid, signal.SIGKILL)
            self._server.bury()


@pytest.fixture
def api_server(
    engines: Engines, tmp_path: Path, small_model: Path
) -> Iterator[Callable[..., ApiServer]]:
    made: list[ApiServer] = []

    def make(extra: dict[str, Any]) -> ApiServer:
        made.append(ApiServer(engines, tmp_path, small_model, extra))
        return made[-1]

    yield make
    for server in made:
        server.kill()


def test_a_new_server_finds_what_a_killed_one_has_stored(
    api_server: Callable[..., ApiServer], node: Callable[..., Node]
) -> None:
    shared_node = node()
    server = api_server(shared(shared_node))
    server.complete(prompt(7, 16))
    text, cold, cached = server.complete(prompt(0, 2100))
    assert cached == 0
    again, own, cached = server.complete(prompt(0, 2100))
    assert again == text and cached >= 2048 - BLOCK
    server.complete(prompt(8, 16))
    server.kill()
    shared_node.kill()
    assert shared_node.start()["recovered"]["values"] >= 2048 // BLOCK
    server = api_server(shared(shared_node))
    server.complete(prompt(7, 16))
    again, warm, cached = server.complete(prompt(0, 2100))
    print(f"seconds to the first token: {cold:.3f} cold, {own:.3f} own, {warm:.3f} after the kill")
    assert again == text and cached >= 2048 - BLOCK


def test_workers_of_an_engine_share_a_row(
    engines: Engines, small_model: Path, node: Callable[..., Node]
) -> None:
    shared_node = node()
    # vLLM wants a NUMA node for each worker, or to be told its processors.
    first, last = min(os.sched_getaffinity(0)), max(os.sched_getaffinity(0))
    engine = engines.start(
        small_model,
        shared(shared_node),
        tensor_parallel_size=2,
        environment={"VLLM_CPU_OMP_THREADS_BIND": f"{first}|{last}"},
    )
    (cold,) = engine.generate(prompt(0, 1100))
    engine.generate(prompt(9, 16))
    engine.call("forget")
    (warm,) = engine.generate(prompt(0, 1100))
    assert cold["cached"] == 0 and warm["cached"] >= 1024 - BLOCK
    assert warm["tokens"] == cold["tokens"]
    # Its workers share memory with it, which a killed engine would leave.
    engine.close()
