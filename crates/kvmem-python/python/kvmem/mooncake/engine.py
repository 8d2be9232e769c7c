"""*Engine*: a client of the cluster, as the wheel has it.

Three things of it are kept from users. Its first connection to a master that is not there is tried for a minute and a half: so here a
plain TCP connection is tried first. Its ports are opened on every interface unless it is told otherwise: here they are opened on the address
that this host is to be reached by. And in a forked child its threads are not there: so a child is refused.
"""

from __future__ import annotations

import importlib
import os
import socket
import time
from typing import Any

from ..errors import ForkedError
from . import errors

WHEEL = "mooncake-transfer-engine-non-cuda"
LIBRARIES = "libibverbs1 libnuma1 libcurl4"
LOCAL = "127.0.0.1"
"""Where nobody else can reach it."""
MASTER = "127.0.0.1:50051"
"""Where a master listens unless it is told otherwise."""


def module() -> Any:
    """The wheel's module."""
    try:
        return importlib.import_module("mooncake.store")
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError)
        remedy = f"pip install '{WHEEL}>=0.3.13'" if missing else f"apt-get install {LIBRARIES}"
        raise errors.EngineMissingError(f"Mooncake's engine cannot be imported ({error}): {remedy}") from error


def address(master: str) -> tuple[str, int]:
    """``HOST:PORT`` in two."""
    host, colon, port = master.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise ValueError(f"{master!r} is no HOST:PORT of a master, such as {MASTER}")
    return host.strip("[]"), int(port)


def answers(master: str, timeout: float = 1.0) -> bool:
    """Whether somebody listens there."""
    try:
        socket.create_connection(address(master), timeout).close()
    except OSError:
        return False
    return True


class Engine:
    """A client that is connected until it is closed."""

    def __init__(self, master: str, host: str, *, protocol: str, devices: str, metadata: str, timeout: float) -> None:
        store = module()
        until = time.monotonic() + timeout
        while not answers(master):
            if time.monotonic() >= until:
                raise errors.error(errors.MASTER_GONE, f"connect to the master at {master}")
            time.sleep(0.1)
        os.environ.setdefault("MC_TCP_BIND_ADDRESS", host)
        self.master = master
        self._pid = os.getpid()
        self._client: Any = store.MooncakeDistributedStore()
        # Neither memory of the engine's own to serve nor to copy through.
        code = self._client.setup(host, metadata, 0, 0, protocol, devices, master)
        errors.check(-abs(code), f"connect to the master at {master}")

    @property
    def client(self) -> Any:
        """The wheel's object."""
        if not self.is_ours():
            raise ForkedError("the connection to the cluster stays with the parent: make another one in the child")
        return self._client

    def is_ours(self) -> bool:
        """Whether it was made in this process, not before a fork."""
        return os.getpid() == self._pid

    def close(self) -> None:
        """Ends it. In a forked child it does nothing."""
        if self.is_ours():
            self._client.close()
