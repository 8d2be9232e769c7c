"""``python -m kvmem.config``: options by which a C or C++ program is compiled with ``libkvmem``.

``cc program.c $(python -m kvmem.config --cflags --libs)`` compiles and links a program, which then
finds the library of this installation by its run path."""

import argparse
import shlex
import sys
from collections.abc import Sequence

from . import KvmemError, __version__, get_include, get_library_dir


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the options."""
    options = argparse.ArgumentParser(
        prog="python -m kvmem.config",
        description="Print where libkvmem and its headers are, in one line, in the order of the "
        "options below",
    )
    options.add_argument("--version", action="version", version=__version__)
    for name, does in (
        ("cflags", "options of the compiler: the folder of the headers"),
        ("libs", "options of the linker: the folder of the library, its name, and a run path"),
        ("includedir", "the folder of kvmem.h and kvmem.hpp"),
        ("libdir", "the folder of libkvmem.so"),
        ("pkgconfigdir", "the folder of kvmem.pc, for PKG_CONFIG_PATH"),
        ("cmakedir", "the folder of kvmemConfig.cmake, for -Dkvmem_DIR"),
    ):
        options.add_argument(f"--{name}", action="store_true", help=does)
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints what the options name. Returns 2 if there are none, 1 if there is no C library."""
    commands = parser()
    options = commands.parse_args(arguments)
    if not any(vars(options).values()):
        commands.print_usage(sys.stderr)
        return 2
    try:
        include, library = get_include(), get_library_dir()
    except KvmemError as error:
        print(f"kvmem: {error}", file=sys.stderr)
        return 1
    printed: dict[str, list[str]] = {
        "cflags": [f"-I{include}"],
        "libs": [f"-L{library}", "-lkvmem", f"-Wl,-rpath,{library}"],
        "includedir": [include],
        "libdir": [library],
        "pkgconfigdir": [f"{library}/pkgconfig"],
        "cmakedir": [f"{library}/cmake/kvmem"],
    }
    chosen = [word for name, words in printed.items() if getattr(options, name) for word in words]
    print(shlex.join(chosen))
    return 0


if __name__ == "__main__":
    sys.exit(main())
