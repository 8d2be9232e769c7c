"""What the engine's ports answer on: filters on plain sockets, and then the real engine, tried on
every address of this machine.
"""

from __future__ import annotations

import contextlib
import ctypes
import ipaddress
import itertools
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Container, Iterator
from pathlib import Path

import kvmem
import pytest
from cluster import ENVIRONMENT, Cluster, cluster
from conftest import LIMIT, until
from engines import require
from kvmem.mooncake import ExposedError, Store, ports, serve

__all__ = ["cluster"]

LOCAL = "127.0.0.1"
PORTS = itertools.count(16_800)


def addresses() -> list[str]:
    """Returns addresses of this machine, some of the loopback interface among them."""
    found = {LOCAL, "127.0.0.2"}
    lines = Path("/proc/net/fib_trie").read_text(encoding="ascii").splitlines()
    found |= {
        before.split()[-1] for before, line in itertools.pairwise(lines) if "/32 host LOCAL" in line
    }
    six = Path("/proc/net/if_inet6")
    for line in six.read_text(encoding="ascii").splitlines() if six.exists() else []:
        number = bytes.fromhex(line.split()[0])
        if number[:2] != b"\xfe\x80":  # which need an interface to be named
            found.add(socket.inet_ntop(socket.AF_INET6, number))
    return sorted(found)


def connects(host: str, port: int, source: str = "", *, expected: bool = False) -> bool:
    """Returns whether a connection succeeds. On one machine that takes microseconds or never
    happens. An expected one may take as long as a busy machine needs.
    """
    seconds = LIMIT if expected else 0.1
    try:
        socket.create_connection((host, port), seconds, (source, 0) if source else None).close()
    except OSError:
        return False
    return True


def answering(port: int, expected: Container[str] = ()) -> set[str]:
    """Returns the addresses of this machine that a port answers on."""
    return {each for each in addresses() if connects(each, port, expected=each in expected)}


@contextlib.contextmanager
def listener(
    family: socket.AddressFamily = socket.AF_INET, host: str = ""
) -> Iterator[tuple[socket.socket, int]]:
    """Listens like the engine: on every address, on a port of its range."""
    with socket.socket(family) as opened:
        if family == socket.AF_INET6:
            opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        for port in PORTS:
            with contextlib.suppress(OSError):
                opened.bind((host, port))
                break
        opened.listen()
        yield opened, port


def filters() -> bool:
    """Returns whether this process may attach filters."""
    limited = ports.Ports(LOCAL)
    with listener():
        limited.limit()
        return all(limit.filtered for limit in limited._limited.values())


needs_filters = pytest.mark.skipif(not filters(), reason="filters on ports need CAP_NET_ADMIN here")


def six() -> bool:
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::1", 0))
        return True
    return False


@needs_filters
@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
@pytest.mark.parametrize("host", [LOCAL, "127.0.0.2", "::1"])
def test_a_limited_port_answers_on_one_address(family: socket.AddressFamily, host: str) -> None:
    if not six() and (family == socket.AF_INET6 or ":" in host):
        pytest.skip("no IPv6 here")
    limited = ports.Ports(host)
    with listener(family) as (opened, port):
        before = answering(port, addresses())
        for _ in before:
            opened.accept()[0].close()
        assert LOCAL in before and "127.0.0.2" in before
        limited.limit()
        limited.check()
        assert answering(port, {host}) == before & {host}


@needs_filters
@pytest.mark.parametrize(
    ("peers", "wanted"),
    [
        ("", {"127.0.0.1", "127.0.0.5", "127.1.2.3"}),
        ("127.0.0.5", {"127.0.0.5"}),
        ("127.0.0.0/24", {"127.0.0.1", "127.0.0.5"}),
        ("10.0.0.0/8, 127.1.0.0/16,fd00::/64", {"127.1.2.3"}),
        (["10.0.0.0/8"], set()),
        ("0.0.0.0/0", {"127.0.0.1", "127.0.0.5", "127.1.2.3"}),
        ("fd00::/64", set()),
    ],
)
def test_it_answers_to_named_peers(peers: str | list[str], wanted: set[str]) -> None:
    limited = ports.Ports(LOCAL, peers=peers)
    with listener() as (_, port):
        limited.limit()
        assert {
            source
            for source in ("127.0.0.1", "127.0.0.5", "127.1.2.3")
            if connects(LOCAL, port, source, expected=source in wanted)
        } == wanted


