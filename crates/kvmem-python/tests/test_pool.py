"""Pools: batches, initialization, growing, registration, sharing."""

from __future__ import annotations

import errno
import gc
import io
import logging
import os
import pickle
import sys
import weakref
from collections.abc import Callable
from typing import Any

import kvmem
import numpy as np
import pytest
from conftest import MIB, needs_mlock, until


def test_alignment_and_scattering(pool: kvmem.Pool) -> None:
    for align in (1, 64, 4096, 1 << 16):
        assert pool.allocate(100, align=align).ptr % align == 0
    with pytest.raises(kvmem.InvalidArgumentError):
        pool.allocate(100, align=3)
    every = [pool.allocate(MIB) for _ in range(7)]
    pool.free_batch(every[::2])
    with pytest.raises(kvmem.OutOfSpaceError):
        pool.allocate(3 * MIB)
    parts = pool.allocate_scattered("3MiB", 4)
    assert 1 < len(parts) <= 4 and sum(part.nbytes for part in parts) == 3 * MIB


def test_batches(pool: kvmem.Pool) -> None:
    batch = pool.allocate_batch("1KiB", 1000)
    assert len(batch) == 1000 and batch.nbytes == 1024
    offsets, ptrs = np.asarray(batch.offsets), np.asarray(batch.ptrs)
    assert (ptrs - offsets == pool.ptr).all() and len(np.unique(offsets)) == 1000
    with pytest.raises(kvmem.OutOfSpaceError):
        pool.allocate_batch(MIB, 100)
    blocks = batch.split()
    assert batch.freed and [block.offset for block in blocks] == offsets.tolist()
    looked_at = memoryview(blocks[500])
    with pytest.raises(kvmem.ExportedError):
        pool.free_batch(blocks)
    assert not blocks[0].freed, "all or none"
    looked_at.release()
    pool.free_batch(blocks)
    assert pool.metrics().live == 0
    with pool.allocate_batch(1, 10):
        assert pool.metrics().live == 10
    assert pool.metrics().live == 0


def test_blocks_outlive_their_pool() -> None:
    pool = kvmem.Pool(MIB, pages="4k")
    block = pool.allocate(1000)
    array = np.from_dlpack(block)
    pool.close()
    pool.close()
    array[:] = 3
    with pytest.raises(kvmem.ClosedError, match="the pool has been closed"):
        pool.allocate(1)
    assert "closed" in repr(pool)
    del pool, block
    gc.collect()
    assert (array == 3).all()


def test_shrinking_and_extending(pool: kvmem.Pool) -> None:
    block = pool.allocate(10_000)
    block.shrink(4000)
    block.extend("8000")
    assert block.nbytes == 8000
    with pytest.raises(kvmem.InvalidArgumentError):
        block.shrink(0)
    with pytest.raises(kvmem.OutOfSpaceError) as caught:
        block.extend(100 * MIB)
    assert caught.value.requested == 100 * MIB


def test_the_properties_of_a_pool(pool: kvmem.Pool, caplog: pytest.LogCaptureFixture) -> None:
    block = pool.allocate(5000)
    assert pool.capacity == pool.nbytes == pool.ready_bytes == 8 * MIB
    metrics = pool.metrics()
    assert metrics.allocated == 5000 and metrics.live == 1 and 0 < metrics.utilization < 0.001
    report = pool.report()
    assert report["capacity_bytes"] == 8 * MIB and report["devices"] == pool.devices == []
    assert (
        "pool of 8 MiB" in str(report)
        and "capacity_bytes" in repr(report)
        and len(report) == len(list(report))
    )
    assert (block.offset, 5000, "used") in pool.map()
    assert {"classes", "reclaims"} <= pool.stats().keys()
    assert pool.boundary is None and pool.share_id is None and not pool.initializing
    pool.trim()
    with caplog.at_level(logging.INFO, "kvmem"):
        kvmem.Pool(MIB, pages="4k")
    assert [(record.name, record.levelname) for record in caplog.records] == [
        ("kvmem.pool", "INFO")
    ]
    assert "pool of 1 MiB" in caplog.text


