"""A Mooncake cluster of real processes on free ports of the loopback interface, for tests and
benchmarks of them.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest
from conftest import LIMIT, until
from engines import require
from leftovers import in_shm, none_is_new

LOCAL = "127.0.0.1"


def free_port() -> int:
    """Returns a port that no process listens on now."""
    with socket.socket() as probe:
        probe.bind((LOCAL, 0))
        return int(probe.getsockname()[1])


def master_command(port: int) -> list[str]:
    """Returns the command of a Mooncake master that listens on ``port``. The master considers a
    client dead that has been silent for two seconds.
    """
    return [
        # The module that the wheel's command mooncake_master runs.
        sys.executable,
        # Without the modules of the current folder.
        "-P",
        "-m",
        "mooncake.cli",
        f"-rpc_address={LOCAL}",
        f"-rpc_port={port}",
        f"-metrics_host={LOCAL}",
        f"-metrics_port={free_port()}",
        "-client_ttl=2",
        "-enable_metric_reporting=false",
    ]


ENVIRONMENT = {
    **os.environ,
    "MC_TCP_BIND_ADDRESS": LOCAL,
    "PYTHONUNBUFFERED": "1",
}


class Cluster:
    """A master and the other processes of a cluster. Leaving the block ends all of them.

    The master considers a client dead that has been silent for ``client_ttl`` seconds. By default
    that is longer than any test, so no client of a busy machine is taken for a dead one.
    """

    def __init__(self, folder: Path, client_ttl: int = 600) -> None:
        self.folder = folder
        self.client_ttl = client_ttl
        self.port = free_port()
        self.address = f"{LOCAL}:{self.port}"
        self.processes: list[subprocess.Popen[str]] = []
        self.servers: list[subprocess.Popen[str]] = []
        self.master = self.start_master()

    def start(
        self, name: str, *command: str, environment: dict[str, str] = ENVIRONMENT
    ) -> subprocess.Popen[str]:
        with open(self.folder / f"{name}.log", "a", encoding="utf-8") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment,
            )
        self.processes.append(process)
        return process

    def start_master(self) -> subprocess.Popen[str]:
        # Of two equal options the master takes the last.
        command = [*master_command(self.port), f"-client_ttl={self.client_ttl}"]
        [self.metrics] = [
            option.partition("=")[2] for option in command if option.startswith("-metrics_port=")
        ]
        master = self.start("master", *command)

        def listens() -> bool:
            assert master.poll() is None, (self.folder / "master.log").read_text(encoding="utf-8")
            with socket.socket() as probe:
                return probe.connect_ex((LOCAL, self.port)) == 0

        until(listens)
        return master

    def serve(
        self, size: str = "64MiB", *options: str, node: Path | None = None
    ) -> subprocess.Popen[str]:
        """Starts a process that lends memory of its own, or of a node."""
        command = [
            "serve-mooncake",
            "--size",
            size,
            "--master",
            self.address,
            *(("--pages", "4k") if node is None else ("--node", str(node))),
            *options,
        ]
        # Otherwise it would override the address that is announced to peers.
        environment = {
            name: value for name, value in ENVIRONMENT.items() if name != "MC_TCP_BIND_ADDRESS"
        }
        server = self.start(
            "server", sys.executable, "-m", "kvmem", *command, environment=environment
        )
        assert server.stdout is not None
        line = server.stdout.readline()
        assert "answers" in line, line + (self.folder / "server.log").read_text(encoding="utf-8")
        return server

    def segments(self) -> set[str]:
        """Returns the names of the mounted segments. Those of a killed process are among them until
        the master considers its client dead.
        """
        address = f"http://{LOCAL}:{self.metrics}/get_all_segments"
        with urllib.request.urlopen(address, timeout=LIMIT) as answer:
            return set(answer.read().decode().split())

    @staticmethod
    def kill(process: subprocess.Popen[str]) -> None:
        """Kills the process, like a power failure."""
        process.send_signal(signal.SIGKILL)
        process.wait(LIMIT)

    @staticmethod
    def end(process: subprocess.Popen[str]) -> None:
        """Asks a process to end. A server then unmounts its segments; the master would choose those
        of a killed one until its client is considered dead.
        """
        process.terminate()
        assert process.wait(LIMIT) == 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        # The master last: the others wait for its answer when they unmount.
        for process in reversed(self.processes):
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(LIMIT)
                except subprocess.TimeoutExpired:
                    self.kill(process)
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
        assert all(process.poll() is not None for process in self.processes)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster that consists of a master. It leaves nothing in /dev/shm."""
    require("mooncake")
    before = in_shm()
    with Cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster
    assert none_is_new(before)