@needs_filters
def test_peers_by_ipv6() -> None:
    if not six():
        pytest.skip("no IPv6 here")
    for peers, wanted in (
        ("::1", True),
        ("::/0", True),
        ("::2", False),
        ("fd00::/8", False),
        ("::1/127", True),
        ("127.0.0.1", False),
    ):
        limited = ports.Ports("::1", peers=peers)
        with listener(socket.AF_INET6) as (_, port):
            limited.limit()
            assert connects("::1", port, expected=wanted) == wanted, peers


@needs_filters
def test_connections_from_before_the_filter_are_found() -> None:
    limited = ports.Ports(LOCAL)
    with listener() as (opened, port):
        stranger = socket.create_connection(("127.0.0.2", port), 1)
        for accepted in (False, True):
            kept = opened.accept()[0] if accepted else None
            with pytest.raises(
                ExposedError, match=r"from 127\.0\.0\.\d to 127\.0\.0\.2 port \d+ came before"
            ):
                limited.check()
            if kept is not None:
                kept.close()
        stranger.close()


def test_a_port_of_unknown_origin_is_reported_and_not_limited() -> None:
    limited = ports.Ports(LOCAL)
    with (
        socket.create_server(("", 0)),
        pytest.raises(ExposedError, match="not one of the engine's") as raised,
    ):
        limited.limit()
    assert raised.value.port is not None
    # A port that is bound to an address is not changed.
    limited = ports.Ports("127.0.0.2")
    with listener(host=LOCAL) as (_, port):
        limited.check()
        assert connects(LOCAL, port, expected=True)


def test_without_a_filter_the_loopback_interface_is_enough_for_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ports, "_ATTACH_FILTER", 9999)
    limited = ports.Ports(LOCAL)
    with listener() as (_, port):
        limited.check()
        assert str(limited) == f"ports {port} answer on the loopback interface only"
        expected = {LOCAL, "127.0.0.2"}
        assert answering(port, expected) == expected, "an address of another interface"
        monkeypatch.setattr(ports, "_interface", lambda fd: b"")
        with pytest.raises(ExposedError, match="not bound to the loopback interface"):
            limited.check()
    # The interface cannot distinguish peers.
    limited = ports.Ports(LOCAL, peers="127.0.0.1")
    with (
        listener() as (_, port),
        pytest.raises(ExposedError, match=f"port {port} .* cannot be limited .no filter"),
    ):
        limited.limit()


def test_without_a_filter_other_addresses_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "_ATTACH_FILTER", 9999)
    # As if the address belonged to a network card.
    monkeypatch.setattr(ports, "_LOOPBACK", b"no-such-device")
    for others, failing in ((["10.0.0.9"], True), ([], False)):
        monkeypatch.setattr(ports, "other_addresses", lambda hosts, others=others: others)
        limited = ports.Ports(LOCAL)
        with listener() as (_, port):
            if failing:
                with pytest.raises(
                    ExposedError, match=r"also has 10\.0\.0\.9\), .* CAP_NET_ADMIN, .* expose=True"
                ):
                    limited.limit()
            else:
                limited.check()
                assert (
                    f"ports {port} answer on every address of this machine, and others reach only "
                    f"{LOCAL}" == str(limited)
                )


def test_other_addresses_are_those_that_others_reach() -> None:
    mine = [ipaddress.ip_address(each) for each in addresses()]
    reached = {each for each in mine if not each.is_loopback}
    assert reached <= set(ports.other_addresses([])) and not any(
        each.is_loopback for each in ports.other_addresses([])
    )
    assert ports.other_addresses(ports.other_addresses([])) == []


@needs_filters
def test_a_missing_filter_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    limited = ports.Ports(LOCAL)
    with listener():
        limited.limit()
        monkeypatch.setattr(ports, "_filter_length", lambda fd: 0)
        with pytest.raises(ExposedError, match="no filter on it"):
            limited.check()


