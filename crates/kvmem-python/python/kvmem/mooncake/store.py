"""*Store*: blocks of a pool as objects of a cluster.

The pool is registered with the engine once, as a whole, so that each transfer goes between the block and the segment with no copy between. The
engine's TCP path takes memory that is not registered without a word: what does not lie in the pool is refused here.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Self

from .._kvmem import Block, KvCache, Pinned, Pool, Reservation
from ..errors import BadValueError, ClosedError
from . import errors
from .engine import LOCAL, MASTER, Engine

if TYPE_CHECKING:
    from .spill import ClusterSpill

_Bytes = Block | Pinned | Reservation
_TOO_SHORT = -600


class Store:
    """A cluster of Mooncake Store, for the blocks of one pool.

    Keys are texts. **Objects do not change**: putting one under a key that there is already is no error and keeps what is there, unless
    ``replace`` is said. Any thread may call; calls release the GIL. ``host`` is the address that others reach this host by; ``timeout``: seconds to wait for the
    master when connecting. Raises :class:`UnreachableError`, :class:`EngineMissingError`.

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
    ) -> None:
        self._ptr = pool.ptr
        self._nbytes = pool.capacity
        # An empty cache has the pool's memory and takes nothing of it: `pool.close()` does not unmap what is registered.
        keeper = KvCache(pool)
        engine = Engine(master, host, protocol=protocol, devices=devices, metadata=metadata, timeout=timeout)
        try:
            code = engine.client.register_buffer(self._ptr, self._nbytes)
            errors.check(-abs(code), f"register {self._nbytes} bytes of the pool")
        except BaseException:
            engine.close()
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
    def _client(self) -> Any:
        if not self._end.alive:
            raise ClosedError("the store has been closed")
        return self._engine.client

    # One object, one block.

    def put(self, key: str, block: _Bytes, *, replace: bool = False) -> None:
        """Puts the bytes of a block under ``key``. ``replace``: in the place of what is there. Raises :class:`NoRoomError`, :class:`UnreachableError`."""
        with self._place(block) as (at, nbytes):
            put = self._client.upsert_from if replace else self._client.put_from
            errors.check(put(key, at, nbytes), "put", key)

    def get(self, key: str) -> Block:
        """The object in a fresh block. Raises :class:`ObjectMissingError`, :class:`~kvmem.OutOfSpaceError`, :class:`UnreachableError`."""
        while True:
            block = self._pool.allocate(self.size(key))
            try:
                code = self._client.get_into(key, block.ptr, block.nbytes)
                # A longer one may have taken its place since it was asked how long it is.
                if code == _TOO_SHORT and self.size(key) > block.nbytes:
                    block.free()
                    continue
                got = errors.check(code, "get", key)
                if got < block.nbytes:
                    block.shrink(got)
            except BaseException:
                if not block.freed:
                    block.free()
                raise
            return block

    def put_from(self, key: str, offset: int, nbytes: int, *, replace: bool = False) -> None:
        """As :meth:`put`, for bytes of the pool by their offset. They must stay where they are meanwhile: whose they are is not asked."""
        put = self._client.upsert_from if replace else self._client.put_from
        errors.check(put(key, self._at(offset, nbytes), nbytes), "put", key)

    def get_into(self, key: str, offset: int, nbytes: int) -> int:
        """Gets the object into bytes of the pool by their offset, and returns its length. They must be the caller's, and long enough."""
        return errors.check(self._client.get_into(key, self._at(offset, nbytes), nbytes), "get", key)

    # Many at once: one round trip to the master for all.

    def put_batch(self, keys: Iterable[str], blocks: Iterable[_Bytes]) -> None:
        """Puts each block under its key. Raises :class:`BatchError` if some fail; the others are put."""
        keys = list(keys)
        with self._places(blocks) as (places, lengths):
            _same("keys", keys, "blocks", places)
            errors.check_all(self._client.batch_put_from(keys, places, lengths), "put", keys)

    def get_batch(self, keys: Iterable[str]) -> list[Block | None]:
        """Each object in a fresh block; None where there is none. All or nothing otherwise: raises :class:`BatchError`."""
        keys = list(keys)
        lengths = [self._size(key) for key in keys]
        blocks = [None if nbytes is None else self._pool.allocate(nbytes) for nbytes in lengths]
        wanted = [(key, block) for key, block in zip(keys, blocks) if block is not None]
        names = [key for key, _ in wanted]
        codes = self._client.batch_get_into(names, [b.ptr for _, b in wanted], [b.nbytes for _, b in wanted]) if wanted else []
        try:
            errors.check_all(codes, "get", names)
        except BaseException:
            self._pool.free_batch([block for _, block in wanted])
            raise
        return blocks

    # One object, several blocks.

    def put_parts(self, key: str, blocks: Sequence[_Bytes]) -> None:
        """Puts the bytes of several blocks, one after the other, as one object."""
        with self._places(blocks) as (places, lengths):
            codes = self._client.batch_put_from_multi_buffers([key], [places], [lengths])
            errors.check(codes[0], "put", key)

    def get_parts(self, key: str, blocks: Sequence[Block | Reservation]) -> int:
        """Gets one object into several blocks, one after the other, and returns its length, which is theirs together."""
        with self._places(blocks) as (places, lengths):
            total = sum(lengths)
            found = self.size(key)
            if found != total:
                raise BadValueError(f"the object {key!r} has {found} bytes, and the blocks {total} together")
            codes = self._client.batch_get_into_multi_buffers([key], [places], [lengths])
            return errors.check(codes[0], "get", key)

    # What there is.

    def exists(self, key: str) -> bool:
        """Whether there is such an object. One on a segment that died a moment ago still counts."""
        return errors.check(self._client.is_exist(key), "look for", key) == 1

    def exists_batch(self, keys: Iterable[str]) -> list[bool]:
        """The same for many."""
        keys = list(keys)
        return [code == 1 for code in errors.check_all(self._client.batch_is_exist(keys), "look for", keys)]

    def size(self, key: str) -> int:
        """Its length in bytes. Raises :class:`ObjectMissingError`."""
        return errors.check(self._client.get_size(key), "look for", key)

    def _size(self, key: str) -> int | None:
        try:
            return self.size(key)
        except errors.ObjectMissingError:
            return None

    def remove(self, key: str, *, force: bool = False) -> bool:
        """Removes it; False if there was none. What was read in the last seconds is kept for its readers unless ``force`` is said."""
        try:
            errors.check(self._client.remove(key, force), "remove", key)
        except errors.ObjectMissingError:
            return False
        return True

    def remove_batch(self, keys: Iterable[str], *, force: bool = False) -> None:
        """Removes those that there are. Raises :class:`BatchError`."""
        keys = list(keys)
        errors.check_all(self._client.batch_remove(keys, force), "remove", keys, but=(-703, -704, -710, -712))

    def remove_matching(self, pattern: str, *, force: bool = False) -> int:
        """Removes all whose keys match a regular expression (ECMAScript's), and returns how many."""
        return errors.check(self._client.remove_by_regex(pattern, force), "remove what matches", pattern)

    # As the lower tier of a cache.

    def __spill__(self, pool: Pool) -> ClusterSpill:
        from .spill import ClusterSpill

        return ClusterSpill(self).__spill__(pool)

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
            raise BadValueError(f"bytes {offset} to {end} do not lie in the {self._nbytes} bytes that are registered")
        return self._ptr + offset

    @contextlib.contextmanager
    def _place(self, block: _Bytes) -> Iterator[tuple[int, int]]:
        """Where a block lies. It cannot be freed meanwhile."""
        if not isinstance(block, _Bytes):
            raise TypeError(f"a block of a pool is wanted, not {type(block).__name__}")
        with memoryview(block):
            at, nbytes = block.ptr, block.nbytes
            if not self._ptr <= at <= at + nbytes <= self._ptr + self._nbytes:
                raise BadValueError(f"{block!r} does not lie in the {self._nbytes} bytes of the pool that are registered with this store")
            yield at, nbytes

    @contextlib.contextmanager
    def _places(self, blocks: Iterable[_Bytes]) -> Iterator[tuple[list[int], list[int]]]:
        with contextlib.ExitStack() as stack:
            found = [stack.enter_context(self._place(block)) for block in blocks]
            yield [at for at, _ in found], [nbytes for _, nbytes in found]


def _same(one: str, ones: Sequence[object], other: str, others: Sequence[object]) -> None:
    if len(ones) != len(others):
        raise BadValueError(f"there are {len(ones)} {one} and {len(others)} {other}")


def _unregister(engine: Engine, ptr: int, keeper: KvCache) -> None:
    if engine.is_ours():
        engine.client.unregister_buffer(ptr)
        engine.close()
        keeper.close()
