"""Values that make no sense, limits that are small, rights that are missing."""

from __future__ import annotations

import ctypes
import subprocess

import pytest
from attack import DOCUMENTED, FAILS, OR_UNLOADED, Chaos

from machine import Cgroup, Unavailable

# Small work of each kind. The benchmarks have heaps of their own, which no limit may touch.
WORK = [
    line.split()
    for line in (
        "doctor --size 64MiB",
        "mount --size 16MiB --pages thp,4k",
        "mount --size 8MiB --pages 4k --populate 2 --devices io_uring:2",
        "mount --size 8MiB --pages 4k --devices mlock",
        "tour --no-figures --seconds 1 --pool 16MiB",
        "replay trace.jsonl --pool 64GiB",
    )
]
TINY_SHM = [
    "unshare",
    "-m",
    "sh",
    "-c",
    'mount -t tmpfs -o size=64k tmpfs /dev/shm && exec "$@"',
    "sh",
]
CAN_MOUNT = pytest.mark.skipif(
    subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode != 0,
    reason="this user may not mount",
)


def test_values_that_make_no_sense(chaos: Chaos) -> None:
    sizes = ["", "0", "-1", "1PiB", "16EiB", "99999999999999999999", "1 XB", "1e400", "nan"]
    for size in [*sizes, "\x1b[31mred", "½GiB", "9" * 100_000]:
        for name, option in (("mount", "--size"), ("doctor", "--size"), ("tour", "--pool")):
            # Of a size that is only too large, the doctor says so; a limit is a verdict, and not a
            # failure.
            ends = DOCUMENTED if (name, size) == ("doctor", "1PiB") else FAILS
            chaos.run(name, f"{option}={size}", ends=ends)
    for size in ("1PiB", "16TiB"):
        chaos.run("mount", "--size", size, ends=FAILS, says=["bytes", "request less"])
    replay = "pool threads requests page-tokens object-bytes model policy".split()
    mount = "pages numa populate devices policy chunk time-limit".split()
    for value in ("0", "-1", "18446744073709551616", "x", "", "\x1b]0;title\x07"):
        for option in replay:
            chaos.run("replay", chaos.trace, f"--{option}={value}")
        for option in mount:
            chaos.run("mount", "--size=1MiB", f"--{option}={value}")
        for option in ("nodes", "pages"):
            chaos.run("doctor", "--size=1MiB", f"--{option}={value}")
    # More threads than any machine has.
    for threads in ("1000000", "18446744073709551615"):
        chaos.run("replay", chaos.trace, "--threads", threads)


def test_little_memory_may_be_locked(chaos: Chaos) -> None:
    for kib in (0, 64):
        under = {"under": f"ulimit -l {kib}", "nobody": True}
        says = ["RLIMIT_MEMLOCK", str(kib << 10), "raise it to"]
        for device in ("io_uring:1", "mlock"):
            for size in ("64KiB", "1MiB"):
                mount = ["mount", "--size", size, "--pages", "4k", "--devices", device]
                ran = chaos.run(*mount, says=says, **under)
                if f"raise it to {kib} KiB" in ran.stderr:
                    ran.complain("says to raise the limit to what it is")
        for work in WORK:
            chaos.run(*work, **under)


def test_few_descriptors(chaos: Chaos) -> None:
    rings = "mount --size 1MiB --pages 4k --devices io_uring:64".split()
    for limit in (3, 5, 8, 12):
        for work in WORK:
            ends = OR_UNLOADED if limit == 3 else DOCUMENTED
            chaos.run(*work, under=f"ulimit -n {limit}", ends=ends)
        says = ["raise RLIMIT_NOFILE"]
        chaos.run(*rings, under=f"ulimit -n {limit + 4}", ends=FAILS, says=says)


