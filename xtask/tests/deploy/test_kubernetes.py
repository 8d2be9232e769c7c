"""The manifests of Kubernetes: what their schema does not say, the Pod Security level of each pod,
and the pods themselves in namespaces of this machine."""

from __future__ import annotations

import copy
import json
import tomllib
from pathlib import Path
from typing import Any

import namespaces
import pytest
from manifests import DEPLOY, USER, check_container, containers, pods, read
from namespaces import Pod, wait
from pod_security import BASELINE, RESTRICTED, violations

from machine import ROOT

SOCKET = "--socket=/run/kvmem/node.sock"
# A client that stays connected.
STAYS = ("kvmem", "top", SOCKET)
# What restricted does not allow: the first container gives a folder to the server, as root.
NOT_RESTRICTED = {"kvmem-serve": ["root", "all_dropped"]}


@pytest.mark.parametrize("name", pods())
def test_containers_belong_to_their_pods(name: str, command: Path) -> None:
    version = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
    for container in containers(pods()[name]):
        assert container["image"].partition(":")[2] == version
        check_container(pods()[name]["spec"], container, command)


# Pod Security.


@pytest.mark.parametrize("name", pods())
def test_pods_pass_pod_security(name: str) -> None:
    assert violations(pods()[name], BASELINE) == []
    assert violations(pods()[name], RESTRICTED) == NOT_RESTRICTED.get(name, [])


# A change that violates each control: where in the pod, and what is put there.
SPEC, CONTEXT = ("spec",), ("spec", "containers", 0, "securityContext")
HANDLER = {"httpGet": {"port": 1, "host": "10.0.0.1"}}
NOTE = {"container.apparmor.security.beta.kubernetes.io/serve": "unconfined"}
BAD = [
    ("host_process", (*CONTEXT, "windowsOptions"), {"hostProcess": True}),
    ("host_namespaces", (*SPEC, "hostNetwork"), True),
    ("host_namespaces", (*SPEC, "hostPID"), True),
    ("host_namespaces", (*SPEC, "hostIPC"), True),
    ("privileged", (*CONTEXT, "privileged"), True),
    ("capabilities", (*CONTEXT, "capabilities"), {"drop": ["ALL"], "add": ["IPC_LOCK"]}),
    ("host_path", (*SPEC, "volumes", 0), {"name": "run", "hostPath": {"path": "/run/kvmem"}}),
    ("host_ports", (*SPEC, "containers", 0, "ports"), [{"containerPort": 1, "hostPort": 1}]),
    ("host_probes", (*SPEC, "containers", 0, "livenessProbe"), HANDLER),
    ("host_probes", (*SPEC, "containers", 0, "lifecycle"), {"preStop": HANDLER}),
    ("app_armor", (*CONTEXT, "appArmorProfile"), {"type": "Unconfined"}),
    ("app_armor", ("metadata", "annotations"), NOTE),
    ("se_linux", (*CONTEXT, "seLinuxOptions"), {"type": "spc_t"}),
    ("se_linux", (*SPEC, "securityContext", "seLinuxOptions"), {"user": "system_u"}),
    ("proc_mount", (*CONTEXT, "procMount"), "Unmasked"),
    ("seccomp", (*CONTEXT, "seccompProfile"), {"type": "Unconfined"}),
    ("sysctls", (*SPEC, "securityContext", "sysctls"), [{"name": "kernel.msgmax", "value": "1"}]),
    ("volume_types", (*SPEC, "volumes", 0), {"name": "run", "nfs": {"server": "a", "path": "/"}}),
    ("escalation", (*CONTEXT, "allowPrivilegeEscalation"), True),
    ("root", (*CONTEXT, "runAsUser"), 0),
    ("root", (*SPEC, "securityContext", "runAsNonRoot"), False),
    ("default_seccomp", (*SPEC, "securityContext", "seccompProfile"), None),
    ("all_dropped", (*CONTEXT, "capabilities"), {"drop": ["CHOWN"]}),
]


@pytest.mark.parametrize(("control", "path", "value"), BAD, ids=lambda each: str(each)[:40])
def test_each_control_finds_its_violation(control: str, path: tuple[Any, ...], value: Any) -> None:
    pod = copy.deepcopy(pods()["kvmem-one-pod"])
    assert violations(pod, RESTRICTED) == []
    part = pod
    for name in path[:-1]:
        part = part[name]
    part[path[-1]] = value
    assert control in violations(pod, RESTRICTED)
    is_baseline = control in [each.__name__ for each in BASELINE]
    assert bool(violations(pod, BASELINE)) == is_baseline


def test_every_control_has_a_violation() -> None:
    assert {control for control, *_ in BAD} == {each.__name__ for each in RESTRICTED}


