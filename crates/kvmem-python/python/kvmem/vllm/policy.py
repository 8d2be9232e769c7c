"""*Policy*: evicts the chunk that is worth least, by what became of others like it. Importing this
module imports vLLM.

Chunks of one *kind* have been used by as many requests: once, twice, three or four times, more
often. Each kind is a ring in the order of last uses, so its first chunk is worth least. Two
candidates decide: the oldest of all, which LRU would evict, and the one that is worth least. LRU's
goes unless the other is worth less than 0.8 of it. A scan fills the ring of chunks used once and
evicts from there; chunks that requests come back to stay.

*Worth.* For each kind and age the policy counts how many chunks were used again at that age, and
how many reached it. The worth of a chunk is a Gittins index (after LHD, Beckmann et al. 2018): the
most hits for each unit of time that keeping it can bring. Ages are logarithmic buckets of the time
since the last use, counted in insertions. Counts are halved once they span eight times the
capacity.

*Ghosts.* An evicted chunk leaves its key and history for four times the capacity. A store of a
ghost is a use: the chunk was wanted, and would have been a hit.

*Pins.* A chunk that is being copied stays in its ring. The first eviction that meets it moves it
aside, and it returns to the front of its ring when the copy ends. A transfer therefore does not
change the order.

*Prefixes.* The chunks of a request are used tail first, so a prefix is evicted from its end.

Time: every call takes O(1) for each key, amortised; ``evict`` takes O(n + protected keys); the
table of worths is computed again once in an eighth of the capacity, in constant time. Memory: about
300 bytes for each chunk and each ghost.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any

from vllm.v1.kv_offload.cpu.policies.base import CachePolicy, order_request_keys

KINDS = 4
"""Used once, twice, three or four times, more often."""
AGES = 12
"""Buckets of ages; the last one has no end."""
CLEARLY = 0.8
"""LRU's candidate is evicted unless another one is worth less than this share of it."""
SOON = 32
"""A use at an age below 1 / SOON of the capacity makes a chunk young, and is not counted."""
REMEMBERED = 4
"""Ghosts are remembered for this number of capacities."""


def kind_of(uses: int) -> int:
    """Returns the kind of a chunk that this number of requests has used."""
    return min((uses - 1).bit_length(), KINDS - 1)


class _Entry:
    """A chunk, or a ghost of one."""

    __slots__ = ("chunk", "used", "uses")

    def __init__(self, chunk: Any, used: int, uses: int) -> None:
        self.chunk = chunk
        self.used = used
        self.uses = uses


