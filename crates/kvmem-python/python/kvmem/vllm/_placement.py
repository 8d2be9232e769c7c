"""*Placement*: a NUMA node for the slot of each worker.

The kernel stores the policy of a memory file with the file, page by page. A worker therefore binds
its slots through a mapping of its own that it unmaps afterwards: the mapping that it copies through
stays in one piece (decision 0121). The page that two slots share belongs to the second one of them.
"""

import ctypes
import errno
import logging
import os
import platform
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from .._kvmem import Region
from ..errors import InvalidArgumentError
from .errors import PlacementError

_log = logging.getLogger("vllm.kvmem")

SYSFS = Path("/sys")
"""Where the kernel describes the machine."""
HUGEPAGE = 2 << 20
_BIND = 2  # MPOL_BIND
_ADDRESS = 2  # MPOL_F_ADDR
_MAX_NODE = 1024
_CALLS = {"x86_64": (237, 239), "aarch64": (235, 236)}
"""Numbers of ``mbind`` and ``get_mempolicy``."""
_ROWS_AT_ONCE = 8192
"""Rows that are bound through one mapping, of which the kernel makes three for each."""


def _read(path: str) -> str:
    """Returns the text of a file of sysfs; empty if there is none."""
    try:
        return (SYSFS / path).read_text(encoding="ascii")
    except (OSError, ValueError):
        return ""


def _ids(text: str) -> list[int]:
    """Converts a list of the kernel, such as ``0-1,4``."""
    found: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def online_nodes() -> list[int]:
    """Returns the nodes that have memory; none if the kernel knows no nodes."""
    folder = "devices/system/node"
    return _ids(_read(f"{folder}/has_memory") or _read(f"{folder}/online"))


def _node_of_pci(bus_id: str) -> int | None:
    node = int(_read(f"bus/pci/devices/{bus_id.lower()}/numa_node") or -1)
    return node if node >= 0 else None


def _bus_id(device: Any) -> str | None:
    """Returns the PCI address of a GPU, as sysfs writes it."""
    import torch

    try:
        found = torch.cuda.get_device_properties(device)
        place = (found.pci_domain_id, found.pci_bus_id, found.pci_device_id)
    except (AttributeError, RuntimeError, AssertionError, ValueError):
        return None
    if not all(isinstance(it, int) for it in place):
        return None
    return "{:04x}:{:02x}:{:02x}.0".format(*place)


def near_node(tensor: Any) -> int | None:
    """Returns the node that a worker's slot should be on: that of its GPU, else the only one whose
    processors the process may use. None: there is no such node."""
    bus = _bus_id(getattr(tensor, "device", None))
    node = None if bus is None else _node_of_pci(bus)
    if node is not None:
        return node
    allowed = os.sched_getaffinity(0)
    cpus = "devices/system/node/node{}/cpulist"
    nodes = [node for node in online_nodes() if allowed & {*_ids(_read(cpus.format(node)))}]
    return nodes[0] if len(nodes) == 1 else None


def check(numa: Sequence[int], workers: int) -> None:
    """Checks a list of nodes, one for each worker. Raises :class:`InvalidArgumentError`."""
    known = online_nodes()
    if len(numa) != workers:
        raise InvalidArgumentError(
            f"kvmem.numa has {len(numa)} nodes, and the engine has {workers} workers: give a node "
            "for each worker, in the order of their ranks"
        )
    unknown = sorted(set(numa) - set(known))
    if unknown:
        raise InvalidArgumentError(
            f"kvmem.numa has node {unknown[0]}, and the nodes with memory are {known}: give these"
        )


def pages_for(pages: str | None, row_bytes: int, slot: int) -> str | None:
    """Returns the page sizes that leave each slot pages of its own. Raises
    :class:`InvalidArgumentError` if the requested ones do not."""
    if row_bytes % HUGEPAGE == 0 and slot % HUGEPAGE == 0:
        if pages is not None and "1G" in pages.split(","):
            raise InvalidArgumentError(
                f'kvmem.pages is "{pages}", and a page of 1 GiB has slots of several workers: '
                'give "2M,thp,4k", or one policy for the whole region'
            )
        return pages
    if pages not in (None, "4k"):
        raise InvalidArgumentError(
            f'kvmem.pages is "{pages}", and slots of {slot} bytes in rows of {row_bytes} share '
            'hugepages, which lie on one node: give "4k", or one policy for the whole region, such '
            'as "interleave:0-1"'
        )
    return "4k"


def slots(rows: int, row_bytes: int, slot: int, rank: int, page: int) -> Iterator[tuple[int, int]]:
    """Yields offset and length of the pages of a worker's slot in each row."""
    for row in range(rows):
        base = row * row_bytes
        start = (base + rank * slot) // page * page
        # The last slot has what is left of its row.
        last = (rank + 2) * slot > row_bytes
        end = base + row_bytes if last else (base + (rank + 1) * slot) // page * page
        if end > start:
            yield start, end - start


