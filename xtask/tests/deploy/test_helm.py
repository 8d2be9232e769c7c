"""The chart: without changes it renders the manifests, and each value does what it says."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from manifests import DEPLOY, check_container, containers, read, templates, tool
from pod_security import BASELINE, violations

CHART = DEPLOY / "helm/kvmem"
# Without a cluster helm takes the one that it was built for.
KUBERNETES = "--kube-version=1.37"


@pytest.fixture
def helm() -> str:
    program = shutil.which("helm")
    if not program:
        pytest.skip("helm is missing: go install helm.sh/helm/v3/cmd/helm@v3.22.0")
    return program


def render(helm: str, folder: Path, **values: Any) -> list[dict[str, Any]]:
    """Returns the documents of a release `kvmem` in the namespace `default`, which are valid."""
    set_values = [f"--set-json={name}={json.dumps(value)}" for name, value in values.items()]
    ran = subprocess.run(
        [helm, "template", "kvmem", CHART, "--namespace=default", KUBERNETES, *set_values],
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    (folder / "rendered.yaml").write_text(ran.stdout)
    tool("kubernetes-validate", "--strict", folder / "rendered.yaml")
    return read(ran.stdout)


def test_the_linter_finds_nothing(helm: str) -> None:
    ran = subprocess.run([helm, "lint", "--strict", CHART], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def by_name(documents: list[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(each["kind"], each["metadata"]["name"]): each for each in documents}


def test_the_chart_renders_the_manifests(helm: str, tmp_path: Path) -> None:
    files = [DEPLOY / "kubernetes" / name for name in ("serve.yaml", "volume.yaml")]
    wanted = [each for file in files for each in read(file.read_text())]
    assert by_name(render(helm, tmp_path)) == by_name(wanted)


def test_values_do_what_they_say(helm: str, command: Path, tmp_path: Path) -> None:
    tier = {"enabled": True, "path": "/mnt/kv", "claim": "kv", "size": "2TiB"}
    documents = render(
        helm,
        tmp_path,
        size="6GiB",
        hugepages={"enabled": False},
        tier=tier,
        metrics={"enabled": False},
        options=["--policy=scan-resistant", "--quota=chat=2GiB"],
        volume={"claim": "folder"},
        nodeSelector={"pool": "gpu"},
        resources={"serve": {"cpu": "2", "memory": "2Gi"}},
        podSecurityContext={"supplementalGroups": [44]},
    )
    named = by_name(documents)
    assert ("NetworkPolicy", "kvmem-serve") not in named
    assert {name for kind, name in named if kind == "PersistentVolume"} == {"folder", "kv"}
    assert named["PersistentVolume", "kv"]["spec"]["hostPath"]["path"] == "/mnt/kv"
    assert named["PersistentVolumeClaim", "kv"]["spec"]["resources"]["requests"] == {
        "storage": "2Ti"
    }
    pod = templates(documents)["kvmem-serve"]
    assert pod["spec"]["securityContext"]["supplementalGroups"] == [44]
    assert pod["spec"]["nodeSelector"] == {"kvmem/serves": "yes", "pool": "gpu"}
    assert violations(pod, BASELINE) == []
    serve = pod["spec"]["containers"][0]
    assert serve["resources"]["limits"] == {"memory": f"{(6 + 2) << 10}Mi"}
    assert serve["resources"]["requests"]["cpu"] == "2" and "ports" not in serve
    assert serve["args"][-3:] == [
        "--tier=disk:/tier/kv,2TiB",
        "--policy=scan-resistant",
        "--quota=chat=2GiB",
    ]
    for one in containers(pod):
        check_container(pod["spec"], one, command)
    # Values of a tier are encrypted with keys that the server's user alone reads.
    tier = {"enabled": True, "codec": "auto", "keySecret": "kv-keys"}
    pod = templates(render(helm, tmp_path, tier=tier))["kvmem-serve"]
    serve = pod["spec"]["containers"][0]
    assert "--tier=disk:/tier/kv,1TiB,codec=auto,key-file=/keys/key-file" in serve["args"]
    assert {"name": "keys", "mountPath": "/keys", "readOnly": True} in serve["volumeMounts"]
    assert not any(mount["name"] == "secret" for mount in serve["volumeMounts"])
    install = next(it for it in pod["spec"]["initContainers"] if it["name"] == "keys")
    assert install["command"][-4:] == ["-m", "0400", "/secret/key-file", "/keys/key-file"]
    volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
    assert volumes["secret"]["secret"] == {"secretName": "kv-keys", "defaultMode": 0o400}
    assert volumes["keys"]["emptyDir"]["medium"] == "Memory"
    assert violations(pod, BASELINE) == []
    for one in containers(pod):
        check_container(pod["spec"], one, command)
    # Hugepages are for the largest size.
    pod = templates(render(helm, tmp_path, min="1GiB", max="8GiB"))["kvmem-serve"]
    serve = pod["spec"]["containers"][0]
    assert serve["args"][1:4] == ["--size=4GiB", "--min=1GiB", "--max=8GiB"]
    for one in containers(pod):
        check_container(pod["spec"], one, command)
    # Routers subscribe.
    documents = render(helm, tmp_path, kvEvents={"enabled": True, "namespace": "routers"})
    pod = templates(documents)["kvmem-serve"]
    serve = pod["spec"]["containers"][0]
    assert serve["args"][-2:] == ["--kv-events=tcp://*:5557", "--kv-events-anywhere"]
    rules = by_name(documents)["NetworkPolicy", "kvmem-serve"]["spec"]["ingress"]
    ports = [port["name"] for port in serve["ports"]]
    assert [rule["ports"][0]["port"] for rule in rules] == ports == ["metrics", "kv-events"]
    for one in containers(pod):
        check_container(pod["spec"], one, command)
    # No volume is made, and the node's processes are shared.
    documents = render(helm, tmp_path, volume={"create": False}, hostPID=True)
    assert not any(kind.startswith("PersistentVolume") for kind, _ in by_name(documents))
    assert violations(templates(documents)["kvmem-serve"], BASELINE) == ["host_namespaces"]


WRONG = ["size=4G", "size=0GiB", "nodeSelector={}", "tier.path=kv", "metrics.port=80", "sizes=1"]
WRONG += ["tier.codec=zip", "tier.key=00"]


@pytest.mark.parametrize("value", WRONG)
def test_values_that_are_wrong_are_errors(value: str, helm: str) -> None:
    name, _, text = value.partition("=")
    # Helm merges an empty table: the keys that it has are taken out by null.
    json_value = text if text == "80" else json.dumps(text)
    if text == "{}":
        json_value = '{"kvmem/serves": null}'
    ran = subprocess.run(
        [helm, "template", CHART, KUBERNETES, f"--set-json={name}={json_value}"],
        capture_output=True,
        text=True,
    )
    assert ran.returncode and "values" in ran.stderr, ran.stderr
