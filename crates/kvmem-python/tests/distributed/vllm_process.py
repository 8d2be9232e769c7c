"""Engines of vLLM as processes of a test: see vllm_engine.py and fork_server.py."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import textwrap
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import fork_server
import pytest
from conftest import LIMIT
from engines import HERE, missing, torch_folder, unpacked

PAGE = 8192
"""Bytes of a block in each tensor of a worker."""
_numbers = itertools.count()


with_oldest = pytest.mark.parametrize("release", ["newest", "oldest"], indirect=True)
"""Runs a test with the oldest supported release as well: one for each class, and those of
interfaces that differ between the releases.
"""


@pytest.fixture(autouse=True)
def release(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs each test of a module that imports it with the newest supported release, and those
    :data:`with_oldest` with the oldest one, too.
    """
    if getattr(request, "param", "newest") == "oldest":
        folder = os.environ.get("VLLM_OLDEST_DIR")
        if not folder or not Path(folder, "vllm").is_dir():
            missing(
                "the oldest supported vLLM is not here: export VLLM_OLDEST_DIR=FOLDER && "
                "pip install --no-deps --target FOLDER 'vllm>=0.32,<0.33'"
            )
        monkeypatch.setenv("VLLM_DIR", folder or "")


def row_bytes(workers: int = 4) -> int:
    """Returns the length of a row: two tensors of two blocks in each worker."""
    return 2 * 2 * PAGE * workers


def new_id() -> str:
    """Returns a name that no other engine has."""
    return f"test-{os.getpid()}-{next(_numbers)}"


def environment(**variables: str) -> dict[str, str]:
    return {**os.environ, **variables}


IMPORTED = """
import kvmem.vllm, vllm_engine
from vllm.v1.kv_offload import base, config, factory
from vllm.v1.kv_offload.cpu import common, spec
"""
"""What the processes of an engine import."""


def prelude(path: Path, imported: str) -> str:
    """Returns what makes vLLM's wheel and the stand-ins around it known, and imports from them."""
    lines = [
        "import sys",
        f"sys.path[:0] = {[str(HERE), str(path), *torch_folder()]!r}",
        f"import vllm_standins; vllm_standins.vllm({str(unpacked('vllm'))!r})",
        imported,
    ]
    return "\n".join(lines)


def vllm(program: str, *arguments: str, folder: Path | None = None, **variables: str) -> str:
    """Runs a program in a process of its own, with vLLM's wheel and the stand-ins around it.
    Returns what it has written. The program itself imports what it uses.
    """
    before = prelude(folder or unpacked("vllm"), "")
    program = "import sys\n" + textwrap.dedent(program)
    variables = environment(**variables)
    return fork_server.run(before, program, list(arguments), variables, LIMIT)


class EngineError(Exception):
    """A call of an engine failed, or it did not start."""


class Engine:
    """An engine: a scheduler and its workers, in a process group of their own."""

    def __init__(
        self,
        spec: str,
        extra: dict[str, Any] | None = None,
        *,
        workers: int = 4,
        rows: int = 64,
        engine_id: str | None = None,
        wait: bool = True,
        **options: Any,
    ) -> None:
        folder = str(unpacked("vllm"))
        self.id = engine_id or new_id()
        self.options = {
            "workers": workers,
            "page": PAGE,
            "blocks_per_chunk": 2,
            "gpu_chunks": 32,
            "engine_id": self.id,
            "extra": {
                "spec_name": spec,
                "spec_module_path": "kvmem.vllm",
                "cpu_bytes_to_use": rows * row_bytes(workers),
                **(extra or {}),
            },
            **options,
        }
        program = "import sys, vllm_engine; vllm_engine.scheduler(sys.argv[1])"
        arguments = [json.dumps(self.options)]
        before = prelude(Path(folder), IMPORTED)
        self._process = fork_server.start(before, program, arguments, environment())
        if wait:
            self.started()

    def started(self) -> Self:
        """Waits until all its processes are ready."""
        self.ready = self._answer()
        return self

    @property
    def pid(self) -> int:
        """Process id of the scheduler."""
        return self._process.pid

    def _answer(self) -> dict[str, Any]:
        line = self._process.stdout.readline()
        if not line:
            self.kill()
            raise EngineError(self.errors)
        answer: dict[str, Any] = json.loads(line)
        return answer

    def __call__(self, do: str, *arguments: Any) -> Any:
        self.send(do, *arguments)
        answer = self._answer()
        if "error" in answer:
            raise EngineError(answer["error"])
        return answer["result"]

    def send(self, do: str, *arguments: Any) -> None:
        """Calls without waiting for the answer."""
        print(json.dumps({"do": do, "with": arguments}), file=self._process.stdin, flush=True)

    def kill(self) -> None:
        """Kills the scheduler and all workers, wherever they are."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._end()

    def kill_scheduler(self) -> None:
        """Kills the scheduler alone. The workers end when they see that."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Shuts it down."""
        self("close")
        self._end()

    def _end(self) -> None:
        _, self.errors = self._process.communicate(timeout=LIMIT)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        raised: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process.poll() is None:
            if kind is None:
                self.close()
            else:
                self.kill()
        else:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