@pytest.mark.skipif(os.getuid() != 0, reason="this process has no privileges to give up")
def test_a_process_without_privileges_is_limited_as_well(script: Callable[..., str]) -> None:
    """Recent kernels reject its filter, older ones accept it."""
    out = script(
        f"""
        import ctypes, os, socket, sys
        sys.path[:0] = {[str(folder) for folder in Path(__file__).parents[:2]]!r}
        import test_mooncake_ports as here
        from kvmem.mooncake import ports
        limited = ports.Ports({LOCAL!r})
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)
        # PR_SET_DUMPABLE, without which /proc/self/fd is root's
        ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)
        with here.listener(socket.AF_INET) as (_, port):
            limited.check()
            print(limited)
            print(sorted(here.answering(port, {{{LOCAL!r}}})))
        """
    )
    assert "answer on 127.0.0.1 only" in out or "on the loopback interface only" in out
    assert out.splitlines()[-1] in ("['127.0.0.1']", "['127.0.0.1', '127.0.0.2']")


def test_hosts_and_peers_are_checked() -> None:
    for host in ("192.0.2.77", "0.0.0.0", "no-such-host.invalid"):
        with pytest.raises(kvmem.InvalidArgumentError, match="host="):
            ports.Ports(host)
    for peers in ("10.0.0.0/33", "everybody"):
        with pytest.raises(kvmem.InvalidArgumentError, match="peers="):
            ports.Ports(LOCAL, peers=peers)
    with pytest.raises(kvmem.InvalidArgumentError, match="name fewer peers"):
        ports.Ports(LOCAL, peers=[f"10.{n // 250}.{n % 250}.0/24" for n in range(3000)])
    assert [str(one) for one in ports.local_addresses("localhost:99")][:1] == [LOCAL]


# The engine itself.


def ports_of(pid: int) -> list[int]:
    """Returns the sockets that a process listens on, like ``ss -ltnp``."""
    inodes = {os.readlink(each) for each in Path(f"/proc/{pid}/fd").iterdir() if each.is_symlink()}
    found: set[int] = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text(encoding="ascii").splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and f"socket:[{words[9]}]" in inodes:
                found.add(int(words[1].rpartition(":")[2], 16))
    return sorted(found)


def reachable(pid: int, expected: Container[str]) -> dict[int, set[str]]:
    """Returns, for each port of a process, the addresses of this machine that it answers on."""
    found = {port: answering(port, expected) for port in ports_of(pid)}
    assert found, "it listens on nothing"
    return found


@needs_filters
@pytest.mark.parametrize("host", [LOCAL, "127.0.0.3"])
def test_a_server_answers_on_its_host_only(cluster: Cluster, host: str) -> None:
    server = cluster.serve("4MiB", "--host", host)
    try:
        assert all(found <= {host} for found in reachable(server.pid, {host}).values())
        found = ports_of(server.pid)
        assert all(connects(host, port, expected=True) for port in found)
        told = (cluster.folder / "server.log").read_text(encoding="utf-8")
        assert f"kvmem: ports {', '.join(map(str, found))} answer on {host} only" in told
    finally:
        cluster.end(server)


def test_a_server_on_the_loopback_interface_is_not_reached_by_other_addresses(
    cluster: Cluster,
) -> None:
    """With privileges and without."""
    server = cluster.serve("4MiB")
    try:
        for found in reachable(server.pid, {LOCAL}).values():
            assert LOCAL in found and all(ipaddress.ip_address(each).is_loopback for each in found)
    finally:
        cluster.end(server)


def test_a_master_that_is_started_as_the_page_says_listens_on_its_address(cluster: Cluster) -> None:
    assert all(found == {LOCAL} for found in reachable(cluster.master.pid, {LOCAL}).values())


def test_an_exposed_server_answers_on_every_address(cluster: Cluster) -> None:
    """Shows that the test of limited servers can fail."""
    server = cluster.serve("4MiB", "--expose")
    try:
        expected = {LOCAL, "127.0.0.2"}
        assert all(expected <= found for found in reachable(server.pid, expected).values())
        assert "--expose: every process that reaches" in (cluster.folder / "server.log").read_text(
            encoding="utf-8"
        )
    finally:
        cluster.end(server)


