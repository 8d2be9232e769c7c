"""One run of the command in hostile surroundings, and the checks after it.

A shell makes the surroundings: ``ulimit``, redirections, a cgroup. It then executes the command,
which so is the child itself, the leader of its own process group. After each run these hold,
whatever the attack was:

- it ended in time, with a status that is documented: 0, 1 or 2, or by the signal that it was sent;
- it printed no panic, and no escape character where there is no terminal;
- an error is a line that begins with ``kvmem: `` or ``error: ``, and contains what the attack
  expects;
- it left no process, no temporary file, nothing in ``/dev/shm``, and the settings of hugepages as
  they were.
"""

from __future__ import annotations

import os
import re
import shutil
import signal as signals
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from random import Random
from typing import Any

from machine import ROOT, Settings, processes_of_group

TRACE = ROOT / "crates/kvmem-cli/tests/data/small_trace.jsonl"
# The documented statuses: success, failure, impossible request; and those of a run that must fail.
DOCUMENTED = (0, 1, 2)
FAILS = (1, 2)
# What loads the command itself takes descriptors and addresses.
OR_UNLOADED = (*DOCUMENTED, 127)
# Commands that the laboratory has, and `kvmem` has not.
OF_LAB = {"bench", "replay"}
NOBODY = "setpriv --reuid 65534 --regid 65534 --clear-groups".split()
# Characters that control a terminal, or the direction of text.
STEERS = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
SAYS = re.compile("^(kvmem|kvmem-lab|error): ", re.MULTILINE)


class Running:
    """A running attack."""

    def __init__(self, chaos: Chaos, arguments: Sequence[Any], options: dict[str, Any]) -> None:
        self.chaos, self.options = chaos, options
        words = [os.fsencode(each) for each in arguments]
        lab = options.get("lab") or os.fsdecode(words[0] if words else b"") in OF_LAB
        program = chaos.top / ("kvmem-lab" if lab else "kvmem")
        under, redirect = options.get("under", ""), options.get("redirect", "")
        by = [*options.get("by", ()), *(NOBODY if options.get("nobody") else ())]
        script = f'{under + " || exit 97; " if under else ""}exec "$@" {redirect}'
        shown = " ".join(ascii(os.fsdecode(word)[:60])[1:-1] for word in words)
        self.told = f"`{under}; {' '.join(by)} {program.name} {shown} {redirect}`"
        chaos.runs += 1
        self.out, self.err = chaos.top / f"{chaos.runs}.out", chaos.top / f"{chaos.runs}.err"
        # A backtrace is slow, and a panic shows without it.
        variables = {**os.environ, "TMPDIR": str(chaos.temporary), "RUST_BACKTRACE": "0"}
        variables.pop("KVMEM_LOG", None)
        with open(self.out, "wb") as out, open(self.err, "wb") as err:
            self.child = subprocess.Popen(
                ["sh", "-c", script, "sh", *by, program, *words],
                cwd=chaos.folder, env=variables, process_group=0, stdin=subprocess.DEVNULL,
                stdout=out, stderr=err, preexec_fn=options.get("before_exec"),
            )  # fmt: skip
        self.start = time.monotonic()

    @property
    def stdout(self) -> str:
        return self.out.read_bytes().decode(errors="replace")

    @property
    def stderr(self) -> str:
        return self.err.read_bytes().decode(errors="replace")

    @property
    def status(self) -> int:
        return self.child.returncode

    def send(self, signal: int) -> None:
        self.child.send_signal(signal)

    def until(self, happens: Callable[[], bool], seconds: float) -> bool:
        """Waits until something happens, the run ends, or so much time has passed."""
        limit = time.monotonic() + seconds
        while not (found := happens()) and self.child.poll() is None and time.monotonic() < limit:
            time.sleep(0.002)
        return found

    def wait(self) -> Running:
        """Waits for the end and checks what must hold after every run."""
        within = self.options.get("within", 60)
        try:
            self.child.wait(max(0.0, self.start + within - time.monotonic()))
            for complaint in self.judge():
                self.complain(complaint)
        except subprocess.TimeoutExpired:
            self.complain(f"did not end within {within} s")
            os.killpg(self.child.pid, signals.SIGKILL)
            self.child.wait()
        limit = time.monotonic() + 1
        while (left := processes_of_group(self.child.pid)) and time.monotonic() < limit:
            time.sleep(0.01)
        if left:
            self.complain(f"left processes: {left}")
            os.killpg(self.child.pid, signals.SIGKILL)
        for path in self.chaos.temporary.iterdir():
            # A killed process cannot clean up.
            if self.status != -signals.SIGKILL:
                self.complain(f"left the file {path}")
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        return self

    def complain(self, complaint: str) -> None:
        self.chaos.complain(f"{self.told}: {complaint}")

    def judge(self) -> Iterable[str]:
        """Yields the faults of the end."""
        out, error, status = self.stdout, self.stderr, self.status
        short = ascii(error[:300])
        if "panicked at" in out + error:
            yield f"panicked: {short}"
        if steers := STEERS.search(out + error):
            yield f"printed the control character {steers[0]!r}"
        signal = self.options.get("signal")
        # The second is the status by which a shell reports a signal.
        by_signal = signal is not None and status in (-signal, 128 + signal)
        if status not in self.options.get("ends", DOCUMENTED) and not by_signal:
            yield f"ended with {status}, {short}"
        is_closed = "2>" in self.options.get("redirect", "")
        if status in FAILS and not is_closed and signal is None:
            if not SAYS.search(error):
                yield f"failed without an error: {short}"
            for word in self.options.get("says", ()):
                if word not in error:
                    yield f"the error does not say `{word}`: {short}"


