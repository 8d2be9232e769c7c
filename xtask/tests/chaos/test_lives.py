"""Several instances at once, signals at random moments, many processes in a small cgroup."""

from __future__ import annotations

import contextlib
import json
import re
import signal as signals
import socket
import time
import urllib.request
from pathlib import Path

import pytest
from attack import Chaos

from machine import Cgroup, Unavailable

pytestmark = pytest.mark.slow


def test_a_small_memory_cgroup(chaos: Chaos) -> None:
    limit = 512 << 20
    try:
        group = Cgroup.memory(limit)
    except Unavailable as why:
        pytest.skip(str(why))
    with group:
        says = [str(limit), "raise the memory limit"]
        for turn in range(10):
            size, pages = ("200MiB", "120MiB", "450MiB")[turn % 3], ("thp,4k", "4k")[turn % 2]
            mount = ["mount", "--size", size, "--pages", pages]
            # Six at once.
            runs = [chaos.start(*mount, under=group.join(), says=says) for _ in range(6)]
            if all(running.status for running in chaos.at_once(runs)):
                chaos.complain(f"none of six mounts of {size} was served in {limit} bytes")
        if group.killed():
            chaos.complain(f"the kernel has killed {group.killed()} mounts for want of memory")
    for limit in (24 << 20, 64 << 20):
        with Cgroup.memory(limit) as group:
            for words in (
                "doctor --size 1GiB",
                "mount --size 256MiB",
                "mount --size 256MiB --populate 1 --devices mlock",
                "tour --no-figures --seconds 1",
            ):
                chaos.run(*words.split(), under=group.join())
            if group.killed():
                chaos.complain(f"in {limit} bytes the kernel has killed {group.killed()} runs")


def test_two_instances_at_once(chaos: Chaos) -> None:
    for line in (
        "mount --size 64MiB --devices io_uring:2 --json mount.json",
        "doctor --json doctor.json",
        "tour --no-figures --seconds 1 --pool 16MiB",
        "bench arena --quick --table=bump --reps=1 --json bench.json",
        "bench register --quick --table=io_uring --reps=1 --json ring.json",
        "replay trace.jsonl --pool 64GiB --json replay.json",
    ):
        both = chaos.at_once([chaos.start(*line.split(), within=180) for _ in range(2)])
        for running in both:
            if running.status:
                running.complain(f"two at once: {running.stderr}")
        for path in (path for path in chaos.folder.iterdir() if path.suffix == ".json"):
            is_whole = False
            with contextlib.suppress(json.JSONDecodeError):
                is_whole = json.loads(path.read_text()) is not None
            if not is_whole:
                both[0].complain(f"two at once: {path.name} is not whole")
            path.unlink()


def test_many_silent_connections(chaos: Chaos) -> None:
    # Without the limit the server would use a thread for each connection.
    connections, most_threads = 300, 100
    serve = "serve --metrics 127.0.0.1:0 --size 8MiB --pages 4k --socket node.sock --retain none"
    running = chaos.start(*serve.split())
    address = re.compile(r"127\.0\.0\.1:(\d+)")
    running.until(lambda: bool(address.search(running.stderr + running.stdout)), 10)
    port = int(address.search(running.stderr + running.stdout)[1])
    with contextlib.ExitStack() as open_ones:
        for number in range(connections):
            with contextlib.suppress(OSError):
                one = socket.create_connection(("127.0.0.1", port))
                open_ones.enter_context(one)
                # Some of them begin to ask, and never end.
                if number % 3 == 0:
                    one.send(b"GET /metrics HT")
        time.sleep(0.5)
        threads = len(list(Path(f"/proc/{running.child.pid}/task").iterdir()))
        assert threads <= most_threads, f"{threads} threads for connections that say nothing"
    # A valid request is answered again.
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        assert answer.status == 200
    running.send(signals.SIGTERM)
    running.wait()


def test_interrupted_and_killed_at_random_moments(chaos: Chaos) -> None:
    work = [
        "mount --size 512MiB --populate 2 --devices io_uring:2",
        "bench arena --quick --table=map,populate",
        "bench register --quick --table=io_uring",
        "tour --seconds 2 --pool 64MiB",
        "replay trace.jsonl --backed --pool 256MiB --object-bytes 64KiB --json replay.json",
        "bench slab --quick --reps 1",
    ]
    for turn in range(30):
        words, signal = work[turn % len(work)].split(), chaos.signal()
        running = chaos.start(*words, signal=signal)
        running.until(lambda: False, chaos.random.random() * 2.5)
        running.send(signal)
        running.wait()
        for change in chaos.settings.restore():
            running.complain(f"after signal {signal}: {change}")
