"""Unpacks the Python files and the metadata of the wheels in a folder, and removes the wheels."""

import pathlib
import sys
import zipfile

folder = pathlib.Path(sys.argv[1])
for wheel in folder.glob("*.whl"):
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.endswith(".py") or ".dist-info/" in name:
                archive.extract(name, folder)
    wheel.unlink()
