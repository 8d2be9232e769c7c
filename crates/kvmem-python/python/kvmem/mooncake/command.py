"""``kvmem serve-mooncake``: memory of this host as a segment of a Mooncake cluster, until a signal comes."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from .. import KvmemError, Pool, doctor
from ..size import size
from . import engine
from .segment import serve


def parser() -> argparse.ArgumentParser:
    """The options."""
    options = argparse.ArgumentParser(
        prog="kvmem serve-mooncake",
        description="Map, populate and mount memory of this host as a segment of a Mooncake cluster, and unmount it at the end: Ctrl-C or SIGTERM",
    )
    options.add_argument(
        "--size",
        type=size,
        required=True,
        help="how much memory, in bytes or with a unit: 64GiB (GiB is 2^30 bytes, GB is 10^9, G is GiB)",
    )
    options.add_argument(
        "--master",
        default=engine.MASTER,
        metavar="HOST:PORT",
        help="the cluster's master (default: %(default)s)",
    )
    options.add_argument(
        "--host",
        default=engine.LOCAL,
        metavar="ADDRESS",
        help="the address that others reach this host by, and the only one that the engine's ports answer on (default: %(default)s)",
    )
    options.add_argument(
        "--peers",
        default="",
        metavar="NETWORK,…",
        help="answer to these only, such as 10.0.0.0/24 (default: to whatever reaches HOST)",
    )
    options.add_argument(
        "--expose",
        action="store_true",
        help="let the engine's ports answer on every address of this machine: whoever reaches one reads and writes the memory",
    )
    options.add_argument(
        "--pages",
        metavar="PAGES,…",
        default="2M,thp,4k",
        help="the page sizes to try, of 1G, 2M, thp and 4k (default: %(default)s)",
    )
    options.add_argument(
        "--numa",
        metavar="POLICY",
        help="where it lies: bind:0 or interleave:0-1 (default: anywhere)",
    )
    options.add_argument(
        "--timeout",
        type=float,
        default=10.0,
        metavar="SECONDS",
        help="wait for the master (default: %(default)s)",
    )
    options.add_argument(
        "--deadline",
        type=float,
        default=engine.DEADLINE,
        metavar="SECONDS",
        help="for each call to the master (default: %(default)s)",
    )
    options.add_argument(
        "--every",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="between two status lines (default: %(default)s)",
    )
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status: 0 after a signal, 1 if it cannot be done, 2 if the options make no sense."""
    given = parser().parse_args(arguments)
    try:
        engine.address(given.master)
        engine.module()
        found = doctor(given.size, pages=given.pages, shared=True, pinned=False)
        if not found.passes:
            print(found, end="", file=sys.stderr)
            print(
                f"kvmem: this machine cannot give {found.requirements}: {', '.join(found.failed)}",
                file=sys.stderr,
            )
            return 1
        with Pool(
            given.size, pages=given.pages, numa=given.numa, shared=True, progress=_Bar()
        ) as pool:
            if given.expose:
                print(
                    "kvmem: --expose: whoever reaches any address of this machine reads and writes the lent memory",
                    file=sys.stderr,
                )
            lent = serve(
                pool,
                given.master,
                host=given.host,
                timeout=given.timeout,
                deadline=given.deadline,
                expose=given.expose,
                peers=given.peers,
            )
            with lent as segment:
                print(pool.report(), file=sys.stderr)
                print(f"kvmem: {segment.reach}", file=sys.stderr)
                start = time.monotonic()

                def status() -> None:
                    answers = "answers" if segment.answers() else "does not answer"
                    seconds = time.monotonic() - start
                    print(
                        f"kvmem: {segment.nbytes} bytes at {segment.name} for {seconds:.0f} s, the master at {given.master} {answers}",
                        flush=True,
                    )

                status()
                number = segment.wait(every=given.every, status=status)
                print(f"kvmem: unmounted, after signal {number}", flush=True)
    except ValueError as error:
        print(f"kvmem: {error}", file=sys.stderr)
        return 2
    except (KvmemError, OSError) as error:
        print(f"kvmem: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


class _Bar:
    """A line on a terminal that says how far it is; nothing elsewhere."""

    def __init__(self) -> None:
        self.shown = -1

    def __call__(self, done: int, total: int) -> None:
        percent = done * 100 // total
        if percent != self.shown and sys.stderr.isatty():
            self.shown = percent
            end = "\n" if done == total else ""
            print(f"\rpopulating: {percent} %", end=end, file=sys.stderr, flush=True)
