"""Notices and lists of parts name what is linked, once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from linked import edges, linked, needed, notices, parts


def package(name: str, version: str = "1.0.0", folder: Path = Path("/w")) -> dict[str, Any]:
    ours = name == "ours"
    return {
        "id": f"{name} {version}",
        "name": name,
        "version": version,
        "source": None if ours else "somewhere",
        "manifest_path": str(folder / name / "Cargo.toml"),
        "license": "MIT/Apache-2.0",
        "repository": None,
    }


def test_the_linked_crates_are_those_of_the_tree() -> None:
    metadata = {"packages": [package("ours"), *map(package, "ab"), package("a", "2.0.0")]}
    found = linked("ours v1.0.0 (/folder)\na v2.0.0\na v2.0.0 (*)\n\nours v1.0.0\n", metadata)
    assert [one["id"] for one in found] == ["a 2.0.0", "ours 1.0.0"]


def test_a_text_stands_once_and_the_workspace_is_no_third_party(tmp_path: Path) -> None:
    for name, text in (("a", "same \n"), ("b", "other"), ("c", "\nsame"), ("ours", "own")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "LICENSE").write_text(text)
    page = notices("head\n\n", [package(name, folder=tmp_path) for name in ("a", "b", "c", "ours")])
    assert page.startswith("head\n\n| crate |") and "own" not in page
    assert "## a (LICENSE), c (LICENSE)\n\n````text\nsame\n````" in page
    assert page.count("\nsame\n") == 1


def test_of_several_licences_the_shortest_is_chosen_and_notices_stay() -> None:
    for files, chosen in (
        (["LICENSE-APACHE", "LICENSE-MIT", "NOTICE", "src"], ["LICENSE-MIT", "NOTICE"]),
        (["COPYING", "LICENSE-MIT", "UNLICENSE"], ["LICENSE-MIT"]),
        (["LICENSE-APACHE", "licence.md", "README.md"], ["LICENSE-APACHE", "licence.md"]),
    ):
        assert needed(files) == chosen


def test_parts_have_their_checksums_and_dependencies_that_are_linked() -> None:
    def dep(name: str, kind: str | None) -> dict[str, Any]:
        return {"pkg": f"{name} 1.0.0", "dep_kinds": [{"kind": kind}]}

    nodes = [
        {"id": "a 1.0.0", "deps": [dep("b", None), dep("c", None)]},
        {"id": "b 1.0.0", "deps": [dep("a", "build")]},
        {"id": "c 1.0.0", "deps": []},
    ]
    both = [package("a"), package("b")]
    names = {one["id"]: one["name"] for one in both}
    assert edges(nodes, names) == {"a": ["b"], "b": []}

    lock = {"package": [both[0] | {"checksum": "11"}, both[1], package("a", "2.0.0")]}
    whole = {"ref": "kvmem", "version": "1.0.0", "target": "here", "packages": ["a"]}
    listed = parts(both, {"resolve": {"nodes": nodes}}, lock, whole, 86_400)
    assert listed["metadata"]["timestamp"] == "1970-01-02T00:00:00Z"
    assert [one.get("hashes") for one in listed["components"]] == [
        [{"alg": "SHA-256", "content": "11"}],
        None,
    ]
    assert listed["components"][0]["licenses"] == [{"expression": "MIT OR Apache-2.0"}]
    assert listed["dependencies"][-1] == {"ref": "pkg:cargo/b@1.0.0", "dependsOn": []}
