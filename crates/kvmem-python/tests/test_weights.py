"""The description of a model's weights changes with them."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kvmem
import pytest
from kvmem.storage import StorageOptions
from kvmem.storage.weights import fingerprint, warn_unseen

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def write(folder: Path, weights: bytes, name: str = "model-00001.safetensors") -> Path:
    """Writes a model whose files always have one time, as in images of containers."""
    folder.mkdir(parents=True, exist_ok=True)
    for file, content in ((folder / name, weights), (folder / "config.json", b"{}")):
        file.write_bytes(content)
        os.utime(file, ns=(0, 0))
    return folder


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    yield tmp_path / "hub"


def test_files_of_equal_lengths_and_times_differ_by_their_bytes(tmp_path: Path) -> None:
    one, two = os.urandom(1 << 20), os.urandom(1 << 20)
    first = fingerprint(str(write(tmp_path / "a", one)))
    assert first == fingerprint(str(write(tmp_path / "a copy", one))) and len(first) == 2
    assert first != fingerprint(str(write(tmp_path / "b", two)))
    # A short file is read whole, and a long one at 16 places, the first and the last among them.
    for at in (0, (1 << 20) - 1):
        changed = bytearray(one)
        changed[at] ^= 1
        assert first != fingerprint(str(write(tmp_path / f"at {at}", bytes(changed))))
    short = fingerprint(str(write(tmp_path / "short", b"a" * 60_000)))
    assert short != fingerprint(str(write(tmp_path / "other", b"a" * 59_999 + b"b")))


def test_names_lengths_and_times_of_files_count(tmp_path: Path) -> None:
    model = write(tmp_path / "model", b"weights")
    before = fingerprint(str(model))
    os.utime(model / "config.json", ns=(0, 7))
    changed = fingerprint(str(model))
    write(model, b"weights", "another.safetensors")
    assert before != changed != fingerprint(str(model)) != before
    file = model / "another.safetensors"
    assert fingerprint(str(file)) == [fingerprint(str(model))[0]]


def test_links_of_the_hub_name_their_contents(tmp_path: Path) -> None:
    def snapshot(place: str, blob: str, time: int) -> Any:
        blobs, files = tmp_path / place / "blobs", tmp_path / place / "snapshots" / COMMIT
        for folder in (blobs, files):
            folder.mkdir(parents=True)
        (blobs / blob).write_bytes(b"weights")
        os.utime(blobs / blob, ns=(0, time))
        (files / "model.safetensors").symlink_to(Path("../../blobs") / blob)
        return fingerprint(str(files))

    assert snapshot("one", "abc", 1) == snapshot("two", "abc", 2) == [["model.safetensors", "abc"]]
    assert snapshot("three", "def", 1) == [["model.safetensors", "def"]]


def test_names_have_the_commit_of_their_revision(hub: Path) -> None:
    refs = hub / "models--org--model" / "refs"
    refs.mkdir(parents=True)
    (refs / "main").write_text(COMMIT)
    (refs / "v2").write_text("beef" + "\n")
    assert fingerprint("org/model") == fingerprint("org/model", "main") == COMMIT
    assert fingerprint("org/model", "v2") == "beef"
    other = COMMIT[::-1]
    assert fingerprint("org/model", other) == other
    for unseen in ("org/another", "model", "s3://bucket/model", "../../etc", ""):
        assert fingerprint(unseen) is None or unseen == ""
    assert fingerprint("org/model", "no such branch") is None


def test_weights_that_are_not_visible_are_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "kvmem.storage"):
        for _ in range(3):
            warn_unseen("org/unseen", "set this")
        warn_unseen("org/another", "set this")
    assert [each.getMessage().partition(" are not")[0] for each in caplog.records] == [
        "the weights of 'org/unseen'",
        "the weights of 'org/another'",
    ]
    assert caplog.records[0].getMessage().endswith("set this")


def test_the_option_is_a_text_or_one_for_each_model() -> None:
    options = StorageOptions.parse({"node": "/s", "weights": {"a": "1"}}, "x")
    assert options.weights_of("a") == "1" and options.weights_of("b") is None
    assert StorageOptions.parse({"node": "/s", "weights": "2"}, "x").weights_of("b") == "2"
    assert StorageOptions.parse({"node": "/s"}, "x").weights_of("b") is None
    for wrong in ("", 3, {}, {"a": 1}, None, ["a"]):
        with pytest.raises(kvmem.InvalidArgumentError, match="changes with the weights") as caught:
            StorageOptions.parse({"node": "/s", "weights": wrong}, "x")
        assert caught.value.value == wrong
