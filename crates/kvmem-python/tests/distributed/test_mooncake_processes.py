"""A master, two servers and clients: each kind is killed in the middle of a transfer, and data are
compared byte for byte.
"""

from __future__ import annotations

import contextlib
import gc
import random
import signal
import sys
import textwrap
import threading
import time
from collections.abc import Iterator

import kvmem
import pytest
from cluster import Cluster
from conftest import LIMIT, until
from engines import require
from kvmem.mooncake import ClusterFullError, ObjectMissingError, Store, UnreachableError
from leftovers import in_shm, none_is_new

MIB = 1 << 20
SIZES = [1, 4096, 70_001, MIB]
AWAY = (UnreachableError, ObjectMissingError, ClusterFullError)
"""What calls raise until the master knows the segments again."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster with two servers, whose master soon detects that a process is gone."""
    require("mooncake")
    before = in_shm()
    with Cluster(tmp_path_factory.mktemp("processes"), client_ttl=4) as cluster:
        cluster.servers = [cluster.serve(), cluster.serve()]
        yield cluster
    assert none_is_new(before)


@pytest.fixture(scope="module")
def stores(cluster: Cluster) -> Iterator[list[Store]]:
    """Two clients, with a deadline that a busy machine keeps as well."""
    with contextlib.ExitStack() as stack:
        pools = [stack.enter_context(kvmem.Pool("16MiB", pages="4k")) for _ in range(2)]
        yield [
            stack.enter_context(Store(pool, master=cluster.address, deadline=30)) for pool in pools
        ]
        # A call that missed its deadline keeps its block until it has ended.
        gc.collect()
        until(lambda: not any(pool.metrics().allocated for pool in pools))


def data(key: str, nbytes: int) -> bytes:
    return random.Random(key).randbytes(nbytes)


def put(store: Store, key: str, nbytes: int = 70_001) -> None:
    with store.pool.allocate(nbytes) as block:
        block.write(data(key, nbytes))
        store.put(key, block, replace=True)


def same(store: Store, key: str, nbytes: int = 70_001) -> bool:
    with store.get(key) as block:
        return bytes(block) == data(key, nbytes)


def works(store: Store, key: str) -> bool:
    """Puts an object and gets it back. Returns False if a peer does not answer."""
    with contextlib.suppress(*AWAY):
        put(store, key)
        assert same(store, key), key
        return True
    return False


@contextlib.contextmanager
def transfers(store: Store, name: str) -> Iterator[None]:
    """Puts and gets large objects during the block, until a peer is away: the master may place
    everything on a server that lives.
    """
    ended, began = threading.Event(), threading.Event()
    equal: list[bool] = []

    def spin() -> None:
        with contextlib.suppress(*AWAY):
            while not ended.is_set():
                put(store, f"{name}{len(equal) % 8}", MIB)
                equal.append(same(store, f"{name}{len(equal) % 8}", MIB))
                began.set()

    thread = threading.Thread(target=spin)
    thread.start()
    assert began.wait(LIMIT)
    yield
    ended.set()
    thread.join(LIMIT)
    assert not thread.is_alive() and all(equal)


def test_each_client_finds_the_objects_of_all(stores: list[Store]) -> None:
    one, other = stores
    for nbytes in SIZES:
        put(one, f"{nbytes}", nbytes)
        assert same(other, f"{nbytes}", nbytes)
    keys = [f"batch {n}" for n in range(8)]
    blocks = one.pool.allocate_batch(65_536, 8).split()
    for key, block in zip(keys, blocks, strict=True):
        block.write(data(key, 65_536))
    one.put_batch(keys, blocks)
    found = other.get_batch([*keys, "none"])
    assert [each and bytes(each) for each in found] == [*(bytes(each) for each in blocks), None]
    one.put_parts("parts", blocks[:3])
    parts = [other.pool.allocate(nbytes) for nbytes in (100_000, 96_608)]
    other.get_parts("parts", parts)
    assert b"".join(map(bytes, parts)) == b"".join(map(bytes, blocks[:3]))
    with pytest.raises(kvmem.InvalidArgumentError):
        other.get_parts("parts", parts[:1])
    one.pool.free_batch(blocks)
    other.pool.free_batch([*parts, *filter(None, found)])
    assert one.remove("1", force=True) and not one.remove("1", force=True)
    with pytest.raises(ObjectMissingError):
        other.get("1")


def test_a_killed_client_affects_no_other(cluster: Cluster, stores: list[Store]) -> None:
    program = f"""
        import kvmem
        from kvmem.mooncake import Store
        pool = kvmem.Pool("4MiB", pages="4k")
        store, block = Store(pool, master={cluster.address!r}, deadline=30), pool.allocate({MIB})
        while True:
            store.put("half written", block, replace=True)
            print(flush=True)
    """
    victim = cluster.start("victim", sys.executable, "-c", textwrap.dedent(program))
    assert victim.stdout is not None
    victim.stdout.readline()
    time.sleep(0.1)
    cluster.kill(victim)
    assert all(works(store, f"after a client {n}") for n, store in enumerate(stores))
    assert works(stores[0], "half written"), "its keys are usable"


def test_a_killed_server_is_missing_until_another_starts(
    cluster: Cluster, stores: list[Store]
) -> None:
    one, other = stores
    keys = [f"kept {n}" for n in range(16)]
    for key in keys:
        put(one, key)
    with transfers(one, "server"):
        cluster.kill(cluster.servers.pop())
    # Objects on it are lost, objects on the other server are not, and no wrong bytes are returned.
    found = 0
    for key in keys:
        with contextlib.suppress(*AWAY):
            assert same(other, key)
            found += 1
    assert found
    cluster.servers.append(cluster.serve())
    until(lambda: all(works(store, f"after a server {n}") for n, store in enumerate(stores)))
    for key in keys:
        until(lambda: works(one, key))
    assert all(same(other, key) for key in keys)


def test_clients_wait_for_a_killed_master(cluster: Cluster, stores: list[Store]) -> None:
    one, other = stores
    with transfers(other, "master"):
        cluster.kill(cluster.master)
    with pytest.raises(UnreachableError):
        put(one, "while it is gone")
    cluster.master = cluster.start_master()
    # Servers mount their segments again by themselves.
    until(lambda: all(works(store, f"after a master {n}") for n, store in enumerate(stores)))
    assert same(other, "after a master 0")


def test_a_server_unmounts_on_a_signal(cluster: Cluster, stores: list[Store]) -> None:
    # After the last one ends there is no space.
    for server in cluster.servers:
        server.send_signal(signal.SIGTERM)
        assert server.wait(LIMIT) == 0
        assert server.stdout is not None and "unmounted" in server.stdout.read()
    with pytest.raises(ClusterFullError):
        put(stores[0], "no room")
