"""A master, two servers, three clients: real processes. Data compared byte for byte, and each kind
killed in the middle of a transfer.
"""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator

import pytest
from cluster import Client, Cluster
from conftest import LIMIT, until
from engines import require
from leftovers import in_shm, none_is_new

MIB = 1 << 20
SIZES = [1, 4096, 70_001, MIB]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster whose master soon detects that a process is gone."""
    require("mooncake")
    before = in_shm()
    with Cluster(tmp_path_factory.mktemp("processes"), client_ttl=4) as cluster:
        yield cluster
    assert none_is_new(before)


@pytest.fixture(scope="module")
def servers(cluster: Cluster) -> list[subprocess.Popen[str]]:
    return [cluster.serve(), cluster.serve()]


@pytest.fixture(scope="module")
def clients(cluster: Cluster, servers: list[subprocess.Popen[str]]) -> list[Client]:
    return [cluster.client() for _ in range(3)]


def works(client: Client, key: str, nbytes: int = 70_001) -> bool:
    """Puts an object and gets it back."""
    return client.do("put", key, nbytes, True) is None and client.do("same", key, nbytes) is True


def test_each_client_finds_the_objects_of_all(clients: list[Client]) -> None:
    for number, client in enumerate(clients):
        for nbytes in SIZES:
            assert client.do("put", f"{number}-{nbytes}", nbytes) is None
        assert client.do("put_batch", [f"{number}-batch-{n}" for n in range(8)], 65_536) is None
        assert client.do("put_parts", f"{number}-parts", [1000, 65_536, 17]) is None
    for client in clients:
        for number in range(3):
            for nbytes in SIZES:
                assert client.do("same", f"{number}-{nbytes}", nbytes) is True
            keys = [f"{number}-batch-{n}" for n in range(9)]
            assert client.do("same_batch", keys, 65_536) == [True] * 8 + [None]
            assert client.do("same_parts", f"{number}-parts", [66_000, 553]) is True
            assert client.do("same_parts", f"{number}-parts", [66_000]) == "InvalidArgumentError"
    one, other, _ = clients
    assert one.do("exists", ["0-1", "none"]) == [True, False]
    assert one.do("remove", "0-1") is True and one.do("remove", "0-1") is False
    assert other.do("same", "0-1", 1) == "ObjectMissingError"


def test_a_killed_client_affects_no_other(cluster: Cluster, clients: list[Client]) -> None:
    victim = cluster.client()
    victim.send("spin", "victim", MIB)
    assert victim.receive() == "spinning"
    time.sleep(0.1)
    cluster.kill(victim.process)
    assert all(works(client, f"after-client-{n}") for n, client in enumerate(clients))
    # Another client can reuse a key that it left half written.
    successor = cluster.client()
    assert works(successor, "successor")


def test_a_killed_server_is_missing_until_another_starts(
    cluster: Cluster, servers: list[subprocess.Popen[str]], clients: list[Client]
) -> None:
    one, other, third = clients
    keys = [f"kept-{n}" for n in range(16)]
    for key in keys:
        assert one.do("put", key, 65_536) is None
    third.send("spin", "server", MIB)
    assert third.receive() == "spinning"
    time.sleep(0.1)
    cluster.kill(servers.pop())
    # The client detects it during a transfer, and survives.
    assert third.receive() >= 0
    # Objects on it are lost, objects on the other server are not, and no wrong bytes are returned.
    found = [other.do("same", key, 65_536) for key in keys]
    assert set(found) <= {
        True,
        "UnreachableError",
        "DeadlineError",
        "CircuitOpenError",
        "ObjectMissingError",
    }, found
    assert True in found
    servers.append(cluster.serve())
    until(lambda: all(works(client, f"after-server-{n}") for n, client in enumerate(clients)))
    for key in keys:
        until(lambda: one.do("put", key, 65_536, True) is None)
    assert [other.do("same", key, 65_536) for key in keys] == [True] * len(keys)


def test_clients_wait_for_a_killed_master(cluster: Cluster, clients: list[Client]) -> None:
    one, other, third = clients
    third.send("spin", "master", MIB)
    assert third.receive() == "spinning"
    time.sleep(0.1)
    cluster.kill(cluster.master)
    assert third.receive() >= 0
    assert one.do("put", "while it is gone", 4096) in (
        "UnreachableError",
        "DeadlineError",
        "CircuitOpenError",
    )
    cluster.master = cluster.start_master()
    # Servers mount their segments again by themselves.
    until(lambda: all(works(client, f"after-master-{n}") for n, client in enumerate(clients)))
    assert other.do("same", "after-master-0", 70_001) is True


def test_all_blocks_are_free_in_the_end(clients: list[Client]) -> None:
    # A call that missed its deadline keeps its block until it has ended.
    until(lambda: [client.do("used") for client in clients] == [0, 0, 0])


def test_a_server_unmounts_on_a_signal(
    cluster: Cluster, servers: list[subprocess.Popen[str]], clients: list[Client]
) -> None:
    # After the first one ends, no object of the other is lost; after the last one ends there is no
    # space.
    for server in servers:
        server.send_signal(signal.SIGTERM)
        assert server.wait(LIMIT) == 0
        assert server.stdout is not None and "unmounted" in server.stdout.read()
    assert clients[0].do("put", "no room", 4096) == "ClusterFullError"
    for client in clients:
        assert client.process.stdin is not None
        client.process.stdin.close()
        assert client.process.wait(LIMIT) == 0
