"""What the programs and libraries of a wheel or an archive need from the system that they run on.

The policies of manylinux, which auditwheel knows, allow more libraries than these. kvmem needs libc
alone, and loads the libraries of devices at run time. Run as ``python links.py FILE --glibc 2.28
--builder FOLDER``, where FILE is a wheel or a compiled file, it prints what each compiled file
needs, or what it must not need.
"""

from __future__ import annotations

import argparse
import io
import sys
import zipfile
from pathlib import Path
from typing import NamedTuple

from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile

# The library with the unwinder of the process.
UNWINDER = "libgcc_s.so.1"
# The libraries that belong to libc and the compiler, and the loader.
ALLOWED = {
    "libc.so.6",
    "libm.so.6",
    "libpthread.so.0",
    "libdl.so.2",
    "librt.so.1",
    UNWINDER,
    "ld-linux-x86-64.so.2",
    "ld-linux-aarch64.so.1",
}


class Needs(NamedTuple):
    """The needs of a file."""

    libraries: list[str]
    # The newest version of glibc that a symbol names.
    glibc: tuple[int, ...]
    # Symbols that no version of a library provides, but for those of Python.
    unprovided: list[str]
    # Run paths, which would name folders of the builder.
    run_paths: list[str]

    def __str__(self) -> str:
        return f"{', '.join(self.libraries)}, glibc {'.'.join(map(str, self.glibc))}"


def read(content: bytes) -> Needs:
    elf = ELFFile(io.BytesIO(content))
    needs = Needs([], (0,), [], [])
    for section in elf.iter_sections():
        if isinstance(section, DynamicSection):
            for tag in section.iter_tags():
                if tag.entry.d_tag == "DT_NEEDED":
                    needs.libraries.append(tag.needed)
                elif tag.entry.d_tag in ("DT_RPATH", "DT_RUNPATH"):
                    needs.run_paths.append(getattr(tag, tag.entry.d_tag[3:].lower()))
    versions = elf.get_section_by_name(".gnu.version_r")
    for _, named in versions.iter_versions() if versions else ():
        for each in named:
            if each.name.startswith("GLIBC_"):
                newer = tuple(int(part) for part in each.name[6:].split(".") if part.isdigit())
                needs = needs._replace(glibc=max(needs.glibc, newer))
    of_symbols, table = elf.get_section_by_name(".gnu.version"), elf.get_section_by_name(".dynsym")
    for at, symbol in enumerate(table.iter_symbols()) if table and of_symbols else ():
        # The linker leaves a symbol that it has not found without a version, and a weak one may be
        # missing.
        version = of_symbols.get_symbol(at)["ndx"]
        is_needed = symbol["st_shndx"] == "SHN_UNDEF" and symbol["st_info"]["bind"] == "STB_GLOBAL"
        is_pythons = symbol.name.startswith(("Py", "_Py"))
        if (
            is_needed
            and symbol.name
            and not is_pythons
            and version in ("VER_NDX_LOCAL", "VER_NDX_GLOBAL")
        ):
            needs.unprovided.append(symbol.name)
    return needs


def faults(name: str, content: bytes, glibc: tuple[int, ...], builder: list[str]) -> list[str]:
    """Returns what a file must not need."""
    needs, most = read(content), ".".join(map(str, glibc))
    found = [
        f"links {library}, and may link {', '.join(sorted(ALLOWED))} only: load it at run time"
        for library in needs.libraries
        if library not in ALLOWED
    ]
    if ".so" in name and UNWINDER not in needs.libraries:
        found.append(
            f"does not link {UNWINDER}, so it has an unwinder of its own, which crashes a process "
            "that ends a thread inside of it: link what wheel/build.rs makes"
        )
    if needs.glibc > glibc:
        found.append(f"{needs}, and the tag promises {most}: find the symbol with readelf -V")
    found += [
        f"needs the symbol {symbol}, which glibc {most} lacks: raise the wheel's glibc in "
        "wheel.rs, or call the kernel"
        for symbol in needs.unprovided
    ]
    found += [f"has the run path {path}, which exists on the builder" for path in needs.run_paths]
    found += [
        f"contains the folder {folder} of the builder: is it built with --remap-path-prefix?"
        for folder in builder
        if folder.encode() in content
    ]
    return [f"{name} {fault}" for fault in found]


def compiled(file: Path) -> dict[str, bytes]:
    """Returns the compiled files of a wheel, or the file itself."""
    if file.suffix == ".whl":
        with zipfile.ZipFile(file) as wheel:
            contents = {name: wheel.read(name) for name in wheel.namelist()}
    else:
        contents = {file.name: file.read_bytes()}
    return {name: one for name, one in contents.items() if one.startswith(b"\x7fELF")}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path)
    parser.add_argument("--glibc", default="99.0")
    parser.add_argument("--builder", action="append", default=[])
    options = parser.parse_args()
    glibc = tuple(map(int, options.glibc.split(".")))
    files = compiled(options.file)
    wrong = [fault for one in files.items() for fault in faults(*one, glibc, options.builder)]
    if not files or wrong:
        sys.exit("\n".join(wrong) or f"{options.file} has no compiled file")
    for name, content in files.items():
        print(f"  {name} {len(content) / 1e6:.2f} MB, needs {read(content)}")


if __name__ == "__main__":
    main()
