"""*Archive*: a wheel as a file, completed with the files of a stage.

A wheel is a zip archive with a ``RECORD`` of its files and their hashes. It is written with sorted
names and one time stamp (``SOURCE_DATE_EPOCH``, or that of the archive's format), so the same
files give the same bytes."""

import base64
import csv
import hashlib
import io
import os
import time
import zipfile
from pathlib import Path

EARLIEST = 315532800
"""1980-01-01, the first second that a zip archive can name."""

EXECUTABLE, PLAIN = 0o755, 0o644


def complete(wheel: Path, stage: Path, level: int = 9) -> None:
    """Adds the files of a stage to a wheel, compressed: ``scripts`` and ``package``."""
    files = _read(wheel)
    record = next(name for name in files if name.endswith(".dist-info/RECORD"))
    information = record.removesuffix("/RECORD")
    places = {
        "scripts": information.removesuffix(".dist-info") + ".data/scripts",
        "package": "kvmem",
    }
    for part, place in places.items():
        for file in sorted((stage / part).rglob("*")):
            if file.is_file():
                mode = EXECUTABLE if part == "scripts" else PLAIN
                name = f"{place}/{file.relative_to(stage / part).as_posix()}"
                files[name] = (file.read_bytes(), mode)
    del files[record]
    files[record] = (_record(files, record), PLAIN)
    _write(wheel, files, information, level)


def _read(wheel: Path) -> dict[str, tuple[bytes, int]]:
    """Returns contents and modes by name."""
    with zipfile.ZipFile(wheel) as archive:
        return {
            entry.filename: (archive.read(entry), entry.external_attr >> 16 & 0o777 or PLAIN)
            for entry in archive.infolist()
            if not entry.is_dir()
        }


def _record(files: dict[str, tuple[bytes, int]], record: str) -> bytes:
    """Returns the list of all files with hash and length. It does not have its own."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    for name, (content, _) in sorted(files.items()):
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        rows.writerow([name, f"sha256={digest}", len(content)])
    rows.writerow([record, "", ""])
    return text.getvalue().encode()


def _write(wheel: Path, files: dict[str, tuple[bytes, int]], information: str, level: int) -> None:
    """Replaces the wheel. The metadata comes last, as the format recommends."""
    stamp = time.gmtime(max(int(os.environ.get("SOURCE_DATE_EPOCH", EARLIEST)), EARLIEST))
    new = wheel.with_suffix(".new")
    with zipfile.ZipFile(new, "w") as archive:
        for name in sorted(files, key=lambda name: (name.startswith(information), name)):
            content, mode = files[name]
            entry = zipfile.ZipInfo(name, stamp[:6])
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100000 | mode) << 16
            archive.writestr(entry, content, compresslevel=level)
    new.replace(wheel)
