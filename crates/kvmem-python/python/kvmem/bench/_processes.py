"""*Processes*: what is needed to start a master on the loopback interface."""

from __future__ import annotations

import importlib.util
import socket
import sys

LOCAL = "127.0.0.1"


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind((LOCAL, 0))
        return int(probe.getsockname()[1])


def master_command(port: int) -> list[str]:
    """How a Mooncake master is started that listens there; it takes who is silent for two seconds for dead."""
    if importlib.util.find_spec("mooncake") is None:
        raise FileNotFoundError(
            "there is no Mooncake: pip install mooncake-transfer-engine-non-cuda"
        )
    return [
        # What the wheel's command mooncake_master runs, wherever that command is.
        sys.executable,
        "-m",
        "mooncake.cli",
        f"-rpc_address={LOCAL}",
        f"-rpc_port={port}",
        f"-metrics_host={LOCAL}",
        f"-metrics_port={free_port()}",
        "-client_ttl=2",
        "-enable_metric_reporting=false",
    ]