@needs_filters
def test_a_server_answers_to_its_peers_only(cluster: Cluster) -> None:
    server = cluster.serve("4MiB", "--peers", "127.0.0.5,10.0.0.0/8")
    try:
        for port in ports_of(server.pid):
            assert connects(LOCAL, port, "127.0.0.5", expected=True)
            assert not connects(LOCAL, port, "127.0.0.6")
    finally:
        cluster.end(server)


@needs_filters
def test_a_store_and_a_segment_are_limited_alike(cluster: Cluster) -> None:
    code = f"""
import kvmem, sys
from kvmem.mooncake import Store, serve
with kvmem.Pool("1MiB", pages="4k", shared=True) as pool, kvmem.Pool("1MiB", pages="4k") as other:
    master = "{cluster.address}"
    with serve(pool, master), Store(other, master=master, host="127.0.0.2"):
        print("ready", flush=True)
        sys.stdin.read()
"""
    environment = {
        name: value for name, value in ENVIRONMENT.items() if name != "MC_TCP_BIND_ADDRESS"
    }
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        assert len(ports_of(process.pid)) >= 4
        # Each port answers on one of both; a busy machine may miss an answer.
        both = {frozenset({LOCAL}), frozenset({"127.0.0.2"})}
        until(lambda: set(map(frozenset, reachable(process.pid, ()).values())) == both)
        process.communicate(timeout=LIMIT)
        assert process.returncode == 0


def stolen(host: str, port: int, address: int, nbytes: int) -> bytes:
    """Reads as a stranger, by the engine's own protocol: length, address, operation. No credentials
    are involved."""
    try:
        with socket.create_connection((host, port), 0.2) as stranger:
            stranger.settimeout(0.5)
            stranger.sendall(struct.pack("<QQB7x", nbytes, address, 0))
            return stranger.recv(nbytes)
    except OSError:
        return b""


@needs_filters
@pytest.mark.parametrize("expose", [True, False])
def test_a_stranger_reads_nothing(cluster: Cluster, expose: bool) -> None:
    secret = b"a value of somebody else's"
    before = set(ports.listening())
    with (
        kvmem.Pool("1MiB", pages="4k", shared=True) as lent,
        serve(lent, cluster.address, expose=expose),
        kvmem.Pool("1MiB", pages="4k") as pool,
        Store(pool, master=cluster.address, expose=expose) as store,
        pool.allocate(len(secret)) as block,
    ):
        block.write(secret)
        store.put("secret", block)
        at = (
            store._engine.client.get_replica_desc("secret")[0]
            .get_memory_descriptor()
            .buffer_descriptor.buffer_address
        )
        new = set(ports.listening()) - before
        # The port for bytes, by its address; the port for handshakes waits after bytes that it does
        # not understand.
        opened = [port for host, port in new if host == "::"] or [port for _, port in new]

        def got(host: str) -> bool:
            return any(
                secret == stolen(host, port, address, len(secret))
                for port in opened
                for address in (at, block.ptr)
            )

        # A client that reaches the port reads; otherwise this test would show nothing.
        until(lambda: got(LOCAL))
        if expose:
            until(lambda: got("127.0.0.2"))
        else:
            assert not got("127.0.0.2")
        private = ctypes.create_string_buffer(secret)
        assert not any(
            stolen(LOCAL, port, ctypes.addressof(private), len(secret)) for port in opened
        ), "it is not registered"
        store.remove("secret", force=True)


def test_memory_is_not_lent_without_limits(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    require("mooncake")
    monkeypatch.setattr(ports, "_ATTACH_FILTER", 9999)
    before = ports.listening()
    with kvmem.Pool("1MiB", pages="4k", shared=True) as pool:
        for failing in (
            lambda: serve(pool, cluster.address, peers="127.0.0.1"),
            lambda: Store(pool, master=cluster.address, peers="127.0.0.1"),
        ):
            with pytest.raises(ExposedError, match="cannot be limited"):
                failing()
        assert pool.metrics().allocated == 0 and ports.listening() == before, "a port is left open"
        with serve(pool, cluster.address, expose=True) as segment:
            assert segment.nbytes == 1 << 20
