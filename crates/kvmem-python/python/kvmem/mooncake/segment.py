"""*Segment*: memory of a pool that the cluster puts objects into."""

from __future__ import annotations

import logging
import os
import signal
import threading
import weakref
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Self

from .._kvmem import Block, Pool
from . import errors
from .engine import LOCAL, MASTER, Engine

_log = logging.getLogger("kvmem.mooncake")


class Segment:
    """A part of a pool that is mounted in a cluster. Made by :func:`serve`; a ``with`` unmounts it, and so do its end and the interpreter's."""

    def __init__(self, block: Block, engine: Engine, name: str, ids: list[str]) -> None:
        self.offset = block.offset
        """Where it begins in the pool, in bytes."""
        self.nbytes = block.nbytes
        """How long it is."""
        self.name = name
        """By what the cluster knows it."""
        self.master = engine.master
        self._end = weakref.finalize(self, _unmount, block, engine, ids)

    def close(self) -> None:
        """Unmounts it: what the cluster has in it is gone, and its bytes are the pool's again. A second time does nothing."""
        self._end()

    @property
    def closed(self) -> bool:
        """Whether it has been unmounted."""
        return not self._end.alive

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
) -> Segment:
    """Mounts memory of a shared pool as a segment of a cluster, with no copy.

    A block of ``nbytes`` bytes (all of the pool, if nothing is said) is taken from the pool and belongs to the cluster until the segment is closed: nobody
    else is given those bytes. The engine maps the pool's memory file once more, so the pages are those of the pool, huge ones too.

    ``host`` is the address that others reach this host by, and the only one that is listened on. ``timeout``: seconds to wait for the master.

    Raises :class:`~kvmem.KvmemError` if the pool is private, :class:`~kvmem.OutOfSpaceError` if it has no such range, :class:`UnreachableError` if there is no
    master, :class:`EngineMissingError`, :class:`StoreError`.
    """
    fd = pool.fileno()
    page = os.fstat(fd).st_blksize  # of huge pages where the file has these
    block = pool.allocate(pool.capacity if nbytes is None else nbytes, align=page)
    try:
        engine = Engine(master, host, protocol=protocol, devices=devices, metadata=metadata, timeout=timeout)
        try:
            mounted = engine.client.mount_segment(f"/proc/self/fd/{fd}", block.nbytes, block.offset, protocol, "")
            errors.check(-abs(mounted["ret"]), f"mount {block.nbytes} bytes of the pool")
            segment = Segment(block, engine, engine.client.get_hostname(), list(mounted["segment_ids"]))
        except BaseException:
            engine.close()
            raise
    except BaseException:
        block.free()
        raise
    _log.info("%d bytes on pages of %d are a segment at %s", block.nbytes, page, master)
    return segment


def _unmount(block: Block, engine: Engine, ids: list[str]) -> None:
    if not engine.is_ours():
        return
    code = engine.client.unmount_segment(ids, 0)
    if code:
        _log.warning("%s", errors.error(-abs(code), "unmount: the master will, when this client has been gone for its client_ttl"))
    engine.close()
    if not block.freed:
        block.free()
