"""Checks a wheel that is installed in the environment of this interpreter.

``cargo xtask wheel --check`` runs this program in an environment with nothing else but NumPy, and
a ``PATH`` of that environment alone. ``--compile`` compiles the C program beside this file with the
wheel's files, by the tools of the ``PATH`` that is given.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

HERE = Path(__file__).resolve().parent
SCRIPTS = Path(sys.executable).parent


def run(*command: str | Path, statuses: tuple[int, ...] = (0,), path: str | None = None) -> str:
    """Runs a program and returns its output. Any other status ends the check."""
    environment = {**os.environ, "PATH": path or os.environ["PATH"]}
    environment.pop("LD_LIBRARY_PATH", None)
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        env=environment,
    )
    if done.returncode not in statuses:
        sys.exit(f"{' '.join(map(str, command))}: status {done.returncode}\n{done.stdout}")
    return done.stdout


def the_module() -> None:
    """A pool, a block, an array, a value by key."""
    import kvmem

    assert Path(kvmem.__file__).is_relative_to(sys.prefix), kvmem.__file__
    assert kvmem.__version__ == metadata.version("kvmem")
    with kvmem.Pool("4MiB", pages="4k") as pool:
        block = pool.allocate(65536)
        if importlib.util.find_spec("numpy") is None:
            print("  NumPy is not installed: arrays are skipped")
        else:
            import numpy

            array = numpy.from_dlpack(block)
            array[:] = 7
            assert array.ctypes.data == block.ptr and int(array.sum()) == 7 * 65536
            del array
        block.free()
        cache = kvmem.KvCache(pool)
        cache.insert(42, b"value")
        found = cache.get(42)
        assert found is not None and bytes(found) == b"value"
        found.release()
    print(f"  module {kvmem.__version__} on Python {sys.version.split()[0]}")


EXIT = """
import threading, time, kvmem
def work():
    while True:
        kvmem.Pool("16MiB", pages="4k", progress=lambda done, total: None)
threading.Thread(target=work, daemon=True).start()
time.sleep(0.2)
"""


def the_end_of_a_process() -> None:
    """Python unwinds the stack of a thread that is inside of the module when it exits."""
    for _ in range(3):
        assert run(sys.executable, "-I", "-c", EXIT) == ""


def the_command() -> None:
    """The same program by its name, by its path, and as a module."""
    import kvmem

    version = f"kvmem {kvmem.__version__}\n"
    found = shutil.which("kvmem")
    assert found is not None and Path(found).parent == SCRIPTS, found
    with open(found, "rb") as file:
        assert file.read(4) == b"\x7fELF", "the command is the compiled program"
    assert run("kvmem", "--version") == version
    assert run(sys.executable, "-m", "kvmem", "--version", path="/kvmem-no-folder") == version
    report = run("kvmem", "doctor", "--size", "16MiB", "--pages", "4k", statuses=(0, 1))
    assert "registrars" in report, report
    assert "resident" in run("kvmem", "mount", "--size", "16MiB", "--pages", "4k").lower()
    for command in (["kvmem"], [str(SCRIPTS / "kvmem")], [sys.executable, "-m", "kvmem"]):
        assert "--master HOST:PORT" in run(*command, "serve-mooncake", "--help")
    print(f"  command {found}")


def the_metadata() -> None:
    """Licences, classifiers and files."""
    found = metadata.distribution("kvmem")
    text = found.metadata
    assert text["Requires-Python"] == ">=3.11" and text["License-Expression"] == "Apache-2.0"
    assert text["Description-Content-Type"].startswith("text/markdown")
    assert not [each for each in found.requires or [] if "extra ==" not in each]
    carried = {Path(str(file)).name for file in found.files or []}
    assert {"LICENSE", "THIRD-PARTY.md", "py.typed", "kvmem.h", "kvmem.hpp"} <= carried
    assert "testing.h" not in carried, "functions for tests are not shipped"
    size = sum(file.size or 0 for file in found.files or [])
    print(f"  {len(carried)} files, {size / 1e6:.1f} MB")


def the_c_library(path: str) -> None:
    """A program, compiled by the options, by pkg-config and by CMake."""

    def config(*options: str) -> list[str]:
        return run(sys.executable, "-m", "kvmem.config", *options).split()

    with tempfile.TemporaryDirectory() as made:
        program = Path(made) / "program"
        source = HERE / "program.c"
        run("cc", source, *config("--cflags", "--libs"), "-o", program, path=path)
        printed = run(program)
        assert "65536 bytes at offset" in printed, printed
        tried = ["cc"]
        (folder,) = config("--libdir")
        if shutil.which("pkg-config", path=path):
            os.environ["PKG_CONFIG_PATH"] = config("--pkgconfigdir")[0]
            options = run("pkg-config", "--cflags", "--libs", "kvmem", path=path).split()
            run("cc", source, *options, f"-Wl,-rpath,{folder}", "-o", program, path=path)
            assert run(program) == printed
            tried.append("pkg-config")
        if shutil.which("cmake", path=path):
            build = Path(made) / "cmake"
            place = f"-Dkvmem_DIR={config('--cmakedir')[0]}"
            run("cmake", "-S", HERE, "-B", build, place, path=path)
            run("cmake", "--build", build, path=path)
            assert run(build / "program") == printed
            tried.append("CMake")
    print(f"  C program by {', '.join(tried)}: {printed.strip()}")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--compile", metavar="PATH", help="where the compiler is")
    given = options.parse_args()
    for tool in ("cargo", "rustc", "cc", "gcc", "c++", "clang"):
        assert shutil.which(tool) is None, f"{tool} is in PATH"
    the_module()
    the_end_of_a_process()
    the_command()
    the_metadata()
    if given.compile:
        the_c_library(given.compile)


if __name__ == "__main__":
    main()
