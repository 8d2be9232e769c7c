"""*Cache*: a ``DynamicCache`` whose prefix comes from a node, and goes there.

The keys and values of a block of tokens, of all layers, are one value of the node. Its key is that
of :func:`kvmem.prefix_keys`. Tensors over the shared memory are the sources and targets of the
copies, so each byte is copied once in each direction."""

import contextlib
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers.cache_utils import DynamicCache, DynamicLayer

from .._kvmem import NodeCache, NodeReservation, prefix_keys
from .._tensor import tensor
from ..errors import ExportedError, InvalidArgumentError, NodeError, OutOfSpaceError
from ..storage.data_type import common, data_type_of
from .identity import UnsupportedModelError, check_rope, identity
from .layout import Layout

_log = logging.getLogger("kvmem")

_AT_ONCE = 16
"""Blocks that are reserved at a time, fewer if the node has no space for as many."""


class KvmemCache(DynamicCache):  # type: ignore[misc]
    """The KV cache of one prompt, which begins with the blocks that a node has of it.

    .. code-block:: python

        cache = KvmemCache(node, model, input_ids)
        output = model.generate(input_ids, past_key_values=cache)
        cache.store(output)

    - ``node``: connection to the node. With ``verify=True`` the bytes of each block are compared
      with their checksum.
    - ``input_ids``: tokens of the prompt, of shape ``(tokens,)`` or ``(1, tokens)``, without
      padding. None: ``load`` has them later.
    - ``block``: tokens in a block. Prompts share whole blocks.
    - ``weights``: a text that changes with the weights. None: samples of all tensors.
    - ``settings``: all else that changes the KV cache, such as the active adapters.
    - ``priority``, ``ttl``: hints for the blocks, as for :meth:`kvmem.NodeCache.insert`.

    The tokens alone must decide the keys and values: without images, and with causal attention.
    Failures of the node cost misses. Raises :class:`UnsupportedModelError` if a layer does not hold
    the keys and values of each token, or if RoPE depends on the length of the prompt."""

    def __init__(
        self,
        node: NodeCache,
        model: Any,
        input_ids: Any = None,
        *,
        block: int = 64,
        weights: str | None = None,
        settings: Mapping[str, Any] | None = None,
        priority: int = 0,
        ttl: float | None = None,
    ) -> None:
        super().__init__(config=model.config)
        if not isinstance(block, int) or block < 1:
            raise InvalidArgumentError(
                f"block is {block}: give a number of tokens of 1 or more", value=block, limit=1
            )
        for at, layer in enumerate(self.layers):
            if type(layer) is not DynamicLayer:
                raise UnsupportedModelError(
                    f"layer {at} has a {type(layer).__name__}, which does not keep the keys and "
                    "values of each token, or keeps more: use a DynamicCache",
                    value=type(layer).__name__,
                    limit="DynamicLayer",
                    remedy="use a DynamicCache",
                )
        check_rope(model.config.get_text_config(decoder=True))
        self.block = block
        """Tokens in a block."""
        self.restored = 0
        """Tokens that came from the node."""
        self._node = node
        self._salt = identity(model, weights, settings or {})
        self._hints: dict[str, Any] = {"priority": priority, "ttl": ttl}
        self._devices = _devices(model, len(self.layers))
        self._prompt: list[int] = []
        if input_ids is not None:
            self.load(input_ids)

    def load(self, input_ids: Any) -> int:
        """Takes the longest prefix of a prompt that the node has, and returns its length in tokens.
        The last token of the prompt is never among them: the model computes the next one from it.
        Raises :class:`~kvmem.InvalidArgumentError` unless the cache is empty."""
        if self.get_seq_length():
            raise InvalidArgumentError(
                f"the cache has {self.get_seq_length()} tokens: load a prompt into a new cache",
                value=self.get_seq_length(),
                limit=0,
            )
        self._prompt = _tokens(input_ids)
        self.restored = 0
        keys = prefix_keys(self._prompt[:-1], self.block, self._salt)
        if not keys:
            return 0
        try:
            found = self._found(keys)
        except (NodeError, OutOfSpaceError) as error:
            _log.warning("Transformers: no prefix is loaded: %s", error)
            return 0
        for layer, (states, device) in zip(self.layers, zip(found, self._devices)):
            key_states, value_states = (it.unsqueeze(0).to(device) for it in states)
            layer.lazy_initialization(key_states, value_states)
            layer.keys, layer.values = key_states, value_states
        self.restored = self.get_seq_length()
        return self.restored

    def store(self, input_ids: Any = None) -> int:
        """Stores the complete blocks that the node does not have, and returns how many tokens it
        has then. ``input_ids``: all tokens, such as the output of ``generate``. None: those of the
        prompt. Tokens whose keys and values the cache does not have are left out. Raises
        :class:`~kvmem.InvalidArgumentError` if the cache has several sequences, or if ``input_ids``
        does not begin with the prompt."""
        tokens = self._prompt if input_ids is None else _tokens(input_ids)
        if tokens[: len(self._prompt)] != self._prompt:
            raise InvalidArgumentError(
                "input_ids does not begin with the prompt of the cache: pass the prompt and what "
                "was generated from it"
            )
        length = self.get_seq_length()
        if length == 0:
            return 0
        sequences = int(self.layers[0].keys.shape[0])
        if sequences != 1:
            raise InvalidArgumentError(
                f"the cache has {sequences} sequences: store caches of one sequence, without beams",
                value=sequences,
                limit=1,
            )
        keys = prefix_keys(tokens[:length], self.block, self._salt)
        try:
            return self._write(keys) * self.block
        except (NodeError, OutOfSpaceError) as error:
            _log.warning("Transformers: blocks are not stored: %s", error)
            return 0

    def _found(self, keys: Sequence[bytes]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Returns keys and values of each layer, copied from the blocks that the node has."""
        with self._node.acquire_prefix(keys) as pins:
            values = [pin for pin in pins if pin is not None]
            found = self._copied(values)
            # The bytes were those of the values if the pins still exist.
            return found if all(pin.is_valid for pin in values) else []

    def _copied(self, values: Sequence[Any]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        layout = None
        blocks = []
        for value in values:
            with memoryview(value) as view:
                layout = layout or Layout.read(torch, view)
                if layout is None or not layout.is_of(view):
                    break
            blocks.append(tensor(value, torch.uint8, read_only=True))
        if layout is None or not blocks or len(layout.parts) != 2 * len(self.layers):
            return []
        states = [
            torch.cat([_part(block, part) for block in blocks], dim=1) for part in layout.parts
        ]
        return [*zip(states[::2], states[1::2])]

    def _write(self, keys: Sequence[bytes]) -> int:
        """Writes the blocks that the node does not have, and returns how many it has then, without
        a gap. The last blocks are written first, so they are the oldest, and a node that is full
        evicts the end of a prompt before its start."""
        present, last = self._node.lookup(keys), len(keys)
        layout, at_once = self._layout(), _AT_ONCE
        while last > present:
            first = max(present, last - at_once)
            try:
                self._write_some(keys, layout, first, last)
            except OutOfSpaceError as error:
                at_once = (last - first) // 2
                if at_once == 0:
                    _log.warning("Transformers: the node takes no blocks: %s", error)
                    break
                continue
            last = first
        if present:
            self._node.touch(keys[:present][::-1])
        return self._node.lookup(keys)

    def _write_some(self, keys: Sequence[bytes], layout: Layout, first: int, last: int) -> None:
        numbers = range(last - 1, first - 1, -1)
        sizes = [(keys[number], layout.nbytes) for number in numbers]
        data_type = common(data_type_of(part.dtype) for part in layout.parts)
        rooms = self._node.reserve_batch(sizes, data_type=data_type, **self._hints)
        try:
            for number, room in zip(numbers, rooms):
                self._fill(room, layout, number * self.block)
        except BaseException:
            for room in rooms:
                # The traceback may have a tensor over one, which ends it later.
                with contextlib.suppress(ExportedError):
                    room.discard()
            raise
        self._node.commit(rooms)

    def _layout(self) -> Layout:
        shapes = []
        for layer in self.layers:
            for states in (layer.keys, layer.values):
                _, heads, _, width = states.shape
                dtype = str(states.dtype).removeprefix("torch.")
                shapes.append((dtype, int(heads), self.block, int(width)))
        return Layout.of(torch, shapes)

    def _fill(self, room: NodeReservation, layout: Layout, first: int) -> None:
        """Writes the block that begins with a token."""
        room.write(layout.head)
        into = tensor(room, torch.uint8)
        states = [states for layer in self.layers for states in (layer.keys, layer.values)]
        for part, source in zip(layout.parts, states):
            _part(into, part).copy_(source[0, :, first : first + self.block])


def _part(block: torch.Tensor, part: Any) -> torch.Tensor:
    """Returns a part of a block's bytes as a tensor over them."""
    part_bytes = block[part.offset : part.offset + part.nbytes]
    return part_bytes.view(getattr(torch, part.dtype)).view(part.shape)


def _tokens(input_ids: Any) -> list[int]:
    """Returns the tokens of one prompt."""
    if isinstance(input_ids, torch.Tensor):
        input_ids = input_ids.tolist()
    tokens = list(input_ids)
    if len(tokens) == 1 and isinstance(tokens[0], (list, tuple)):
        tokens = list(tokens[0])
    if tokens and not isinstance(tokens[0], int):
        raise InvalidArgumentError(
            f"input_ids has {len(tokens)} sequences: give each prompt a cache of its own",
            value=len(tokens),
            limit=1,
        )
    return tokens


def _devices(model: Any, layers: int) -> list[Any]:
    """Returns the device of each layer, which a model may have distributed over several."""
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else model
    modules = getattr(decoder, "layers", None)
    if modules is None or len(modules) != layers:
        return [model.device] * layers
    return [next((it.device for it in module.parameters()), model.device) for module in modules]
