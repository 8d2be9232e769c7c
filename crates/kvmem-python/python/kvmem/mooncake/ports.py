"""*Ports*: limits the addresses that the engine's ports answer on.

The engine binds its ports to every address of the host, and over TCP it asks for no credentials: a
connection is enough to read and write lent memory. kvmem limits the ports from outside:

- *A packet filter* of the kernel (``SO_ATTACH_FILTER``) on each listening socket drops every packet
  whose destination is not ``host``, or whose source is not in ``peers``. Accepted connections
  inherit it. Recent kernels require ``CAP_NET_ADMIN`` for it (Linux 6.18 does).
- *The loopback interface* (``SO_BINDTODEVICE``), if ``host`` is an address of it, without any
  privilege.

The sockets appear during the engine's setup, some 50 ms before :meth:`Ports.limit` sees them (the
setup holds the GIL). No memory is lent yet. :meth:`Ports.check` then reads every limit back, and
fails if a connection from another address was accepted before. Memory is registered or mounted only
after that. docs/distributed.md says what happens where the filter cannot be attached."""

import contextlib
import ctypes
import errno
import ipaddress
import logging
import os
import socket
import struct
import sys
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ..errors import InvalidArgumentError
from . import errors

_log = logging.getLogger("kvmem.mooncake")

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_ATTACH_FILTER = 26
"""``SO_ATTACH_FILTER``, and ``SO_GET_FILTER`` of ``getsockopt``."""
_LOOPBACK = b"lo"
_LISTEN, _TIME_WAIT = 0x0A, 0x06
_RANGE = (15000, 17000)
"""Range of the engine's ports unless ``MC_MIN_RPC_PORT`` and ``MC_MAX_RPC_PORT`` change it."""
_HANDSHAKE = 12001
"""The engine's handshake port if a server has the metadata."""


def local_addresses(host: str) -> list[_Address]:
    """Returns the addresses of this machine that ``host`` names. Raises
    :class:`~kvmem.InvalidArgumentError` if it names none."""
    name = (
        host.strip("[]") if host.startswith("[") or host.count(":") != 1 else host.partition(":")[0]
    )
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise InvalidArgumentError(
            f"host={host!r} cannot be resolved ({error}): give an address of this machine"
        ) from error
    addresses = {ipaddress.ip_address(str(place[0]).partition("%")[0]) for *_, place in found}
    mine = sorted(
        (address for address in addresses if _is_mine(address)),
        key=lambda address: (address.version, int(address)),
    )
    if not mine:
        raise InvalidArgumentError(
            f"host={host!r} is no address of this machine: give one of its addresses, or pass "
            "expose=True (--expose) behind an address translation"
        )
    return mine


def _is_mine(address: _Address) -> bool:
    if address.is_unspecified:
        return False
    with socket.socket(
        socket.AF_INET if address.version == 4 else socket.AF_INET6, socket.SOCK_DGRAM
    ) as probe:
        try:
            probe.bind((str(address), 0))
        except OSError as error:
            # A link-local address of this machine cannot be bound without its interface.
            return error.errno == errno.EINVAL and address.is_link_local
    return True


def other_addresses(hosts: Iterable[_Address]) -> list[_Address]:
    """Returns the addresses of this machine that other hosts may reach, except ``hosts``."""
    found: set[_Address] = set()
    with contextlib.suppress(OSError), open("/proc/self/net/fib_trie", encoding="ascii") as lines:
        before = ""
        for line in lines:
            if "host LOCAL" in line:
                found.add(ipaddress.ip_address(before.split()[-1]))
            before = line
    with contextlib.suppress(OSError), open("/proc/self/net/if_inet6", encoding="ascii") as lines:
        found |= {ipaddress.ip_address(bytes.fromhex(line.split()[0])) for line in lines}
    remaining = {address for address in found if not address.is_loopback} - set(hosts)
    return sorted(remaining, key=lambda address: (address.version, int(address)))


