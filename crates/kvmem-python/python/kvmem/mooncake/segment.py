"""*Segment*: memory of a pool that the cluster puts objects into."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from types import FrameType
from typing import Any, Self

from .._kvmem import Block, Pool
from ..errors import ClosedError, InvalidArgumentError
from ..size import size
from . import errors
from .engine import DEADLINE, LOCAL, MASTER, Engine

_log = logging.getLogger("kvmem.mooncake")


class Segment:
    """Memory of a pool that is mounted in a cluster. Made by :func:`serve`; a ``with`` unmounts it, and so do its end and the interpreter's."""

    def __init__(self, blocks: list[Block], engine: Engine, name: str, ids: list[str]) -> None:
        self.ranges = sorted((block.offset, block.nbytes) for block in blocks)
        """Where it lies in the pool: offset and length of each part, in bytes. It is one part unless the pool has a ``boundary``."""
        self.offset = self.ranges[0][0]
        """Where the first of them begins."""
        self.nbytes = sum(nbytes for _, nbytes in self.ranges)
        """How long they are together."""
        self.name = name
        """By what the cluster knows it."""
        self.master = engine.master
        self._engine = engine
        self._end = weakref.finalize(self, _unmount, blocks, engine, ids)

    def close(self) -> None:
        """Unmounts it: what the cluster has in it is gone, and its bytes are the pool's again. A second time does nothing."""
        self._end()

    @property
    def closed(self) -> bool:
        """Whether it has been unmounted."""
        return not self._end.alive

    @property
    def reach(self) -> str:
        """Where the engine's ports answer, in words."""
        return self._engine.reach

    def answers(self) -> bool:
        """Whether the master answers a call now, within the deadline."""
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
        """Serves until one of the signals comes, unmounts, and returns which it was. For the main thread.

        ``status`` is called every so many seconds meanwhile.
        """
        came = threading.Event()
        which: list[int] = []

        def note(number: int, _frame: FrameType | None) -> None:
            which.append(number)
            came.set()

        before = {number: signal.signal(number, note) for number in signals}
        try:
            while not came.wait(every):
                if status is not None:
                    status()
            self.close()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        return which[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "unmounted" if self.closed else f"at {self.master}"
        return f"<kvmem.mooncake.Segment of {self.nbytes} bytes, {state}>"


def serve(
    pool: Pool,
    master: str = MASTER,
    *,
    nbytes: int | str | None = None,
    host: str = LOCAL,
    protocol: str = "tcp",
    devices: str = "",
    metadata: str = "P2PHANDSHAKE",
    timeout: float = 10.0,
    deadline: float = DEADLINE,
    expose: bool = False,
    peers: str | Iterable[str] = (),
) -> Segment:
    """Mounts memory of a shared pool as a segment of a cluster, with no copy.

    ``nbytes`` bytes (all of the pool, if nothing is said) are taken from the pool and belong to the cluster until the segment is closed: nobody
    else is given those bytes. The engine maps the pool's memory file once more, so the pages are those of the pool, huge ones too; the page tables
    of that mapping are filled here. Where the pool has a ``boundary``, what lies between two of them is a segment of its own for the cluster: all are
    mounted, or none is, and they are unmounted together. An object must fit into one of them.

    ``host`` is the address that others reach this host by. Whoever reaches the engine's ports reads and writes the memory without
    credentials. So the ports answer on that address only, and only to ``peers`` (networks such as ``10.0.0.0/24``), if any are
    named; ``expose=True`` leaves them open on every address (see :mod:`kvmem.mooncake.ports`). ``timeout``: seconds to wait for the
    master; ``deadline``: seconds that later calls to it may take.

    Raises :class:`~kvmem.KvmemError` if the pool is private, :class:`~kvmem.OutOfSpaceError` if so much of it is not free, :class:`UnreachableError` if there is no
    master, :class:`ExposedError` if the ports cannot be limited, :class:`EngineMissingError`, :class:`StoreError`.
    """
    fd = pool.fileno()
    page = os.fstat(fd).st_blksize  # of huge pages where the file has these
    blocks = _take(pool, pool.capacity if nbytes is None else _bytes(nbytes), page)
    try:
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
    except BaseException:
        pool.free_batch(blocks)
        raise
    ids: list[str] = []
    try:
        for block in blocks:
            mounted = engine.call_without_deadline(
                lambda client: _mount(client, fd, block, protocol, ids)
            )
            errors.check(
                -abs(mounted), f"mount {block.nbytes} bytes of the pool from {block.offset} on"
            )
        # The engine has mapped the file by itself: without this the first put to each page would wait for a fault.
        pool.populate_aliases()
        segment = Segment(blocks, engine, engine.client.get_hostname(), ids)
    except BaseException:
        _unmount(blocks, engine, ids)
        raise
    _log.info(
        "%d bytes on pages of %d are a segment at %s, in %d parts",
        segment.nbytes,
        page,
        master,
        len(blocks),
    )
    return segment


def _bytes(wanted: int | str) -> int:
    if isinstance(wanted, int):
        return wanted
    try:
        return size(wanted)
    except argparse.ArgumentTypeError as error:
        raise InvalidArgumentError(str(error)) from error


def _take(pool: Pool, nbytes: int, page: int) -> list[Block]:
    """Blocks of so many bytes together, none of them longer than the pool's boundary lets it be. All or none."""
    longest = min(pool.boundary or nbytes, nbytes)
    blocks: list[Block] = []
    try:
        for start in range(0, max(nbytes, 1), max(longest, 1)):
            blocks.append(pool.allocate(min(longest, nbytes - start), align=page))
    except BaseException:
        pool.free_batch(blocks)
        raise
    return blocks


def _mount(client: Any, fd: int, block: Block, protocol: str, ids: list[str]) -> int:
    """Mounts one block; notes what it is called, even if nobody waits for it any more."""
    mounted = client.mount_segment(f"/proc/self/fd/{fd}", block.nbytes, block.offset, protocol, "")
    ids += mounted["segment_ids"]
    return int(mounted["ret"])


def _unmount(blocks: list[Block], engine: Engine, ids: list[str]) -> None:
    """The blocks are free when the engine has ended: until then peers may write to them."""
    if not engine.is_ours():
        return
    client = engine.client

    def unmount() -> None:
        code = client.unmount_segment(ids, 0) if ids else 0
        if code:
            _log.warning(
                "%s",
                errors.error(
                    -abs(code),
                    "unmount: the master will, when this client has been gone for its client_ttl",
                ),
            )

    def free() -> None:
        for block in blocks:
            if not block.freed:
                block.free()

    engine.close(before=unmount, then=free)