class Chaos:
    """An attack in progress: its folders, its random numbers, its findings."""

    def __init__(self, command: Path, seed: str, quick: bool) -> None:
        self.quick, self.random = quick, Random(seed)
        self.runs = 0
        self.complaints: list[str] = []
        # Every user may run the programs there, and write to the working folder.
        self.top = Path(os.environ.get("TMPDIR", "/tmp")) / f"kvmem-chaos-{os.getpid()}"
        self.folder, self.temporary = self.top / "work", self.top / "tmp"
        for path in (self.folder, self.temporary):
            path.mkdir(parents=True)
            path.chmod(0o777)
        self.top.chmod(0o755)
        for program in ("kvmem", "kvmem-lab"):
            shutil.copy(command.with_name(program), self.top / program)
        self.trace = self.file("trace.jsonl", TRACE.read_bytes())
        self.settings = Settings()

    def clean(self) -> None:
        shutil.rmtree(self.top)

    def complain(self, complaint: str) -> None:
        self.complaints.append(complaint)

    def file(self, name: Any, content: bytes | str) -> Path:
        """Writes a file of the working folder."""
        path = self.folder / os.fsdecode(name)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    def damage(self, content: bytes, part: int, longest: int, places: int) -> bytes:
        """Returns bytes with random ones at some places in the first part."""
        damaged = bytearray(content)
        for _ in range(1 + self.random.randrange(places)):
            at = self.random.randrange(part)
            length = min(1 << self.random.randrange(longest), len(damaged) - at)
            damaged[at : at + length] = self.random.randbytes(length)
        return bytes(damaged)

    def signal(self) -> int:
        return self.random.choice([signals.SIGINT, signals.SIGTERM, signals.SIGKILL])

    def start(self, *arguments: Any, **options: Any) -> Running:
        """Starts a run of ``kvmem``, or of ``kvmem-lab`` for its commands or with ``lab``.

        ``under`` is a command of the shell that makes the surroundings, ``redirect`` its
        redirections, ``by`` a program that executes its arguments. ``nobody`` is a user without any
        right. ``ends`` are the accepted statuses, ``signal`` one that may end it as well. ``says``
        is what its error contains, if it fails. ``within`` is its limit in seconds.
        """
        return Running(self, arguments, options)

    def run(self, *arguments: Any, **options: Any) -> Running:
        """Runs it and checks what must hold after every run."""
        return self.start(*arguments, **options).wait()

    def at_once(self, runs: Iterable[Running]) -> list[Running]:
        return [running.wait() for running in list(runs)]
