"""A master and servers that hang (SIGSTOP) or die (SIGKILL): what that costs, what it may not cost,
and that all goes on afterwards.

Counts, not clocks, show that no call waits again. Only calls that cannot be answered have a short
deadline; all others may take as long as a busy machine needs. The clock of the back-off stands
still where a test counts attempts.
"""

from __future__ import annotations

import contextlib
import gc
import random
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kvmem
import pytest
from cluster import ENVIRONMENT, Cluster
from conftest import LIMIT, until
from engines import require
from kvmem.mooncake import (
    CircuitOpenError,
    ClusterTier,
    DeadlineError,
    ObjectMissingError,
    Store,
    UnreachableError,
    engine,
    serve,
)

MIB = 1 << 20
DEADLINE = 0.5
"""Deadline of calls whose peer hangs."""


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster with two servers, for tests that stop and continue its processes."""
    require("mooncake")
    with Cluster(tmp_path_factory.mktemp("hangs")) as cluster:
        cluster.servers = [cluster.serve("16MiB"), cluster.serve("16MiB")]
        yield cluster


@pytest.fixture
def pool() -> Iterator[kvmem.Pool]:
    with kvmem.Pool("4MiB", pages="4k") as pool:
        yield pool
        gc.collect()
        assert pool.metrics().allocated == 0
        pool.check()


@pytest.fixture
def _own_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stores of this process have set the limits of the engine for deadlines of their own."""
    for name in engine._LIMITS:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def store(own: Cluster, pool: kvmem.Pool) -> Iterator[Store]:
    with Store(pool, master=own.address, deadline=LIMIT) as store:
        store.circuit.retry = 0.1
        yield store
        until(lambda: store.stats().abandoned == 0)


@contextlib.contextmanager
def impatient(store: Store, doing: str | None = None) -> Iterator[None]:
    """Calls of the store that do this, or all, have a short deadline during the block."""
    engine, call = store._engine, store._engine.call

    def shortened(what: str, *arguments: Any, **named: Any) -> Any:
        engine.deadline = DEADLINE if doing in (None, what) else LIMIT
        return call(what, *arguments, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "deadline", DEADLINE if doing is None else LIMIT)
        patch.setattr(engine, "call", shortened)
        yield


@contextlib.contextmanager
def no_time_passes(store: Store) -> Iterator[None]:
    """A segment that fails during the block is skipped for the rest of it."""
    now = time.monotonic()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store._engine.segments, "_clock", lambda: now)
        yield


@contextlib.contextmanager
def stopped(process: subprocess.Popen[str]) -> Iterator[None]:
    """Stops a process during the block."""
    process.send_signal(signal.SIGSTOP)
    until(
        lambda: Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    )
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)


def data(seed: int, nbytes: int = 50_000) -> bytes:
    return random.Random(seed).randbytes(nbytes)


def fill(store: Store, prefix: str, count: int) -> dict[str, list[str]]:
    """Puts objects and returns the keys of each segment."""
    found: dict[str, list[str]] = {}
    with store.pool.allocate(50_000) as block:
        for number in range(count):
            key = f"{prefix}{number}"
            block.write(data(number))
            until(lambda: puts(store, key, block))
            found.setdefault(store._segments_of(key)[0], []).append(key)
    return found


def puts(store: Store, key: str, block: kvmem.Block) -> bool:
    """Puts an object and returns whether that succeeded. The master chooses a segment that just
    died until it detects that.
    """
    with contextlib.suppress(UnreachableError):
        store.put(key, block, replace=True)
        return True
    return False


def gets(store: Store, key: str) -> str:
    try:
        with store.get(key) as block:
            return "right" if bytes(block) == data(int(key.rpartition("-")[2])) else "wrong"
    except (UnreachableError, ObjectMissingError) as error:
        return type(error).__name__


