"""*vLLM*: its own host memory and kvmem's, with vLLM's own specs, managers and workers, in one run.

    VLLM_DIR=FOLDER python benches/vllm.py [--bytes 4GiB] [--workers 4] [--rounds 3] [--json FILE]

``FOLDER`` is an unpacked wheel, as for the tests. The GPU and PyTorch are stand-ins, as there: see
tests/distributed/vllm_standins.py. What is measured needs neither.

- *Ready*: seconds from the first worker's call of ``get_worker`` to the last one's return, without
  imports. The memory is mapped and resident then, in all workers.
- *Page tables*: of all workers together, less those of the same workers with 1 MiB of memory.
- *Two replicas*: bytes of host memory that hold the same prefix for two engines.
- *Restart*: seconds from the start of the killed engine's process to the first chunks that come
  back from its cache. vLLM's CPU tier loses its content.

- *Phases*: of the round that was the fastest, in seconds after the first worker has begun: when the
  other workers have begun, when the memory was resident, when the first and the last worker was
  ready.

The rounds of both alternate. Without reserved hugepages, kvmem's first round may wait while the
kernel moves pages of other files to make room for hugepages: the worst round shows that.
``--pages`` sets kvmem's kinds of pages."""

import argparse
import dataclasses
import importlib.metadata
import importlib.util
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "tests"), str(HERE.parent / "tests" / "distributed")]

import kvmem  # noqa: E402
from node_server import Server  # noqa: E402
from vllm_process import Engine, row_bytes  # noqa: E402

folder = os.environ.get("VLLM_DIR", "")
VLLM = next((it.version for it in importlib.metadata.distributions(path=[folder])), None)
NAMES = [f"chunk {i}" for i in range(20)]


@dataclasses.dataclass
class Start:
    """How an engine started."""

    seconds: float
    """From the first worker's call to the last one's return."""
    page_tables: int
    """Bytes of the page tables of all workers."""
    begun: float
    """When the last worker has begun, after the first one."""
    first: float
    """When the first worker was ready."""
    resident: float | None
    """Seconds in which the memory was mapped and made resident, by its receipt."""


def start(spec: str, nbytes: int, workers: int, pages: str) -> Start:
    """Starts an engine, and loads some chunks."""
    kvmem_ = {} if spec == "CPUOffloadingSpec" else {"kvmem": {"pages": pages}}
    with tempfile.TemporaryDirectory() as barrier:
        rows = nbytes // row_bytes(workers)
        with Engine(spec, kvmem_, workers=workers, rows=rows, barrier=barrier) as engine:
            assert engine("store", NAMES[:4]) == NAMES[:4]
            assert engine("load", NAMES[:4]) == 4 * row_bytes(workers)
            zero = min(engine.ready["starts"])
            made = [it for it in engine("workers", "resident_seconds") if it is not None]
            return Start(
                engine.ready["worker_seconds"],
                sum(engine.ready["page_tables"]),
                max(engine.ready["starts"]) - zero,
                min(engine.ready["ends"]) - zero,
                made[0] if made else None,
            )


def ready(nbytes: int, workers: int, pages: str, rounds: int) -> list[list[Start]]:
    """Returns the starts of all rounds, the fastest first: of vLLM's spec and of kvmem's. Their
    page tables are less those of the same workers with 1 MiB."""
    specs = ("CPUOffloadingSpec", "KvmemOffloadingSpec")
    small = [start(spec, 1 << 20, workers, pages).page_tables for spec in specs]
    found = [[start(spec, nbytes, workers, pages) for spec in specs] for _ in range(rounds)]
    for at in range(len(specs)):
        for one in found:
            one[at].page_tables -= small[at]
    return [sorted((it[at] for it in found), key=lambda it: it.seconds) for at in (0, 1)]


def replicas(workers: int) -> tuple[int, int]:
    """Returns the bytes of a prefix in two engines: each with a tier, and both with a node."""
    alone = 2 * len(NAMES) * row_bytes(workers)
    with Server(256 << 20) as server, kvmem.connect(server.path) as node:
        options = {"kvmem": {"socket": str(server.path)}}
        with (
            Engine("KvmemSharedSpec", options, workers=workers) as one,
            Engine("KvmemSharedSpec", options, workers=workers) as two,
        ):
            before = node.stats().used
            one("store", NAMES)
            two("store", NAMES)
            assert one("load", NAMES) == two("load", NAMES) == len(NAMES) * row_bytes(workers)
            return alone, node.stats().used - before


