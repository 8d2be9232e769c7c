"""Pods without a cluster: each container is a process of this machine in namespaces of its own,
with the user, the capabilities and the volumes of its manifest, and a read-only root."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any, Self

from manifests import containers

# The namespaces of a container. Those of one pod share some of them; nothing here needs that but
# for the processes of a pod with `shareProcessNamespace`.
UNSHARE = "unshare --mount --propagation private --ipc --uts --net --cgroup".split()
# Nothing outlives the test, however that ends.
TIED = ["setpriv", "--pdeathsig=KILL"]
PROCESSES = "--pid --fork --kill-child --mount-proc".split()
# What a test takes instead of the sizes of the manifests.
SMALL = {"--size=4GiB": "--size=32MiB", "--pages=2M": "--pages=4k"}
SECONDS = 60.0


def missing() -> str | None:
    """Says why this machine runs no pods."""
    if os.geteuid():
        return "pods take root: their containers have users, mounts and namespaces of their own"
    tools = ("unshare", "nsenter", "setpriv", "mount")
    absent = [tool for tool in tools if not shutil.which(tool)]
    if absent:
        return f"pods take {', '.join(absent)}: apt-get install util-linux mount"
    tried = subprocess.run([*UNSHARE, *PROCESSES, "true"], capture_output=True, text=True)
    return tried.stderr.strip() if tried.returncode else None


class Pod:
    """A running pod. ``volumes`` has a folder of this machine for each volume, ``programs`` the
    file of each program of the image."""

    def __init__(
        self, template: dict[str, Any], volumes: dict[str, Path], programs: dict[str, Path]
    ) -> None:
        self.spec, self.volumes, self.programs = template["spec"], volumes, programs
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.pause: subprocess.Popen[bytes] | None = None
        if self.spec.get("shareProcessNamespace"):
            self.pause = subprocess.Popen([*TIED, *UNSHARE, *PROCESSES, "sleep", "infinity"])

    def __enter__(self) -> Self:
        try:
            for container in containers({"spec": self.spec}):
                is_init = container in self.spec.get("initContainers", [])
                if is_init and container.get("restartPolicy") != "Always":
                    self.run(container["name"])
                else:
                    self.start(container["name"])
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self.running):
            self.kill(name)
        if self.pause:
            end(self.pause)

    def container(self, name: str) -> dict[str, Any]:
        return next(one for one in containers({"spec": self.spec}) if one["name"] == name)

    def process(self, name: str, words: list[str]) -> list[str]:
        """Returns the command that is a container, or runs other words in its place."""
        container = self.container(name)
        words = words or container.get("command") or ["kvmem", *container["args"]]
        script = ["set -eu", "cd /", "mount -t tmpfs -o mode=755 tmpfs /run", "mkdir /run/bin"]
        for program, file in self.programs.items():
            bound = f"/run/bin/{program}"
            script += [f"touch {bound}", f"mount --bind {shlex.quote(str(file))} {bound}"]
        for mount in container.get("volumeMounts", []):
            path, folder = mount["mountPath"], shlex.quote(str(self.volumes[mount["name"]]))
            assert path.startswith("/run/"), "the only part of the root that a test replaces"
            script += [f"mkdir -p {path}", f"mount --bind {folder} {path}"]
            script += [f"mount -o remount,bind,ro {path}"] if mount.get("readOnly") else []
        script += ["mount -o remount,bind,ro /"]
        whole, own = self.spec.get("securityContext", {}), container["securityContext"]
        assert own["readOnlyRootFilesystem"] and own["capabilities"]["drop"] == ["ALL"]
        user = own.get("runAsUser", whole["runAsUser"])
        group = own.get("runAsGroup", whole["runAsGroup"])
        groups = ",".join(map(str, [group, *whole.get("supplementalGroups", [])]))
        into = ""
        if self.spec.get("hostUsers") is False:
            # Another user of this machine, who has the number of the manifest in the container.
            into = f"unshare --user --map-user={user} --map-group={group}"
            user, group, groups = user + 10_000, group + 10_000, str(group + 10_000)
        added = "".join(f",+{one.lower()}" for one in own["capabilities"].get("add", []))
        rights = f"--reuid={user} --regid={group} --groups={groups} --inh-caps=-all"
        rights += f" --bounding-set=-all{added} --no-new-privs --pdeathsig=KILL"
        words = [SMALL.get(word, word) for word in words]
        clean = "env -i PATH=/run/bin:/usr/bin:/bin"
        script += [f"exec setpriv {rights} {into} {clean} {shlex.join(words)}"]
        shell = ["sh", "-c", "\n".join(script)]
        if not self.pause:
            return [*TIED, *UNSHARE, *PROCESSES, *shell]
        pause = self.pause
        wait(lambda: children(pause), "the first process of the pod")
        enter = [*TIED, "nsenter", "--target", str(children(pause)[0]), "--pid"]
        return [*enter, *UNSHARE, "--mount-proc", *shell]

    def run(self, name: str, *words: str, status: int = 0) -> str:
        """Runs a container, or other words in its place, to the end. Returns what it prints."""
        process = self.process(name, list(words))
        ran = subprocess.run(process, capture_output=True, text=True, timeout=SECONDS)
        assert ran.returncode == status, (words, ran.stdout, ran.stderr)
        return ran.stdout + ran.stderr

    def start(self, name: str, *words: str) -> None:
        """Starts a container, or other words in its place, and waits for its start-up probe."""
        process = self.process(name, list(words))
        started = subprocess.Popen(process, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        self.running[name] = started
        probe = self.container(name).get("startupProbe")
        if probe:
            words = probe["exec"]["command"]
            wait(lambda: self.probe(name, words), f"{name} answers {words}")

    def probe(self, name: str, words: list[str]) -> bool:
        assert self.running[name].poll() is None, f"{name} has ended"
        return subprocess.run(self.process(name, words), capture_output=True).returncode == 0

    def kill(self, name: str) -> None:
        """Ends all processes of a container at once, as a kill for want of memory does."""
        end(self.running.pop(name))


def children(process: subprocess.Popen[bytes]) -> list[int]:
    path = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    return [int(number) for number in path.read_text().split()]


def end(process: subprocess.Popen[bytes]) -> None:
    """Kills a container, which may have just begun. The process that began it ends when the kernel
    has torn it down."""
    while process.poll() is None:
        for child in children(process):
            os.kill(child, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=0.1)


def wait(is_true: Any, what: str) -> None:
    limit = time.monotonic() + SECONDS
    while not is_true():
        assert time.monotonic() < limit, f"it takes longer than {SECONDS} s: {what}"
        time.sleep(0.05)
