"""The table of engines has what was tested, and keeps what was not tested again."""

from __future__ import annotations

import pytest
from table import (
    HEAD,
    MARKS,
    NOTHING,
    PAGE,
    UNTESTED,
    Row,
    compare,
    merge,
    rows_of,
    split,
    with_table,
)

from machine import ROOT

EMPTY = f"before\n{MARKS[0]}{MARKS[1]}behind\n"


def row(version: str, feature: str, tested: str, engine: str = "sglang") -> Row:
    return Row(engine, version, feature, tested, NOTHING if tested == UNTESTED else "test_a.py")


def of(*names: str) -> list[tuple[str, str]]:
    return [("sglang", name) for name in names]


def test_a_table_is_written_and_read_back() -> None:
    rows = [row("1.0", "a", "real"), row(NOTHING, "b", UNTESTED)]
    text = with_table(EMPTY, rows)
    assert text.startswith("before\n<!-- The table") and text.endswith("behind\n")
    assert "| sglang | 1.0 | a | real | `pytest crates/" in text
    assert "| sglang | – | b | untested | – |" in text
    assert rows_of(text) == rows
    with pytest.raises(SystemExit, match="lacks the lines"):
        rows_of("no marks")


def test_what_a_run_has_not_tested_stays() -> None:
    old = [row("1.0", "a", "real"), row("1.0", "b", "torch")]
    new = [row("1.1", "a", "real")]
    assert merge(old, of("a", "b"), new) == [row("1.1", "a", "real"), row("1.0", "b", "torch")]
    # A kind more, and both ends of the versions.
    new = [row("1.1", "a", "torch"), row("1.1", "b", "torch"), row("0.9", "b", "torch")]
    merged = [new[0], row("1.0", "a", "real"), new[1], new[2]]
    assert merge(old, of("a", "b"), new) == merged


def test_a_feature_that_no_run_has_passed_is_untested() -> None:
    untested, tested = row(NOTHING, "a", UNTESTED), row("1.0", "a", "real")
    assert merge([], of("a"), []) == [untested]
    assert merge([untested], of("a"), [tested]) == [tested]
    # A row of a feature that is gone goes too; an engine of no run stays.
    other = row("2.0", "x", "real", "dynamo")
    assert merge([row("1.0", "gone", "real"), other], of("a"), [tested]) == [tested, other]


def test_only_what_was_tested_is_compared() -> None:
    old = [row("1.0", "a", "real"), row("1.0", "b", "real")]
    assert compare(old, of("a", "b"), old[:1]) == ([], [])
    faults, news = compare(old, of("a", "b"), [row("1.1", "a", "real")])
    assert not faults and "sglang 1.1" in news[0]
    faults, _ = compare(old, of("a", "b"), [row("1.0", "a", "torch")])
    assert faults == ['sglang: "a" was tested (torch), with no such row']
    faults, _ = compare(old, of("a", "c"), [])
    assert faults == ['sglang: no test shows "b"', 'sglang: "c" has no row']


def test_the_page_of_the_repository_has_a_table() -> None:
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    assert any(row.engine == "vllm" and row.tested != UNTESTED for row in rows_of(text))
    assert split(text)[1].startswith(f"\n{HEAD}") and with_table(text, rows_of(text)) == text