@pytest.mark.usefixtures("_own_limits")
def test_a_hung_master_does_not_hang_a_cache(
    own: Cluster, pool: kvmem.Pool, tmp_path: Path
) -> None:
    """Neither a look-up nor an insertion waits for it again, and removals are made later."""
    with (
        ClusterTier(own.address, prefix="hung/", engine={"deadline": 1.0}) as tier,
        kvmem.DiskTier(tmp_path / "tier", bytes="16MiB") as disk,
        kvmem.KvCache(pool, lower_tier=kvmem.Chain(disk, tier)) as cache,
    ):
        assert tier.wait(LIMIT)
        for number in range(5):
            cache.insert(number, data(number))
        cache.evict_to(0)
        assert tier.flush(LIMIT) and tier.stats().stored == 5
        disk.remove(range(4))
        with stopped(own.master):
            found = cache.get_batch(range(5))
            assert [one and bytes(one) for one in found] == [None] * 4 + [data(4)]
            del found
            until(lambda: tier.stats().state != "working")
            began, skipped = time.monotonic(), tier.stats().skipped
            assert cache.get_batch(range(4)) == [None] * 4
            assert tier.stats().skipped - skipped == 4
            cache.remove(2)
            cache.insert("while it hangs", data(9))
            cache.evict_to(0)
            with cache.get("while it hangs") or pytest.fail() as kept:
                assert bytes(kept) == data(9), "the disk has it"
            assert time.monotonic() - began < 10
            report = str(tier.stats().last_report)
            assert "its master is not reachable" in report, report
        assert tier.wait(LIMIT) and tier.flush(LIMIT)
        disk.clear()
        cache.evict_to(0)
        disk.clear()
        found = cache.get_batch(range(4))
        assert [one and bytes(one) for one in found] == [data(0), data(1), None, data(3)]
        del found
        assert tier.stats().corrupt == 0 and tier.stats().hangs == 0


def test_a_hung_master_costs_a_store_one_deadline(
    own: Cluster, store: Store, pool: kvmem.Pool
) -> None:
    fill(store, "one-", 2)
    before = store.stats().timeouts
    with pool.allocate(100) as block, stopped(own.master), impatient(store):
        with pytest.raises(
            DeadlineError, match=rf"cannot look for 'one-0': the call took longer than {DEADLINE} s"
        ) as raised:
            store.size("one-0")
        assert raised.value.seconds == DEADLINE and raised.value.key == "one-0"
        for ask in (
            lambda: store.get("one-0"),
            lambda: store.exists("one-0"),
            lambda: store.exists_batch(["one-0", "b"]),
            lambda: store.put("new", block),
            lambda: store.put_batch(["new"], [block]),
            lambda: store.put_parts("new", [block]),
            lambda: store.get_parts("one-0", [block]),
            lambda: store.get_batch(["one-0"]),
            lambda: store.put_from("new", block.offset, 100),
            lambda: store.get_into("one-0", block.offset, 100),
            lambda: store.remove("one-0"),
            lambda: store.remove_batch(["one-0"]),
            lambda: store.remove_matching("one-.*"),
        ):
            with pytest.raises(CircuitOpenError, match="the master did not answer earlier"):
                ask()
        assert store.stats().timeouts - before == 1 and store.stats().circuit == "open"
    until(lambda: store.stats().circuit == "closed")
    assert gets(store, "one-0") == "right"


def test_a_with_shows_the_deadline_and_not_the_views_that_are_left(
    own: Cluster, store: Store, pool: kvmem.Pool
) -> None:
    with stopped(own.master), impatient(store):
        with pytest.raises(DeadlineError), pool.allocate(50_000) as block:
            store.put("in a with", block)
        del block
    until(lambda: store.stats().abandoned == 0)
    assert pool.metrics().allocated == 0


def fail_a_segment(own: Cluster, store: Store, how: str) -> list[str]:
    """Stops or kills the server of a segment, and checks that its objects are skipped. Returns
    their keys.
    """
    by_segment = fill(store, f"{how}-", 40)
    assert len(by_segment) == 2, by_segment
    ports = {segment: int(segment.rpartition(":")[2]) for segment in by_segment}
    victim = next(server for server in own.servers if listens(server.pid, min(ports.values())))
    [bad] = [segment for segment in ports if listens(victim.pid, ports[segment])]
    [good] = set(by_segment) - {bad}
    before = store.stats()
    with contextlib.ExitStack() as stack:
        if how == "killed":
            own.kill(victim)
        else:
            stack.enter_context(stopped(victim))
        with impatient(store, "get"), no_time_passes(store):
            found = [gets(store, key) for key in by_segment[bad]]
            # One look-up detects the failure, and no other waits for it.
            assert found[0] in ("DeadlineError", "UnreachableError")
            assert set(found[1:]) == {"CircuitOpenError"}, found
            stats = store.stats()
            assert stats.timeouts - before.timeouts == (found[0] == "DeadlineError")
            assert stats.skipped - before.skipped == len(found) - 1
            assert (stats.segments_down, stats.circuit) == (1, "closed")
        # The other segment is used as before.
        assert {gets(store, key) for key in by_segment[good]} == {"right"}
    return by_segment[bad]


