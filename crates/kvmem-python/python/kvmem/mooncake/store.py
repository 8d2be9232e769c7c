"""*Store*: blocks of a pool as objects of a cluster.

The whole pool is registered with the engine once, so each transfer goes directly between the block
and the segment. The engine's TCP path silently accepts memory that is not registered. This module
therefore raises :class:`~kvmem.InvalidArgumentError` for memory outside the pool."""

import contextlib
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Self, Unpack

from .._calls import HeldViews
from .._kvmem import Block, KvCache, Pinned, Pool, Reservation
from ..errors import ExportedError, InvalidArgumentError
from . import errors
from .circuit import Circuit
from .engine import MASTER, Engine, EngineOptions

_Bytes = Block | Pinned | Reservation
_TOO_SHORT = -600


class StoreStats(NamedTuple):
    """Figures of a store's connection to its cluster."""

    circuit: str
    """``closed``: calls go to the master. ``open``: the master did not answer, calls fail at once,
    and it is probed in the background."""
    opened: int
    """Number of times that the circuit opened."""
    probes: int
    """Number of probes of the master."""
    timeouts: int
    """Number of calls that took longer than their deadline."""
    abandoned: int
    """Number of those calls that have not ended. The memory that they use cannot be freed."""
    segments_down: int
    """Number of segments that failed a transfer and are skipped for a while."""
    skipped: int
    """Number of calls that were not made because of those segments."""


