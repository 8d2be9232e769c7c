"""Formats of the plug-ins: what this version writes, what it reads of others, and what it says.

The bytes are those that users have in their nodes, on their disks and at their peers. A change of
a format needs another version or magic number, and then another line here."""

from __future__ import annotations

import os
import socket
import struct
from types import SimpleNamespace
from typing import Any

import kvmem
import pytest
from kvmem.llama_cpp import prefix_cache
from kvmem.mooncake import node_tier
from kvmem.nixl import descriptors
from kvmem.storage.weights import digest_of
from kvmem.transformers.layout import Layout
from kvmem.vllm._description import Description, decode

DESCRIPTION = Description(
    block_hashes=(b"h1", b"h2"),
    parent=b"p",
    token_ids=(1, 2, 70000),
    block_size=2,
    lora_id=None,
    lora_name=None,
    extra_keys=[None, ("mm", ("x", 1))],
    group=3,
    kind="full",
    sliding_window=None,
)
DESCRIPTION_V1 = bytes.fromhex(
    "010300000002000000ffffffffffffffffffffffffffffffff0c000000010000000200000070110100010000007004"
    "00000002000000020000006831020000006832ffffffff0400000066756c6c180000005b6e756c6c2c205b226d6d22"
    "2c205b2278222c20315d5d5d"
)
SPANS = [(4096, 100), (1 << 40, 1)]
DESCRIPTORS_V1 = bytes.fromhex(
    "6b766d656d2d6e69786c2d3105000000020000006167656e7400100000000000006400000000000000000000000001"
    "00000100000000000000"
)
LAYOUT = bytes.fromhex(
    "6b766d656d206866250000005b5b22666c6f61743136222c322c332c345d2c5b22666c6f61743136222c322c332c35"
    "5d5d000000000000000000000000000000"
)
TORCH = SimpleNamespace(float16=SimpleNamespace(itemsize=2))


def test_descriptions_of_vllm() -> None:
    assert DESCRIPTION.encode() == DESCRIPTION_V1
    assert decode(DESCRIPTION_V1) == DESCRIPTION
    # One of another version is a chunk without a description.
    for version in (0, 2, 255):
        assert decode(bytes([version]) + DESCRIPTION_V1[1:]) is None
    for at in range(len(DESCRIPTION_V1)):
        for bits in (1 << at % 8, 0xFF):
            changed = bytearray(DESCRIPTION_V1)
            changed[at] ^= bits
            found = decode(bytes(changed))
            assert found is None or isinstance(found, Description)


def test_descriptors_of_nixl() -> None:
    assert descriptors.pack("agent", SPANS) == DESCRIPTORS_V1
    assert descriptors.unpack(DESCRIPTORS_V1) == ("agent", SPANS)
    for version in (b"0", b"2"):
        for rest in (DESCRIPTORS_V1[12:], b"", b"something else"):
            with pytest.raises(kvmem.InvalidArgumentError, match="one release of kvmem") as raised:
                descriptors.unpack(b"kvmem-nixl-" + version + rest)
            text = str(raised.value)
            assert f"kvmem-nixl-{version.decode()}" in text and "reads b'kvmem-nixl-1'" in text
    for at in range(20):
        changed = bytearray(DESCRIPTORS_V1)
        changed[at] ^= 1 << at % 8
        with pytest.raises(kvmem.InvalidArgumentError):
            descriptors.unpack(bytes(changed))


def test_blocks_of_transformers() -> None:
    layout = Layout.of(TORCH, [("float16", 2, 3, 4), ("float16", 2, 3, 5)])
    assert layout.head == LAYOUT and layout.nbytes == 192
    value = LAYOUT + bytes(128)
    assert layout.is_of(memoryview(value)) and Layout.read(TORCH, memoryview(value)) == layout
    for at in range(len(LAYOUT)):
        changed = bytearray(value)
        changed[at] ^= 1 << at % 8
        # Another head is another layout, or none: it ends the prefix.
        assert not layout.is_of(memoryview(changed))
        found = Layout.read(TORCH, memoryview(changed))
        assert found is None or found.nbytes == len(value)


class Pins:
    """Pins of one value."""

    def __init__(self, value: bytes) -> None:
        self.value = value

    def __enter__(self) -> list[bytearray]:
        return [Pin(self.value)]

    def __exit__(self, *_: object) -> None:
        pass


class Pin(bytearray):
    @property
    def nbytes(self) -> int:
        return len(self)


def test_locators_of_llama_cpp() -> None:
    key = bytes(range(32))
    locator = b"kvmem ll" + key + struct.pack("<QQ", 300, 1 << 33)
    assert prefix_cache._LOCATOR.pack(prefix_cache._MAGIC, key, 300, 1 << 33) == locator

    def known(value: bytes) -> list[Any]:
        cache = SimpleNamespace(acquire=lambda keys: Pins(value))
        reader: Any = SimpleNamespace(_cache=cache, block=16)
        return prefix_cache.PrefixCache._known(reader, [key])

    assert [(it.key, it.tokens, it.nbytes) for it in known(locator)] == [(key, 300, 1 << 33)]
    assert known(locator + b"\0") == known(locator[:-1]) == []
    for at in range(8):
        changed = bytearray(locator)
        changed[at] ^= 1 << at % 8
        assert known(bytes(changed)) == []


def test_keys_of_engines() -> None:
    # Another hash would lose all that is stored, without an error.
    fields = {"model": "m", "groups": [[16, "a"]]}
    assert digest_of(fields, 12).hex() == "de45e04b7453bf09620a7b62"


def test_a_server_of_another_version_ends_the_helper_of_a_cluster() -> None:
    assert node_tier.MAGIC == b"kvmem-c2"
    for hello in (
        b"kvmem-c1" + bytes(8),
        b"kvmem-c3" + bytes(8),
        b"kvmem-c3" + bytes(40),
        b"kvmem-c3",
        node_tier.MAGIC,
    ):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, theirs, open(os.devnull, "rb") as file:
            socket.send_fds(theirs, [hello], [file.fileno()])
            with pytest.raises(ValueError, match="use one release of kvmem for both") as raised:
                node_tier._hello(ours)
            assert repr(hello[:8]) in str(raised.value) and "kvmem-c2" in str(raised.value)
