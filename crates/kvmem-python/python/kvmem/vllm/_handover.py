"""*Handover*: one region for all processes of an engine, passed by its descriptor.

The processes of an engine start in any order and share nothing but the engine's name. The first one
binds an abstract Unix socket of that name, makes the region, and becomes its *creator*. The others
connect and receive the descriptor. Binding is atomic, and the kernel drops the name when the
process ends, however it ends. Decision 0096 has the reasons.

Abstract names have no permissions, so both ends check the user of the other by ``SO_PEERCRED``.

A process is a *member*: the scheduler, or the worker of a rank. Each member joins once. A second
process that says it is the same member belongs to another engine of the same name: it waits for the
first engine to end, and fails after the time limit. A creator whose parent has ended closes the
socket: its engine was killed, and it will soon end, too."""

import contextlib
import errno
import json
import logging
import os
import re
import socket
import struct
import threading
import time
from collections.abc import Callable
from hashlib import sha256
from typing import Any

from .._kvmem import Region
from ..errors import KvmemError
from .errors import HandoverError, LayoutMismatchError

_log = logging.getLogger("vllm.kvmem")

_LONGEST = 4096
"""Bytes of the longest message."""
_PAUSE = 0.02
"""Seconds between two attempts of a process that must wait."""
_CREDENTIALS = struct.Struct("3i")


def socket_name(engine_id: str) -> bytes:
    """Returns the abstract name of an engine's socket. Unusual names are hashed."""
    plain = re.fullmatch(r"[\w.:-]{1,64}", engine_id, re.ASCII) is not None
    name = engine_id if plain else sha256(engine_id.encode()).hexdigest()
    return f"\0kvmem-vllm-{os.getuid()}-{name}".encode()


def _peer(connection: socket.socket) -> tuple[int, int]:
    """Returns the process id and the user id at the other end."""
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(data)
    return pid, uid


def _send(connection: socket.socket, message: dict[str, Any], fd: int | None = None) -> None:
    socket.send_fds(connection, [json.dumps(message).encode()], [] if fd is None else [fd])


def _receive(connection: socket.socket) -> tuple[dict[str, Any], int | None]:
    """Returns a message and its descriptor. Raises ``ConnectionError`` if the other end is gone."""
    data, fds, _, _ = socket.recv_fds(connection, _LONGEST, 1, socket.MSG_CMSG_CLOEXEC)
    for extra in fds[1:]:
        os.close(extra)
    if not data:
        raise ConnectionError("the other end is gone")
    return json.loads(data), fds[0] if fds else None


class Creator:
    """The creator's end: gives the descriptor to each member, until it is closed. A thread answers
    each connection, so a process that connects and says nothing delays no other."""

    def __init__(
        self, bound: socket.socket, engine_id: str, member: str, layout: dict[str, int]
    ) -> None:
        self._socket = bound
        self._engine_id = engine_id
        self._layout = layout
        self._joined = {member: os.getpid()}
        self._lock = threading.Lock()
        self._answering: dict[threading.Thread, socket.socket] = {}
        self._parent = os.getppid()
        self._made = threading.Event()
        self._region: Region | None = None
        self._failed: str | None = None
        self._closed = False
        self._denied = 0
        # The thread looks at the parent, and whether this end is closed, once a second.
        bound.settimeout(1.0)
        self._thread = threading.Thread(target=self._serve, name="kvmem-handover", daemon=True)
        self._thread.start()

    def publish(self, region: Region) -> None:
        """Gives the region to the members that wait, and to each later one."""
        self._region = region
        self._made.set()

    def fail(self, reason: str) -> None:
        """Notifies the members that wait why there is no region, and releases the name."""
        self._failed = reason
        self._made.set()
        # Connected members get the reason before the name is free.
        time.sleep(5 * _PAUSE)
        self.close()

    def close(self) -> None:
        """Releases the name. Members still have the memory."""
        if not self._closed:
            self._closed = True
            self._made.set()
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            self._thread.join()
            # The descriptor must stay open until the last answer is sent. A peer that has said
            # nothing yet gets no answer.
            with self._lock:
                answering = dict(self._answering)
            for connection in answering.values():
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RD)
            for thread in answering:
                thread.join()
            self._region = None

    def _serve(self) -> None:
        with self._socket:
            while not self._closed:
                if os.getppid() != self._parent:
                    _log.warning(
                        "engine %s: the parent of this process has ended, so no other process "
                        "joins its memory",
                        self._engine_id,
                    )
                    return
                try:
                    connection, _ = self._socket.accept()
                except TimeoutError:
                    continue
                except OSError:
                    return  # by `close`
                if not self._is_trusted(connection):
                    connection.close()
                    continue
                thread = threading.Thread(
                    target=self._serve_one, args=(connection,), name="kvmem-handover", daemon=True
                )
                with self._lock:
                    self._answering[thread] = connection
                thread.start()

    def _is_trusted(self, connection: socket.socket) -> bool:
        """Returns whether the process at the other end may join. Logs the first that may not."""
        try:
            pid, uid = _peer(connection)
        except OSError:
            return False
        if uid in (os.getuid(), 0):
            return True
        self._denied += 1
        if self._denied == 1:
            _log.warning(
                "engine %s: process %d of user %d may not join, because this process is user %d; "
                "further such processes are not logged",
                self._engine_id,
                pid,
                uid,
                os.getuid(),
            )
        return False

    def _serve_one(self, connection: socket.socket) -> None:
        try:
            with connection:
                self._answer(connection)
        except (OSError, ValueError, KeyError, TypeError, KvmemError) as error:
            _log.warning("engine %s: a process did not join: %s", self._engine_id, error)
        finally:
            with self._lock:
                del self._answering[threading.current_thread()]

    def _answer(self, connection: socket.socket) -> None:
        pid, _ = _peer(connection)
        connection.settimeout(1.0)
        hello, _ = _receive(connection)
        member = str(hello["member"])
        if hello["layout"] != self._layout:
            return _send(connection, {"layout": self._layout})
        with self._lock:
            taken = self._joined.get(member)
        if taken is None:
            self._made.wait()
            region = self._region
            if region is None:
                return _send(connection, {"failed": self._failed or "the creator has ended it"})
            # Before the message is sent: a member that dies with it has joined.
            with self._lock:
                taken = self._joined.get(member)
                if taken is None:
                    self._joined[member] = pid
            if taken is None:
                return _send(connection, {"creator": os.getpid()}, region.fileno())
        _send(connection, {"taken": taken})