class KvmemPolicy(CachePolicy):  # type: ignore[misc]
    """A scan-resistant eviction policy for vLLM's CPU tier: ``"eviction_policy": "KvmemPolicy"``,
    ``"cache_policy_module_path": "kvmem.vllm"``.
    """

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self.clear()

    def clear(self) -> None:
        """Forgets all chunks, ghosts and counts."""
        self._chunks: dict[Any, _Entry] = {}
        self._rings: list[OrderedDict[Any, _Entry]] = [OrderedDict() for _ in range(KINDS)]
        self._aside: set[Any] = set()
        self._ghosts: OrderedDict[Any, _Entry] = OrderedDict()
        self._now = 0
        self._hits = [[0.0] * AGES for _ in range(KINDS)]
        self._ends = [[0.0] * AGES for _ in range(KINDS)]
        self._events = 0
        self._worths: list[list[float]] = [[1.0] * AGES for _ in range(KINDS)]
        # Age a ends at unit * 2^(a + 1).
        self._unit = max(self.cache_capacity // 32, 1)

    def get(self, key: Any) -> Any:
        """Returns the chunk of a key, or None. It does not count as a use."""
        entry = self._chunks.get(key)
        return None if entry is None else entry.chunk

    def insert(self, key: Any, chunk: Any, req_context: Any = None) -> None:
        """Adds a chunk. A ghost of it returns with its history."""
        self._now += 1
        ghost = self._ghosts.pop(key, None)
        if ghost is None:
            entry = _Entry(chunk, self._now, 1)
        else:
            # It was counted as ended when it was evicted.
            self._count_hit(ghost)
            entry = _Entry(chunk, self._now, ghost.uses + 1)
        self._chunks[key] = entry
        self._rings[kind_of(entry.uses)][key] = entry
        while self._ghosts and len(self._ghosts) > REMEMBERED * self.cache_capacity:
            self._ghosts.popitem(last=False)

    def remove(self, key: Any) -> None:
        """Removes a chunk whose store has failed. It leaves no ghost."""
        entry = self._chunks.pop(key)
        self._rings[kind_of(entry.uses)].pop(key, None)
        self._aside.discard(key)

    def touch(self, keys: Iterable[Any], req_context: Any = None) -> None:
        """Counts a use of each key, the last one first."""
        for key in reversed(list(keys)):
            self._use(key, counts=True)

    def on_store_miss(self, keys: Iterable[Any], req_context: Any) -> None:
        """Does nothing: :meth:`insert` follows, and knows the ghost."""

    def on_request_finished(
        self,
        key_groups: Sequence[Sequence[Any]],
        insertion_only_keys: set[Any],
        reused_keys: set[Any],
        req_context: Any,
    ) -> None:
        """Counts one use of each chunk that the request has reused, and puts all its chunks into
        the order of its prefix.
        """
        for key in reversed(order_request_keys(key_groups, req_context)):
            self._use(key, counts=key in reused_keys)

    def evict(self, n: int, protected: set[Any]) -> list[tuple[Any, Any]] | None:
        """Evicts ``n`` chunks that are neither protected nor pinned; None, and nothing has changed,
        if there are fewer.
        """
        taken: list[tuple[Any, int, _Entry]] = []
        skipped: list[tuple[Any, int, _Entry]] = []
        while len(taken) < n:
            kind = self._victim()
            if kind is None:
                break
            key, entry = self._rings[kind].popitem(last=False)
            if entry.chunk.ref_cnt != 0:
                self._aside.add(key)
            elif key in protected:
                skipped.append((key, kind, entry))
            else:
                taken.append((key, kind, entry))
        back = skipped if len(taken) == n else _by_age(skipped + taken)
        for key, kind, entry in reversed(back):
            self._rings[kind][key] = entry
            self._rings[kind].move_to_end(key, last=False)
        if len(taken) < n:
            return None
        evicted = []
        for key, _, entry in taken:
            del self._chunks[key]
            self._count_end(entry)
            evicted.append((key, entry.chunk))
            entry.chunk = None
            self._ghosts[key] = entry
        return evicted

    def mark_evictable(self, key: Any) -> None:
        """Puts a chunk that was moved aside back to the front of its ring."""
        if key in self._aside:
            self._aside.discard(key)
            entry = self._chunks[key]
            ring = self._rings[kind_of(entry.uses)]
            ring[key] = entry
            ring.move_to_end(key, last=False)

    def _use(self, key: Any, *, counts: bool) -> None:
        entry = self._chunks.get(key)
        if entry is None:
            return
        ring = self._rings[kind_of(entry.uses)]
        ring.pop(key, None)
        if counts and (self._now - entry.used) * SOON >= self.cache_capacity:
            self._count_hit(entry)
            self._count_end(entry)
            entry.uses += 1
        entry.used = self._now
        # A pinned chunk may return to its ring, too: the next eviction moves it aside again.
        self._aside.discard(key)
        self._rings[kind_of(entry.uses)][key] = entry

    def _age(self, entry: _Entry) -> int:
        units: int = (self._now - entry.used) // self._unit
        return min(units.bit_length(), AGES - 1)

    def _count_hit(self, entry: _Entry) -> None:
        self._hits[kind_of(entry.uses)][self._age(entry)] += 1

    def _count_end(self, entry: _Entry) -> None:
        self._ends[kind_of(entry.uses)][self._age(entry)] += 1
        self._events += 1
        if self._events % max(self.cache_capacity // 8, 1) == 0:
            self._learn()

    def _learn(self) -> None:
        """Computes the worths again from the counts."""
        # A kind with few counts keeps a worth of its own, the same at all ages.
        for kind in range(KINDS):
            self._worths[kind] = self._indices(self._hits[kind], self._ends[kind])
        if self._events >= 8 * self.cache_capacity:
            self._events = 0
            for table in (self._hits, self._ends):
                for counts in table:
                    counts[:] = [count / 2 for count in counts]

    def _indices(self, hits: list[float], ends: list[float]) -> list[float]:
        """Returns the Gittins index of each age of a kind."""
        if sum(ends) < 8:
            return [1.0 / (self._unit * AGES)] * AGES
        reached = [sum(ends[age:]) for age in range(AGES)]
        # Time that chunks spend at each age: half of it if they end there.
        width = [self._unit * (1 << max(age - 1, 0)) for age in range(AGES)]
        spent = [
            width[age] * (reached[age] - ends[age] / 2)
            if age < AGES - 1
            else width[age] * ends[age]
            for age in range(AGES)
        ]
        worths = []
        for age in range(AGES):
            best, gained, time = 0.0, 0.0, 0.0
            for later in range(age, AGES):
                gained += hits[later]
                time += spent[later]
                if time > 0:
                    best = max(best, gained / time)
            worths.append(best)
        return worths

    def _victim(self) -> int | None:
        """Returns the kind whose first chunk is evicted next; None: all rings are empty."""
        oldest = least = None
        for kind, ring in enumerate(self._rings):
            if not ring:
                continue
            entry = next(iter(ring.values()))
            worth = self._worths[kind][self._age(entry)]
            if oldest is None or entry.used < oldest[0]:
                oldest = (entry.used, worth, kind)
            if least is None or worth < least[0]:
                least = (worth, kind)
        if oldest is None or least is None:
            return None
        return least[1] if least[0] < CLEARLY * oldest[1] else oldest[2]


def _by_age(entries: list[tuple[Any, int, _Entry]]) -> list[tuple[Any, int, _Entry]]:
    return sorted(entries, key=lambda it: it[2].used)
