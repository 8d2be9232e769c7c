"""The history of values, for an eviction policy in Python."""

from __future__ import annotations

import kvmem
import pytest
from kvmem._kvmem import History


def test_an_evicted_value_returns_with_its_kind() -> None:
    history = History()
    slots = [history.insert(f"key {n}") for n in range(100)]
    assert slots == list(range(100)) and {history.kind(slot) for slot in slots} == {0}
    history.touch(slots[0])
    assert history.kind(slots[0]) == 1
    history.evict(slots[0])
    history.remove(slots[1])
    # Its slot is free, and the value that was removed is forgotten.
    assert history.kind(history.insert("key 1")) == 0
    assert history.kind(history.insert("key 0")) == 2
    empty = [None] * History.KINDS
    assert history.choose(empty) is None and history.choose([slots[5], *empty[1:]]) == 0


def test_slots_without_a_value_are_errors() -> None:
    history = History()
    slot = history.insert(1)
    history.evict(slot)
    for use in (history.touch, history.evict, history.remove, history.kind):
        with pytest.raises(kvmem.InvalidArgumentError, match="slot 0 has no value") as caught:
            use(slot)
        assert (caught.value.value, caught.value.limit) == (0, 1)
    with pytest.raises(kvmem.InvalidArgumentError, match="firsts has 2 slots"):
        history.choose([None, None])
