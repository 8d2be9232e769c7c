"""Libraries are seen to need what they need."""

from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path

import pytest
from links import compiled, faults, read


@pytest.fixture
def build(tmp_path: Path):
    def build(*flags: str, code: str = "int f(void) { return 0; }") -> bytes:
        (tmp_path / "a.c").write_text(code)
        made = ["cc", "-shared", "-fPIC", "-o", tmp_path / "a.so", tmp_path / "a.c", *flags]
        subprocess.run(made, check=True)
        return (tmp_path / "a.so").read_bytes()

    return build


UNWINDS = ("-Wl,--no-as-needed", "-lgcc_s")


def test_a_library_that_needs_libc_alone_is_fine(build, tmp_path: Path) -> None:
    content = build(*UNWINDS)
    assert faults("a.so", content, (2, 99), ["/somewhere"]) == []
    assert {"libc.so.6", "libgcc_s.so.1"} <= set(read(content).libraries)
    with zipfile.ZipFile(tmp_path / "a.whl", "w") as wheel:
        wheel.writestr("text", "text")
        wheel.writestr("a.so", content)
    assert list(compiled(tmp_path / "a.whl")) == ["a.so"]


def test_faults_name_what_is_wrong(build) -> None:
    calls = "#include <stdlib.h>\nvoid *f(void) { return malloc(1); }"
    for flags, code, fault in (
        ((), None, "does not link libgcc_s.so.1"),
        (("-Wl,--no-as-needed", "-lutil", "-lresolv"), None, "links libresolv.so.2"),
        (("-Wl,-rpath,/home/me",), None, "has the run path /home/me"),
        ((), "extern int none(void); int f(void) { return none(); }", "needs the symbol none"),
        ((), 'const char *f(void) { return "/home/me/x"; }', "contains the folder /home/me"),
        ((), calls, "the tag promises 2.1"),
    ):
        content = build(*flags, *UNWINDS * bool(flags or code), **({"code": code} if code else {}))
        found = faults("a.so", content, (2, 1) if code == calls else (2, 99), ["/home/me"])
        assert any(fault in each for each in found), (fault, found)