def networks(peers: str | Iterable[str]) -> list[_Network]:
    """Parses ``10.0.0.0/24,fd00::/64``, or a list. Raises :class:`InvalidArgumentError`."""
    texts = peers.split(",") if isinstance(peers, str) else list(peers)
    try:
        return [ipaddress.ip_network(text.strip(), strict=False) for text in texts if text.strip()]
    except ValueError as error:
        raise InvalidArgumentError(
            f"peers={peers!r}: {error}; give networks such as 10.0.0.0/24, or addresses"
        ) from error


# The filter is classic BPF. Offsets from _NET on are relative to the packet's network header.

_NET = -0x100000
_LOAD_BYTE, _LOAD_WORD, _AND, _JUMP, _JUMP_IF_EQUAL, _RETURN = 0x30, 0x20, 0x54, 0x05, 0x15, 0x06
_PASS, _DROP = (_RETURN, 0, 0, 0xFFFFFFFF), (_RETURN, 0, 0, 0)
_Instruction = tuple[int, int, int, int]


def _matches(at: int, network: _Network) -> list[_Instruction]:
    """Returns code that falls through to its last instruction, a jump over the next one, if the
    address at an offset is in the network."""
    width = network.max_prefixlen
    address, mask = int(network.network_address), int(network.netmask)
    tests: list[tuple[_Instruction, ...]] = []
    for word in range(width // 32):
        shift = width - 32 * (word + 1)
        value, bits = (address >> shift) & 0xFFFFFFFF, (mask >> shift) & 0xFFFFFFFF
        if bits:
            tests.append(
                (
                    (_LOAD_WORD, 0, 0, (_NET + at + 4 * word) & 0xFFFFFFFF),
                    (_AND, 0, 0, bits),
                    (_JUMP_IF_EQUAL, 0, 0, value),
                )
            )
    code = [instruction for test in tests for instruction in test]
    # If a word differs, jump over the rest of this block, to the next block.
    return [
        (opcode, yes, len(code) - number, value)
        if opcode == _JUMP_IF_EQUAL
        else (opcode, yes, no, value)
        for number, (opcode, yes, no, value) in enumerate(code)
    ]


def _any_of(at: int, wanted: list[_Network], last: list[_Instruction]) -> list[_Instruction]:
    """Runs ``last`` if the address at an offset is in a network, or drops the packet."""
    code: list[_Instruction] = [_DROP, *last]
    for network in reversed(wanted):
        # The jump leads to the first instruction of `last`.
        code = [*_matches(at, network), (_JUMP, 0, 0, len(code) - len(last)), *code]
    return code


def program(hosts: Iterable[_Address], peers: Iterable[_Network]) -> bytes:
    """Returns the filter: it passes packets to ``hosts`` from ``peers``, or from any address."""
    hosts, peers = list(hosts), list(peers)

    def family(version: int, source: int, destination: int) -> list[_Instruction]:
        to: list[_Network] = [
            ipaddress.ip_network(host) for host in hosts if host.version == version
        ]
        come: list[_Network] = [network for network in peers if network.version == version]
        passes: list[_Instruction] = _any_of(source, come, [_PASS]) if peers else [_PASS]
        return _any_of(destination, to, passes)

    four, six = family(4, 12, 16), family(6, 8, 24)
    head: list[_Instruction] = [
        (_LOAD_BYTE, 0, 0, _NET & 0xFFFFFFFF),
        (_AND, 0, 0, 0xF0),
        (_JUMP_IF_EQUAL, 1, 0, 0x40),
        (_JUMP, 0, 0, len(four)),
    ]
    code = [*head, *four, *six]
    if len(code) > 4096:
        raise InvalidArgumentError(
            f"a filter of {len(code)} instructions is too long (at most 4096): name fewer peers"
        )
    return b"".join(struct.pack("HBBI", *instruction) for instruction in code)


# Sockets.


class _Socket(NamedTuple):
    """A line of ``/proc/self/net/tcp``."""

    inode: int
    local: _Address
    port: int
    remote: _Address
    state: int


def _sockets() -> list[_Socket]:
    """Returns the TCP sockets of this network namespace. One that waits has the inode 0."""
    found: list[_Socket] = []
    for table in ("tcp", "tcp6"):
        try:
            with open(f"/proc/self/net/{table}", encoding="ascii") as lines:
                next(lines, None)
                for line in lines:
                    words = line.split()
                    local, port = _endpoint(words[1])
                    found.append(
                        _Socket(
                            int(words[9]), local, port, _endpoint(words[2])[0], int(words[3], 16)
                        )
                    )
        except FileNotFoundError:  # no IPv6 here
            continue
    return found


def _endpoint(text: str) -> tuple[_Address, int]:
    address, _, port = text.partition(":")
    raw = bytes.fromhex(address)
    if sys.byteorder == "little":
        raw = b"".join(raw[at : at + 4][::-1] for at in range(0, len(raw), 4))
    found = ipaddress.ip_address(raw)
    return getattr(found, "ipv4_mapped", None) or found, int(port, 16)


def _own_sockets() -> Iterator[tuple[int, int]]:
    """Yields the descriptors of this process that are sockets, and their inodes."""
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        if target.startswith("socket:["):
            yield int(name), int(target[8:-1])


def listening() -> list[tuple[str, int]]:
    """Returns the addresses and ports that this process listens on, like ``ss -ltn``."""
    mine = {inode for _, inode in _own_sockets()}
    return sorted(
        (str(one.local), one.port)
        for one in _sockets()
        if one.inode in mine and one.state == _LISTEN
    )


class _Limit(NamedTuple):
    """The limit of a port."""

    port: int
    filtered: bool
    """Whether the packet filter limits it."""
    loopback: bool
    """Whether it is bound to the loopback interface."""


class Ports:
    """The ports that the engine opens after this object is made."""

    def __init__(self, *hosts: str, peers: str | Iterable[str] = ()) -> None:
        self.hosts = list(
            dict.fromkeys(address for host in hosts for address in local_addresses(host))
        )
        self.peers = networks(peers)
        self._code = program(self.hosts, self.peers)
        self._before = {inode for _, inode in _own_sockets()}
        self._limited: dict[int, _Limit] = {}
        """Limits of the ports, by the inodes of their sockets."""

    def limit(self) -> None:
        """Limits ports that were opened since the last call. Raises :class:`ExposedError`."""
        new = [
            (fd, inode)
            for fd, inode in _own_sockets()
            if inode not in self._before and inode not in self._limited
        ]
        if not new:
            return
        sockets = {one.inode: one for one in _sockets()}
        for fd, inode in new:
            found = sockets.get(inode)
            if found is None or found.state != _LISTEN or not found.local.is_unspecified:
                continue
            if not _is_engine_port(found.port):
                raise errors.ExposedError(
                    f"port {found.port} was opened on every address while the engine started, and "
                    "is not one of the engine's: open your own ports before or after, or pass "
                    "expose=True (--expose)",
                    port=found.port,
                )
            self._limited[inode] = self._attach(fd, found.port)

    def __str__(self) -> str:
        limits = list(self._limited.values())
        numbers = ", ".join(str(port) for port in sorted(limit.port for limit in limits))
        hosts = ", ".join(map(str, self.hosts))
        peers = f" to {', '.join(map(str, self.peers))}" if self.peers else ""
        if all(limit.filtered for limit in limits):
            return f"ports {numbers} answer on {hosts} only{peers}"
        if all(limit.loopback for limit in limits):
            return f"ports {numbers} answer on the loopback interface only"
        return (
            f"ports {numbers} answer on every address of this machine, and others reach only "
            f"{hosts}"
        )

    def check(self) -> None:
        """Limits new ports, and checks all limits and connections. Raises :class:`ExposedError`."""
        self.limit()
        mine = {inode: fd for fd, inode in _own_sockets()}
        for inode, (port, filtered, loopback) in self._limited.items():
            if inode not in mine:
                continue
            if filtered and _filter_length(mine[inode]) != len(self._code) // 8:
                raise errors.ExposedError(
                    _cannot(port, "the kernel has no filter on it"), port=port
                )
            if loopback and _interface(mine[inode]) != _LOOPBACK:
                raise errors.ExposedError(
                    _cannot(port, "it is not bound to the loopback interface"), port=port
                )
        ports = {limit.port: limit for limit in self._limited.values()}
        for one in _sockets():
            limit = ports.get(one.port)
            ours = limit is not None and (one.inode == 0 or one.inode in mine)
            if (
                limit is not None
                and ours
                and one.state not in (_LISTEN, _TIME_WAIT)
                and not self._passes(one, limit)
            ):
                raise errors.ExposedError(
                    f"a connection from {one.remote} to {one.local} port {one.port} came before "
                    "the port was limited: start again",
                    port=one.port,
                )

    def _passes(self, one: _Socket, limit: _Limit) -> bool:
        if limit.filtered:
            return one.local in self.hosts and (
                not self.peers or any(one.remote in network for network in self.peers)
            )
        return not limit.loopback or one.remote.is_loopback

    def _attach(self, fd: int, port: int) -> _Limit:
        code = ctypes.create_string_buffer(self._code, len(self._code))
        filter_struct = struct.pack("HP", len(self._code) // 8, ctypes.addressof(code))
        with socket.socket(fileno=os.dup(fd)) as opened:
            loopback = False
            if all(host.is_loopback for host in self.hosts):
                with contextlib.suppress(OSError):
                    opened.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, _LOOPBACK)
                    loopback = True
            try:
                opened.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, filter_struct)
                return _Limit(port, True, loopback)
            except OSError as error:
                if self.peers:
                    raise errors.ExposedError(
                        _cannot(port, f"no filter: {error}"), port=port
                    ) from error
                others = [] if loopback else other_addresses(self.hosts)
                if others:
                    why = f"no filter: {error}; this machine also has {', '.join(map(str, others))}"
                    raise errors.ExposedError(_cannot(port, why), port=port) from error
        return _Limit(port, False, loopback)


