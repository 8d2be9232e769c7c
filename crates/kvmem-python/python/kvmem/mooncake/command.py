"""``kvmem serve-mooncake``: lends memory of this host to a Mooncake cluster."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Iterator, Sequence

from .. import InvalidArgumentError, KvmemError, NodeCache, Pool, connect, doctor
from ..size import size
from . import engine
from .segment import serve

_PAGES = "2M,thp,4k"


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the command."""
    options = argparse.ArgumentParser(
        prog="kvmem serve-mooncake",
        description="Map and populate memory of this host, mount it as a segment of a Mooncake "
        "cluster, "
        "and unmount it on Ctrl-C or SIGTERM",
    )
    options.add_argument(
        "--size",
        type=size,
        required=True,
        help="amount of memory, in bytes or with a unit: 64GiB (GiB is 2^30 bytes, GB is 10^9, G "
        "is "
        "GiB)",
    )
    options.add_argument(
        "--node",
        metavar="SOCKET",
        help="lend memory of the node whose server answers at SOCKET, such as kvmem serve, instead "
        "of own memory",
    )
    options.add_argument(
        "--server-users",
        type=_users,
        default=(),
        metavar="UID,…",
        help="users whose node is trusted (default: this user and root)",
    )
    options.add_argument(
        "--master",
        default=engine.MASTER,
        metavar="HOST:PORT",
        help="master of the cluster (default: %(default)s)",
    )
    options.add_argument(
        "--host",
        default=engine.LOCAL,
        metavar="ADDRESS",
        help="address by which others reach this host, and the only one that the engine's ports "
        "answer on (default: %(default)s)",
    )
    options.add_argument(
        "--peers",
        default="",
        metavar="NETWORK,…",
        help="networks to answer to, such as 10.0.0.0/24 (default: any peer that reaches ADDRESS)",
    )
    options.add_argument(
        "--expose",
        action="store_true",
        help="let the engine's ports answer on every address of this machine: every process that "
        "reaches one can read and write the memory",
    )
    options.add_argument(
        "--pages",
        metavar="PAGES,…",
        help="page sizes to try, in order of preference, of 1G, 2M, thp and 4k (default: "
        f"{_PAGES})",
    )
    options.add_argument(
        "--numa",
        metavar="POLICY",
        help="NUMA placement: bind:0 or interleave:0-1 (default: any node)",
    )
    options.add_argument(
        "--timeout",
        type=float,
        default=10.0,
        metavar="SECONDS",
        help="time to wait for the master (default: %(default)s)",
    )
    options.add_argument(
        "--deadline",
        type=float,
        default=engine.DEADLINE,
        metavar="SECONDS",
        help="deadline of each call to the master (default: %(default)s)",
    )
    options.add_argument(
        "--every",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="time between two status lines (default: %(default)s)",
    )
    return options


def _users(text: str) -> tuple[int, ...]:
    """Returns the numbers of users with commas between them."""
    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no list of users: give numbers, such as 1000,1001"
        ) from None


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command. Returns its exit status: 0 after a signal, 1 if it failed, 2 if the options
    are invalid.
    """
    given = parser().parse_args(arguments)
    try:
        engine.address(given.master)
        engine.module()
        if given.node is None and not _can_give(given):
            return 1
        with _memory(given) as memory:
            if given.expose:
                print(
                    "kvmem: --expose: every process that reaches any address of this machine can "
                    "read "
                    "and write the lent memory",
                    file=sys.stderr,
                )
            lent = serve(
                memory,
                given.master,
                nbytes=given.size if isinstance(memory, NodeCache) else None,
                host=given.host,
                timeout=given.timeout,
                deadline=given.deadline,
                expose=given.expose,
                peers=given.peers,
            )
            with lent as segment:
                if isinstance(memory, Pool):
                    print(memory.report(), file=sys.stderr)
                print(f"kvmem: {segment.reach}", file=sys.stderr)
                start = time.monotonic()

                def status() -> None:
                    answers = "answers" if segment.answers() else "does not answer"
                    seconds = time.monotonic() - start
                    print(
                        f"kvmem: {segment.nbytes} bytes at {segment.name} for {seconds:.0f} s, "
                        f"the master at {given.master} {answers}",
                        flush=True,
                    )

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


def _can_give(given: argparse.Namespace) -> bool:
    """Asks the doctor for a pool; prints what is missing."""
    found = doctor(given.size, pages=given.pages or _PAGES, shared=True, pinned=False)
    if not found.passes:
        print(found, end="", file=sys.stderr)
        print(
            f"kvmem: this machine cannot give {found.requirements}: {', '.join(found.failed)}",
            file=sys.stderr,
        )
    return found.passes


@contextlib.contextmanager
def _memory(given: argparse.Namespace) -> Iterator[Pool | NodeCache]:
    """Makes a pool, or connects to the node whose memory is lent."""
    if given.node is None:
        pages = given.pages or _PAGES
        with Pool(
            given.size, pages=pages, numa=given.numa, shared=True, progress=_ProgressLine()
        ) as pool:
            yield pool
        return
    for name in ("pages", "numa"):
        if getattr(given, name) is not None:
            raise InvalidArgumentError(
                f"--{name} is {getattr(given, name)}, and the memory of a node has its pages "
                f"already: give --{name} to its server"
            )
    with connect(given.node, server_users=given.server_users) as node:
        yield node


class _ProgressLine:
    """Progress line on a terminal. Prints nothing if standard error is no terminal."""

    def __init__(self) -> None:
        self.shown = -1

    def __call__(self, done: int, total: int) -> None:
        percent = done * 100 // total
        if percent != self.shown and sys.stderr.isatty():
            self.shown = percent
            end = "\n" if done == total else ""
            print(f"\rpopulating: {percent} %", end=end, file=sys.stderr, flush=True)