@pytest.mark.parametrize("raised", [KeyboardInterrupt, ValueError])
def test_an_interrupt_while_the_log_is_written_reaches_the_caller(
    raised: type[BaseException],
) -> None:
    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise raised

    handler, logger, unraisable = Handler(), logging.getLogger("kvmem"), []
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        for make in (kvmem.Pool, kvmem.Region):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(sys, "unraisablehook", lambda each: unraisable.append(each.exc_type))
                if raised is KeyboardInterrupt:
                    with pytest.raises(KeyboardInterrupt):
                        make(MIB, pages="4k")
                else:
                    make(MIB, pages="4k").close()
        assert unraisable == ([] if raised is KeyboardInterrupt else [ValueError] * 2)
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def test_a_fallback_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "kvmem"):
        kvmem.Region(MIB, pages="1G,4k")
    assert any("instead of 1G" in record.getMessage() for record in caplog.records)


def test_background_and_progress() -> None:
    seen: list[tuple[int, int]] = []
    pool = kvmem.Pool(
        "32MiB",
        pages="4k",
        boundary="1MiB",
        in_background=True,
        progress=lambda *at: seen.append(at),
    )
    block = None
    while block is None:
        try:
            block = pool.allocate(1000)
        except kvmem.NotReadyError as error:
            assert error.ready is not None and error.capacity == 32 * MIB
            pool.wait_ready("1MiB", timeout=60)
    assert pool.wait_ready(timeout=60) == 32 * MIB == pool.ready_bytes
    assert seen == [(part * MIB, 32 * MIB) for part in range(1, 33)]
    pool.cancel()
    assert pool.wait_ready("1TiB", timeout=0.01) == 32 * MIB


