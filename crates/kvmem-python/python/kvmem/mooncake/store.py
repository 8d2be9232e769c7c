"""*Store*: blocks of a pool as objects of a cluster.

The pool is registered with the engine once, as a whole, so that each transfer goes between the block and the segment with no copy between. The
engine's TCP path takes memory that is not registered without a word: what does not lie in the pool is refused here.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from .._kvmem import Block, KvCache, Pinned, Pool, Reservation
from ..errors import ClosedError, ExportedError, InvalidArgumentError
from . import errors
from .calls import Held
from .circuit import Circuit
from .engine import DEADLINE, LOCAL, MASTER, Engine

if TYPE_CHECKING:
    from .cluster_tier import ClusterTier

_Bytes = Block | Pinned | Reservation
_TOO_SHORT = -600


class StoreStats(NamedTuple):
    """How a store reaches its cluster."""

    circuit: str
    """``closed``: calls go to the master. ``open``: it did not answer, calls fail at once, and it
    is probed in the background.
    """
    opened: int
    """How often the circuit was opened."""
    probes: int
    """How often the master was probed."""
    timeouts: int
    """Calls that took longer than their deadline."""
    late: int
    """Of those, calls that have not ended yet. The memory that they use cannot be freed."""
    segments_down: int
    """Segments that failed a transfer and are not asked for a while."""
    skipped: int
    """Calls that were not made because of those."""


class Store:
    """A cluster of Mooncake Store, for the blocks of one pool.

    Keys are texts. **Objects do not change**: putting one under a key that there is already is no error and keeps what is there, unless
    ``replace`` is said. Any thread may call; calls release the GIL. ``host`` is the address that others reach this host by, and the only one that the engine's
    ports answer on; ``peers``: networks that they answer to (any, if none is named); ``expose=True`` leaves them open on every address. ``timeout``: seconds to
    wait for the master when connecting. Raises :class:`UnreachableError`, :class:`EngineMissingError`, :class:`ExposedError`.

    Each call ends within ``deadline`` seconds, plus one for every 32 MiB that it transfers, or raises :class:`DeadlineError`. A
    master that did not answer is probed in the background, and a segment that failed is left alone for a while; calls that would
    need them raise :class:`CircuitOpenError` at once. A block whose call missed its deadline cannot be freed until the engine has
    ended the call: :attr:`StoreStats.late` counts such calls.

    The registration keeps the pool's memory, and ends with :meth:`close`, a ``with``, the store itself, or the interpreter: always before the memory.
    """

    def __init__(
        self,
        pool: Pool,
        *,
        master: str = MASTER,
        host: str = LOCAL,
        protocol: str = "tcp",
        devices: str = "",
        metadata: str = "P2PHANDSHAKE",
        timeout: float = 10.0,
        deadline: float = DEADLINE,
        expose: bool = False,
        peers: str | Iterable[str] = (),
    ) -> None:
        self._ptr = pool.ptr
        self._nbytes = pool.capacity
        # An empty cache has the pool's memory and takes nothing of it: `pool.close()` does not unmap what is registered.
        keeper = KvCache(pool)
        engine = Engine(
            master,
            host,
            protocol=protocol,
            devices=devices,
            metadata=metadata,
            timeout=timeout,
            deadline=deadline,
            expose=expose,
            peers=peers,
        )
        ptr, nbytes = self._ptr, self._nbytes
        try:
            code = engine.call_without_deadline(lambda client: client.register_buffer(ptr, nbytes))
            errors.check(-abs(code), f"register {nbytes} bytes of the pool")
        except BaseException:
            _unregister(engine, ptr, keeper)
            raise
        self._pool = pool
        self._engine = engine
        self.master = master
        self._end = weakref.finalize(self, _unregister, engine, self._ptr, keeper)

    @property
    def pool(self) -> Pool:
        """The pool that is registered."""
        return self._pool

    @property
    def circuit(self) -> Circuit:
        """Whether the master is asked."""
        return self._engine.circuit

    @property
    def deadline(self) -> float:
        """Seconds that a call may take."""
        return self._engine.deadline

    def stats(self) -> StoreStats:
        """How the cluster is reached."""
        engine, circuit = self._engine, self._engine.circuit
        return StoreStats(
            circuit="open" if circuit.is_open else "closed",
            opened=circuit.opened,
            probes=circuit.probes,
            timeouts=engine.timeouts,
            late=engine.late,
            segments_down=len(engine.segments),
            skipped=engine.segments.skipped,
        )

    def _call(
        self,
        doing: str,
        work: Callable[[Any], Any],
        key: str | None = None,
        held: Held | None = None,
        nbytes: int | None = None,
    ) -> Any:
        if not self._end.alive:
            raise ClosedError("the store has been closed")
        return self._engine.call(doing, work, key=key, held=held, nbytes=nbytes)

    # Segments that do not answer.

    def _segments_of(self, key: str) -> list[str]:
        """The segments that have the object; none if one cannot say."""
        found = self._call("look for", lambda client: client.get_replica_desc(key), key)
        memory = [
            one.get_memory_descriptor().buffer_descriptor
            for one in found
            if one.is_memory_replica()
        ]
        return [one.transport_endpoint for one in memory]

    def _ask_segment(self, key: str, *, trying: bool = True) -> None:
        """Raises :class:`CircuitOpenError` if what has the object failed a moment ago. Costs nothing
        where nothing has failed.
        """
        segments = self._engine.segments
        if len(segments):
            names = self._segments_of(key)
            refused = segments.allow(names, trying=trying) if names else None
            if refused is not None:
                raise errors.CircuitOpenError(
                    f"cannot get {key!r}: it lies on the segment {refused}; nobody waits for it meanwhile",
                    code=errors.TRANSFER_FAILED,
                    key=key,
                )

    def _fetch(self, key: str, work: Callable[[Any], Any], held: Held | None, nbytes: int) -> int:
        """A transfer from a segment, and what it tells of the segment. Returns the engine's code."""
        self._ask_segment(key)
        segments = self._engine.segments
        try:
            code: int = self._call("get", work, key, held, nbytes)
        except errors.DeadlineError:
            self._blame(key)
            raise
        if errors.is_transfer(code):
            self._blame(key)
        elif code >= 0 and len(segments):
            segments.succeed(self._segments_of(key))
        return code

    def _blame(self, key: str) -> None:
        """The transfer of an object failed: its segment is left alone for a while."""
        try:
            names = self._segments_of(key)
        except errors.UnreachableError:  # Then it may have been the master.
            return
        self._engine.segments.fail(names)

    # One object, one block.

    def put(self, key: str, block: _Bytes, *, replace: bool = False) -> None:
        """Puts the bytes of a block under ``key``. ``replace``: in the place of what is there. Raises :class:`ClusterFullError`, :class:`UnreachableError`."""
        with self._places([block]) as (held, [at], [nbytes]):
            self._put(key, at, nbytes, replace, held)

    def get(self, key: str) -> Block:
        """The object in a fresh block. Raises :class:`ObjectMissingError`, :class:`~kvmem.OutOfSpaceError`, :class:`UnreachableError`."""
        while True:
            block = self._pool.allocate(self.look(key))
            at, nbytes = block.ptr, block.nbytes
            try:
                with Held([block]) as held:
                    code = self._fetch(
                        key, lambda client: client.get_into(key, at, nbytes), held, nbytes
                    )
                # A longer one may have taken its place since it was asked how long it is.
                if code == _TOO_SHORT and self.size(key) > nbytes:
                    block.free()
                    continue
                got = self._engine.check(code, "get", key)
                if got < nbytes:
                    block.shrink(got)
            except BaseException:
                _free(block)
                raise
            return block

    def put_from(self, key: str, offset: int, nbytes: int, *, replace: bool = False) -> None:
        """As :meth:`put`, for bytes of the pool by their offset.

        They must stay where they are meanwhile: whose they are is not asked. After
        :class:`DeadlineError` or Ctrl-C that is until :attr:`StoreStats.late` is 0.
        """
        self._put(key, self._at(offset, nbytes), nbytes, replace, None)

    def get_into(self, key: str, offset: int, nbytes: int) -> int:
        """Gets the object into bytes of the pool by their offset, and returns its length. They must
        be the caller's, and long enough.

        After :class:`DeadlineError` or Ctrl-C they may be written until :attr:`StoreStats.late` is
        0.
        """
        at = self._at(offset, nbytes)
        code = self._fetch(key, lambda client: client.get_into(key, at, nbytes), None, nbytes)
        return self._engine.check(code, "get", key)

    def _put(self, key: str, at: int, nbytes: int, replace: bool, held: Held | None) -> None:
        def work(client: Any) -> int:
            put = client.upsert_from if replace else client.put_from
            return int(put(key, at, nbytes))

        self._engine.check(self._call("put", work, key, held, nbytes), "put", key)

    # Many at once: one round trip to the master for all.

    def put_batch(self, keys: Iterable[str], blocks: Iterable[_Bytes]) -> None:
        """Puts each block under its key. Raises :class:`BatchError` if some fail; the others are put."""
        keys = list(keys)
        with self._places(blocks) as (held, places, lengths):
            _same("keys", keys, "blocks", places)
            codes = self._call(
                "put",
                lambda client: client.batch_put_from(keys, places, lengths),
                None,
                held,
                sum(lengths),
            )
            self._engine.check_all(codes, "put", keys)

    def get_batch(self, keys: Iterable[str]) -> list[Block | None]:
        """Each object in a fresh block; None where there is none. All or nothing otherwise: raises
        :class:`BatchError`, or :class:`CircuitOpenError` if one of them lies on a segment that failed
        a moment ago.
        """
        keys = list(keys)
        lengths = [self._size(key) for key in keys]
        blocks: list[Block | None] = []
        try:
            for nbytes in lengths:
                blocks.append(None if nbytes is None else self._pool.allocate(nbytes))
            wanted = [(key, block) for key, block in zip(keys, blocks) if block is not None]
            names = [key for key, _ in wanted]
            if wanted:
                places, sizes = (
                    [block.ptr for _, block in wanted],
                    [block.nbytes for _, block in wanted],
                )
                with Held(block for _, block in wanted) as held:
                    work = lambda client: client.batch_get_into(names, places, sizes)  # noqa: E731
                    try:
                        codes = self._call("get", work, None, held, sum(sizes))
                    except errors.DeadlineError:
                        self._blame(names[0])
                        raise
                for name in (name for name, code in zip(names, codes) if errors.is_transfer(code)):
                    self._blame(name)
                self._engine.check_all(codes, "get", names)
        except BaseException:
            for block in blocks:
                if block is not None:
                    _free(block)
            raise
        return blocks

    # One object, several blocks.

    def put_parts(self, key: str, blocks: Sequence[_Bytes], *, keep: object = None) -> None:
        """Puts the bytes of several blocks, one after the other, as one object. ``keep`` is
        referred to until the engine's call has ended.
        """
        with self._places(blocks, keep) as (held, places, lengths):
            work = lambda client: client.batch_put_from_multi_buffers([key], [places], [lengths])  # noqa: E731
            self._engine.check(self._call("put", work, key, held, sum(lengths))[0], "put", key)

    def get_parts(
        self, key: str, blocks: Sequence[Block | Reservation], *, keep: object = None
    ) -> int:
        """Gets one object into several blocks, one after the other, and returns its length, which
        is theirs together.

        ``keep`` is referred to until the engine's call has ended.
        """
        with self._places(blocks, keep) as (held, places, lengths):
            total = sum(lengths)
            found = self.size(key)
            if found != total:
                raise InvalidArgumentError(
                    f"the object {key!r} has {found} bytes, and the blocks {total} together"
                )
            work = lambda client: client.batch_get_into_multi_buffers([key], [places], [lengths])[0]  # noqa: E731
            return self._engine.check(self._fetch(key, work, held, total), "get", key)

    # What there is.

    def exists(self, key: str) -> bool:
        """Whether there is such an object. One on a segment that died a moment ago still counts."""
        return (
            self._engine.check(
                self._call("look for", lambda client: client.is_exist(key), key), "look for", key
            )
            == 1
        )

    def exists_batch(self, keys: Iterable[str]) -> list[bool]:
        """The same for many."""
        keys = list(keys)
        codes = self._call("look for", lambda client: client.batch_is_exist(keys))
        return [code == 1 for code in self._engine.check_all(codes, "look for", keys)]

    def size(self, key: str) -> int:
        """Its length in bytes. Raises :class:`ObjectMissingError`."""
        return self._engine.check(
            self._call("look for", lambda client: client.get_size(key), key), "look for", key
        )

    def look(self, key: str) -> int:
        """Its length in bytes, if it can be got now. Raises :class:`ObjectMissingError`;
        :class:`CircuitOpenError` if its segment failed a moment ago.
        """
        nbytes = self.size(key)
        self._ask_segment(key, trying=False)
        return nbytes

    def _size(self, key: str) -> int | None:
        try:
            return self.look(key)
        except errors.ObjectMissingError:
            return None

    def remove(self, key: str, *, force: bool = False) -> bool:
        """Removes it; False if there was none. What was read in the last seconds is kept for its readers unless ``force`` is said."""
        try:
            self._engine.check(
                self._call("remove", lambda client: client.remove(key, force), key), "remove", key
            )
        except errors.ObjectMissingError:
            return False
        return True

    def remove_batch(self, keys: Iterable[str], *, force: bool = False) -> None:
        """Removes those that there are. Raises :class:`BatchError`."""
        keys = list(keys)
        codes = self._call("remove", lambda client: client.batch_remove(keys, force))
        self._engine.check_all(codes, "remove", keys, but=(-703, -704, -710, -712))

    def remove_matching(self, pattern: str, *, force: bool = False) -> int:
        """Removes all whose keys match a regular expression (ECMAScript's), and returns how many."""
        removed = self._call(
            "remove what matches", lambda client: client.remove_by_regex(pattern, force), pattern
        )
        return self._engine.check(removed, "remove what matches", pattern)

    # As the lower tier of a cache.

    def __lower_tier__(self, pool: Pool) -> ClusterTier:
        from .cluster_tier import ClusterTier

        return ClusterTier(self).__lower_tier__(pool)

    # Ends.

    def close(self) -> None:
        """Unregisters the pool and ends the connection. A second time does nothing."""
        self._end()

    @property
    def closed(self) -> bool:
        """Whether it has been."""
        return not self._end.alive

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"at {self.master}, {self._nbytes} bytes registered"
        return f"<kvmem.mooncake.Store, {state}>"

    def _at(self, offset: int, nbytes: int) -> int:
        if not 0 <= offset <= offset + nbytes <= self._nbytes:
            end = offset + nbytes
            raise InvalidArgumentError(
                f"bytes {offset} to {end} do not lie in the {self._nbytes} bytes that are registered"
            )
        return self._ptr + offset

    def _places(self, blocks: Iterable[_Bytes], keep: object = None) -> _Places:
        """Where blocks lie. They cannot be freed meanwhile."""
        blocks = list(blocks)
        for block in blocks:
            if not isinstance(block, _Bytes):
                raise TypeError(f"a block of a pool is wanted, not {type(block).__name__}")
        return _Places(blocks, self._ptr, self._nbytes, keep)


