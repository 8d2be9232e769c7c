"""Unpacks the Python files and the metadata of the wheels in a folder, and removes the wheels.

Of the compiled modules only vLLM's reader and writer of files, which is small and needs no GPU."""

import pathlib
import sys
import zipfile

folder = pathlib.Path(sys.argv[1])
for wheel in folder.glob("*.whl"):
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.endswith((".py", "/fs_io_C.abi3.so")) or ".dist-info/" in name:
                archive.extract(name, folder)
    wheel.unlink()
