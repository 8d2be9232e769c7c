"""Calls, circuits and back-off, with functions in place of the engine."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator

import kvmem
import pytest
from conftest import LIMIT, until
from kvmem._calls import CallQueue, HeldViews
from kvmem.mooncake import CircuitOpenError, DeadlineError, StoreError, UnreachableError, errors
from kvmem.mooncake.circuit import Circuit, SegmentBackoff, circuit_open


@pytest.fixture
def calls() -> Iterator[CallQueue]:
    calls = CallQueue("test", limit=2)
    yield calls
    assert calls.close(lambda: None).wait_ended(LIMIT)
    until(lambda: not workers())


def workers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "kvmem-test"]


def test_a_call_returns_and_raises_what_the_engine_does(calls: CallQueue) -> None:
    assert calls.submit(lambda: 7).wait(LIMIT) == 7
    with pytest.raises(ZeroDivisionError):
        calls.submit(lambda: 1 // 0).wait(LIMIT)
    assert calls.abandoned == 0 and len(workers()) == 1, "an idle worker makes the next call"


def test_an_abandoned_call_keeps_its_memory(calls: CallQueue) -> None:
    go, began = threading.Event(), threading.Event()

    with kvmem.Pool("64KiB", pages="4k") as pool:
        block = pool.allocate(4096)
        with HeldViews([block]) as held:

            def work() -> None:
                began.set()
                go.wait(LIMIT)

            call = calls.submit(work, held)
            assert began.wait(LIMIT)
            with pytest.raises(TimeoutError):
                call.wait(0.01)
        assert calls.abandoned == 1 and not call.wait_ended(0)
        with pytest.raises(kvmem.ExportedError):
            block.free()
        go.set()
        assert call.wait_ended(LIMIT)
        block.free()
        assert calls.abandoned == 0


def test_workers_are_bounded_and_queued_calls_are_removed(calls: CallQueue) -> None:
    go = threading.Event()
    made: list[int] = []

    def work(number: int) -> None:
        made.append(number)
        go.wait(LIMIT)

    begun = [calls.submit(functools.partial(work, number)) for number in range(5)]
    until(lambda: len(made) == 2)
    with bytes_held() as (data, held):
        waits = calls.submit(lambda: made.append(99), held)
        for call in [*begun, waits]:
            with pytest.raises(TimeoutError):
                call.wait(0.01)
        assert calls.abandoned == 2 and len(workers()) == 2
    data.append(1)  # nothing holds it any more: that call is never made
    go.set()
    until(lambda: calls.abandoned == 0)
    assert calls.submit(lambda: 1).wait(LIMIT) == 1
    assert sorted(made) == [0, 1]


class bytes_held:
    def __enter__(self) -> tuple[bytearray, HeldViews]:
        self.data = bytearray(10)
        self.held = HeldViews([self.data])
        return self.data, self.held

    def __exit__(self, *_: object) -> None:
        self.held.release()


def test_the_last_call_runs_after_all_others() -> None:
    calls = CallQueue("test")
    go, order = threading.Event(), list[str]()

    def late() -> None:
        go.wait(LIMIT)
        order.append("late")

    call = calls.submit(late)
    # A call that has not begun would be removed from the queue.
    call.wait_started(LIMIT)
    with pytest.raises(TimeoutError):
        call.wait(0.01)
    last = calls.close(lambda: order.append("last"))
    assert not last.wait_ended(0.02) and calls.close(lambda: order.append("another")) is last
    with pytest.raises(kvmem.ClosedError):
        calls.submit(lambda: None)
    go.set()
    assert last.wait_ended(LIMIT) and order == ["late", "last"]
    until(lambda: not workers())


# Circuits.


def test_a_circuit_opens_probes_and_closes() -> None:
    answers, heard = threading.Event(), []

    def probe() -> None:
        if not answers.is_set():
            raise errors.error(errors.TIMED_OUT, "probe")

    circuit = Circuit(probe, retry=0.005)
    circuit.listen(lambda: heard.append(circuit.is_open))
    circuit.fail(errors.error(errors.MASTER_GONE, "put"))
    assert circuit.is_open and heard == [True]
    until(lambda: circuit.probes > 3)
    assert circuit.is_open and heard == [True] and circuit.opened == 1
    answers.set()
    until(lambda: not circuit.is_open)
    until(lambda: heard == [True, False])
    # A failure of a segment proves nothing about the master.
    before = circuit.probes
    circuit.suspect()
    until(lambda: circuit.probes > before)
    assert not circuit.is_open
    # Unless the probe fails.
    answers.clear()
    circuit.suspect()
    until(lambda: circuit.is_open)
    circuit.stop()
    until(lambda: not [thread for thread in threading.enumerate() if thread.name == "kvmem-probe"])
    failing = circuit_open(circuit, "get", "k")
    assert isinstance(
        failing, CircuitOpenError
    ) and "cannot get 'k': the call was not made, because the master did not answer earlier" in str(
        failing
    )


def test_a_segment_is_skipped_for_longer_each_time() -> None:
    now = [100.0]
    segments = SegmentBackoff(1.0, lambda: now[0])
    assert segments.allow(["a"]) is None and len(segments) == 0
    pauses = []
    for _ in range(9):
        segments.fail(["a"])
        began = now[0]
        while segments.allow(["a"], trying=False) is not None:
            now[0] += 0.5
        pauses.append(now[0] - began)
        # One call tries the segment; the others do not wait for it.
        assert segments.allow(["a"]) is None
        failing = segments.allow(["a"])
        assert failing is not None and failing.startswith("a, which failed")
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert segments.allow(["b"]) is None and segments.allow(["a", "b"]) is None, (
        "another copy is elsewhere"
    )
    segments.succeed(["a", "b"])
    assert len(segments) == 0 and segments.allow(["a"]) is None
    for number in range(3000):
        segments.fail([str(number)])
    assert len(segments) == 1024


# Errors.


@pytest.mark.parametrize(
    "code", [-800, -801, -899, -900, -901, -902, -999, -1000, -1003, -1010, -1011, -1099, -500]
)
def test_all_codes_of_transports_are_transfers(code: int) -> None:
    error = errors.error(code, "get", "k")
    assert (
        isinstance(error, UnreachableError)
        and isinstance(error, ConnectionError)
        and error.code == code
    )
    assert errors.is_master(code) == (code <= -900) and errors.is_transfer(code) == (code > -900)
    assert "no reason that is known" not in str(error)


def test_other_codes_are_not() -> None:
    for code in (-1, -200, -704, -799, -1100, -12345, 0, 5):
        assert not errors.is_master(code) and not errors.is_transfer(code)
    assert type(errors.error(-1100, "get")) is StoreError
    late = DeadlineError("late", code=-901, key="k", seconds=1.0, call=None)
    assert (
        isinstance(late, TimeoutError)
        and isinstance(late, UnreachableError)
        and late.seconds == 1.0
    )
