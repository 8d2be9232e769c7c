"""*Host memory*: regions by their addresses, as LMCache asks for and gives them back.

An engine in the way of C knows memory by a pointer alone. So what is behind a pointer (the region, its registration, the name of a shared
segment) is kept here under it until it is freed.

A shared segment must have a name under ``/dev/shm``, by which LMCache's other processes open it. kvmem's own shared memory has none, so
the segment is made here, all of its pages set aside at once (a full ``/dev/shm`` is an error, not a ``SIGBUS`` later), and made a region.
"""

from __future__ import annotations

import logging
import mmap
import os
import threading
from dataclasses import dataclass
from pathlib import Path

from .._kvmem import Region, Registration
from ..errors import InvalidArgumentError, MappingError, NotAvailableError, RegistrationError

_log = logging.getLogger("kvmem")

SEGMENTS = Path("/dev/shm")
"""Where named shared memory is."""


@dataclass
class _Held:
    """What is behind a pointer."""

    region: Region
    registration: Registration | None
    segment: Path | None


class HostMemory:
    """Memory by pointer: mapped, made resident, and pinned if it can be.

    ``pages``: kinds of pages to try for what is not asked for in hugepages, as for :class:`kvmem.Region`. ``devices``: what pinned memory is
    registered with, as for :class:`kvmem.Registration`; None is ``mlock`` where the limits allow it, and else nothing, with a warning.
    Any thread may use it.
    """

    def __init__(self, *, pages: str | None = None, devices: str | None = None) -> None:
        self._pages = pages
        self._devices = devices
        self._held: dict[int, _Held] = {}
        self._lock = threading.Lock()

    def allocate(
        self, size: int, *, numa: int | None = None, hugepages: bool = False, pinned: bool = True
    ) -> int:
        """The address of ``size`` zeros. ``numa``: the node they must come from; ``hugepages``: of 2 MiB, or not at all.

        Raises :class:`InvalidArgumentError`, :class:`MappingError`, :class:`RegistrationError`, :class:`NotAvailableError`; nothing is kept then.
        """
        region = Region(
            self._checked(size),
            pages="2M" if hugepages else self._pages,
            strict=hugepages,
            numa=None if numa is None else f"bind:{numa}",
            populate="auto",
        )
        return self._keep(region, None, pinned)

    def allocate_shared(self, size: int, name: str) -> int:
        """The address of ``size`` zeros that other processes can open as ``/dev/shm/NAME``. What had that name before loses it.

        Raises as ``allocate``, and ``OSError`` if there is no room for the segment.
        """
        plain = name.lstrip("/")
        if not plain or "/" in plain or plain in (".", ".."):
            raise InvalidArgumentError(
                f"{name!r} is no name of a shared segment: say one without slashes"
            )
        length = -(-self._checked(size) // mmap.PAGESIZE) * mmap.PAGESIZE
        segment = SEGMENTS / plain
        segment.unlink(missing_ok=True)
        fd = os.open(
            segment, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
        )
        try:
            os.posix_fallocate(fd, 0, length)
            region = Region.from_buffer(mmap.mmap(fd, length))
            region.populate()
            # Processes that open it by name are to find the size that was asked for.
            os.ftruncate(fd, size)
            return self._keep(region, segment, pinned=True)
        except BaseException:
            segment.unlink(missing_ok=True)
            raise
        finally:
            os.close(fd)

    def free(self, pointer: int) -> None:
        """Gives back what begins at ``pointer``, and the name of a shared segment.

        Raises :class:`InvalidArgumentError` if nothing does, and :class:`~kvmem.ExportedError` if it has views; it is kept then.
        """
        with self._lock:
            held = self._held.pop(pointer, None)
        if held is None:
            raise InvalidArgumentError(
                f"nothing that was allocated here begins at {pointer:#x}; was it freed before?"
            )
        try:
            if held.registration is not None:
                held.registration.close()
                held.registration = None
            held.region.close()
        except BaseException:
            with self._lock:
                self._held[pointer] = held
            raise
        if held.segment is not None:
            held.segment.unlink(missing_ok=True)

    def region(self, pointer: int) -> Region:
        """The region behind a pointer. Raises ``KeyError``."""
        return self._held[pointer].region

    def __len__(self) -> int:
        """How many pointers are in use."""
        return len(self._held)

    @property
    def nbytes(self) -> int:
        """Bytes behind them."""
        with self._lock:
            return sum(held.region.nbytes for held in self._held.values())

    def close(self) -> None:
        """Gives everything back."""
        for pointer in list(self._held):
            self.free(pointer)

    @staticmethod
    def _checked(size: int) -> int:
        if size <= 0:
            raise InvalidArgumentError(f"{size} is no size of memory: say more than 0")
        return size

    def _keep(self, region: Region, segment: Path | None, pinned: bool) -> int:
        try:
            registration = self._pin(region) if pinned else None
        except BaseException:
            region.close()
            raise
        with self._lock:
            self._held[region.ptr] = _Held(region, registration, segment)
        return region.ptr

    def _pin(self, region: Region) -> Registration | None:
        if self._devices is not None:
            return Registration(region, self._devices) if self._devices else None
        try:
            return Registration(region, "mlock")
        except (RegistrationError, NotAvailableError, MappingError) as error:
            _log.warning("%d bytes stay unpinned: %s", region.nbytes, error)
            return None
