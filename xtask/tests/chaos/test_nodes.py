"""Servers of a node and the commands of their operators, with options that make no sense, small
limits, sockets that are no servers, and sudden ends."""

from __future__ import annotations

import contextlib
import signal as signals
import socket
import subprocess
import time
from collections.abc import Callable
from typing import Any

import pytest
from attack import FAILS, OR_UNLOADED, Chaos, Running
from test_surroundings import CAN_MOUNT, TINY_SHM

from machine import ROOT, Cgroup, Unavailable

pytestmark = pytest.mark.slow
# The socket of all servers, in the working folder.
SOCKET = "node.sock"
# A small server whose memory ends with it.
SERVE = f"serve --size 8MiB --pages 4k --socket {SOCKET} --retain none".split()
# What operators do.
OPERATORS = [
    line.split()
    for line in (
        f"ls --socket {SOCKET}",
        f"ls --sessions --socket {SOCKET}",
        f"stat --socket {SOCKET}",
        f"stat --json - --socket {SOCKET}",
        f"evict 1MiB --socket {SOCKET}",
        f"drop --all --socket {SOCKET}",
    )
]
SENSELESS = ("", "0", "-1", "18446744073709551616", "\x1b[31mred")


def serve(
    chaos: Chaos, *words: Any, then: Callable[[], None] = lambda: None, **options: Any
) -> Running:
    """Runs a server. Once it serves, ``then`` is done, and SIGTERM ends it. A server that cannot
    serve must say so by itself."""
    running = chaos.start(*words, **options)
    if running.until(lambda: "serving " in running.stdout, 30):
        then()
        running.send(signals.SIGTERM)
    return running.wait()


def alone(chaos: Chaos, *words: Any, **options: Any) -> Running:
    """Runs a server that does nothing, and checks that it leaves no socket."""
    ran = serve(chaos, *words, **options)
    if (chaos.folder / SOCKET).exists():
        ran.complain("has left its socket")
        (chaos.folder / SOCKET).unlink()
    return ran


def test_options_that_make_no_sense(chaos: Chaos) -> None:
    named = "pages numa populate max-blocks align lease max-connections"
    named += " max-reserved allow-group namespace operator quota default-quota drain-seconds tier"
    named += " mooncake scrub metrics json"
    for value in (*SENSELESS, "x=", "/no/such/folder/x"):
        for option in named.split():
            # `--pages` is there twice then, which is an error, too.
            alone(chaos, *SERVE, f"--{option}={value}")
        for option in ("--size", "--socket", "--retain"):
            words = list(SERVE)
            words[words.index(option) + 1] = value
            # A name with an escape character is a name.
            is_name = option == "--socket" and value and "folder" not in value
            serve(chaos, *words, **({} if is_name else {"ends": FAILS}))
    for size in ("1PiB", "16TiB", "16EiB"):
        words = ["serve", "--size", size, "--socket", SOCKET, "--retain", "none"]
        alone(chaos, *words, ends=FAILS)


def test_small_limits(chaos: Chaos) -> None:
    limits = [f"ulimit -n {count}" for count in (3, 4, 5, 6, 8, 10, 12, 16, 24, 32)]
    limits += [f"ulimit -v {kib}" for kib in (400_000, 200_000, 120_000, 60_000)]
    for limit in [*limits, "ulimit -l 0", "ulimit -d 20000"]:
        alone(chaos, *SERVE, under=limit, ends=OR_UNLOADED)
    alone(chaos, *SERVE, under="ulimit -f 8", ends=FAILS, signal=25)
    with contextlib.suppress(Unavailable):
        for count in (1, 2, 3, 5):
            with Cgroup.pids(count) as group:
                alone(chaos, *SERVE, under=group.join())
        with Cgroup.memory(48 << 20) as group:
            big = ["serve", "--size", "256MiB", "--socket", SOCKET, "--retain", "none"]
            alone(chaos, *big, under=group.join(), says=["cgroup.memory.max"], ends=FAILS)
            if group.killed():
                chaos.complain("the kernel has killed a server for want of memory")