def _syscall(number: int, *arguments: Any) -> None:
    if ctypes.CDLL(None, use_errno=True).syscall(ctypes.c_long(number), *arguments):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _numbers() -> tuple[int, int]:
    found = _CALLS.get(platform.machine())
    if found is None:
        raise PlacementError(
            f"kvmem.numa gives workers nodes, and {platform.machine()} is neither x86_64 nor "
            "aarch64: leave it out",
            node=None,
        )
    return found


def policy_of(address: int) -> tuple[int, int]:
    """Returns the kernel's policy for the page at an address: its mode, and its nodes as bits."""
    mode, mask = ctypes.c_int(-1), (ctypes.c_ulong * (_MAX_NODE // 64))()
    size = ctypes.c_ulong(_MAX_NODE)
    flags = ctypes.c_ulong(_ADDRESS)
    _syscall(_numbers()[1], ctypes.byref(mode), mask, size, ctypes.c_void_p(address), flags)
    return mode.value, sum(word << 64 * at for at, word in enumerate(mask))


def bind(region: Region, ranges: Sequence[tuple[int, int]], node: int, member: str) -> None:
    """Binds ranges of a shared region, which are not resident yet, to a node. Raises
    :class:`PlacementError` if the kernel does not allow it."""
    if not ranges:
        return
    mbind = _numbers()[0]
    mask = (ctypes.c_ulong * (_MAX_NODE // 64))()
    mask[node // 64] = 1 << node % 64
    try:
        for first in range(0, len(ranges), _ROWS_AT_ONCE):
            with Region.attach(region.fileno()) as mapping:
                for start, length in ranges[first : first + _ROWS_AT_ONCE]:
                    where, size = ctypes.c_void_p(mapping.ptr + start), ctypes.c_ulong(length)
                    _syscall(mbind, where, size, _BIND, mask, ctypes.c_ulong(_MAX_NODE), 0)
        for start, _ in (ranges[0], ranges[-1]):
            found = policy_of(region.ptr + start)
            if found != (_BIND, 1 << node):
                raise PlacementError(
                    f"{member}: its slots were bound to node {node}, and the kernel says that "
                    f"policy {found[0]} with nodes {found[1]:#x} holds: leave kvmem.numa out",
                    node=node,
                )
    except OSError as error:
        remedy = {
            errno.EPERM: "let the container make the call: docker run --cap-add SYS_NICE, or a "
            "seccomp profile with mbind",
            errno.ENOSYS: "this kernel has no NUMA: leave kvmem.numa out",
            errno.EINVAL: "the cpuset of this process leaves the node out: add it to "
            "cpuset.mems, or leave kvmem.numa out",
            errno.ENOMEM: "raise vm.max_map_count",
        }.get(error.errno or 0, "leave kvmem.numa out")
        raise PlacementError(
            f"{member}: cannot bind {len(ranges)} slots to node {node}: {error.strerror}: {remedy}",
            node=node,
        ) from error


def free_bytes(node: int) -> int | None:
    """Returns the bytes that a node has free or in caches of files; None if that is unknown."""
    lines = _read(f"devices/system/node/node{node}/meminfo")
    found = dict(re.findall(r"(\w[\w()]*):\s+(\d+) kB", lines))
    if "MemFree" not in found:
        return None
    names = ("MemFree", "Inactive(file)", "Active(file)")
    return sum(int(found.get(name, 0)) for name in names) * 1024


def check_free(node: int, nbytes: int, member: str) -> None:
    """Raises :class:`PlacementError` if a node has less memory than a worker's slots need: bound
    memory that a node cannot give would end in a kill."""
    free = free_bytes(node)
    if free is not None and free < nbytes:
        raise PlacementError(
            f"{member}: its slots need {nbytes} bytes on node {node}, which has {free}: give "
            "fewer with cpu_bytes_to_use, or leave kvmem.numa out",
            node=node,
            requested=nbytes,
            limit=free,
        )


def place(
    region: Region,
    ranges: Sequence[tuple[int, int]],
    node: int | None,
    member: str,
    populate: Callable[[int, int], Any],
) -> None:
    """Binds a worker's slots to a node and makes them resident."""
    if node is None:
        _log.warning("kvmem: %s is near no single NUMA node: its slots are bound to none", member)
    else:
        check_free(node, sum(length for _, length in ranges), member)
        bind(region, ranges, node, member)
        _log.info("kvmem: %d slots of %s are bound to NUMA node %d", len(ranges), member, node)
    for start, length in ranges:
        populate(start, start + length)