def join(
    engine_id: str,
    member: str,
    layout: dict[str, int],
    make: Callable[[], Region],
    *,
    timeout: float,
) -> tuple[Region, Creator | None]:
    """Returns the region of an engine: made by ``make`` if this process is the first one, and then
    with the :class:`Creator` to close at the end. Raises :class:`HandoverError`, and what ``make``
    raises."""
    name = socket_name(engine_id)
    end = time.monotonic() + timeout
    reason, other = "no process answers", None

    def fails(why: str, kind: type[HandoverError] = HandoverError, **more: Any) -> HandoverError:
        text = f"engine {engine_id}: {why}"
        return kind(text, engine_id=engine_id, member=member, pid=other, **more)

    while True:
        bound = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            bound.bind(name)
            bound.listen(1024)
        except OSError as error:
            bound.close()
            if error.errno != errno.EADDRINUSE:
                raise
        else:
            return _create(bound, engine_id, member, layout, make)
        answer, fd, other = _ask(name, engine_id, member, layout, end)
        if fd is not None:
            try:
                # The file ends on a page, which may be a hugepage.
                return Region.attach(fd), None
            finally:
                os.close(fd)
        if "layout" in answer:
            found = answer["layout"]
            why = f"{member} needs {layout}, but process {other} has made {found}: start all its "
            why += "processes with the same options"
            raise fails(why, LayoutMismatchError, wanted=layout, found=found)
        if "failed" in answer:
            raise fails(f"process {other} could not make the region: {answer['failed']}")
        if "taken" in answer:
            reason = f"{member} has joined before, as process {answer['taken']}"
        if time.monotonic() >= end:
            raise fails(
                f"no region within {timeout} s, because {reason}. Another engine of this name "
                f"runs: end process {other}, or set another engine_id"
            )
        time.sleep(_PAUSE)


def _create(
    bound: socket.socket,
    engine_id: str,
    member: str,
    layout: dict[str, int],
    make: Callable[[], Region],
) -> tuple[Region, Creator]:
    creator = Creator(bound, engine_id, member, layout)
    try:
        region = make()
    except BaseException as error:
        text = str(error) if isinstance(error, KvmemError) else repr(error)
        creator.fail(text[: _LONGEST // 2])
        raise
    creator.publish(region)
    return region, creator


def _ask(
    name: bytes, engine_id: str, member: str, layout: dict[str, int], end: float
) -> tuple[dict[str, Any], int | None, int | None]:
    """Asks the creator. Returns its answer, empty if it is gone, descriptor and process id."""
    pid = None
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        try:
            connection.connect(name)
            pid, uid = _peer(connection)
            if uid not in (os.getuid(), 0):
                raise HandoverError(
                    f"engine {engine_id}: the socket of this name belongs to user {uid} "
                    f"(process {pid}), and this process is user {os.getuid()}: end that process, "
                    "or set another engine_id",
                    engine_id=engine_id,
                    member=member,
                    pid=pid,
                )
            _send(connection, {"member": member, "layout": layout})
            # The creator answers when the memory is resident, which takes a while.
            connection.settimeout(max(end - time.monotonic(), _PAUSE))
            answer, fd = _receive(connection)
            return answer, fd, pid
        except (ConnectionError, TimeoutError, BrokenPipeError):
            # It has ended, or has bound the name and not listened yet.
            return {}, None, pid