def test_a_bar_of_tqdm_is_moved() -> None:
    tqdm = pytest.importorskip("tqdm", reason="tqdm is not installed: pip install tqdm")
    with io.StringIO() as out, tqdm.tqdm(unit="B", unit_scale=True, file=out) as bar:

        def show(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        kvmem.Pool("64MiB", pages="4k", progress=show)
        assert bar.n == bar.total == 64 * MIB


def released(gone: Callable[[], object]) -> None:
    """Waits until an object is released. The last call of a callback may just be returning."""
    until(lambda: gone() is None)


def test_a_callback_is_released_after_the_last_report() -> None:
    class Callback:
        pool: kvmem.Pool | None = None

        def __call__(self, done: int, total: int) -> None:
            pass

    for background in (False, True):
        callback = Callback()
        gone = weakref.ref(callback)
        callback.pool = kvmem.Pool(
            "4MiB", pages="4k", in_background=background, boundary="1MiB", progress=callback
        )
        assert callback.pool.wait_ready(timeout=60) == 4 * MIB
        del callback
        released(gone)


def test_a_background_pool_can_be_dropped_at_once() -> None:
    for _ in range(5):
        pool = kvmem.Pool(
            "64MiB",
            pages="4k",
            boundary="1MiB",
            in_background=True,
            progress=lambda done, total: None,
        )
        del pool  # waits for a thread that wants the GIL
    with kvmem.Pool(
        "64MiB", pages="4k", boundary="1MiB", in_background=True, progress=lambda done, total: None
    ):
        pass


def test_an_exception_of_the_callback_ends_the_work() -> None:
    class Enough(Exception):
        pass

    calls = 0

    def stop(done: int, total: int) -> None:
        nonlocal calls
        calls += 1
        raise Enough(done)

    with pytest.raises(Enough):
        kvmem.Pool("256MiB", pages="4k", populate=1, progress=stop)
    assert calls == 1
    with pytest.raises(Enough):
        kvmem.Region(MIB, pages="4k", populate="auto", progress=stop)
    with pytest.raises(TypeError):
        no_callable: Any = 5
        kvmem.Region(MIB, pages="4k", populate="auto", progress=no_callable)


def test_an_exception_of_the_callback_in_the_background_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reported: list[object] = []
    monkeypatch.setattr("sys.unraisablehook", lambda args: reported.append(args.exc_value))

    def stop(done: int, total: int) -> None:
        raise ZeroDivisionError("in a callback")

    with kvmem.Pool(
        "64MiB", pages="4k", boundary="1MiB", in_background=True, progress=stop
    ) as pool:
        assert pool.wait_ready(timeout=60) < 64 * MIB
        assert "cancelled" in str(pool.report())
    assert [str(error) for error in reported] == ["in a callback"]


def test_quarantined_bytes_are_not_used(pool: kvmem.Pool) -> None:
    pool.quarantine_block(pool.allocate(MIB), "an error of the device")
    (bad,) = pool.report()["quarantined"]
    assert bad["cause"] == "quarantined" and bad["why"] == "an error of the device"
    assert pool.metrics().capacity == 7 * MIB


def test_settings_are_checked() -> None:
    for bad in (
        {"size": 0},
        {"size": "1MiB", "pages": "5k"},
        {"size": "1MiB", "numa": "left"},
        {"size": "1MiB", "devices": "floppy"},
        {"size": "1MiB", "policy": "fast"},
        {"size": "1MiB", "boundary": 1},
        {"size": "1MiB", "hot_sizes": [0]},
        {"size": "1MiB", "init_on": "always"},
    ):
        with pytest.raises(ValueError) as caught:
            kvmem.Pool(**bad)  # type: ignore[arg-type, unused-ignore]
        assert isinstance(caught.value, kvmem.KvmemError)
    with pytest.raises(TypeError):
        kvmem.Pool("1MiB", "4k")  # type: ignore[call-arg, misc, unused-ignore]
    with pytest.raises(kvmem.NotAvailableError) as missing:
        kvmem.Pool("1MiB", devices="verbs:no_such_nic")
    assert missing.value.device == "verbs" and missing.value.remedy
    again = pickle.loads(pickle.dumps(missing.value))
    assert type(again) is kvmem.NotAvailableError and again.details == missing.value.details


@needs_mlock
def test_registered_pools_have_keys() -> None:
    seen: list[tuple[int, int]] = []
    with kvmem.Pool(MIB, pages="4k", devices="mlock", progress=lambda *at: seen.append(at)) as pool:
        assert pool.devices == ["mlock"] and seen[-1] == (2 * MIB, 2 * MIB) and seen == sorted(seen)
        block = pool.allocate(5000)
        key = block.key("mlock")
        assert isinstance(key, kvmem.Key) and block.keys() == {"mlock": key}
        with pytest.raises(kvmem.InvalidArgumentError, match="mlock"):
            block.key("mlx5_0")
    assert block.key("mlock") == key, "a block keeps the registration too"


@needs_mlock
def test_registrations() -> None:
    region = kvmem.Region(MIB, pages="4k")
    with kvmem.Registration(
        region, "mlock", chunk="256KiB", policy="sequential", time_budget=60
    ) as registration:
        assert registration.devices == ["mlock"] and registration.region is region
        assert registration.boundary == 256 << 10
        assert isinstance(registration.key_for("mlock", 0, 1000), kvmem.Key)
        with pytest.raises(kvmem.RegistrationError) as caught:
            registration.key_for("mlock", 0, 512 << 10)
        assert caught.value.boundary == 256 << 10
        assert registration.outcome["keys"] == 4 and "1 MiB registered" in str(registration.outcome)
        with pytest.raises(kvmem.InUseError):
            region.discard()
        region.close()  # the registration still has it
        assert registration.key_for("mlock", 0, 1000)
        assert registration.close() == 4 and registration.closed
    assert registration.close() == 0
    with pytest.raises(kvmem.ClosedError):
        registration.key_for("mlock")


@needs_mlock
def test_a_mount_is_reported() -> None:
    report = kvmem.mount_report("1MiB", pages="4k")
    assert report["usable_bytes"] == MIB and report["ranges"][0]["resident_bytes"] == MIB
    seen: list[tuple[int, int]] = []
    report = kvmem.mount_report(
        "1MiB", pages="4k", devices="mlock", progress=lambda *at: seen.append(at)
    )
    assert (
        report["receipt"]["ranges"][0]["resident_bytes"] == MIB and report["outcome"]["keys"] >= 1
    )
    assert report["deregistered"]["keys"] == report["outcome"]["keys"]
    assert report["seconds"]["total"] > 0 and "unregister" in str(report)
    assert seen[-1] == (2 * MIB, 2 * MIB)


def test_shared_pools_are_attached_by_descriptor() -> None:
    with kvmem.Pool(MIB, pages="4k", shared=True) as pool:
        block = pool.allocate(5)
        block.write(b"hello")
        reference = block.reference()
        assert (
            reference == (pool.share_id, block.offset, 5)
            and pickle.loads(pickle.dumps(reference)) == reference
        )
        fd = pool.fileno()
        assert fd == pool.fileno() and os.fstat(fd).st_size == pool.nbytes
        path = os.open(f"/proc/self/fd/{fd}", os.O_RDWR)
        read_only = pool.share()
        with (
            kvmem.AttachedPool(path, writable=True) as writer,
            kvmem.AttachedPool(read_only) as reader,
        ):
            os.close(path)
            os.close(read_only)
            assert writer.share_id == reader.share_id == pool.share_id and reader.nbytes == MIB
            there, here = writer.block(reference), reader.block(reference)
            assert pool.populate_aliases() == MIB  # the writer's
            assert (
                there.writable
                and not here.writable
                and here.offset == block.offset
                and here.nbytes == 5
            )
            there.write(b"J")
            assert bytes(here) == bytes(block) == b"Jello"
            assert memoryview(here).readonly and not np.from_dlpack(here).flags.writeable
            with pytest.raises(BufferError, match="read-only"):
                here.__dlpack__()
            with pytest.raises(kvmem.InvalidArgumentError, match="attached for reading"):
                here.write(b"x")
            with pytest.raises(kvmem.InvalidArgumentError):
                reader.block((reference.pool + 1, 0, 5))
            with pytest.raises(kvmem.InvalidArgumentError):
                reader.block((reference.pool, MIB, 5))
        assert bytes(here) == b"Jello", "it keeps the memory"
        with pytest.raises(kvmem.ClosedError):
            reader.block(reference)
        read_only = pool.share()
        with pytest.raises(kvmem.MappingError) as caught:
            kvmem.AttachedPool(read_only, writable=True)
        assert caught.value.errno == errno.EACCES
        os.close(read_only)
    private = kvmem.Pool(MIB, pages="4k")
    for failing in (private.fileno, private.share, private.allocate(1).reference):
        with pytest.raises(kvmem.InvalidArgumentError, match="private"):
            failing()


def test_new_blocks_hold_zeros_on_request() -> None:
    with kvmem.Pool(MIB, pages="4k", init_on="free") as pool:
        for _ in range(3):
            with pool.allocate(5000) as block:
                assert bytes(block) == bytes(5000)
                block.write(b"\x06" * 5000)


def test_a_hold_keeps_a_pool_and_a_batch_unchanged() -> None:
    pool = kvmem.Pool("8MiB", pages="4k", boundary="4MiB", shared=True)
    batch = pool.allocate_batch(4096, 10)
    with pool.hold() as hold, batch.hold():
        assert isinstance(hold, kvmem.Hold) and not hold.released and repr(hold) == "<kvmem.Hold>"
        for failing in (
            pool.close,
            pool.shrink,
            lambda: pool.shrink_to("4MiB"),
            batch.free,
            batch.split,
            lambda: pool.free_batch(batch),
        ):
            with pytest.raises(kvmem.ExportedError, match="1 hold") as raised:
                failing()
            assert raised.value.views == 1
        assert not pool.closed and pool.fileno() >= 0 and len(batch) == 10
        pool.allocate(100).free()
        more = pool.hold()
        with pytest.raises(kvmem.ExportedError, match="2 hold"):
            pool.close()
        del more
    assert hold.released and "released" in repr(hold)
    hold.release()
    batch.free()
    forgotten = pool.hold()
    del forgotten
    assert pool.shrink() > 0
    pool.close()
    for gone in (pool, batch):
        with pytest.raises(kvmem.ClosedError):
            gone.hold()
