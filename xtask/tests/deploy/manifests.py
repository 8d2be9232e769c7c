"""The manifests of Kubernetes, and what the built command says of the commands in them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from machine import ROOT

DEPLOY = ROOT / "deploy"
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
# The user of the images.
USER = 10001


def read(text: str) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all(text) if each]


def templates(documents: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Returns the templates of pods by the name of their owner."""
    owners = [each for each in documents if "template" in each.get("spec", {})]
    return {each["metadata"]["name"]: each["spec"]["template"] for each in owners}


def pods() -> dict[str, dict[str, Any]]:
    """Returns the templates of all manifests."""
    return templates([each for file in MANIFESTS for each in read(file.read_text())])


def containers(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return [one for kind in ("initContainers", "containers") for one in pod["spec"].get(kind, [])]


def tool(name: str, *arguments: str | Path) -> None:
    """Runs a linter of this environment, which must find nothing."""
    program = [Path(sys.executable).parent / name, *arguments]
    ran = subprocess.run(program, cwd=DEPLOY, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def run(command: Path, arguments: list[str], statuses: tuple[int, ...]) -> None:
    ran = subprocess.run([command, *arguments], stdin=subprocess.DEVNULL, capture_output=True)
    assert ran.returncode in statuses, (arguments, ran.stderr.decode())


def understood(command: Path, arguments: list[str]) -> None:
    """Has the built command obey, or parse, the arguments that a file has for it."""
    if arguments[0] == "doctor":
        # The check of the machine may fail; the arguments may not.
        run(command, arguments, (0, 1))
    elif arguments[0] in ("serve", "holder", "stat", "ls"):
        # Help is shown when all arguments before have been parsed.
        run(command, [*arguments, "--help"], (0,))
    else:
        # The Python package has the other commands; its tests run them.
        assert arguments[0] in ("serve-mooncake", "--version"), arguments


def check_container(pod: dict[str, Any], container: dict[str, Any], command: Path) -> None:
    """Checks what no schema says: names, users, sizes and commands fit together."""
    security = pod.get("securityContext", {})
    assert not security.get("runAsNonRoot") or security["runAsUser"] == USER
    mounts = {each["name"] for each in container.get("volumeMounts", [])}
    assert mounts <= {each["name"] for each in pod.get("volumes", [])}
    if "command" in container:
        # Another program, which maps no memory.
        return
    arguments = container["args"]
    requests, limits = container["resources"]["requests"], container["resources"]["limits"]
    assert requests["memory"] == limits["memory"]
    sizes = dict(word.split("=", 1) for word in arguments if word.startswith(("--size=", "--max=")))
    size = sizes.get("--max", sizes.get("--size"))
    if size and "--pages=thp,4k" not in arguments:
        # Pages of 2 MiB that suffice, and are requested as they are limited.
        assert requests["hugepages-2Mi"] == limits["hugepages-2Mi"] == size.removesuffix("B")
    understood(command, arguments)
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        words = container.get(probe, {}).get("exec", {}).get("command", [])
        if words[:1] == ["kvmem"]:
            run(command, [*words[1:], "--help"], (0,))
