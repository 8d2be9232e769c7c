"""*Processes*: starts a Mooncake master on the loopback interface."""

from __future__ import annotations

import importlib.util
import socket
import sys

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
    if importlib.util.find_spec("mooncake") is None:
        raise FileNotFoundError(
            "Mooncake is not installed: pip install mooncake-transfer-engine-non-cuda"
        )
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
