#!/usr/bin/env python3
"""fio as a contender of `kvmem-lab bench tier`: what the drive gives to the usual generator of I/O.

The head of lab/src/bench/tier/mod.rs says how the two talk. Each pass is one run of fio over a file
as long as that of the tier: io_uring, direct I/O, fixed buffers, blocks as long as a value with its
padding, and as many in flight. Stores are writes one behind the other, fetches are reads at random
places. fio counts milliseconds, so a pass transfers at least 128 MiB and its time is divided. fio's
own figures count: its start and the layout of the file are no part of them, and its processor time
is that of its thread, without the kernel's workers."""

import json
import os
import subprocess
from typing import Any

from lines import serve

BLOCK = 4096
LEAST = 128 << 20
"""Bytes of a run."""


class Contender:
    """A file with room for values of one length."""

    def __init__(self, dir: str, bytes: int, value_bytes: int, depth: int) -> None:
        self.file = os.path.join(dir, "fio")
        self.depth = depth
        self.stride = -(-value_bytes // BLOCK) * BLOCK
        self.slots = max(bytes // self.stride, 1)
        descriptor = os.open(self.file, os.O_RDWR | os.O_CREAT, 0o600)
        os.posix_fallocate(descriptor, 0, self.slots * self.stride)
        os.close(descriptor)
        # The first write to a block takes longer: no pass has one.
        self.run("write", 0, self.slots, self.slots)

    def run(self, transfer: str, first: int, slots: int, count: int) -> dict[str, Any]:
        """Runs fio over `slots` values from `first` on; it transfers `count` values."""
        command = {
            "name": "pass",
            "filename": self.file,
            "rw": transfer,
            "bs": self.stride,
            "iodepth": self.depth,
            "ioengine": "io_uring",
            "fixedbufs": 1,
            "direct": 1,
            "offset": first * self.stride,
            "size": slots * self.stride,
            "io_size": count * self.stride,
            "randrepeat": 0,
            "norandommap": 1,
            "output-format": "json",
        }
        arguments = [f"--{name}={value}" for name, value in command.items()]
        done = subprocess.run(["fio", *arguments], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"fio ended with {done.returncode}: {done.stderr.strip()}")
        # Warnings stand before the report.
        (job,) = json.loads(done.stdout[done.stdout.index("{") :])["jobs"]
        if job["error"] != 0:
            raise RuntimeError(f"fio failed: {os.strerror(job['error'])}")
        return job

    def timed(
        self, transfer: str, first: int, slots: int, count: int, least: int = LEAST
    ) -> dict[str, float]:
        """Returns the time of `count` values, from a run that transfers more if they are few."""
        times = max(-(-least // (count * self.stride)), 1)
        job = self.run(transfer, first, slots, count * times)
        figures = job["write" if transfer == "write" else "read"]
        moved, wanted = figures["io_bytes"], count * times * self.stride
        if moved < wanted:
            raise RuntimeError(f"fio transferred {moved} of {wanted} bytes")
        # A run of less than a millisecond has no rate.
        seconds = count * self.stride / max(figures["bw_bytes"], 1)
        share = (job["usr_cpu"] + job["sys_cpu"]) / 100
        return {"seconds": seconds, "cpu_seconds": share * seconds}

    def store(self, first: int, count: int) -> dict[str, float]:
        place = first % self.slots
        # The first values fill the file of other contenders. That is not timed.
        least = LEAST if first > self.slots else 0
        return self.timed("write", place, self.slots - place, count, least)

    def fetch(self, numbers: list[int]) -> dict[str, float]:
        return self.timed("randread", 0, self.slots, len(numbers))


if __name__ == "__main__":
    serve(Contender)
