"""``kvmem serve --mooncake``: servers of a node above a real cluster."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import kvmem
import pytest
from cluster import ENVIRONMENT, Cluster, cluster
from conftest import LIMIT, until
from engines import require
from leftovers import in_shm, none_is_new

__all__ = ["cluster"]

NBYTES = 50_000


def command() -> str:
    """Returns the command that was built with the package."""
    found = os.environ.get("KVMEM_COMMAND")
    if not found:
        pytest.skip("KVMEM_COMMAND does not name the built command")
    return found


def content(key: int) -> bytes:
    return random.Random(key).randbytes(NBYTES + key)


def numbers(key: int) -> bytes:
    """Returns 28,672 numbers in BF16, of four exponents."""
    source = random.Random(key)
    value = bytearray(56 << 10)
    value[::2] = source.randbytes(len(value) // 2)
    value[1::2] = bytes(source.choices(b"\x3e\x3f\xbe\xbf", k=len(value) // 2))
    return bytes(value)


class Node:
    """A server with 1 MiB of memory above a cluster."""

    def __init__(
        self,
        folder: Path,
        cluster: Cluster,
        *options: str,
        python: str = sys.executable,
        encoding: str = "",
    ) -> None:
        program = command()
        folder.mkdir()
        self.socket = folder / "node.sock"
        self.log = folder / "log"
        report = folder / "report.json"
        # Otherwise it would override the address that is announced to peers.
        environment = {
            name: value for name, value in ENVIRONMENT.items() if name != "MC_TCP_BIND_ADDRESS"
        }
        with open(self.log, "w", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                [
                    program,
                    *("serve", "--size", "1MiB", "--pages", "4k", "--retain", "none"),
                    *("--socket", str(self.socket), "--json", str(report)),
                    *("--metrics", "127.0.0.1:0", "--drain-seconds", "10"),
                    *("--mooncake", f"{cluster.address},deadline=5,staging=16MiB{encoding}"),
                    *("--mooncake-python", python),
                    *options,
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                env=environment,
            )

        def serves() -> bool:
            assert self.process.poll() is None, self.log.read_text()
            return report.exists() and report.read_text().endswith("}\n")

        until(serves)
        self.report = json.loads(report.read_text())

    def metrics(self) -> dict[str, float]:
        address = f"http://{self.report['metrics']}/metrics"
        with urllib.request.urlopen(address, timeout=LIMIT) as page:
            lines = page.read().decode().splitlines()
        values = [line.rpartition(" ") for line in lines if line and line[0] != "#"]
        return {name.partition("{")[0]: float(value) for name, _, value in values}

    def wait_ready(self) -> None:
        until(lambda: self.metrics().get("kvmem_cluster_state") == 1)

    def helper(self) -> int:
        """Returns the process of the helper."""
        children = Path(f"/proc/{self.process.pid}/task").glob("*/children")
        found = [int(pid) for file in children for pid in file.read_text().split()]
        assert len(found) == 1, found
        return found[0]

    def end(self) -> None:
        self.process.terminate()
        assert self.process.wait(LIMIT) == 0, self.log.read_text()

    def __enter__(self) -> Node:
        return self

    def __exit__(self, *_raised: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(LIMIT)


@pytest.fixture
def segment(cluster: Cluster) -> Iterator[None]:
    server = cluster.serve("64MiB")
    yield
    cluster.end(server)


def fill(node: Node, keys: range, value: Callable[[int], bytes] = content) -> None:
    """Inserts values, as fast as the cluster stores them."""
    before = node.metrics()["kvmem_cluster_stored_total"]
    with kvmem.connect(node.socket) as cache:
        for count, key in enumerate(keys):
            cache.insert(key, value(key))
            until(lambda: node.metrics()["kvmem_cluster_stored_total"] - before > count - 12)


def found(node: Node, keys: range, value: Callable[[int], bytes] = content) -> set[int]:
    """Returns the keys whose values are found, and checks their bytes."""
    there = set()
    with kvmem.connect(node.socket) as cache:
        for key in keys:
            pinned = cache.get(key)
            if pinned is not None:
                assert bytes(pinned) == value(key)
                pinned.release()
                there.add(key)
    return there


def test_a_second_server_finds_what_the_first_has_evicted(
    cluster: Cluster, segment: None, tmp_path: Path
) -> None:
    keys = range(60)
    with Node(tmp_path / "a", cluster) as first, Node(tmp_path / "b", cluster) as second:
        first.wait_ready()
        second.wait_ready()
        fill(first, keys)
        assert len(found(first, keys)) >= 45
        # At the end the cluster gets what it lacks.
        first.end()
        assert found(second, keys) == set(keys)
        figures = second.metrics()
        assert figures["kvmem_cluster_fetched_total"] >= 60
        assert figures["kvmem_cluster_corrupt_total"] == 0
        # A helper that is killed costs some look-ups, and another one is started.
        helper = second.helper()
        os.kill(helper, signal.SIGKILL)
        until(lambda: second.metrics()["kvmem_cluster_starts_total"] == 2)
        second.wait_ready()
        assert found(second, keys) == set(keys)
        # So does one that hangs.
        os.kill(second.helper(), signal.SIGSTOP)
        with kvmem.connect(second.socket) as cache:
            cache.insert("new", b"value")
            assert bytes(cache.get("new") or b"") == b"value"
            assert cache.get("absent") is None
        until(lambda: second.metrics()["kvmem_cluster_hangs_total"] == 1)
        second.wait_ready()
        assert found(second, keys) == set(keys)
        second.end()


def test_encoded_values_are_found_with_their_key_alone(
    cluster: Cluster, segment: None, tmp_path: Path
) -> None:
    files = [tmp_path / "keys", tmp_path / "others"]
    for digit, file in zip("12", files):
        file.write_text(digit * 64)
        file.chmod(0o400)
    own, other = (f",prefix=encoded/,codec=auto,key-file={file}" for file in files)
    keys = range(1000, 1040)
    with Node(tmp_path / "a", cluster, encoding=own) as first:
        first.wait_ready()
        fill(first, keys, numbers)
        figures = first.metrics()
        before = figures["kvmem_cluster_encoded_before_bytes_total"]
        assert before >= 20 * len(numbers(0))
        assert figures["kvmem_cluster_encoded_after_bytes_total"] < 0.72 * before
        first.end()
    # The memory of the server is gone. Another one with the key finds all.
    with Node(tmp_path / "b", cluster, encoding=own) as again:
        again.wait_ready()
        assert found(again, keys, numbers) == set(keys)
        again.end()
    # With another key, and without one.
    for name, encoding in (("c", other), ("d", ",prefix=encoded/")):
        with Node(tmp_path / name, cluster, encoding=encoding) as without:
            without.wait_ready()
            assert found(without, keys, numbers) == set()
            figures = without.metrics()
            assert figures["kvmem_cluster_key_misses_total"] == len(keys), figures
            assert figures["kvmem_cluster_corrupt_total"] == 0
            without.end()


def test_a_server_goes_on_without_its_master(
    cluster: Cluster, segment: None, tmp_path: Path
) -> None:
    keys = range(100, 130)
    disk = f"disk:{tmp_path / 'tier'},16MiB"
    with Node(tmp_path / "a", cluster, "--tier", disk) as node:
        node.wait_ready()
        fill(node, keys)
        os.kill(cluster.master.pid, signal.SIGSTOP)
        try:
            with kvmem.connect(node.socket) as cache:
                stored = cache.stats().tier_stored_total
                for key in range(200, 240):
                    cache.insert(key, content(key))
                    assert cache.get(key + 1000) is None
                    # What memory must evict before the disk has it is lost.
                    until(lambda: cache.stats().tier_stored_total + 12 > stored + key - 200)
            until(lambda: node.metrics()["kvmem_cluster_state"] == 3)
            # The disk has what memory has evicted.
            assert len(found(node, range(200, 240))) >= 30
            assert node.process.poll() is None
        finally:
            os.kill(cluster.master.pid, signal.SIGCONT)
        node.wait_ready()
        log = node.log.read_text()
        assert "the cluster does not answer: its master is not reachable" in log, log
        node.end()
    # Without the disk, and with other memory.
    with Node(tmp_path / "b", cluster) as node:
        node.wait_ready()
        assert len(found(node, keys)) >= 20
        node.end()


def test_a_killed_master_is_replaced_below_a_server(tmp_path: Path) -> None:
    require("mooncake")
    of_cluster = tmp_path / "cluster"
    of_cluster.mkdir()
    before = in_shm()
    with Cluster(of_cluster, client_ttl=2) as own:
        own.serve("64MiB")
        with Node(tmp_path / "a", own) as node:
            node.wait_ready()
            fill(node, range(20))
            own.kill(own.master)
            with kvmem.connect(node.socket) as cache:
                cache.insert("without", b"value")
                assert bytes(cache.get("without") or b"") == b"value"
                assert cache.get("absent") is None
            until(lambda: node.metrics()["kvmem_cluster_state"] == 3)
            # The new master knows no value. The server and its helper need no restart by hand.
            own.master = own.start_master()
            node.wait_ready()
            keys = range(100, 140)
            fill(node, keys)
            # Memory holds half of them.
            assert len(found(node, keys)) >= 30
            node.end()
    assert none_is_new(before)


def test_a_helper_that_cannot_start_is_told(cluster: Cluster, tmp_path: Path) -> None:
    with Node(tmp_path / "a", cluster, python="/no/such/python") as node:
        until(lambda: "/no/such/python cannot be started" in node.log.read_text())
        with kvmem.connect(node.socket) as cache:
            cache.insert("key", b"value")
            assert bytes(cache.get("key") or b"") == b"value"
        node.end()
