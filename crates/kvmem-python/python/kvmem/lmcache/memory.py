"""*Host memory*: regions by address, as LMCache allocates and frees them.

A shared segment must have a name under ``/dev/shm``, by which LMCache's other processes open it.
kvmem's own shared memory has no name, so this module creates the segment, reserves all of its pages
at once, and makes it a region. A full ``/dev/shm`` is then an error, and not a ``SIGBUS`` later."""

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
"""Folder of named shared memory."""


@dataclass
class _Allocation:
    """The memory behind a pointer."""

    region: Region
    registration: Registration | None
    segment: Path | None


class HostMemory:
    """Memory by pointer: mapped, resident, and pinned if possible. Any thread may use it.

    ``pages``: page sizes to try for memory that is not requested in huge pages, as for
    :class:`kvmem.Region`. ``devices``: devices to register pinned memory with, as for
    :class:`kvmem.Registration`. None means ``mlock`` if the limits allow it; otherwise the memory
    stays unpinned, with a warning."""

    def __init__(self, *, pages: str | None = None, devices: str | None = None) -> None:
        self._pages = pages
        self._devices = devices
        self._held: dict[int, _Allocation] = {}
        self._lock = threading.Lock()

    def allocate(
        self, size: int, *, numa: int | None = None, hugepages: bool = False, pinned: bool = True
    ) -> int:
        """Allocates ``size`` zeroed bytes and returns their address. ``numa``: node that they must
        come from. ``hugepages``: fail unless all pages have 2 MiB. Raises
        :class:`InvalidArgumentError`, :class:`MappingError`, :class:`RegistrationError` and
        :class:`NotAvailableError`. After an error nothing is left mapped."""
        region = Region(
            self._checked(size),
            pages="2M" if hugepages else self._pages,
            strict=hugepages,
            numa=None if numa is None else f"bind:{numa}",
            populate="auto",
        )
        return self._keep(region, None, pinned)

    def allocate_shared(self, size: int, name: str) -> int:
        """Allocates ``size`` zeroed bytes that other processes can open as ``/dev/shm/NAME``, and
        returns their address. An existing segment of that name loses it. Raises
        :class:`InvalidArgumentError`, :class:`MappingError`, :class:`RegistrationError`,
        :class:`NotAvailableError`, and ``OSError`` if there is no space for the segment."""
        plain = name.lstrip("/")
        if not plain or "/" in plain or plain in (".", ".."):
            raise InvalidArgumentError(
                f"{name!r} is no valid name of a shared segment: give one without slashes"
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
            # Processes that open the segment by name must find the requested size.
            os.ftruncate(fd, size)
            return self._keep(region, segment, pinned=True)
        except BaseException:
            segment.unlink(missing_ok=True)
            raise
        finally:
            os.close(fd)

    def free(self, pointer: int) -> None:
        """Frees the memory at ``pointer``, and removes the name of a shared segment. Raises
        :class:`InvalidArgumentError` if no memory was allocated there. Raises
        :class:`~kvmem.ExportedError`, and keeps the memory, while views exist."""
        with self._lock:
            held = self._held.pop(pointer, None)
        if held is None:
            raise InvalidArgumentError(
                f"cannot free {pointer:#x}: no memory was allocated there, or it was freed before"
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
        """Returns the region behind a pointer. Raises ``KeyError``."""
        return self._held[pointer].region

    def __len__(self) -> int:
        """Returns the number of pointers in use."""
        return len(self._held)

    @property
    def nbytes(self) -> int:
        """Number of bytes behind all pointers."""
        with self._lock:
            return sum(held.region.nbytes for held in self._held.values())

    def close(self) -> None:
        """Frees all memory."""
        for pointer in list(self._held):
            self.free(pointer)

    @staticmethod
    def _checked(size: int) -> int:
        if size <= 0:
            raise InvalidArgumentError(f"size is {size}: give more than 0 bytes")
        return size

    def _keep(self, region: Region, segment: Path | None, pinned: bool) -> int:
        try:
            registration = self._pin(region) if pinned else None
        except BaseException:
            region.close()
            raise
        with self._lock:
            self._held[region.ptr] = _Allocation(region, registration, segment)
        return region.ptr

    def _pin(self, region: Region) -> Registration | None:
        if self._devices is not None:
            return Registration(region, self._devices) if self._devices else None
        try:
            return Registration(region, "mlock")
        except (RegistrationError, NotAvailableError, MappingError) as error:
            _log.warning("%d bytes stay unpinned: %s", region.nbytes, error)
            return None
