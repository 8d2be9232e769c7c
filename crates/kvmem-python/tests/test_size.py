"""Sizes as text: the table with which the library, C and the command are tested as well."""

from __future__ import annotations

import argparse
from pathlib import Path

import kvmem
import pytest
from kvmem.mooncake.command import size

TABLE = Path(__file__).parents[2] / "kvmem/tests/data/sizes.tsv"
FAULTS = {
    "empty": "it is empty",
    "negative": "it is negative",
    "number": "it does not begin with a number",
    "unit": "is not known",
    "zero": "it comes to 0 bytes",
    "large": "it is more than 9223372036854775807 bytes",
}


def table() -> list[tuple[str, str]]:
    lines = TABLE.read_text(encoding="utf-8").split("\n")
    found = [tuple(line.split("\t", 1)) for line in lines if line and not line.startswith("#")]
    assert len(found) > 90
    return found  # type: ignore[return-value]


@pytest.mark.parametrize(("text", "expected"), table())
def test_texts_are_parsed_as_in_the_table(text: str, expected: str) -> None:
    if expected.isdigit():
        assert size(text) == int(expected)
        return
    fault, _, unit = expected.partition(" ")
    with pytest.raises(argparse.ArgumentTypeError, match="such as 64GiB") as failing:
        size(text)
    assert FAULTS[fault] in str(failing.value) and unit in str(failing.value)
    # A pool raises the same, and so does a space, which parses sizes by itself.
    for make in (lambda: kvmem.Pool(text, pages="4k"), lambda: kvmem.OffsetAllocator(text)):
        with pytest.raises(kvmem.InvalidArgumentError) as error:
            make()
        message = str(error.value).removeprefix("size: ").removeprefix("capacity: ")
        assert message == str(failing.value)


def test_a_space_has_the_bytes_of_its_text() -> None:
    for text, expected in table():
        if expected.isdigit():
            assert kvmem.OffsetAllocator(text).capacity == int(expected), text
