"""Keys of prefixes: the vectors that the tests of all languages read, and what tokens may be."""

from __future__ import annotations

import array
from hashlib import blake2b
from pathlib import Path
from typing import Any

import kvmem
import numpy as np
import pytest

VECTORS = Path(__file__).parents[2] / "kvmem" / "tests" / "data" / "prefix_keys.txt"


def parts(text: str) -> list[str]:
    return [] if text == "-" else text.split(",")


def test_keys_are_those_of_all_languages() -> None:
    compared = 0
    for line in VECTORS.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            continue
        salt_text, block, token_text, key_text = line.split(" ")
        salt = bytes.fromhex(salt_text.strip("-"))
        tokens = [int(token) for token in parts(token_text)]
        keys = [bytes.fromhex(key) for key in parts(key_text)]
        forms: list[Any] = [
            tokens,
            tuple(tokens),
            iter(tokens),
            array.array("i", tokens),
            array.array("q", tokens),
            memoryview(array.array("i", tokens)),
            np.array(tokens, np.int32),
            np.array(tokens, np.int64),
            np.repeat(np.array(tokens, np.int64), 2)[::2],
            list(np.array(tokens, np.int32)),
        ]
        for form in forms:
            assert kvmem.prefix_keys(form, int(block), salt) == keys, type(form)
        compared += len(keys)
    assert compared > 10


def test_keys_are_those_of_hashlib() -> None:
    tokens = np.arange(1, 100_001, dtype=np.int32)
    key = blake2b(b"salt", digest_size=32).digest()
    expected = []
    for first in range(0, len(tokens) - 255, 256):
        data = key + tokens[first : first + 256].tobytes()
        key = blake2b(data, digest_size=32, person=b"kvmem-prefix-key").digest()
        expected.append(key)
    for salt in (b"salt", bytearray(b"salt"), memoryview(b"salt"), np.frombuffer(b"salt", "B")):
        assert kvmem.prefix_keys(tokens, 256, salt) == expected
    assert len(expected) == 390


def test_wrong_tokens_are_named() -> None:
    wrong: list[tuple[Any, type[Exception], str]] = [
        ([1, 2**31], kvmem.InvalidArgumentError, "a token is 2147483648"),
        ([-(2**31) - 1], kvmem.InvalidArgumentError, "from -2147483648"),
        ([2**200], kvmem.InvalidArgumentError, "a token is"),
        (np.array([1, 2**40]), kvmem.InvalidArgumentError, "a token is 1099511627776"),
        (np.array([2**31], np.uint32), kvmem.InvalidArgumentError, "to 2147483647"),
        (np.zeros((1, 4), np.int64), kvmem.InvalidBufferError, "2 dimensions"),
        (np.zeros(4), kvmem.InvalidBufferError, 'format "d"'),
        (bytearray(4), kvmem.InvalidBufferError, 'format "B"'),
        (b"1234", TypeError, "not bytes"),
        ("1234", TypeError, "not str"),
        (["1"], TypeError, "not str"),
        ([1.5], TypeError, "not float"),
        (7, TypeError, "iterable"),
    ]
    for tokens, kind, words in wrong:
        with pytest.raises(kind, match=words):
            kvmem.prefix_keys(tokens, 1, b"")
    with pytest.raises(kvmem.InvalidArgumentError) as caught:
        kvmem.prefix_keys(np.array([2**31], np.uint32), 1, b"")
    assert (caught.value.value, caught.value.limit) == (2**31, 2**31 - 1)
    for block in (0, -1, 2**64):
        with pytest.raises(kvmem.InvalidArgumentError, match="block is"):
            kvmem.prefix_keys([1], block, b"")
    text: Any = "salt"
    with pytest.raises(TypeError):
        kvmem.prefix_keys([1], 1, text)


def test_a_block_may_be_longer_than_the_prompt() -> None:
    assert kvmem.prefix_keys([1, 2, 3], 4, b"") == []
    assert kvmem.prefix_keys([1, 2, 3], 2**64 - 1, b"") == []
    assert len(kvmem.prefix_keys([1, 2, 3], 3, b"")) == 1
