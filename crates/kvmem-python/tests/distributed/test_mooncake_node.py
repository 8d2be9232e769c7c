"""Memory of a node that is lent to a real cluster: the server of the node owns it, a process with
Mooncake's engine mounts it.
"""

from __future__ import annotations

import mmap
import random
import time
from collections.abc import Iterator
from pathlib import Path

import kvmem
import pytest
from cluster import Cluster, cluster
from conftest import LIMIT, until
from engines import require
from kvmem.mooncake import Store, serve
from kvmem.mooncake.command import main
from node_server import Server

__all__ = ["cluster"]

MIB = 1 << 20
LENT = 8 * MIB


def data(seed: int, nbytes: int = 100_000) -> bytes:
    return random.Random(seed).randbytes(nbytes)


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(16 * MIB) as server:
        yield server


@pytest.fixture
def cache(server: Server) -> Iterator[kvmem.NodeCache]:
    with kvmem.connect(server.path) as cache:
        yield cache


@pytest.fixture
def store(cluster: Cluster) -> Iterator[Store]:
    with (
        kvmem.Pool("4MiB", pages="4k") as pool,
        Store(pool, master=cluster.address, deadline=LIMIT) as store,
    ):
        yield store
        store.remove_matching(".*", force=True)


def put(store: Store, key: str, value: bytes) -> None:
    with store.pool.allocate(len(value)) as block:
        block.write(value)
        store.put(key, block)


def is_lent(cache: kvmem.NodeCache, nbytes: int = LENT) -> bool:
    return nbytes <= cache.stats().reserved_bytes <= nbytes + 4096


def test_a_node_lends_memory_and_keeps_its_values(
    cluster: Cluster, server: Server, cache: kvmem.NodeCache, store: Store
) -> None:
    cache.insert_batch([(n, data(n)) for n in range(10)])
    lender = cluster.serve("8MiB", node=server.path)
    assert is_lent(cache)
    for n in range(100, 110):
        put(store, f"object{n}", data(n))
    with mmap.mmap(cache.fileno(), cache.memory_len, prot=mmap.PROT_READ) as memory:
        assert all(memory.find(data(n)) >= 0 for n in range(100, 110))
        # Nothing is lent twice.
        at = {memory.find(data(n)) for n in (*range(10), *range(100, 110))}
        assert len(at) == 20
    # The node evicts its own values only.
    for n in range(200, 300):
        cache.insert(n, data(n))
    assert all(bytes(store.get(f"object{n}")) == data(n) for n in range(100, 110))
    # A server that starts again leaves the memory to the cluster.
    server.kill()
    assert is_lent(cache) and bytes(cache.get(299) or b"") == data(299)
    for n in range(300, 400):
        cache.insert(n, data(n))
    assert all(bytes(store.get(f"object{n}")) == data(n) for n in range(100, 110))
    cluster.end(lender)
    assert cache.stats().reserved_bytes == 0
    assert bytes(cache.get(399) or b"") == data(399)


def test_a_killed_lender_gives_the_memory_back(
    tmp_path: Path, server: Server, cache: kvmem.NodeCache
) -> None:
    require("mooncake")
    # The master of the other tests would choose the segment of the killed lender for a while.
    with Cluster(tmp_path) as own:
        lender = own.serve("8MiB", node=server.path)
        assert is_lent(cache)
        own.kill(lender)
        until(lambda: cache.stats().reserved_bytes == 0)
        # All of the memory is the node's again.
        cache.insert("large", bytes(15 * MIB))
        assert cache.remove("large")
        # Another lender starts with nothing to clean up.
        lender = own.serve("8MiB", node=server.path)
        assert is_lent(cache)
        own.end(lender)


def test_signs_of_life_keep_the_memory_lent(cluster: Cluster) -> None:
    with Server(16 * MIB, lease=8.0) as server, kvmem.connect(server.path) as cache:
        lender = cluster.serve("8MiB", node=server.path)
        time.sleep(10.0)  # longer than the lease
        assert is_lent(cache) and cache.stats().fenced_bytes == 0
        cluster.end(lender)


def test_what_a_node_cannot_lend_is_an_error(
    cluster: Cluster,
    server: Server,
    cache: kvmem.NodeCache,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for nbytes in (None, 0):
        with pytest.raises(kvmem.InvalidArgumentError, match="give the number of bytes to lend"):
            serve(cache, cluster.address, nbytes=nbytes)
    with pytest.raises(kvmem.OutOfSpaceError):
        serve(cache, cluster.address, nbytes="16MiB")
    with (
        kvmem.connect(server.path, read_only=True) as reader,
        pytest.raises(kvmem.InvalidArgumentError),
    ):
        serve(reader, cluster.address, nbytes="1MiB")
    given = ["--size", "1MiB", "--node", str(server.path), "--master", cluster.address]
    assert main([*given, "--numa", "bind:0"]) == 2
    assert "give --numa to its server" in capsys.readouterr().err
    assert cache.stats().reserved_bytes == 0
