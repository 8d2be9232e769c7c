"""``kvmem`` and ``python -m kvmem``: the commands of the Python package.

``kvmem doctor`` checks every limit of this machine against the requested memory, prints how to
raise the limits that are too low, and lists the devices that memory can be registered with. The
exit status is 0 if all checks pass, 1 if a check fails, and 2 if the options are invalid. It is the
default command. For ``kvmem serve-mooncake`` see :mod:`kvmem.mooncake.command`.

The Rust program has the same name. A command that the package does not have is passed to the next
``kvmem`` in ``PATH``, if there is one.
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
    "doctor": "check every limit of this machine against the memory you want (default command)",
    "serve-mooncake": "lend memory of this host to a Mooncake cluster, until a signal arrives",
}
"""The commands of the package and their descriptions."""


def overview() -> argparse.ArgumentParser:
    """Returns the parser whose help ``kvmem --help`` shows."""
    options = argparse.ArgumentParser(
        prog="kvmem",
        description="Host memory for LLM inference servers: the commands of the Python package",
        epilog="`kvmem COMMAND --help` shows the options of a command. Without a command, options "
        "are "
        "those of doctor. A command that the package does not have is passed to the next kvmem in "
        "PATH, such as the Rust program.",
    )
    options.add_argument("--version", action="version", version=f"kvmem {__version__}")
    commands = options.add_subparsers(title="commands", metavar="COMMAND")
    for name, does in COMMANDS.items():
        commands.add_parser(name, help=does, add_help=False)
    return options


def parser() -> argparse.ArgumentParser:
    """Returns the parser of ``kvmem doctor``."""
    options = argparse.ArgumentParser(
        prog="kvmem doctor",
        description="Check every limit of this machine against the memory you want, print how to "
        "raise "
        "the limits that are too low, and list the devices that memory can be registered with",
    )
    options.add_argument("--version", action="version", version=f"kvmem {__version__}")
    options.add_argument(
        "--size",
        type=size,
        default="1GiB",
        help="amount of memory, in bytes or with a unit: 64GiB, 1TiB (GiB is 2^30 bytes, GB is "
        "10^9, "
        "G is GiB; default: %(default)s)",
    )
    options.add_argument(
        "--pages",
        metavar="PAGES,…",
        default="2M,thp,4k",
        help="page sizes to try, in order of preference, of 1G, 2M, thp and 4k; a single one is "
        "required (default: %(default)s)",
    )
    options.add_argument(
        "--nodes",
        metavar="NODE,…",
        default="",
        help="NUMA nodes that the memory must come from, in equal shares (default: any node)",
    )
    options.add_argument(
        "--shared", action="store_true", help="other processes will attach the memory"
    )
    options.add_argument(
        "--no-pin",
        action="store_true",
        help="the memory will not be pinned: it is registered with no device",
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
    """Runs the command and returns its exit status."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if arguments[:1] in (["-h"], ["--help"]):
        overview().parse_args(arguments[:1])
    if arguments[:1] == ["serve-mooncake"]:
        from .mooncake import command

        return command.main(arguments[1:])
    if arguments[:1] == ["doctor"]:
        arguments = arguments[1:]
    elif arguments and not arguments[0].startswith("-"):
        return _run_next(arguments)
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


def _run_next(arguments: Sequence[str]) -> int:
    """Executes the next program of this name in ``PATH``, if there is one."""
    here = os.path.dirname(os.path.realpath(sys.argv[0]))
    folders = os.get_exec_path()
    other_folders = os.pathsep.join(
        folder for folder in folders if os.path.realpath(folder) != here
    )
    other = shutil.which("kvmem", path=other_folders)
    # Another environment's script like this one would search PATH in turn, and find this one.
    if other is not None and "KVMEM_HANDED_ON" not in os.environ:
        os.environ["KVMEM_HANDED_ON"] = "1"
        os.execv(other, [other, *arguments])
    print(
        f"kvmem: no command {arguments[0]!r}: the Python package has {' and '.join(COMMANDS)}, and "
        "no "
        "other kvmem is in PATH; to install the Rust program, run cargo install --path "
        "crates/kvmem-cli in kvmem's repository",
        file=sys.stderr,
    )
    return 2


if __name__ == "__main__":
    sys.exit(main())