def _cannot(port: int, why: str) -> str:
    return (
        f"port {port} of the engine cannot be limited ({why}), and lent memory can be read through "
        "it without credentials: give this process CAP_NET_ADMIN, or a network namespace of its "
        "own, or pass expose=True (--expose)"
    )


def _filter_length(fd: int) -> int:
    """Returns the number of instructions of a socket's filter; 0 without one."""
    length = ctypes.c_uint32(0)
    status = ctypes.CDLL(None, use_errno=True).getsockopt(
        fd, socket.SOL_SOCKET, _ATTACH_FILTER, None, ctypes.byref(length)
    )
    return length.value if status == 0 else 0


def _interface(fd: int) -> bytes:
    """Returns the interface that a socket is bound to; empty without one."""
    with socket.socket(fileno=os.dup(fd)) as opened:
        return opened.getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, 16).rstrip(b"\0")


def _is_engine_port(port: int) -> bool:
    def number(names: tuple[str, ...], default: int) -> int:
        for name in names:
            text = os.environ.get(name, "")
            if text.isdecimal():
                return int(text)
        return default

    low = number(("MC_MIN_RPC_PORT", "MC_MIN_PRC_PORT"), _RANGE[0])
    high = number(("MC_MAX_RPC_PORT", "MC_MAX_PRC_PORT"), _RANGE[1])
    return low <= port <= high or port == number(("MC_HANDSHAKE_PORT",), _HANDSHAKE)