def test_a_user_without_any_right(chaos: Chaos) -> None:
    closed = chaos.folder / "closed-node"
    closed.mkdir(mode=0o555)
    words = ["serve", "--size", "8MiB", "--pages", "4k", "--socket", closed / "sock", "--retain"]
    for keep in ("none", "holder"):
        serve(chaos, *words, keep, nobody=True, ends=FAILS, says=["Permission denied"])
    alone(chaos, *SERVE, nobody=True)

    def guests() -> None:
        for operator in OPERATORS:
            chaos.run(*operator, nobody=True, ends=FAILS)

    serve(chaos, *SERVE, then=guests)


def test_paths_where_no_server_can_be(chaos: Chaos) -> None:
    (chaos.folder / "node-folder").mkdir()
    (chaos.folder / "node-loop").symlink_to("node-loop")
    letter = chaos.file("node-file", "a letter")
    with socket.socket(socket.AF_UNIX) as stream:
        stream.bind(str(chaos.folder / "node-stream"))
        stream.listen()
        others = ["node-folder", "node-file", "node-loop", "node-stream", "/dev/null", "", "a/b/c"]
        for path in [*others, "x" * 200]:
            for words in (SERVE, *OPERATORS):
                chosen = [path if word == SOCKET else word for word in words]
                chaos.run(*chosen, ends=FAILS)
    if letter.read_text() != "a letter":
        chaos.complain("kvmem serve has destroyed a file at the path of its socket")


def test_operators(chaos: Chaos) -> None:
    for operator in OPERATORS:
        chaos.run(*operator, ends=FAILS, says=["no server"])

    def operate() -> None:
        for operator in OPERATORS:
            chaos.run(*operator, ends=(0,))
            for redirect in (">&-", "2>&-", ">&- 2>&-", "<&-", ">/dev/full"):
                chaos.run(*operator, redirect=redirect)
            for limit in ("ulimit -n 3", "ulimit -n 4", "ulimit -n 6", "ulimit -v 60000"):
                chaos.run(*operator, under=limit, ends=OR_UNLOADED)
        for value in (*SENSELESS, "x"):
            for words in (
                ["evict", value],
                ["drop", "--namespace", value],
                ["ls", "--namespace", value],
                ["ls", f"--limit={value}"],
                ["stat", f"--watch={value}", "--count", "1"],
            ):
                chaos.run(*words, "--socket", SOCKET)
        chaos.run(*SERVE, ends=FAILS, says=["a server answers"])

    serve(chaos, *SERVE, then=operate)
    for redirect in (">/dev/full", ">&-", "2>&-", ">&- 2>&-"):
        # Without a first line nobody knows that it serves: what it cannot print ends it.
        running = chaos.start(*SERVE, redirect=redirect)
        running.until(lambda: False, 0.5)
        running.send(signals.SIGTERM)
        running.wait()


@CAN_MOUNT
def test_a_tiny_folder_of_shared_memory(chaos: Chaos) -> None:
    alone(chaos, *SERVE, by=TINY_SHM, ends=(0,))


def test_ended_at_random_moments(chaos: Chaos) -> None:
    words = ["serve", "--size", "64MiB", "--pages", "4k", "--socket", SOCKET]
    for _ in range(40):
        signal = chaos.signal()
        running = chaos.start(*words, signal=signal)
        time.sleep(chaos.random.random() * 0.15)
        if chaos.random.randrange(2):
            chaos.run(*chaos.random.choice(OPERATORS))
        running.send(signal)
        running.wait()
    # Whatever was left, the next servers use it.
    alone(chaos, *words, ends=(0,))
    chaos.run("holder", "--stop", "--socket", chaos.folder / f"{SOCKET}.holder")


@pytest.mark.parametrize(
    "measures",
    ["kvmem-node --lib server::tests::service_level", "kvmem-tier --test it loads_first"],
)
def test_service_level(measures: str) -> None:
    """How long a client of a server waits while processes of another user attack it, and a fetch
    from a disk tier while values are stored, in an optimized build. The tests have the limits, and
    print what they measure."""
    cargo = ["cargo", "test", "--locked", "--release", "--package", *measures.split()]
    subprocess.run([*cargo, "--", "--ignored", "--nocapture"], cwd=ROOT, check=True)
