"""A server that does not answer costs an engine's scheduler nothing, and two lines in its log."""

from __future__ import annotations

import errno
import logging
import threading
import time
from pathlib import Path
from typing import Any

import kvmem
import pytest
from conftest import until
from kvmem.vllm import _outage
from kvmem.vllm._calls import NodeCalls
from kvmem.vllm._outage import Outage


class Cache:
    """A connection whose calls raise an error, until there is none."""

    def __init__(self, path: Path, error: kvmem.KvmemError | None = None) -> None:
        self.path = path
        self.error = error
        self.calls: list[float] = []

    def lookup(self, names: list[bytes]) -> int:
        self.calls.append(time.monotonic())
        if self.error is not None:
            raise self.error
        return 0


GONE = kvmem.NodeDisconnectedError("no server answers")
FORBIDDEN = kvmem.NodePermissionError("the socket may not be reached", errno=errno.EACCES)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_outage, "FIRST_PAUSE", 0.05)
    monkeypatch.setattr(_outage, "LONGEST_PAUSE", 0.4)


@pytest.mark.parametrize("error", [GONE, FORBIDDEN], ids=["gone", "forbidden"])
def test_an_outage_has_one_warning_and_one_line_at_its_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, error: kvmem.KvmemError
) -> None:
    caplog.set_level(logging.INFO, "vllm.kvmem")
    cache: Any = Cache(tmp_path / "k.sock", error)
    calls = NodeCalls(cache, lambda: None)
    assert calls.is_usable()
    first = [calls.ask(lambda: cache.lookup([b"a"]), later=later) for later in (False, True)]
    assert all(it.wait(10) and it.answer is None for it in first)
    end = time.monotonic() + 2
    while time.monotonic() < end:
        # The scheduler does not ask, and a call that waits already is not made.
        assert not calls.is_usable()
        made: list[int] = []
        question = calls.ask(lambda: made.append(1))
        assert question.wait(10) and not made
        time.sleep(0.01)
    assert [it.levelname for it in caplog.records] == ["WARNING"], caplog.text
    cache.error = None
    until(calls.is_usable)
    assert [it.levelname for it in caplog.records] == ["WARNING", "INFO"], caplog.text
    message = caplog.records[-1].getMessage()
    assert "answers again, after 2." in message, message
    # A probe each 0.4 s, after the first ones.
    assert 5 <= len(cache.calls) <= 12, cache.calls
    calls.close()


def test_pauses_double_up_to_the_longest(tmp_path: Path) -> None:
    outage = Outage(str(tmp_path / "k.sock"), "chunks")
    outage.begin(GONE)
    pauses = []
    for _ in range(6):
        before = time.monotonic()
        outage.wait(time.sleep, lambda: False)
        pauses.append(time.monotonic() - before)
    for pause, expected in zip(pauses, (0.05, 0.1, 0.2, 0.4, 0.4, 0.4)):
        assert expected <= pause < expected + 0.5, pauses
    # The next outage follows closely.
    outage.end()
    outage.begin(GONE)
    before = time.monotonic()
    outage.wait(time.sleep, lambda: False)
    assert time.monotonic() - before >= 0.4


def test_a_new_socket_ends_the_pause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_outage, "FIRST_PAUSE", 60.0)
    socket = tmp_path / "k.sock"
    socket.touch()
    outage = Outage(str(socket), "chunks")
    outage.begin(GONE)

    def restart() -> None:
        # A server that ends removes its socket, and the next one makes another.
        socket.unlink()
        time.sleep(0.6)
        socket.touch()

    timer = threading.Timer(0.3, restart)
    before = time.monotonic()
    timer.start()
    outage.wait(time.sleep, lambda: False)
    assert 0.9 <= time.monotonic() - before < 30
    timer.join()


def test_an_engine_that_ends_waits_for_no_probe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_outage, "FIRST_PAUSE", 60.0)
    cache: Any = Cache(tmp_path / "k.sock", GONE)
    calls = NodeCalls(cache, lambda: None)
    assert calls.ask(lambda: cache.lookup([b"a"])).wait(10)
    assert not calls.is_usable()
    probe = next(it for it in threading.enumerate() if it.name == "kvmem-probe")
    calls.close()
    probe.join(timeout=10)
    assert not probe.is_alive() and len(cache.calls) == 1
