"""The client process of a cluster: stores and fetches values by Mooncake's engine.

``kvmem serve --mooncake`` and :class:`kvmem.mooncake.ClusterTier` start this module as a process
of its own, because the engine has threads, may hang and may crash. The standard input is a socket
of packets. The first one carries the descriptor of the memory through which values go, which is
registered with the engine once. Each later packet is a call, and has one answer;
``crates/kvmem-cluster/src/messages.rs`` has their bytes. The tier verifies every value itself, and
kills this process if it does not answer.

A transfer that missed its deadline goes on in the engine. Its call is answered when it has ended,
because the answer releases its memory."""

import argparse
import contextlib
import ctypes
import mmap
import os
import re
import signal
import socket
import struct
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, NoReturn

from ..errors import KvmemError
from . import engine as engines
from . import errors

MAGIC = b"kvmem-c2"
_HELLO = struct.Struct("<8sQ")
_CALL = struct.Struct("<QII")
_ITEM = struct.Struct("<QQH")
_ANSWER = struct.Struct("<QI")
_MAX_PACKET = 1 << 20
LOOK_UP, STORE, FETCH, REMOVE, CLEAR, REPLACE = range(1, 7)
FAILED = -1
_THREADS = {LOOK_UP: 4, STORE: 4, FETCH: 4, REMOVE: 1}
"""Calls of each kind at once. Clearing is a removal, and replacing is storing."""
_PR_SET_PDEATHSIG = 1


class Item(NamedTuple):
    """An item of a call."""

    name: str
    """Key of the object."""
    offset: int
    nbytes: int


class Tier:
    """Calls of a node on an engine."""

    def __init__(self, engine: engines.Engine, address: int, nbytes: int, prefix: str) -> None:
        self._engine = engine
        self._address = address
        self._nbytes = nbytes
        self._prefix = prefix

    def name(self, key: bytes) -> str:
        """Returns the object's key."""
        return f"{self._prefix}{key.hex()}"

    def look_up(self, items: list[Item]) -> list[int]:
        """Returns the length of each object that can be read now."""
        names = [item.name for item in items]
        # The engine logs each name without an object whose replicas are requested, so those without
        # one are left out.
        exist = self._engine.call("look for", lambda it: it.batch_is_exist(names), names[0])
        self._report(exist)
        here = [name for name, code in zip(names, exist) if code == 1]
        found = {}
        if here:
            found = self._engine.replicas(here)
        lengths = []
        for name in names:
            segments, nbytes = found.get(name, ([], None))
            # A segment that failed is skipped for a while.
            blocked = segments and self._engine.segments.allow(segments, trying=False)
            lengths.append(FAILED if blocked or nbytes is None else nbytes)
        return lengths

    def store(self, items: list[Item]) -> list[int]:
        """Stores objects. One that exists stays: a key has one content."""
        names, places, lengths = self._places(items)
        codes = self._transfer(
            "put", lambda it: it.batch_put_from(names, places, lengths), names, lengths
        )
        return [1 if code == 0 else FAILED for code in codes]

    def replace(self, items: list[Item]) -> list[int]:
        """Stores objects in place of those that are there."""
        removed = self.remove(items)
        ready = [item for item, code in zip(items, removed) if code == 1]
        stored = iter(self.store(ready) if ready else ())
        return [next(stored) if code == 1 else FAILED for code in removed]

    def fetch(self, items: list[Item]) -> list[int]:
        """Reads objects, and returns their lengths."""
        names, places, lengths = self._places(items)
        return self._transfer(
            "get", lambda it: it.batch_get_into(names, places, lengths), names, lengths
        )

    def remove(self, items: list[Item]) -> list[int]:
        """Removes objects, those too that were read just now."""
        names = [item.name for item in items]
        codes = self._engine.call("remove", lambda it: it.batch_remove(names, True), names[0])
        self._report(codes)
        return [1 if code >= 0 or code in errors.MISSING else FAILED for code in codes]

    def clear(self, _items: list[Item]) -> list[int]:
        """Removes all objects of the prefix."""
        pattern = "^" + re.escape(self._prefix)
        self._engine.checked_call(
            "remove what matches", lambda it: it.remove_by_regex(pattern, True), pattern
        )
        return [1]

    def _places(self, items: list[Item]) -> tuple[list[str], list[int], list[int]]:
        for item in items:
            if item.offset + item.nbytes > self._nbytes:
                raise ValueError(f"{item} ends behind the {self._nbytes} bytes of the memory")
        return (
            [item.name for item in items],
            [self._address + item.offset for item in items],
            [item.nbytes for item in items],
        )

    def _transfer(
        self, doing: str, work: Callable[[Any], list[int]], names: list[str], lengths: list[int]
    ) -> list[int]:
        try:
            codes: list[int] = self._engine.call(doing, work, names[0], nbytes=sum(lengths))
        except errors.DeadlineError as error:
            self._engine.blame(names)
            while error.call is not None and not error.call.wait_ended(1.0):
                pass
            raise
        self._report(codes)
        self._engine.blame([name for name, code in zip(names, codes) if errors.is_transfer(code)])
        return codes

    def _report(self, codes: Sequence[int]) -> None:
        """Opens the circuit, or starts a probe, if the master or a segment failed."""
        for code in codes:
            if code < 0 and (errors.is_master(code) or errors.is_transfer(code)):
                self._engine.report(errors.error(code, "call"))
                return