class Store:
    """A cluster of Mooncake Store as storage for the blocks of one pool.

    Keys are texts. **Objects do not change**: a put under an existing key changes nothing and is no
    error, unless ``replace`` is true. Any thread may call any method; calls release the GIL.
    ``options``: see :class:`EngineOptions`. Raises :class:`UnreachableError`,
    :class:`EngineMissingError` and :class:`ExposedError`.

    Each call ends within ``deadline`` seconds, plus one second for every 32 MiB that it transfers,
    or raises :class:`DeadlineError`. Calls that need a master or a segment that failed raise
    :class:`CircuitOpenError` at once for a while. A block whose call missed its deadline cannot be
    freed until the engine has ended the call; :attr:`StoreStats.abandoned` counts such calls. The
    registration holds the pool's memory until the store is closed or dropped."""

    def __init__(
        self, pool: Pool, *, master: str = MASTER, **options: Unpack[EngineOptions]
    ) -> None:
        self._ptr = pool.ptr
        self._nbytes = pool.capacity
        # An empty cache holds the pool's memory and allocates nothing: `pool.close()` then does not
        # unmap registered memory.
        holder = KvCache(pool)
        engine = Engine(master, **options)
        ptr, nbytes = self._ptr, self._nbytes
        try:
            code = engine.call_without_deadline(lambda client: client.register_buffer(ptr, nbytes))
            errors.check(-abs(code), f"register {nbytes} bytes of the pool")
        except BaseException:
            _unregister(engine, ptr, holder)
            raise
        self._pool = pool
        self._engine = engine
        self.master = master
        self._end = weakref.finalize(self, _unregister, engine, self._ptr, holder)

    @property
    def pool(self) -> Pool:
        """Registered pool."""
        return self._pool

    @property
    def circuit(self) -> Circuit:
        """Circuit to the master."""
        return self._engine.circuit

    @property
    def deadline(self) -> float:
        """Number of seconds that a call may take."""
        return self._engine.deadline

    def stats(self) -> StoreStats:
        """Returns the figures of the connection."""
        engine, circuit = self._engine, self._engine.circuit
        return StoreStats(
            circuit="open" if circuit.is_open else "closed",
            opened=circuit.opened,
            probes=circuit.probes,
            timeouts=engine.timeouts,
            abandoned=engine.abandoned,
            segments_down=len(engine.segments),
            skipped=engine.segments.skipped,
        )

    # Segments that do not answer.

    def _segments_of(self, key: str) -> list[str]:
        """Returns the segments that have the object; none if they are unknown."""
        return self._engine.replicas([key]).get(key, ([], None))[0]

    def _check_segment(self, key: str, *, trying: bool = True) -> None:
        """Raises :class:`CircuitOpenError` if the segment of the object failed recently."""
        segments = self._engine.segments
        if len(segments):
            names = self._segments_of(key)
            blocked = segments.allow(names, trying=trying) if names else None
            if blocked is not None:
                raise errors.CircuitOpenError(
                    f"cannot get {key!r}: the call was not made, because the object lies on the "
                    f"segment {blocked}: try again later",
                    code=errors.TRANSFER_FAILED,
                    key=key,
                )

    def _fetch(
        self, key: str, work: Callable[[Any], Any], held: HeldViews | None, nbytes: int
    ) -> int:
        """Makes a transfer from a segment and records its success or failure. Returns the code."""
        self._check_segment(key)
        segments = self._engine.segments
        try:
            code: int = self._engine.call("get", work, key, held, nbytes)
        except errors.DeadlineError:
            self._engine.blame([key])
            raise
        if errors.is_transfer(code):
            self._engine.blame([key])
        elif code >= 0 and len(segments):
            segments.succeed(self._segments_of(key))
        return code

    # One object, one block.

    def put(self, key: str, block: _Bytes, *, replace: bool = False) -> None:
        """Puts the bytes of a block under ``key``. With ``replace`` they replace an existing
        object. Raises :class:`ClusterFullError` and :class:`UnreachableError`."""
        with self._places([block]) as (held, [at], [nbytes]):
            self._put(key, at, nbytes, replace, held)

    def get(self, key: str) -> Block:
        """Returns the object in a new block. Raises :class:`ObjectMissingError`,
        :class:`~kvmem.OutOfSpaceError` and :class:`UnreachableError`."""
        while True:
            block = self._pool.allocate(self.available_size(key))
            at, nbytes = block.ptr, block.nbytes
            try:
                with HeldViews([block]) as held:
                    code = self._fetch(
                        key, lambda client: client.get_into(key, at, nbytes), held, nbytes
                    )
                # A longer object may have replaced it since its size was read.
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
        """Puts ``nbytes`` bytes at an offset of the pool under ``key``. With ``replace`` they
        replace an existing object. The bytes must stay allocated meanwhile, which is not checked.
        After :class:`DeadlineError` or Ctrl-C this means until :attr:`StoreStats.abandoned` is 0.
        """
        self._put(key, self._at(offset, nbytes), nbytes, replace, None)

    def get_into(self, key: str, offset: int, nbytes: int) -> int:
        """Copies the object to an offset of the pool and returns its length. The ``nbytes`` bytes
        there must belong to the caller and be long enough. After :class:`DeadlineError` or Ctrl-C
        they may be written until :attr:`StoreStats.abandoned` is 0."""
        at = self._at(offset, nbytes)
        code = self._fetch(key, lambda client: client.get_into(key, at, nbytes), None, nbytes)
        return self._engine.check(code, "get", key)

    def _put(self, key: str, at: int, nbytes: int, replace: bool, held: HeldViews | None) -> None:
        def work(client: Any) -> int:
            put = client.upsert_from if replace else client.put_from
            return int(put(key, at, nbytes))

        self._engine.checked_call("put", work, key, held, nbytes)

    # Many objects: one round trip to the master.

    def put_batch(self, keys: Iterable[str], blocks: Iterable[_Bytes]) -> None:
        """Puts each block under its key. Raises :class:`BatchError` for those that fail."""
        keys = list(keys)
        with self._places(blocks) as (held, places, lengths):
            if len(keys) != len(places):
                raise InvalidArgumentError(
                    f"{len(keys)} keys and {len(places)} blocks: give as many of each"
                )
            codes = self._engine.call(
                "put",
                lambda client: client.batch_put_from(keys, places, lengths),
                None,
                held,
                sum(lengths),
            )
            self._engine.check_all(codes, "put", keys)

    def get_batch(self, keys: Iterable[str]) -> list[Block | None]:
        """Returns each object in a new block, and None for keys without an object. It gets all of
        them or none: it raises :class:`BatchError`, or :class:`CircuitOpenError` if one of them
        lies on a segment that failed recently."""
        keys = list(keys)
        lengths = [self._size(key) for key in keys]
        blocks: list[Block | None] = []
        try:
            for nbytes in lengths:
                blocks.append(None if nbytes is None else self._pool.allocate(nbytes))
            wanted = [(key, block) for key, block in zip(keys, blocks) if block is not None]
            names = [key for key, _ in wanted]
            if wanted:
                places = [block.ptr for _, block in wanted]
                sizes = [block.nbytes for _, block in wanted]
                with HeldViews(block for _, block in wanted) as held:
                    try:
                        codes = self._engine.call(
                            "get",
                            lambda client: client.batch_get_into(names, places, sizes),
                            held=held,
                            nbytes=sum(sizes),
                        )
                    except errors.DeadlineError:
                        self._engine.blame(names[:1])
                        raise
                self._engine.blame(
                    [name for name, code in zip(names, codes) if errors.is_transfer(code)]
                )
                self._engine.check_all(codes, "get", names)
        except BaseException:
            for block in blocks:
                if block is not None:
                    _free(block)
            raise
        return blocks

    # One object in several blocks.

    def put_parts(self, key: str, blocks: Sequence[_Bytes]) -> None:
        """Puts the bytes of several blocks, one after the other, as one object."""
        with self._places(blocks) as (held, places, lengths):

            def work(client: Any) -> int:
                return int(client.batch_put_from_multi_buffers([key], [places], [lengths])[0])

            self._engine.checked_call("put", work, key, held, sum(lengths))

    def get_parts(self, key: str, blocks: Sequence[Block | Reservation]) -> int:
        """Copies one object into several blocks, one after the other, and returns its length. The
        blocks must have that length together."""
        with self._places(blocks) as (held, places, lengths):
            total = sum(lengths)
            found = self.size(key)
            if found != total:
                raise InvalidArgumentError(
                    f"cannot get {key!r} into blocks of {total} bytes: the object has {found}; "
                    "pass blocks of that length together"
                )

            def work(client: Any) -> int:
                return int(client.batch_get_into_multi_buffers([key], [places], [lengths])[0])

            return self._engine.check(self._fetch(key, work, held, total), "get", key)

    # Look-ups and removals.

    def exists(self, key: str) -> bool:
        """Returns whether the object exists, also on a segment that died recently."""
        return self._engine.checked_call("look for", lambda client: client.is_exist(key), key) == 1

    def exists_batch(self, keys: Iterable[str]) -> list[bool]:
        """Returns whether each object exists."""
        keys = list(keys)
        codes = self._engine.call("look for", lambda client: client.batch_is_exist(keys))
        return [code == 1 for code in self._engine.check_all(codes, "look for", keys)]

    def size(self, key: str) -> int:
        """Returns the object's length in bytes. Raises :class:`ObjectMissingError`."""
        return self._engine.checked_call("look for", lambda client: client.get_size(key), key)

    def available_size(self, key: str) -> int:
        """Returns the object's length in bytes, if its segment can be called now. Raises
        :class:`ObjectMissingError`, and :class:`CircuitOpenError` if the segment failed recently.
        """
        nbytes = self.size(key)
        self._check_segment(key, trying=False)
        return nbytes

    def _size(self, key: str) -> int | None:
        try:
            return self.available_size(key)
        except errors.ObjectMissingError:
            return None

    def remove(self, key: str, *, force: bool = False) -> bool:
        """Removes the object and returns whether there was one. The cluster keeps objects that were
        read in the last seconds for their readers, unless ``force`` is true."""
        try:
            self._engine.checked_call("remove", lambda client: client.remove(key, force), key)
        except errors.ObjectMissingError:
            return False
        return True

    def remove_batch(self, keys: Iterable[str], *, force: bool = False) -> None:
        """Removes the objects that exist. Raises :class:`BatchError`."""
        keys = list(keys)
        codes = self._engine.call("remove", lambda client: client.batch_remove(keys, force))
        self._engine.check_all(codes, "remove", keys, but=errors.MISSING)

    def remove_matching(self, pattern: str, *, force: bool = False) -> int:
        """Removes all objects whose keys match a regular expression. Returns their number."""
        return self._engine.checked_call(
            "remove what matches", lambda client: client.remove_by_regex(pattern, force), pattern
        )

    # End.

    def close(self) -> None:
        """Unregisters the pool and closes the connection. A second call does nothing."""
        self._end()

    @property
    def closed(self) -> bool:
        """Whether the store has been closed."""
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
                f"bytes {offset} to {end} lie outside the {self._nbytes} registered bytes of the "
                "pool"
            )
        return self._ptr + offset

    @contextlib.contextmanager
    def _places(self, blocks: Iterable[_Bytes]) -> Iterator[tuple[HeldViews, list[int], list[int]]]:
        """Yields views, addresses and lengths of blocks, which cannot be freed meanwhile."""
        blocks = list(blocks)
        for block in blocks:
            if not isinstance(block, _Bytes):
                raise TypeError(
                    f"blocks must be Block, Pinned or Reservation, not {type(block).__name__}"
                )
        end = self._ptr + self._nbytes
        with HeldViews(blocks) as held:
            for block in blocks:
                if not self._ptr <= block.ptr <= block.ptr + block.nbytes <= end:
                    raise InvalidArgumentError(
                        f"{block!r} lies outside the {self._nbytes} registered bytes of the pool: "
                        "pass blocks of the store's own pool"
                    )
            yield held, [block.ptr for block in blocks], [block.nbytes for block in blocks]


def _free(block: Block) -> None:
    """Frees a block, if need be when the abandoned call that writes to it ends."""
    if not block.freed:
        with contextlib.suppress(ExportedError):
            block.free()


def _unregister(engine: Engine, ptr: int, holder: KvCache) -> None:
    if engine.is_ours():
        client = engine.client
        engine.close(before=lambda: client.unregister_buffer(ptr), then=holder.close)
