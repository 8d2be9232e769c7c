"""``kvmem serve-mooncake``: lends memory of this host to a Mooncake cluster."""

import argparse
import contextlib
import sys
import time
from collections.abc import Iterator, Sequence

from .. import InvalidArgumentError, KvmemError, NodeCache, Pool, connect, doctor
from .._kvmem import parse_size
from . import engine
from .segment import serve

_PAGES = "2M,thp,4k"


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the command."""
    options = argparse.ArgumentParser(
        prog="kvmem serve-mooncake",
        description="Map and populate memory of this host, mount it as a segment of a Mooncake "
        "cluster, and unmount it on Ctrl-C or SIGTERM",
    )
    for name, metavar, kind, default, about in (
        ("node", "SOCKET", str, None, "lend memory of the node whose server answers at SOCKET"),
        (
            "server-users",
            "UID,…",
            _users,
            (),
            "users whose node is trusted (default: this user and root)",
        ),
        ("master", "HOST:PORT", str, engine.MASTER, "master of the cluster (default: %(default)s)"),
        (
            "host",
            "ADDRESS",
            str,
            engine.LOCAL,
            "address by which others reach this host, and the only one that the engine's ports "
            "answer on (default: %(default)s)",
        ),
        (
            "peers",
            "NETWORK,…",
            str,
            "",
            "networks to answer to, such as 10.0.0.0/24 (default: any peer that reaches ADDRESS)",
        ),
        (
            "pages",
            "PAGES,…",
            str,
            None,
            f"page sizes to try, of 1G, 2M, thp, 4k (default: {_PAGES})",
        ),
        (
            "numa",
            "POLICY",
            str,
            None,
            "NUMA placement: bind:0 or interleave:0-1 (default: any node)",
        ),
        ("timeout", "SECONDS", float, 10.0, "time to wait for the master (default: %(default)s)"),
        (
            "deadline",
            "SECONDS",
            float,
            engine.DEADLINE,
            "deadline of each call to the master (default: %(default)s)",
        ),
        ("every", "SECONDS", float, 60.0, "time between two status lines (default: %(default)s)"),
    ):
        options.add_argument(f"--{name}", metavar=metavar, type=kind, default=default, help=about)
    options.add_argument(
        "--size",
        type=size,
        required=True,
        help="amount of memory, in bytes or with a unit: 64GiB (GiB is 2^30 bytes, GB is 10^9)",
    )
    options.add_argument(
        "--expose",
        action="store_true",
        help="let the engine's ports answer on every address of this machine: every process that "
        "reaches one can read and write the memory",
    )
    return options


def size(text: str) -> int:
    """Parses a number of bytes: ``64GiB`` and ``64G`` are the same, ``64GB`` is less."""
    try:
        return parse_size(text)
    except InvalidArgumentError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _users(text: str) -> tuple[int, ...]:
    """Returns the numbers of users with commas between them."""
    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no list of users: give numbers, such as 1000,1001"
        ) from None


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command. Returns 0 after a signal, 1 if it failed, 2 if the options are invalid."""
    options = parser().parse_args(arguments)
    try:
        engine.address(options.master)
        engine.module()
        if options.node is None and not _can_give(options):
            return 1
        with _memory(options) as memory:
            if options.expose:
                print(
                    "kvmem: --expose: every process that reaches any address of this machine can "
                    "read and write the lent memory",
                    file=sys.stderr,
                )
            lent = serve(
                memory,
                options.master,
                nbytes=options.size if isinstance(memory, NodeCache) else None,
                host=options.host,
                timeout=options.timeout,
                deadline=options.deadline,
                expose=options.expose,
                peers=options.peers,
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
                        f"the master at {options.master} {answers}",
                        flush=True,
                    )

                number = segment.wait(every=options.every, status=status)
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


def _can_give(options: argparse.Namespace) -> bool:
    """Asks the doctor for a pool; prints what is missing."""
    found = doctor(options.size, pages=options.pages or _PAGES, shared=True, pinned=False)
    if not found.passes:
        print(found, end="", file=sys.stderr)
        print(
            f"kvmem: this machine cannot give {found.requirements}: {', '.join(found.failed)}",
            file=sys.stderr,
        )
    return found.passes


@contextlib.contextmanager
def _memory(options: argparse.Namespace) -> Iterator[Pool | NodeCache]:
    """Makes a pool, or connects to the node whose memory is lent."""
    if options.node is None:
        pages = options.pages or _PAGES
        with Pool(
            options.size, pages=pages, numa=options.numa, shared=True, progress=_ProgressLine()
        ) as pool:
            yield pool
        return
    for name in ("pages", "numa"):
        if getattr(options, name) is not None:
            raise InvalidArgumentError(
                f"--{name} is {getattr(options, name)}, and the memory of a node has its pages "
                f"already: give --{name} to its server"
            )
    with connect(options.node, server_users=options.server_users) as node:
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