def test_a_hung_segment_is_skipped(own: Cluster, store: Store) -> None:
    keys = fail_a_segment(own, store, "stopped")
    until(lambda: gets(store, keys[0]) in ("right", "ObjectMissingError"))
    until(lambda: store.stats().segments_down == 0 or gets(store, keys[0]) == "ObjectMissingError")


def listens(pid: int, port: int) -> bool:
    inodes = {
        str(each.readlink()) for each in Path(f"/proc/{pid}/fd").iterdir() if each.is_symlink()
    }
    for line in Path(f"/proc/{pid}/net/tcp").read_text(encoding="ascii").splitlines()[1:]:
        words = line.split()
        if (
            words[3] == "0A"
            and int(words[1].rpartition(":")[2], 16) == port
            and f"socket:[{words[9]}]" in inodes
        ):
            return True
    return False


def test_late_bytes_are_not_written_to_reused_memory(
    own: Cluster, store: Store, pool: kvmem.Pool
) -> None:
    """When a hanging segment wakes up, the bytes of a read arrive. Until then their memory is not
    reused."""
    by_segment = fill(store, "late-", 12)
    with contextlib.ExitStack() as stack:
        for server in own.servers:
            stack.enter_context(stopped(server))
        key = next(iter(by_segment.values()))[0]
        with impatient(store, "get"), pytest.raises(DeadlineError) as raised:
            store.get(key)
        call = raised.value.call
        assert call is not None
        others = []
        if not call.wait_ended(0):
            assert pool.metrics().allocated >= 50_000, "its place has been given back"
        # All other memory is allocated and written.
        with contextlib.suppress(kvmem.OutOfSpaceError):
            while True:
                others.append(pool.allocate(50_000))
                others[-1].write(b"\xaa" * 50_000)
    assert call.wait_ended(LIMIT)
    time.sleep(0.2)
    assert len(others) > 50 and all(bytes(block) == b"\xaa" * 50_000 for block in others)
    pool.free_batch(others)
    gc.collect()


def run(code: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(code), *arguments]
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )


@pytest.mark.parametrize(
    "ask",
    [
        "store.exists('k')",
        "store.put('k', block)",
        "Store(other, master=master, timeout=60, deadline=60)",
    ],
)
def test_ctrl_c_ends_a_call(own: Cluster, ask: str) -> None:
    """With a deadline of a minute and a hanging master. The program also exits cleanly."""
    process = run(
        f"""
        import signal, sys, kvmem
        from kvmem.mooncake import Store, engine
        # It may be ignored here, as in the background of a shell.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        engine._MAX_CALL_WAIT = 0.5
        master = sys.argv[1]
        pool, other = (kvmem.Pool("4MiB", pages="4k") for _ in range(2))
        store = Store(pool, master=master, deadline=60)
        block = pool.allocate(100)
        print("ready", flush=True)
        sys.stdin.readline()
        try:
            print("asks", flush=True)
            {ask}
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        """,
        own.address,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    assert process.stdin is not None
    with stopped(own.master):
        print(file=process.stdin, flush=True)
        assert process.stdout.readline() == "asks\n"
        time.sleep(0.3)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        line = process.stdout.readline()
        _, err = process.communicate(timeout=LIMIT)
    assert (line, process.returncode) == ("interrupted\n", 0), err


def test_connecting_does_not_wait_for_a_hung_master(own: Cluster, pool: kvmem.Pool) -> None:
    with kvmem.Pool("1MiB", pages="4k", shared=True) as lent, stopped(own.master):
        for connect in (
            lambda: Store(pool, master=own.address, timeout=DEADLINE, deadline=DEADLINE),
            lambda: serve(lent, own.address, timeout=DEADLINE, deadline=DEADLINE),
        ):
            with pytest.raises(UnreachableError):
                connect()
    gc.collect()


def readline(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def test_a_server_reports_that_its_master_hangs(own: Cluster) -> None:
    server = own.serve("4MiB", "--every", "0.2")
    with stopped(own.master):
        until(lambda: "does not answer" in readline(server))
    own.end(server)


def test_deadlines_are_checked(pool: kvmem.Pool) -> None:
    for deadline in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(kvmem.InvalidArgumentError, match="is no deadline"):
            Store(pool, deadline=deadline)


def test_a_killed_segment_is_skipped(own: Cluster, store: Store) -> None:
    # The last test: the master does not detect that the server is gone.
    fail_a_segment(own, store, "killed")
