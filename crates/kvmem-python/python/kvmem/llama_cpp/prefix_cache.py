"""*Prefix cache*: finds the state of the longest common prefix, and stores states.

The state of a sequence is one value: ``libllama`` reads and writes it as a whole. Its key is a hash
of all its tokens. For each complete block of these tokens there is a small second value, a
*locator*: its key is that of the block's prefix, and it names the state. A prompt finds the locator
of the last common block, restores the whole state, and removes the tokens behind the common ones.

This is exact where a context has the keys and values of each position. A recurrent state, or a
cache with sliding windows, cannot be cut: such models restore a state only if the prompt has all
its tokens."""

import array
import logging
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .._kvmem import NodeCache, prefix_keys
from ..errors import InvalidArgumentError, NodeError, OutOfSpaceError
from .identity import identity
from .library import LlamaLibrary, StateError, address_of, find_library

_log = logging.getLogger("kvmem")

_LOCATOR = struct.Struct("<8s32sQQ")
_MAGIC = b"kvmem ll"
_MAX_BATCH = 1024
"""Values that a call of a node inserts at most."""


@dataclass(frozen=True)
class PrefixCacheStats:
    """What a :class:`PrefixCache` has done."""

    loads: int = 0
    """Calls of ``load``."""
    hits: int = 0
    """Those that have restored tokens."""
    restored: int = 0
    """Tokens that they have restored."""
    stored: int = 0
    """States that were written."""
    present: int = 0
    """States that the node had already."""
    rejected: int = 0
    """States that ``libllama`` did not take: the context has no space for them, or another type of
    KV cache than ``settings`` says."""
    failures: int = 0
    """Calls during which the node failed: it was full, or did not answer."""


@dataclass(frozen=True)
class _State:
    """A state that a locator names."""

    common: int
    """Tokens that the prompt has in common with it, at least."""
    key: bytes
    tokens: int
    nbytes: int


