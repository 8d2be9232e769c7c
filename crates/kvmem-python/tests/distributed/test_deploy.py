"""The commands of the systemd unit and of the Kubernetes manifest, run against a master."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from cluster import Cluster, cluster

__all__ = ["cluster"]

DEPLOY = Path(__file__).parents[4] / "deploy"
UNIT = DEPLOY / "systemd/kvmem-serve-mooncake.service"
MANIFEST = DEPLOY / "kubernetes/serve-mooncake.yaml"


def unit_arguments() -> list[str]:
    """Returns the arguments of the unit's command, with the variables of its settings."""
    lines = (DEPLOY / "systemd/serve-mooncake.env").read_text().splitlines()
    settings = dict(line.split("=", 1) for line in lines if "=" in line and line[0] != "#")
    command = next(line for line in UNIT.read_text().splitlines() if line.startswith("ExecStart="))
    expanded = re.sub(r"\$\{?(\w+)\}?", lambda found: settings[found[1]], command)
    return shlex.split(expanded)[1:]


def manifest_arguments() -> list[str]:
    """Returns the arguments of the manifest's container."""
    return re.findall(r"^ +- (serve-mooncake|--\S+)$", MANIFEST.read_text(), re.MULTILINE)


def here(arguments: list[str], cluster: Cluster) -> list[str]:
    """Returns the arguments with little memory, any pages, and the addresses of this machine."""
    own = {"--size": "16MiB", "--pages": "thp,4k", "--host": "127.0.0.1"}
    own |= {"--master": cluster.address, "--peers": "127.0.0.0/8"}
    pairs = " ".join(arguments).replace("=", " ").split()
    changed = [own.get(before, word) for before, word in zip(["", *pairs], pairs, strict=False)]
    if "--peers" in changed and os.geteuid() != 0:
        # The service has the capability that recent kernels demand for packet filters.
        at = changed.index("--peers")
        del changed[at : at + 2]
    return changed


def probes(process: subprocess.Popen[str] | None) -> list[int]:
    """Runs the manifest's probes on a process, or on one without a pool. Returns their statuses."""
    lines = re.findall(r"command: \[sh, -c, '(.*)'\]", MANIFEST.read_text())
    place = "/proc/self/" if process is None else f"/proc/{process.pid}/"
    asks = [line.replace("/proc/1/", place) for line in lines]
    assert asks != lines
    return [subprocess.run(["sh", "-c", line]).returncode for line in asks]


@pytest.mark.parametrize("arguments", [unit_arguments(), manifest_arguments()])
def test_the_command_serves_until_it_is_stopped(arguments: list[str], cluster: Cluster) -> None:
    assert arguments[0] == "serve-mooncake" and len(arguments) >= 5, arguments
    environment = {name: value for name, value in os.environ.items() if name[:3] != "MC_"}
    server = cluster.start(
        "deployed",
        *[sys.executable, "-m", "kvmem", *here(arguments, cluster)],
        environment=environment,
    )
    assert server.stdout is not None
    line = server.stdout.readline()
    log = (cluster.folder / "deployed.log").read_text(encoding="utf-8")
    assert re.match("kvmem: 16777216 bytes at .* answers$", line), line + log
    assert probes(server) == [0, 0] and probes(None) == [1, 1]
    server.terminate()
    assert server.wait(30) == 0
