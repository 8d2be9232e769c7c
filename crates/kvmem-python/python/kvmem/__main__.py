"""``kvmem`` and ``python -m kvmem``: the commands that come with the package.

``kvmem doctor`` holds every limit of this machine against the memory you want, says how to change those that stand in the way, and lists what memory
can be registered with. The exit status is 0 if nothing stands in the way, 1 if something does, 2 if the options make no sense. It is also what is
done without a command. ``kvmem serve-mooncake``: see :mod:`kvmem.mooncake.command`.

Programs of the same name need not be in each other's way: a command that is not here is handed on to the next ``kvmem`` in ``PATH``, the one that
is written in Rust, if there is one.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Sequence

from . import KvmemError, __version__, doctor
from .output import write_file
from .size import size

COMMANDS = {
    "doctor": "hold every limit of this machine against the memory you want (also done without a command)",
    "serve-mooncake": "lend memory of this host to a Mooncake cluster, until a signal comes",
}
"""The commands of this package, and what they do."""


def overview() -> argparse.ArgumentParser:
    """What ``kvmem --help`` shows."""
    options = argparse.ArgumentParser(
        prog="kvmem",
        description="Host memory under LLM inference servers: the commands of the Python package",
        epilog="`kvmem COMMAND --help` shows the options of a command. Options without a command are those of doctor. "
        "A command that is not here goes to the next kvmem in PATH, the program in Rust, if there is one.",
    )
    options.add_argument("--version", action="version", version=f"kvmem {__version__}")
    commands = options.add_subparsers(title="commands", metavar="COMMAND")
    for name, does in COMMANDS.items():
        commands.add_parser(name, help=does, add_help=False)
    return options


def parser() -> argparse.ArgumentParser:
    """The options of ``kvmem doctor``."""
    options = argparse.ArgumentParser(
        prog="kvmem doctor",
        description="Hold every limit of this machine against the memory you want, say how to change those that stand in the way, "
        "and list what memory can be registered with",
    )
    options.add_argument("--version", action="version", version=f"kvmem {__version__}")
    options.add_argument(
        "--size",
        type=size,
        default="1GiB",
        help="how much memory is wanted, in bytes or with a unit: 64GiB, 1TiB (GiB is 2^30 bytes, GB is 10^9, G is GiB; default: %(default)s)",
    )
    options.add_argument(
        "--pages",
        metavar="PAGES,…",
        default="2M,thp,4k",
        help="the page sizes to try, first choice first, of 1G, 2M, thp and 4k; one alone means this or nothing (default: %(default)s)",
    )
    options.add_argument(
        "--nodes",
        metavar="NODE,…",
        default="",
        help="the NUMA nodes it must come from, in even shares (any if none is named)",
    )
    options.add_argument(
        "--shared", action="store_true", help="the memory is for other processes to attach"
    )
    options.add_argument(
        "--no-pin",
        action="store_true",
        help="the memory will not be pinned, that is, registered with no device",
    )
    options.add_argument(
        "--json",
        metavar="FILE",
        nargs="?",
        const="-",
        help="write the checks as JSON to standard output instead of the table, or to FILE",
    )
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if arguments[:1] in (["-h"], ["--help"]):
        overview().parse_args(arguments[:1])
    if arguments[:1] == ["serve-mooncake"]:
        from .mooncake import command

        return command.main(arguments[1:])
    if arguments[:1] == ["doctor"]:
        arguments = arguments[1:]
    elif arguments and not arguments[0].startswith("-"):
        return _hand_on(arguments)
    options = parser().parse_args(arguments)
    try:
        nodes = [int(node) for node in options.nodes.split(",") if node.strip()]
        found = doctor(
            options.size,
            pages=options.pages,
            nodes=nodes,
            shared=options.shared,
            pinned=not options.no_pin,
        )
        if options.json not in (None, "-"):
            write_file(options.json, json.dumps(found.data, indent=2) + "\n")
    except (KvmemError, ValueError, OverflowError, OSError) as error:
        print(f"kvmem: {error}", file=sys.stderr)
        return 2
    print(
        json.dumps(found.data, indent=2) if options.json == "-" else found,
        end="\n" if options.json == "-" else "",
    )
    if found.passes:
        return 0
    print(
        f"kvmem: this machine cannot give {found.requirements}: {', '.join(found.failed)}",
        file=sys.stderr,
    )
    return 1


def _hand_on(arguments: Sequence[str]) -> int:
    """Becomes the next program of this name in ``PATH``, if there is one."""
    here = os.path.dirname(os.path.realpath(sys.argv[0]))
    folders = os.get_exec_path()
    elsewhere = os.pathsep.join(folder for folder in folders if os.path.realpath(folder) != here)
    other = shutil.which("kvmem", path=elsewhere)
    # A script like this one, of another environment, would look for the next in turn, and find this one.
    if other is not None and "KVMEM_HANDED_ON" not in os.environ:
        os.environ["KVMEM_HANDED_ON"] = "1"
        os.execv(other, [other, *arguments])
    print(
        f"kvmem: the package has {' and '.join(COMMANDS)}; {arguments[0]!r} may be for the program in Rust, and no other kvmem is in PATH: "
        "cargo install --path crates/kvmem-cli, in kvmem's repository",
        file=sys.stderr,
    )
    return 2


if __name__ == "__main__":
    sys.exit(main())
