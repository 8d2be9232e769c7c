"""Descriptions of chunks: bytes that engines of other versions may have written."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st
from kvmem.vllm._description import Description, decode, parents_first

U32 = st.integers(0, 2**32 - 1)
HASHES = st.binary(min_size=1, max_size=32)
DESCRIPTIONS = st.builds(
    Description,
    block_hashes=st.lists(HASHES, min_size=1, max_size=5).map(tuple),
    parent=st.none() | HASHES,
    token_ids=st.lists(U32, max_size=40).map(tuple),
    block_size=U32,
    lora_id=st.none() | st.integers(0, 2**63 - 1),
    lora_name=st.none() | st.text(),
    extra_keys=st.none()
    | st.lists(st.none() | st.tuples(st.text(), st.tuples(st.text(), st.integers()))),
    group=U32,
    kind=st.none() | st.text(),
    sliding_window=st.none() | st.integers(0, 2**63 - 1),
)


@settings(deadline=None)
@given(DESCRIPTIONS)
def test_a_description_is_read_as_it_was_written(description: Description) -> None:
    encoded = description.encode()
    assert decode(encoded) == description
    # One that was cut off, is longer, or of another version is none.
    assert all(decode(encoded[:length]) is None for length in range(len(encoded)))
    assert decode(encoded + b"\0") is None
    assert decode(b"\2" + encoded[1:]) is None


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_a_description_or_none(data: bytes) -> None:
    for prefix in (b"", b"\1"):
        found = decode(prefix + data)
        assert found is None or found.encode() == prefix + data or found.extra_keys is not None


def test_what_the_format_has_no_place_for_raises() -> None:
    plain = {
        "parent": None,
        "block_size": 1,
        "lora_name": None,
        "extra_keys": None,
        "kind": None,
        "sliding_window": None,
    }
    for wrong in (
        {"token_ids": (2**32,), "group": 0, "lora_id": None},
        {"token_ids": (-1,), "group": 0, "lora_id": None},
        {"token_ids": (), "group": 2**32, "lora_id": None},
        {"token_ids": (), "group": 0, "lora_id": 2**63},
    ):
        try:
            Description(block_hashes=(b"a",), **plain, **wrong).encode()  # type: ignore[arg-type]
        except ValueError:
            continue
        raise AssertionError(wrong)


@settings(deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 60))
def test_a_chunk_comes_after_the_one_that_it_continues(seed: int, count: int) -> None:
    draw = random.Random(seed)
    keys, described = [], {}
    for number in range(count):
        key = b"%d" % number
        keys.append(key)
        # Some have no description, and some continue a chunk that is not there.
        parent = draw.choice([None, b"elsewhere", *(b"hash %d" % it for it in range(number))])
        if draw.random() < 0.9:
            described[key] = Description(
                (b"hash %d" % number,), parent, (), 1, None, None, None, 0, None, None
            )
    draw.shuffle(keys)
    ordered = parents_first(keys, described)
    assert sorted(ordered) == sorted(keys)
    at = {described[key].block_hashes[0]: i for i, key in enumerate(ordered) if key in described}
    for i, key in enumerate(ordered):
        parent = described[key].parent if key in described else None
        assert parent not in at or at[parent] < i
