"""*Processes*: what is needed to start a master on the loopback interface."""

from __future__ import annotations

import shutil
import socket
import sys
from pathlib import Path

LOCAL = "127.0.0.1"


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind((LOCAL, 0))
        return int(probe.getsockname()[1])


def master_command(port: int) -> list[str]:
    """How a Mooncake master is started that listens there; it takes who is silent for two seconds for dead."""
    beside = Path(sys.executable).with_name("mooncake_master")
    command = str(beside) if beside.exists() else shutil.which("mooncake_master")
    if command is None:
        raise FileNotFoundError("the command mooncake_master of the wheel is not in PATH")
    return [
        command,
        f"-rpc_address={LOCAL}",
        f"-rpc_port={port}",
        f"-metrics_host={LOCAL}",
        f"-metrics_port={free_port()}",
        "-client_ttl=2",
        "-enable_metric_reporting=false",
    ]