class PrefixCache:
    """The states of a context's sequences, in a node.

    - ``cache``: connection to the node. With ``verify=True`` the bytes of each state are compared
      with their checksum before they are restored.
    - ``context``: the ``llama_context``: its address, or a pointer of :mod:`ctypes`. It must live
      as long as this object is used.
    - ``model``: path of the model's file, the first one of a split model.
    - ``block``: tokens in a block. Prompts share states at multiples of it.
    - ``settings``: parameters of the context and of requests that change the KV cache and are not
      in the model's file. Contexts with different settings share nothing.
    - ``weights``: a text that changes with the weights, in place of the file's contents.
    - ``library``: the ``libllama`` of the context. None: :func:`find_library`.
    - ``priority``, ``ttl``: hints for states, as for :meth:`kvmem.NodeCache.insert`.

    A sequence is one of tokens alone: positions from 0 on, without images. No other thread uses the
    context during a call. Failures of the node cost misses: see :meth:`stats`."""

    def __init__(
        self,
        cache: NodeCache,
        context: Any,
        model: str | Path,
        *,
        block: int = 256,
        settings: Mapping[str, Any] | None = None,
        weights: str | None = None,
        library: LlamaLibrary | str | Path | None = None,
        priority: int = 0,
        ttl: float | None = None,
    ) -> None:
        if not isinstance(block, int) or block < 1:
            raise InvalidArgumentError(
                f"block is {block}: give a number of tokens of 1 or more", value=block, limit=1
            )
        if library is None:
            library = find_library()
        elif not isinstance(library, LlamaLibrary):
            library = LlamaLibrary(library)
        self._cache = cache
        self._library = library
        self._context = address_of(context)
        self._memory = library.llama_get_memory(self._context)
        loaded = library.llama_get_model(self._context)
        if not self._memory:
            raise StateError(
                "the context has no KV cache, so its sequences have no states",
                remedy="use a context of a model that generates text",
            )
        self.block = block
        """Tokens in a block."""
        self.cuts = library.keeps_all_positions(loaded)
        """Whether a part of a state can be used. If not, a prompt must have all tokens of it."""
        self._salt = identity(library, loaded, model, weights, settings or {})
        self._hints: dict[str, Any] = {"priority": priority, "ttl": ttl}
        self._stats = PrefixCacheStats()
        self._logged: set[str] = set()

    def load(self, tokens: Sequence[int], seq_id: int = 0) -> int:
        """Replaces a sequence by the longest stored prefix of a prompt, and returns its length in
        tokens: the caller goes on to decode from there. 0: none is stored, and the sequence is
        empty.

        The last token of the prompt is never among them: decoding it gives the logits of the next
        one. Takes one call of the node for the look-up, one for the state, and a copy of the whole
        state, also if only a part of it is used."""
        tokens = _copied(tokens)
        self._count(loads=1)
        self._clear(seq_id)
        try:
            restored = self._restore(tokens, seq_id)
        except (NodeError, OutOfSpaceError) as error:
            self._clear(seq_id)
            self._failed("no state is restored", error)
            return 0
        self._count(hits=int(restored > 0), restored=restored)
        return restored

    def store(self, tokens: Sequence[int], seq_id: int = 0) -> int:
        """Stores the state of a sequence, and returns the number of its tokens; 0 if it has no
        complete block, or the node had no space. ``tokens`` are those of the sequence from its
        start on, the prompt and what was generated; more are ignored. A state that the node has
        already is not written again. Raises :class:`StateError` if ``libllama`` does not write the
        state, and :class:`~kvmem.InvalidArgumentError` if the sequence has more tokens than
        ``tokens``."""
        count = int(self._library.llama_memory_seq_pos_max(self._memory, seq_id)) + 1
        if count > len(tokens):
            raise InvalidArgumentError(
                f"the sequence {seq_id} has {count} tokens, and {len(tokens)} were passed: pass "
                "all tokens of the sequence",
                value=len(tokens),
                limit=count,
            )
        if count < self.block:
            return 0
        tokens = _copied(tokens)[:count]
        keys = prefix_keys(tokens, self.block, self._salt)
        state = self._state_key(tokens)
        try:
            nbytes = self._write(state, keys, count, seq_id)
            # Locators follow their state, so there is none without.
            if not self.cuts:
                # Locators of earlier blocks name shorter states, which other prompts can use.
                keys = keys[-1:]
            locator = _LOCATOR.pack(_MAGIC, state, count, nbytes)
            for first in range(0, len(keys), _MAX_BATCH):
                some = keys[first : first + _MAX_BATCH]
                self._cache.insert_batch([(key, locator) for key in some], **self._hints)
        except (NodeError, OutOfSpaceError) as error:
            self._failed("a state is not stored", error)
            return 0
        return count

    def stats(self) -> PrefixCacheStats:
        """Returns what this object has done."""
        return self._stats

    def _state_key(self, tokens: Any) -> bytes:
        """Returns the key of a state: a hash of all its tokens."""
        return prefix_keys(tokens, len(tokens), b"state" + self._salt)[0]

    def _write(self, state: bytes, keys: Sequence[bytes], count: int, seq_id: int) -> int:
        """Writes a state to the node unless it is there, and returns its length."""
        known = self._known(keys[-1:])
        if known and known[0].key == state and self._cache.touch([state]):
            self._count(present=1)
            return known[0].nbytes
        size = int(self._library.llama_state_seq_get_size(self._context, seq_id))
        if size == 0:
            raise StateError(
                f"libllama has no state of sequence {seq_id}", value=0, remedy="decode tokens first"
            )
        room = self._cache.reserve(state, size, **self._hints)
        try:
            written = int(
                self._library.llama_state_seq_get_data(self._context, room.address, size, seq_id)
            )
            if not 0 < written <= size:
                raise StateError(
                    f"libllama has written {written} bytes of the state of sequence {seq_id}, and "
                    f"{size} were announced: see its log",
                    value=written,
                    limit=size,
                )
        except BaseException:
            room.discard()
            raise
        room.commit()
        self._count(stored=1)
        return written

    def _known(self, keys: Sequence[bytes]) -> list[_State]:
        """Returns the states that the locators of keys name, from the last key to the first one."""
        found = []
        with self._cache.acquire(keys) as pins:
            for at in reversed(range(len(keys))):
                pin = pins[at]
                if pin is None or pin.nbytes != _LOCATOR.size:
                    continue
                magic, key, tokens, nbytes = _LOCATOR.unpack(bytes(pin))
                if magic == _MAGIC:
                    found.append(_State((at + 1) * self.block, key, tokens, nbytes))
        return found

    def _restore(self, tokens: Any, seq_id: int) -> int:
        for state in self._candidates(tokens):
            with self._cache.acquire([state.key]) as pins:
                pin = pins[0]
                if pin is None or pin.nbytes < state.nbytes:
                    continue
                read = self._library.llama_state_seq_set_data(
                    self._context, pin.address, state.nbytes, seq_id
                )
                is_valid = pin.is_valid
                del pin
            if not read:
                self._count(rejected=1)
                self._warn(
                    f"libllama rejects a state of {state.tokens} tokens: the context has no space "
                    "for it, or another KV cache than the settings say; see the log of libllama"
                )
            if read and is_valid and self._cut(state.common, seq_id):
                return state.common
            self._clear(seq_id)
        return 0

    def _candidates(self, tokens: Any) -> Iterator[_State]:
        """Yields the states that have a part of a prompt, the longest part first."""
        usable = len(tokens) - 1
        keys = prefix_keys(tokens[: max(usable, 0)], self.block, self._salt)
        if not keys:
            return
        capacity = self._library.tokens_in_sequence(self._context)
        seen: set[bytes] = set()
        for state in self._known(keys):
            if state.key in seen or state.tokens > capacity:
                continue
            seen.add(state.key)
            if (
                state.common < state.tokens <= (len(tokens) if self.cuts else usable)
                and self._state_key(tokens[: state.tokens]) == state.key
            ):
                # The prompt has the tokens behind the last block, too.
                common = min(state.tokens, usable)
                state = _State(common, state.key, state.tokens, state.nbytes)
            if self.cuts or state.common == state.tokens:
                yield state

    def _cut(self, common: int, seq_id: int) -> bool:
        """Removes the tokens behind the common ones. Returns whether only those are left."""
        count = int(self._library.llama_memory_seq_pos_max(self._memory, seq_id)) + 1
        if count > common:
            self._library.llama_memory_seq_rm(self._memory, seq_id, common, -1)
            count = int(self._library.llama_memory_seq_pos_max(self._memory, seq_id)) + 1
        return count == common

    def _clear(self, seq_id: int) -> None:
        self._library.llama_memory_seq_rm(self._memory, seq_id, -1, -1)

    def _count(self, **more: int) -> None:
        counts = vars(self._stats)
        new = {name: counts[name] + by for name, by in more.items()}
        self._stats = PrefixCacheStats(**{**counts, **new})

    def _failed(self, what: str, error: Exception) -> None:
        self._count(failures=1)
        self._warn(f"{what}: {error}")

    def _warn(self, text: str) -> None:
        """Logs a text once."""
        if text not in self._logged:
            self._logged.add(text)
            _log.warning("llama.cpp: %s", text)


def _copied(tokens: Any) -> Any:
    """Returns tokens that are cut without a copy of each object: an array, or a buffer as it is."""
    if isinstance(tokens, array.array):
        return tokens
    try:
        return array.array("i", tokens)
    except (OverflowError, TypeError):
        # The calculation of the keys names the token.
        return tokens