def test_little_address_space_and_short_files(chaos: Chaos) -> None:
    mount = "mount --size 1GiB --pages 4k".split()
    for limit, name, size in (("-v 600000", "AS", 614400000), ("-d 200000", "DATA", 204800000)):
        says = [f"RLIMIT_{name} is {size} bytes", f"raise RLIMIT_{name}"]
        chaos.run(*mount, under=f"ulimit {limit}", ends=FAILS, says=says)
    for kib in (400_000, 200_000, 120_000):
        for work in WORK:
            chaos.run(*work, under=f"ulimit -v {kib}")
    # The kernel answers what is too long with SIGXFSZ, unless it is ignored.
    for work in WORK[1:]:
        chaos.run(*work, under="ulimit -f 8", signal=25)


@pytest.mark.slow
def test_few_threads(chaos: Chaos) -> None:
    more = [
        ["replay", chaos.trace, "--threads", "16", "--pool", "64GiB"],
        "bench slab --quick --table=fixed --contender=kvmem --reps=1".split(),
        "bench concurrency --quick --table=impossible --contender=null --reps=1".split(),
    ]
    for limit in (1, 2, 3, 5, 8):
        try:
            group = Cgroup.pids(limit)
        except Unavailable as why:
            pytest.skip(str(why))
        with group:
            for work in [*WORK, *more]:
                chaos.run(*work, under=group.join(), within=15)


def test_another_user_in_folders_of_others(chaos: Chaos) -> None:
    for work in WORK:
        chaos.run(*work, nobody=True)
    closed = chaos.folder / "closed"
    closed.mkdir(mode=0o555)
    report, denied = closed / "report.json", ["report.json", "Permission denied"]
    for words in (
        ["mount", "--size=1MiB", "--pages=4k", "--json", report],
        ["replay", chaos.trace, "--pool=64GiB", "--json", report],
    ):
        chaos.run(*words, nobody=True, ends=FAILS, says=denied)
    # The tour writes to the current folder, or to that for temporary files; here both are closed.
    under = f"cd {closed}; export TMPDIR={closed}"
    tour = chaos.run(*WORK[4], under=under, nobody=True)
    if tour.status == 0 and "missing     a disk tier" not in tour.stdout:
        tour.complain("does not say that there is no disk tier")
    chaos.file("secret.jsonl", "{}\n").chmod(0o600)
    says = ["secret.jsonl", "Permission denied"]
    chaos.run("replay", "secret.jsonl", nobody=True, ends=FAILS, says=says)


@CAN_MOUNT
def test_a_tiny_folder_of_shared_memory(chaos: Chaos) -> None:
    for work in [*WORK, ["doctor", "--shared", "--size", "1GiB"]]:
        chaos.run(*work, by=TINY_SHM)


class Filter(ctypes.Structure):
    _fields_ = [
        ("code", ctypes.c_uint16),
        ("jt", ctypes.c_uint8),
        ("jf", ctypes.c_uint8),
        ("k", ctypes.c_uint32),
    ]


class Program(ctypes.Structure):
    _fields_ = [("len", ctypes.c_uint16), ("filter", ctypes.POINTER(Filter))]


def test_a_profile_that_forbids_rings(chaos: Chaos) -> None:
    # From <linux/bpf_common.h> and <linux/seccomp.h>: load the number of the call; if it is that of
    # io_uring_setup, refuse with EPERM.
    steps = (Filter * 4)(
        (0x20, 0, 0, 0), (0x15, 0, 1, 425), (0x06, 0, 0, 0x50001), (0x06, 0, 0, 0x7FFF0000)
    )  # fmt: skip
    program, libc = Program(4, steps), ctypes.CDLL(None, use_errno=True)

    def forbid() -> None:
        # PR_SET_NO_NEW_PRIVS, and PR_SET_SECCOMP with SECCOMP_MODE_FILTER.
        if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, ctypes.byref(program), 0, 0):
            raise OSError(ctypes.get_errno(), "prctl")

    for work in WORK:
        chaos.run(*work, before_exec=forbid, says=["io_uring", "seccomp"])
