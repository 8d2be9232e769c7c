"""*Async node*: a node's calls for tasks of an event loop.

A call blocks for some tens of microseconds, and for seconds while the server starts again. So calls
run in threads of the cache, a few for all tasks. Another thread waits for events, in short turns.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from os import PathLike
from types import TracebackType
from typing import Any, ParamSpec, Self, SupportsIndex, TypeVar

from ._kvmem import NodeCache, NodeReservation, PinBatch, PinnedValue, connect
from .data import Event, EventBatch, Listed, Located, NodeStats
from .errors import InvalidArgumentError

_P = ParamSpec("_P")
_T = TypeVar("_T")
_Key = TypeVar("_Key", bound=int | bytes | str)

WAIT = 0.25
"""Longest wait of the thread that waits for events, in seconds."""


class AsyncNodeCache:
    """A :class:`NodeCache` for asyncio: its calls are coroutines. Made by :func:`connect_async`.

    The pins and reservations are those of the :class:`NodeCache`. To release a pin takes no time,
    so ``with`` blocks are right for pins. A reservation is committed by ``await
    cache.commit([…])``: the end of its own ``with`` block would wait for the server in the loop's
    thread.

    A task that is cancelled leaves its call to the thread, which releases what the call returns.
    """

    def __init__(self, cache: NodeCache, *, threads: int = 4) -> None:
        self.cache = cache
        """The cache, for calls of threads."""
        self._calls = ThreadPoolExecutor(threads, "kvmem-node")
        self._waits = ThreadPoolExecutor(1, "kvmem-node-events")

    async def _run(
        self, where: Executor, call: Callable[_P, _T], *given: _P.args, **named: _P.kwargs
    ) -> _T:
        loop = asyncio.get_running_loop()
        try:
            result = loop.run_in_executor(where, functools.partial(call, *given, **named))
        except RuntimeError:
            if not self.cache.closed:
                raise
            # The threads have ended. A closed cache says so without waiting.
            return call(*given, **named)
        return await result

    async def insert(
        self,
        key: int | bytes | str,
        value: Any,
        *,
        parent: int | bytes | str | None = None,
        priority: SupportsIndex = 0,
        ttl: float | None = None,
    ) -> None:
        """See :meth:`NodeCache.insert`."""
        call = functools.partial(self.cache.insert, parent=parent, priority=priority, ttl=ttl)
        await self._run(self._calls, call, key, value)

    async def insert_batch(
        self,
        values: Mapping[_Key, Any] | Iterable[tuple[int | bytes | str, Any]],
        *,
        parents: Iterable[int | bytes | str | None] | None = None,
        priority: SupportsIndex = 0,
        ttl: float | None = None,
    ) -> None:
        """See :meth:`NodeCache.insert_batch`."""
        call = functools.partial(
            self.cache.insert_batch, parents=parents, priority=priority, ttl=ttl
        )
        await self._run(self._calls, call, values)

    async def reserve(
        self,
        key: int | bytes | str,
        nbytes: SupportsIndex | str,
        *,
        parent: int | bytes | str | None = None,
        priority: SupportsIndex = 0,
        ttl: float | None = None,
    ) -> NodeReservation:
        """See :meth:`NodeCache.reserve`."""
        call = functools.partial(self.cache.reserve, parent=parent, priority=priority, ttl=ttl)
        return await self._run(self._calls, call, key, nbytes)

    async def reserve_batch(
        self,
        sizes: Mapping[_Key, SupportsIndex | str]
        | Iterable[tuple[int | bytes | str, SupportsIndex | str]],
        *,
        parents: Iterable[int | bytes | str | None] | None = None,
        priority: SupportsIndex = 0,
        ttl: float | None = None,
        wait: bool = True,
    ) -> list[NodeReservation]:
        """See :meth:`NodeCache.reserve_batch`."""
        call = functools.partial(
            self.cache.reserve_batch, parents=parents, priority=priority, ttl=ttl, wait=wait
        )
        return await self._run(self._calls, call, sizes)

    async def commit(self, reservations: Iterable[NodeReservation]) -> None:
        """See :meth:`NodeCache.commit`."""
        await self._run(self._calls, self.cache.commit, reservations)

    async def get(self, key: int | bytes | str) -> PinnedValue | None:
        """See :meth:`NodeCache.get`."""
        return await self._run(self._calls, self.cache.get, key)

    async def acquire(self, keys: Iterable[int | bytes | str], *, wait: bool = True) -> PinBatch:
        """See :meth:`NodeCache.acquire`."""
        return await self._run(self._calls, self.cache.acquire, keys, wait=wait)

    async def acquire_prefix(
        self, keys: Iterable[int | bytes | str], *, wait: bool = True
    ) -> PinBatch:
        """See :meth:`NodeCache.acquire_prefix`."""
        return await self._run(self._calls, self.cache.acquire_prefix, keys, wait=wait)

    async def lookup(self, keys: Iterable[int | bytes | str]) -> int:
        """See :meth:`NodeCache.lookup`."""
        return await self._run(self._calls, self.cache.lookup, keys)

    async def locate(self, keys: Iterable[int | bytes | str]) -> list[Located]:
        """See :meth:`NodeCache.locate`."""
        return await self._run(self._calls, self.cache.locate, keys)

    async def contains(self, key: int | bytes | str) -> bool:
        """Returns whether ``key`` has a value."""
        return await self._run(self._calls, self.cache.__contains__, key)

    async def touch(self, keys: Iterable[int | bytes | str]) -> int:
        """See :meth:`NodeCache.touch`."""
        return await self._run(self._calls, self.cache.touch, keys)

    async def remove(self, key: int | bytes | str) -> bool:
        """See :meth:`NodeCache.remove`."""
        return await self._run(self._calls, self.cache.remove, key)

    async def remove_batch(self, keys: Iterable[int | bytes | str]) -> int:
        """See :meth:`NodeCache.remove_batch`."""
        return await self._run(self._calls, self.cache.remove_batch, keys)

    async def keep_alive(self) -> None:
        """See :meth:`NodeCache.keep_alive`."""
        await self._run(self._calls, self.cache.keep_alive)

    async def stats(self) -> NodeStats:
        """See :meth:`NodeCache.stats`."""
        return await self._run(self._calls, self.cache.stats)

    async def events(
        self, start: SupportsIndex = 0, *, max: SupportsIndex = 512, wait: float = 0.0
    ) -> EventBatch:
        """See :meth:`NodeCache.events`."""
        loop = asyncio.get_running_loop()
        end = loop.time() + wait
        turn = min(wait, WAIT)
        while True:
            where = self._waits if wait > 0 else self._calls
            events = await self._run(where, self.cache.events, start, max=max, wait=turn)
            turn = min(end - loop.time(), WAIT)
            if events or events.lost or turn <= 0:
                return events
            start = events.next

    async def follow_events(self, start: int = 0) -> AsyncIterator[Event]:
        """Iterates over all events from number ``start`` on, and waits for those to come."""
        while True:
            events = await self.events(start, wait=60.0)
            for event in events:
                yield event
            start = events.next

    async def evict(self, nbytes: SupportsIndex | str) -> int:
        """See :meth:`NodeCache.evict`."""
        return await self._run(self._calls, self.cache.evict, nbytes)

    async def clear(self) -> int:
        """See :meth:`NodeCache.clear`."""
        return await self._run(self._calls, self.cache.clear)

    async def list_namespace(self) -> list[Listed]:
        """See :meth:`NodeCache.list_namespace`."""
        return await self._run(self._calls, self.cache.list_namespace)

    async def close(self) -> None:
        """See :meth:`NodeCache.close`. Calls that are running end first."""
        if not self.cache.closed:
            await self._run(self._calls, self.cache.close)
        self._calls.shutdown(wait=False)
        self._waits.shutdown(wait=False, cancel_futures=True)

    @property
    def closed(self) -> bool:
        """Whether the cache has been closed."""
        return self.cache.closed

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None = None,
        raised: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<kvmem.AsyncNodeCache of {self.cache!r}>"


class _Connecting:
    """Connects when it is awaited, or when its ``async with`` block begins."""

    def __init__(self, connecting: Callable[[], NodeCache], threads: int) -> None:
        self._connecting = connecting
        self._threads = threads
        self._entered = False
        self._made: AsyncNodeCache | None = None

    async def _connect(self) -> AsyncNodeCache:
        loop = asyncio.get_running_loop()
        thread = ThreadPoolExecutor(1, "kvmem-node-connect")
        try:
            cache = await loop.run_in_executor(thread, self._connecting)
        finally:
            # A task that is cancelled does not wait for the thread.
            thread.shutdown(wait=False)
        return AsyncNodeCache(cache, threads=self._threads)

    def __await__(self) -> Generator[Any, Any, AsyncNodeCache]:
        return self._connect().__await__()

    async def __aenter__(self) -> AsyncNodeCache:
        if self._entered:
            raise InvalidArgumentError(
                "the async with block of this connect_async has not ended: call connect_async "
                "again for another block"
            )
        self._entered = True
        try:
            self._made = await self._connect()
        except BaseException:
            self._entered = False
            raise
        return self._made

    async def __aexit__(self, *raised: object) -> None:
        made, self._made, self._entered = self._made, None, False
        if made is not None:
            await made.close()


def connect_async(
    path: str | PathLike[str],
    *,
    namespace: str = "",
    read_only: bool = False,
    retry_for: float = 10.0,
    answer_within: float = 30.0,
    populate: bool = False,
    checksums: bool = False,
    verify: bool = False,
    rings: bool = False,
    server_users: Sequence[int] = (),
    threads: int = 4,
) -> _Connecting:
    """Does what :func:`connect` does, for asyncio: ``cache = await kvmem.connect_async(path)``, or
    ``async with kvmem.connect_async(path) as cache:``. At most ``threads`` calls run at a time.
    """
    if isinstance(threads, bool) or not isinstance(threads, int):
        raise TypeError(f"threads is an int, not {type(threads).__name__}")
    if threads < 1:
        raise InvalidArgumentError(f"threads is {threads}: give at least 1", value=threads, limit=1)
    connecting = functools.partial(
        connect,
        path,
        namespace=namespace,
        read_only=read_only,
        retry_for=retry_for,
        answer_within=answer_within,
        populate=populate,
        checksums=checksums,
        verify=verify,
        rings=rings,
        server_users=server_users,
    )
    return _Connecting(connecting, threads)
