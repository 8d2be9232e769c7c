"""Which chunk comes before which: the parents of the values of a prompt."""

from __future__ import annotations

from itertools import islice
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from kvmem.vllm._order import order_of, parents_of


class Context:
    """What vLLM notes of a request."""

    def __init__(self, positions: dict[bytes, int]) -> None:
        self._offload_key_positions = positions
        self._states: dict[type, Any] = {}

    def get_state(self, of: type) -> Any:
        return self._states.get(of)

    def set_state(self, state: Any) -> None:
        self._states[type(state)] = state


def key(group: int, at: int) -> bytes:
    return at.to_bytes(8, "big") + group.to_bytes(4, "big")


def prompt(chunks: int, groups: int = 1) -> dict[bytes, int]:
    """The keys of a prompt, one group after the other, as vLLM notes them."""
    return {key(group, at): 16 * (at + 1) for group in range(groups) for at in range(chunks)}


@given(chunks=st.integers(1, 40), draw=st.data())
def test_the_parent_is_the_chunk_before(chunks: int, draw: st.DataObject) -> None:
    context = Context(prompt(chunks))
    for _ in range(draw.draw(st.integers(1, 5))):
        stored = draw.draw(st.lists(st.integers(0, chunks - 1), unique=True))
        parents = parents_of([key(0, at) for at in stored], context)
        assert parents == [key(0, at - 1) if at else None for at in stored]


@given(order=st.permutations(range(12)))
def test_a_prompt_that_is_noted_in_any_order(order: list[int]) -> None:
    context = Context({key(0, at): 16 * (at + 1) for at in order})
    parents = parents_of([key(0, order[-1])], context)
    # All of it is known when the last one is.
    assert parents == [key(0, order[-1] - 1) if order[-1] else None]


def test_a_long_prompt_is_noted_as_far_as_it_is_stored() -> None:
    context = Context(prompt(8192))
    parents_of([key(0, at) for at in range(100, 164)], context)
    assert order_of(context).seen == 164
    # Tokens are generated meanwhile.
    context._offload_key_positions[key(0, 8192)] = 16 * 8193
    assert parents_of([key(0, 8192)], context) == [key(0, 8191)]


def test_a_key_of_no_prompt_has_no_parent() -> None:
    context = Context(prompt(4))
    assert parents_of([b"unknown" + bytes(4), key(0, 1)], context) == [None, key(0, 0)]


def test_the_first_chunk_of_a_window_goes_with_the_first_group() -> None:
    context = Context(prompt(20, groups=2))
    window = [key(1, at) for at in islice(range(20), 12, None)]
    order_of(context).stored.update(window)
    assert parents_of(window, context) == [key(0, 12), *window[:-1]]