class Server:
    """Answers the calls on a socket."""

    def __init__(self, connection: socket.socket, tier: Tier) -> None:
        self._connection = connection
        self._tier = tier
        self._lock = threading.Lock()
        self._calls: dict[int, Callable[[list[Item]], list[int]]] = {
            LOOK_UP: tier.look_up,
            STORE: tier.store,
            FETCH: tier.fetch,
            REMOVE: tier.remove,
            CLEAR: tier.clear,
            REPLACE: tier.replace,
        }
        self._pools = {kind: ThreadPoolExecutor(count) for kind, count in _THREADS.items()}
        self._pools[CLEAR] = self._pools[REMOVE]
        self._pools[REPLACE] = self._pools[STORE]

    def notify(self, works: bool) -> None:
        """Notifies the node whether the cluster answers."""
        self._send(0, [int(works)])

    def run(self) -> None:
        """Answers calls until the node closes the connection."""
        while True:
            packet = self._connection.recv(_MAX_PACKET)
            if not packet:
                return
            number, kind, items = self._parse(packet)
            self._pools[kind].submit(self._answer, number, kind, items)

    def _parse(self, packet: bytes) -> tuple[int, int, list[Item]]:
        number, kind, count = _CALL.unpack_from(packet)
        items, at = [], _CALL.size
        for _ in range(count):
            offset, nbytes, key_bytes = _ITEM.unpack_from(packet, at)
            at += _ITEM.size
            items.append(Item(self._tier.name(packet[at : at + key_bytes]), offset, nbytes))
            at += key_bytes
        return number, kind, items

    def _answer(self, number: int, kind: int, items: list[Item]) -> None:
        results = [FAILED] * len(items)
        try:
            results = self._calls[kind](items)
        except errors.CircuitOpenError:
            pass
        except Exception as error:  # Whatever the engine raises, the call has an answer.
            print(f"kvmem: {error}", file=sys.stderr, flush=True)
        self._send(number, results)

    def _send(self, number: int, results: list[int]) -> None:
        packet = _ANSWER.pack(number, len(results)) + struct.pack(f"<{len(results)}q", *results)
        # If the node is gone, the loop ends.
        with self._lock, contextlib.suppress(OSError):
            self._connection.sendall(packet)


def _hello(connection: socket.socket) -> mmap.mmap:
    """Receives the memory."""
    packet, descriptors, _flags, _address = socket.recv_fds(connection, _HELLO.size, 1)
    # A server of another version may say more, or less.
    magic = packet[: len(MAGIC)]
    if magic != MAGIC or len(packet) != _HELLO.size or len(descriptors) != 1:
        for descriptor in descriptors:
            os.close(descriptor)
        raise ValueError(
            f"the server speaks {magic!r} and this helper {MAGIC!r}: use one release of kvmem for "
            "both"
        )
    _, nbytes = _HELLO.unpack(packet)
    try:
        return mmap.mmap(descriptors[0], nbytes)
    finally:
        os.close(descriptors[0])


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the arguments."""
    options = argparse.ArgumentParser(prog="python3 -m kvmem.mooncake.node_tier")
    options.add_argument("--master", default=engines.MASTER)
    options.add_argument("--prefix", default="kvmem-node/")
    # The others are those of an engine, which has their defaults.
    for name in ("host", "peers", "protocol", "devices", "metadata"):
        options.add_argument(f"--{name}", default=argparse.SUPPRESS)
    for name in ("deadline", "timeout"):
        options.add_argument(f"--{name}", type=float, default=argparse.SUPPRESS)
    options.add_argument("--expose", action="store_true")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Serves a node until it closes the connection. Returns the exit status."""
    options = vars(parser().parse_args(arguments))
    prefix = options.pop("prefix")
    # A node that is killed takes this process with it, whatever its threads wait for.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # The signals of a terminal and of systemd are the server's, which still stores values then. It
    # closes the connection when it has.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    try:
        connection = socket.socket(fileno=os.dup(0))
        memory = _hello(connection)
    except (OSError, ValueError) as error:
        print(
            f"kvmem: `kvmem serve --mooncake` or a ClusterTier starts this program: {error}",
            file=sys.stderr,
        )
        return 2
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    nbytes = len(memory)
    try:
        engine = engines.Engine(**options)
        code = engine.call_without_deadline(lambda it: it.register_buffer(address, nbytes))
        errors.check(-abs(code), f"register {nbytes} bytes")
    except (KvmemError, OSError, ValueError) as error:
        print(f"kvmem: {error}", file=sys.stderr, flush=True)
        return 1
    server = Server(connection, Tier(engine, address, nbytes, prefix))
    engine.circuit.listen(lambda: server.notify(not engine.circuit.is_open))
    server.notify(not engine.circuit.is_open)
    with contextlib.suppress(OSError):
        server.run()
    engine.close(before=lambda: engine.client.unregister_buffer(address))
    return 0


def _end(status: int) -> NoReturn:
    """Ends the process. Threads of the engine may be anywhere; they do not delay it."""
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    _end(main())