def restart(make: Callable[[], Engine], workers: int) -> float | None:
    """Returns the seconds from the start to the first chunks; None: they are lost."""
    with make() as engine:
        engine("store", NAMES)
        engine("settle")
        engine.kill()
    begin = time.monotonic()
    with make() as engine:
        found = engine("load", NAMES)
        seconds = time.monotonic() - begin
    assert found in (-1, len(NAMES) * row_bytes(workers))
    return None if found == -1 else seconds


def restarts(workers: int) -> dict[str, float | None]:
    figures = {}
    with tempfile.TemporaryDirectory() as folder, Server(256 << 20) as server:
        tiers = {"kvmem": {"pages": "4k"}}
        disk = {"type": "KvmemTier", "module_path": "kvmem.vllm", "bytes": "256MiB"}
        specs: dict[str, tuple[str, dict[str, Any]]] = {
            "vLLM's CPU tier": ("CPUOffloadingSpec", {}),
            "KvmemOffloadingSpec": ("KvmemOffloadingSpec", tiers),
            "KvmemTier below it": (
                "KvmemTieringOffloadingSpec",
                {**tiers, "secondary_tiers": [{**disk, "path": f"{folder}/tier"}]},
            ),
            "KvmemSharedSpec": ("KvmemSharedSpec", {"kvmem": {"socket": str(server.path)}}),
        }
        for name, (spec, extra) in specs.items():

            def make(spec: str = spec, extra: dict[str, Any] = extra) -> Engine:
                barrier = tempfile.mkdtemp(dir=folder)
                return Engine(spec, extra, workers=workers, barrier=barrier)

            figures[name] = restart(make, workers)
    return figures


def main(arguments: list[str] | None = None) -> int:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--bytes", default="4GiB", help="host memory of an engine")
    options.add_argument("--workers", type=int, default=4)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--pages", default="2M,thp,4k")
    options.add_argument("--json", type=Path, help="file for the figures")
    given = options.parse_args(arguments)
    nbytes, workers = kvmem.parse_size(given.bytes), given.workers
    if importlib.util.find_spec("numpy") is None or "VLLM_DIR" not in os.environ:
        print("set VLLM_DIR to an unpacked wheel of vLLM, and install numpy", file=sys.stderr)
        return 2
    theirs, ours = ready(nbytes, workers, given.pages, given.rounds)
    print(f"{given.bytes}, {workers} workers, {os.cpu_count()} processors")
    print(f"{'':24}{'vLLM':>12}{'kvmem':>12}")
    for name, at in (("best", 0), ("median", len(ours) // 2), ("worst", -1)):
        one, two = theirs[at].seconds, ours[at].seconds
        print(f"{f'ready, s, {name}':24}{one:12.2f}{two:12.2f}{one / two:8.1f} x")
    for name, field in (("last worker began", "begun"), ("first worker ready", "first")):
        one, two = getattr(theirs[0], field), getattr(ours[0], field)
        print(f"{f'{name}, s':24}{one:12.2f}{two:12.2f}")
    print(f"{'mapped, resident, s':24}{'':12}{ours[0].resident or 0:12.2f}")
    tables = [min(it.page_tables for it in found) for found in (theirs, ours)]
    print(f"{'page tables, KiB':24}{tables[0] >> 10:12}{tables[1] >> 10:12}")
    alone, shared = replicas(workers)
    print(f"{'two replicas, KiB':24}{alone >> 10:12}{shared >> 10:12}{shared / alone:8.2f} x")
    again = restarts(workers)
    for name, seconds in again.items():
        text = "lost" if seconds is None else f"{seconds:.2f} s"
        print(f"restart, {name:28}{text:>11}")
    if given.json is not None:
        record = {
            "benchmark": "vllm",
            "vllm": VLLM,
            "kvmem": importlib.metadata.version("kvmem"),
            "processors": os.cpu_count(),
            "bytes": nbytes,
            "workers": workers,
            "pages": given.pages,
            "ready": {
                "vllm": [dataclasses.asdict(it) for it in theirs],
                "kvmem": [dataclasses.asdict(it) for it in ours],
            },
            "two_replicas_bytes": {"alone": alone, "shared": shared},
            "restart_seconds": again,
        }
        given.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