def test_the_claim_is_that_of_the_volume() -> None:
    volume, claim = read((DEPLOY / "kubernetes/volume.yaml").read_text())
    assert volume["spec"]["claimRef"]["name"] == claim["metadata"]["name"]
    assert claim["spec"]["volumeName"] == volume["metadata"]["name"]
    assert volume["spec"]["capacity"] == claim["spec"]["resources"]["requests"]
    selector = pods()["kvmem-serve"]["spec"]["nodeSelector"]
    terms = volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
    assert [{each["key"]: each["values"]} for each in terms[0]["matchExpressions"]] == [
        {key: [value]} for key, value in selector.items()
    ]
    volumes = pods()["kvmem-serve"]["spec"]["volumes"]
    assert [each["persistentVolumeClaim"]["claimName"] for each in volumes] == ["kvmem-run"]


# Pods in namespaces of this machine.


@pytest.fixture
def programs(command: Path) -> dict[str, Path]:
    reason = namespaces.missing()
    if reason:
        pytest.skip(reason)
    engine = command.with_name("examples") / "two_engines"
    assert engine.is_file(), f"{engine} is missing: cargo build --examples -p kvmem-node"
    return {"kvmem": command, "engine": engine}


def engine_pod() -> dict[str, Any]:
    """Returns the pod of an engine, as the README shows its parts."""
    text = (DEPLOY / "README.md").read_text().partition("<!-- the pod of an engine -->")[2]
    shown = read(text.split("```")[1].removeprefix("yaml\n"))[0]
    template = copy.deepcopy(pods()["kvmem-one-pod"])
    spec, engine = template["spec"], template["spec"]["containers"][0]
    spec |= {"initContainers": [], "volumes": shown["spec"]["volumes"]}
    del spec["shareProcessNamespace"]
    spec["securityContext"] |= shown["spec"]["securityContext"]
    engine["volumeMounts"] = shown["spec"]["containers"][0]["volumeMounts"]
    return template


def compute(pod: Pod, seed: int) -> str:
    """Has an engine answer a prompt. Returns how many blocks it found."""
    said = pod.run("engine", "engine", "--engine", "/run/kvmem/node.sock", str(seed))
    return said.partition("found ")[2].partition(",")[0]


def sessions(pod: Pod) -> list[int]:
    """Returns the processes of the clients, as an operator in the container of the server sees
    them: 0 without a number in its PID namespace, as that of the operator is there."""
    listed = pod.run("serve", "kvmem", "ls", "--sessions", SOCKET, "--json")
    return [each["pid"] for each in json.loads(listed)["sessions"]]


def test_engines_in_other_pods_share_the_memory(programs: dict[str, Path], tmp_path: Path) -> None:
    assert violations(engine_pod(), RESTRICTED) == []
    folder = {"run": tmp_path / "run", "kvmem": tmp_path / "run"}
    folder["run"].mkdir()
    with Pod(pods()["kvmem-serve"], folder, programs) as server:
        made = folder["run"].stat()
        assert (made.st_uid, made.st_mode & 0o777) == (USER, 0o750)
        first, second = (Pod(engine_pod(), folder, programs) for _ in range(2))
        assert compute(first, 1) == "0 of 10 blocks"
        assert compute(second, 2) == "8 of 10 blocks"
        # The container of the server restarts: the memory holder is another one.
        server.kill("serve")
        server.start("serve")
        assert compute(second, 1) == "10 of 10 blocks"
        # The folder is read-only for engines: a socket that is there is enough.
        first.run("engine", "touch", "/run/kvmem/file", status=1)
        # Its process is in no PID namespace that the server sees, and its number is 0 there.
        first.start("engine", *STAYS)
        wait(lambda: sessions(server) == [0, 0], "both are connected")
        first.kill("engine")
        wait(lambda: sessions(server) == [0], "the session of an engine that was killed ends")
        # In a user namespace of its own, an engine is another user for the server, and the server
        # is a user without a number for the engine.
        other = engine_pod()
        other["spec"]["hostUsers"] = False
        for path in (folder["run"], folder["run"] / "node.sock"):
            path.chmod(0o777)
        stranger = Pod(other, folder, programs)
        stat_words = ["kvmem", "stat", SOCKET]
        said = stranger.run("engine", *stat_words, status=2)
        assert "user 65534 listens at" in said, said
        said = stranger.run("engine", *stat_words, "--server-users=65534", status=2)
        assert "may not connect" in said, said


@pytest.mark.parametrize("host_users", [True, False])
def test_an_engine_and_its_node_are_one_pod(
    host_users: bool, programs: dict[str, Path], tmp_path: Path
) -> None:
    template = copy.deepcopy(pods()["kvmem-one-pod"])
    template["spec"]["hostUsers"] = host_users
    (tmp_path / "run").mkdir()
    # As the kubelet makes an emptyDir.
    (tmp_path / "run").chmod(0o777)
    with Pod(template, {"run": tmp_path / "run"}, programs) as pod:
        pod.kill("engine")
        pod.start("engine", *STAYS)
        wait(lambda: len(sessions(pod)) == 1, "the engine has connected")
        # The pod has one PID namespace, so the operator leaves itself out.
        assert sessions(pod)[0] > 0
        assert compute(pod, 1) == "0 of 10 blocks"
        pod.kill("serve")
        pod.start("serve")
        assert compute(pod, 1) == "10 of 10 blocks"
