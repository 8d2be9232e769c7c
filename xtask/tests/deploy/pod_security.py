"""The Pod Security Standards of Kubernetes, levels *baseline* and *restricted*, as of version 1.37:
each control says what a pod has that it may not have. Controls for Windows alone are left out but
for HostProcess, which baseline names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

Pod = dict[str, Any]
LISTS = ("initContainers", "containers", "ephemeralContainers")
PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
ADDED = set(
    "AUDIT_WRITE CHOWN DAC_OVERRIDE FOWNER FSETID KILL MKNOD NET_BIND_SERVICE SETFCAP SETGID"
    " SETPCAP SETUID SYS_CHROOT".split()
)
SELINUX_TYPES = {"", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"}
SYSCTLS = set(
    "kernel.shm_rmid_forced net.ipv4.ip_local_port_range net.ipv4.ip_unprivileged_port_start"
    " net.ipv4.tcp_syncookies net.ipv4.ping_group_range net.ipv4.ip_local_reserved_ports"
    " net.ipv4.tcp_keepalive_time net.ipv4.tcp_fin_timeout net.ipv4.tcp_keepalive_intvl"
    " net.ipv4.tcp_keepalive_probes net.ipv4.tcp_rmem net.ipv4.tcp_wmem".split()
)
VOLUMES = set(
    "configMap csi downwardAPI emptyDir ephemeral image persistentVolumeClaim projected"
    " secret".split()
)
PROFILES = {None, "RuntimeDefault", "Localhost"}


def containers(pod: Pod) -> list[dict[str, Any]]:
    return [one for kind in LISTS for one in pod["spec"].get(kind) or []]


def contexts(pod: Pod) -> list[dict[str, Any]]:
    """Returns the security contexts of the pod and of each container."""
    owners = [pod["spec"], *containers(pod)]
    return [owner.get("securityContext") or {} for owner in owners]


def part(context: dict[str, Any], name: str) -> dict[str, Any]:
    return context.get(name) or {}


def host_process(pod: Pod) -> bool:
    return any(part(each, "windowsOptions").get("hostProcess") for each in contexts(pod))


def host_namespaces(pod: Pod) -> bool:
    return any(pod["spec"].get(name) for name in ("hostNetwork", "hostPID", "hostIPC"))


def privileged(pod: Pod) -> bool:
    return any(each.get("privileged") for each in contexts(pod))


def capabilities(pod: Pod) -> bool:
    added = [part(each, "capabilities").get("add") or [] for each in contexts(pod)]
    return not ADDED.issuperset(one for each in added for one in each)


def host_path(pod: Pod) -> bool:
    return any("hostPath" in each for each in pod["spec"].get("volumes") or [])


def host_ports(pod: Pod) -> bool:
    ports = [port for one in containers(pod) for port in one.get("ports") or []]
    return any(port.get("hostPort") for port in ports)


def host_probes(pod: Pod) -> bool:
    handlers = [one.get(probe) or {} for one in containers(pod) for probe in PROBES]
    hooks = [one.get("lifecycle") or {} for one in containers(pod)]
    handlers += [each.get(hook) or {} for each in hooks for hook in ("postStart", "preStop")]
    calls = [part(each, kind) for each in handlers for kind in ("httpGet", "tcpSocket")]
    return any(call.get("host") for call in calls)


def app_armor(pod: Pod) -> bool:
    notes = pod.get("metadata", {}).get("annotations") or {}
    prefix = "container.apparmor.security.beta.kubernetes.io/"
    named = [value for key, value in notes.items() if key.startswith(prefix)]
    if any(value != "runtime/default" and not value.startswith("localhost/") for value in named):
        return True
    return any(part(each, "appArmorProfile").get("type") not in PROFILES for each in contexts(pod))


def se_linux(pod: Pod) -> bool:
    options = [part(each, "seLinuxOptions") for each in contexts(pod)]
    is_type = [each.get("type", "") in SELINUX_TYPES for each in options]
    return not all(is_type) or any(each.get("user") or each.get("role") for each in options)


def proc_mount(pod: Pod) -> bool:
    return any(each.get("procMount") not in (None, "Default") for each in contexts(pod))


def seccomp(pod: Pod) -> bool:
    return any(part(each, "seccompProfile").get("type") not in PROFILES for each in contexts(pod))


def sysctls(pod: Pod) -> bool:
    named = [each["name"] for each in contexts(pod)[0].get("sysctls") or []]
    return not SYSCTLS.issuperset(named)


BASELINE: tuple[Callable[[Pod], bool], ...] = (
    host_process,
    host_namespaces,
    privileged,
    capabilities,
    host_path,
    host_ports,
    host_probes,
    app_armor,
    se_linux,
    proc_mount,
    seccomp,
    sysctls,
)


def effective(pod: Pod, name: str) -> Iterator[Any]:
    """Yields a setting of each container: its own, or the pod's."""
    whole, *each = contexts(pod)
    yield from (one.get(name, whole.get(name)) for one in each)


def volume_types(pod: Pod) -> bool:
    volumes = pod["spec"].get("volumes") or []
    return any(set(each) - {"name"} - VOLUMES for each in volumes)


def escalation(pod: Pod) -> bool:
    return any(each.get("allowPrivilegeEscalation") is not False for each in contexts(pod)[1:])


def root(pod: Pod) -> bool:
    not_root = all(value is True for value in effective(pod, "runAsNonRoot"))
    return not not_root or 0 in [each.get("runAsUser") for each in contexts(pod)]


def default_seccomp(pod: Pod) -> bool:
    profiles = effective(pod, "seccompProfile")
    return any((each or {}).get("type") not in ("RuntimeDefault", "Localhost") for each in profiles)


def all_dropped(pod: Pod) -> bool:
    sets = [part(each, "capabilities") for each in contexts(pod)[1:]]
    added = {one for each in sets for one in each.get("add") or []}
    return any("ALL" not in (each.get("drop") or []) for each in sets) or not added <= {
        "NET_BIND_SERVICE"
    }


RESTRICTED: tuple[Callable[[Pod], bool], ...] = (
    *BASELINE,
    volume_types,
    escalation,
    root,
    default_seccomp,
    all_dropped,
)


def violations(pod: Pod, level: tuple[Callable[[Pod], bool], ...]) -> list[str]:
    """Returns the controls of a level that a pod, or the template of one, violates."""
    return [control.__name__ for control in level if control(pod)]
