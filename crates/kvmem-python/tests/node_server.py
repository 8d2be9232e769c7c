"""A server of a node for tests: the example of the crate ``kvmem-node``, which cargo builds."""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Self

import pytest

ROOT = Path(__file__).parents[3]
MIB = 1 << 20


@functools.cache
def program(example: str = "serve") -> Path:
    """Returns the program of an example, after building it if necessary. `cargo xtask test` has
    built it with the rest of the workspace; alone it would be built again with other features.
    """
    if built := os.environ.get("KVMEM_NODE_SERVER"):
        return Path(built).with_name(example)
    if shutil.which("cargo") is None or not (ROOT / "crates/kvmem-node").is_dir():
        pytest.skip("there is no cargo to build the server with")
    build = ["cargo", "build", "--package", "kvmem-node", "--example", example]
    done = subprocess.run(
        [*build, "--message-format", "json"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    for line in done.stdout.splitlines():
        message = json.loads(line)
        if message.get("executable") and message["target"]["name"] == example:
            return Path(message["executable"])
    raise AssertionError(done.stdout)


class Server:
    """A server, and a keeper of the node's files that starts it again when it is killed."""

    def __init__(
        self,
        nbytes: int = 16 * MIB,
        folder: Path | None = None,
        lease: float = 60.0,
        boundary: int = 1 << 30,
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="kvmem-node-")
        self.path = (folder or Path(self._folder.name)) / "kvmem.sock"
        self.nbytes, self.lease, self.boundary = nbytes, lease, boundary
        self.start()

    def start(self) -> None:
        """Starts it with new files."""
        self._keeper = subprocess.Popen(
            [
                program(),
                str(self.nbytes),
                self.path,
                str(round(self.lease * 1000)),
                str(self.boundary),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._next()

    def _next(self) -> None:
        assert self._keeper.stdout is not None
        self.pid = int(self._keeper.stdout.readline())

    def kill(self) -> None:
        """Kills the server. The keeper starts the next one, which has the same files."""
        os.kill(self.pid, signal.SIGKILL)
        self._next()

    def stop(self) -> None:
        """Ends the server and the keeper, and with them the files."""
        assert self._keeper.stdin is not None and self._keeper.stdout is not None
        self._keeper.stdin.close()
        self._keeper.wait()
        self._keeper.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        if self._keeper.poll() is None:
            self.stop()
        self._folder.cleanup()
