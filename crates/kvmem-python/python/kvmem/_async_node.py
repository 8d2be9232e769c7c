"""*Async node*: a node's calls for tasks of an event loop.

A call blocks for some tens of microseconds, and for seconds while the server starts again. So calls
run in threads of the cache, a few for all tasks. Another thread waits for events."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from os import PathLike
from typing import Any, Concatenate, ParamSpec, Self, SupportsIndex, TypeVar

from ._kvmem import NodeCache, connect
from .data import Event, EventBatch
from .errors import InvalidArgumentError

_P = ParamSpec("_P")
_T = TypeVar("_T")

WAIT = 0.25
"""Longest wait of the thread that waits for events, in seconds."""


def _call(
    method: Callable[Concatenate[NodeCache, _P], _T],
) -> Callable[Concatenate[AsyncNodeCache, _P], Coroutine[Any, Any, _T]]:
    """Returns the coroutine that makes a call of a :class:`NodeCache` in a thread."""

    @functools.wraps(method)
    async def call(self: AsyncNodeCache, /, *arguments: _P.args, **named: _P.kwargs) -> _T:
        return await self._run(
            self._calls, functools.partial(method, self.cache), *arguments, **named
        )

    return call


class AsyncNodeCache:
    """A :class:`NodeCache` for asyncio: its calls are coroutines. Made by :func:`connect_async`.

    The pins and reservations are those of the :class:`NodeCache`. To release a pin takes no time,
    so ``with`` blocks are right for pins. A reservation is committed by ``await
    cache.commit([…])``: the end of its own ``with`` block would wait for the server in the loop's
    thread.

    A task that is cancelled leaves its call to the thread, which releases what the call returns."""

    def __init__(self, cache: NodeCache, *, threads: int = 4) -> None:
        self.cache = cache
        """The cache, for calls of threads."""
        self._calls = ThreadPoolExecutor(threads, "kvmem-node")
        self._waits = ThreadPoolExecutor(1, "kvmem-node-events")

    async def _run(
        self, where: Executor, call: Callable[_P, _T], *arguments: _P.args, **named: _P.kwargs
    ) -> _T:
        loop = asyncio.get_running_loop()
        try:
            result = loop.run_in_executor(where, functools.partial(call, *arguments, **named))
        except RuntimeError:
            if not self.cache.closed:
                raise
            # The threads have ended. A closed cache says so without waiting.
            return call(*arguments, **named)
        return await result

    insert = _call(NodeCache.insert)
    insert_batch = _call(NodeCache.insert_batch)
    reserve = _call(NodeCache.reserve)
    reserve_batch = _call(NodeCache.reserve_batch)
    commit = _call(NodeCache.commit)
    get = _call(NodeCache.get)
    acquire = _call(NodeCache.acquire)
    acquire_prefix = _call(NodeCache.acquire_prefix)
    lookup = _call(NodeCache.lookup)
    locate = _call(NodeCache.locate)
    touch = _call(NodeCache.touch)
    remove = _call(NodeCache.remove)
    remove_batch = _call(NodeCache.remove_batch)
    keep_alive = _call(NodeCache.keep_alive)
    stats = _call(NodeCache.stats)
    evict = _call(NodeCache.evict)
    clear = _call(NodeCache.clear)
    list_namespace = _call(NodeCache.list_namespace)
    misses = _call(NodeCache.misses)

    async def contains(self, key: int | bytes | str) -> bool:
        """Returns whether ``key`` has a value."""
        return await self._run(self._calls, self.cache.__contains__, key)

    async def events(
        self, start: SupportsIndex = 0, *, max: SupportsIndex = 512, wait: float = 0.0
    ) -> EventBatch:
        """See :meth:`NodeCache.events`."""
        loop = asyncio.get_running_loop()
        end = loop.time() + wait
        part = min(wait, WAIT)
        while True:
            where = self._waits if wait > 0 else self._calls
            events = await self._run(where, self.cache.events, start, max=max, wait=part)
            part = min(end - loop.time(), WAIT)
            if events or events.lost or part <= 0:
                return events
            start = events.next

    async def follow_events(self, start: int = 0) -> AsyncIterator[Event]:
        """Iterates over all events from number ``start`` on, and waits for those to come."""
        while True:
            events = await self.events(start, wait=60.0)
            for event in events:
                yield event
            start = events.next

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

    async def __aexit__(self, *_raised: object) -> None:
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
    ``async with kvmem.connect_async(path) as cache:``. At most ``threads`` calls run at a time."""
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