class _Places:
    """Blocks that are held for a call: addresses and lengths."""

    def __init__(self, blocks: list[_Bytes], ptr: int, nbytes: int, keep: object) -> None:
        self._held = Held(blocks, keep)
        try:
            self._places = [block.ptr for block in blocks]
            self._lengths = [block.nbytes for block in blocks]
            for block in blocks:
                if not ptr <= block.ptr <= block.ptr + block.nbytes <= ptr + nbytes:
                    raise InvalidArgumentError(
                        f"{block!r} does not lie in the {nbytes} bytes of the pool that are registered with this store"
                    )
        except BaseException:
            self._held.let_go()
            raise

    def __enter__(self) -> tuple[Held, list[int], list[int]]:
        return self._held, self._places, self._lengths

    def __exit__(self, *_raised: object) -> None:
        self._held.let_go()


def _free(block: Block) -> None:
    """Frees a block that nobody else knows; what a late call still writes to is freed with that
    call.
    """
    if not block.freed:
        with contextlib.suppress(ExportedError):
            block.free()


def _same(one: str, ones: Sequence[object], other: str, others: Sequence[object]) -> None:
    if len(ones) != len(others):
        raise InvalidArgumentError(f"there are {len(ones)} {one} and {len(others)} {other}")


def _unregister(engine: Engine, ptr: int, keeper: KvCache) -> None:
    if engine.is_ours():
        client = engine.client
        engine.close(before=lambda: client.unregister_buffer(ptr), then=keeper.close)
