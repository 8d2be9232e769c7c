"""*Segment*: memory of a pool, or of a node, that the cluster stores objects in."""

import logging
import os
import signal
import threading
import weakref
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, Self, Unpack

from .._kvmem import Block, NodeCache, Pool, parse_size
from ..errors import ClosedError, InvalidArgumentError, KvmemError
from . import errors
from .engine import MASTER, Engine, EngineOptions

_log = logging.getLogger("kvmem.mooncake")


_RESERVED = b"kvmem.mooncake segment"
"""Key of the reservation in a node. No value is stored under it."""
_KEEP_ALIVE = 5.0
"""Seconds between two signs of life to a node. Its lease is longer."""


_Ranges = list[tuple[int, int]]
_Free = Callable[[], None]
"""Returns lent bytes. No peer can write to them any more."""


def _keep_alive(node: NodeCache, ended: threading.Event) -> None:
    """Reports to the node's server that this process lives, until it is stopped."""
    works = True
    while not ended.wait(_KEEP_ALIVE):
        try:
            node.keep_alive()
            works = True
        except KvmemError as error:
            if works:
                _log.warning("the node does not answer, and its memory stays lent: %s", error)
            works = False


class Segment:
    """Memory of a pool or a node that is mounted in a cluster, made by :func:`serve`. Leaving a
    ``with`` block unmounts it, and so does dropping it or the end of the interpreter."""

    def __init__(
        self, ranges: _Ranges, free: _Free, engine: Engine, name: str, ids: list[str]
    ) -> None:
        self.ranges = ranges
        """Offset and length of each part in the pool or the node's memory, in bytes. There is one
        part unless the pool has a ``boundary``."""
        self.offset = self.ranges[0][0]
        """Offset of the first part."""
        self.nbytes = sum(nbytes for _, nbytes in self.ranges)
        """Length of all parts together."""
        self.name = name
        """Name of the segment in the cluster."""
        self.master = engine.master
        self._engine = engine
        self._end = weakref.finalize(self, _unmount, free, engine, ids)

    def close(self) -> None:
        """Unmounts the segment. The cluster loses the objects in it, and the bytes return to the
        pool or the node. A second call does nothing."""
        self._end()

    @property
    def closed(self) -> bool:
        """Whether the segment has been unmounted."""
        return not self._end.alive

    @property
    def reach(self) -> str:
        """Addresses that the engine's ports answer on, in words."""
        return self._engine.reach

    def answers(self) -> bool:
        """Calls the master, and returns whether it answers within the deadline."""
        try:
            self._engine.probe()
        except (errors.UnreachableError, ClosedError):
            return False
        return True

    def wait(
        self,
        *,
        signals: Sequence[int] = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP),
        every: float = 5.0,
        status: Callable[[], object] | None = None,
    ) -> int:
        """Serves until one of the signals arrives, unmounts, and returns the signal's number. Must
        run in the main thread. ``status`` is called at once, when a signal already ends the wait,
        and then every ``every`` seconds."""
        arrived = threading.Event()
        received: list[int] = []

        def handle(number: int, _frame: FrameType | None) -> None:
            received.append(number)
            arrived.set()

        before = {number: signal.signal(number, handle) for number in signals}
        try:
            while True:
                if status is not None:
                    status()
                if arrived.wait(every):
                    break
            self.close()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        return received[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "unmounted" if self.closed else f"at {self.master}"
        return f"<kvmem.mooncake.Segment of {self.nbytes} bytes, {state}>"


def serve(
    memory: Pool | NodeCache,
    master: str = MASTER,
    *,
    nbytes: int | str | None = None,
    **options: Unpack[EngineOptions],
) -> Segment:
    """Mounts memory of a shared pool, or of a node, as a segment of a cluster, without a copy.

    ``nbytes`` bytes (default: the whole pool) are allocated from the pool and belong to the cluster
    until the segment is closed. The engine maps the memory file a second time; this function fills
    the page tables of that mapping. A node evicts until ``nbytes`` bytes, which must be named, are
    free in one piece, and reserves them until the segment is closed or the process has ended.

    If the pool has a ``boundary``, each part between two multiples of it becomes a segment of its
    own for the cluster. All parts are mounted, or none. An object must fit into one part.

    ``options``: see :class:`EngineOptions`. Any process that reaches the engine's ports can read
    and write the memory without credentials: the ports answer on ``host`` only, and only to
    ``peers`` if any are named, unless ``expose`` is true.

    Raises :class:`~kvmem.KvmemError` if the pool is private, :class:`~kvmem.OutOfSpaceError`,
    :class:`UnreachableError` if the master does not answer, :class:`ExposedError` if the ports
    cannot be limited, :class:`EngineMissingError` and :class:`StoreError`."""
    fd = memory.fileno()
    page = os.fstat(fd).st_blksize  # size of the huge pages, if the file has them
    ranges, free = _lend(memory, parse_size(nbytes) if isinstance(nbytes, str) else nbytes, page)
    try:
        engine = Engine(master, **options)
    except BaseException:
        free()
        raise
    ids: list[str] = []
    try:
        for start, length in ranges:
            mounted = engine.call_without_deadline(
                lambda client: _mount(client, fd, start, length, engine.protocol, ids)
            )
            errors.check(-abs(mounted), f"mount {length} bytes of the memory from {start} on")
        # The engine has its own mapping of the file: otherwise the first put to each page faults.
        memory.populate_aliases()
        segment = Segment(ranges, free, engine, engine.client.get_hostname(), ids)
    except BaseException:
        _unmount(free, engine, ids)
        raise
    _log.info(
        "%d bytes on pages of %d are a segment at %s, in %d parts",
        segment.nbytes,
        page,
        master,
        len(ranges),
    )
    return segment


def _lend(memory: Pool | NodeCache, nbytes: int | None, page: int) -> tuple[_Ranges, _Free]:
    """Takes bytes from a pool or a node. Returns their ranges, and the function that frees them."""
    if isinstance(memory, Pool):
        return _lend_blocks(_allocate(memory, memory.capacity if nbytes is None else nbytes, page))
    if nbytes is None or nbytes < 1:
        raise InvalidArgumentError(
            f"nbytes is {nbytes}, and a node has values of others: give the number of bytes to lend"
        )
    # Whole pages of the file: a reservation may begin and end within huge ones.
    nbytes = -(-nbytes // page) * page
    room = memory.reserve(_RESERVED, nbytes + page)
    ended = threading.Event()
    thread = threading.Thread(
        target=_keep_alive, args=(memory, ended), name="kvmem-segment", daemon=True
    )
    thread.start()

    def free() -> None:
        ended.set()
        thread.join()
        try:
            room.discard()
        except KvmemError as error:
            # The server takes back the reservations of a process that has ended.
            _log.warning("the bytes return to the node when this process ends: %s", error)

    return [(-(-room.offset // page) * page, nbytes)], free


def _lend_blocks(blocks: list[Block]) -> tuple[_Ranges, _Free]:
    def free() -> None:
        for block in blocks:
            if not block.freed:
                block.free()

    return sorted((block.offset, block.nbytes) for block in blocks), free


def _allocate(pool: Pool, nbytes: int, page: int) -> list[Block]:
    """Allocates ``nbytes`` bytes in blocks that are no longer than the pool's boundary, or none."""
    max_nbytes = min(pool.boundary or nbytes, nbytes)
    blocks: list[Block] = []
    try:
        for start in range(0, max(nbytes, 1), max(max_nbytes, 1)):
            blocks.append(pool.allocate(min(max_nbytes, nbytes - start), align=page))
    except BaseException:
        pool.free_batch(blocks)
        raise
    return blocks


def _mount(client: Any, fd: int, start: int, nbytes: int, protocol: str, ids: list[str]) -> int:
    """Mounts one part and records its ids, even if the caller has stopped waiting."""
    mounted = client.mount_segment(f"/proc/self/fd/{fd}", nbytes, start, protocol, "")
    ids += mounted["segment_ids"]
    return int(mounted["ret"])


def _unmount(free: Callable[[], None], engine: Engine, ids: list[str]) -> None:
    """Frees the memory when the engine has ended: until then peers may write to it."""
    if not engine.is_ours():
        return
    client = engine.client

    def unmount() -> None:
        code = client.unmount_segment(ids, 0) if ids else 0
        if code:
            _log.warning(
                "%s: the master does, once this client has been gone for its client_ttl",
                errors.error(-abs(code), "unmount"),
            )

    engine.close(before=unmount, then=free)
