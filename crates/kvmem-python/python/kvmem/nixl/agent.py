"""*Agent*: one party of transfers, with a registered pool, its peers and its transfers."""

from __future__ import annotations

import itertools
import os
import secrets
import socket
import time
import weakref
from typing import Any, NamedTuple, Self

from .._kvmem import Pool
from ..errors import ClosedError, InUseError, InvalidArgumentError, TimeBudgetError
from .descriptors import Blocks, pack, transfer_views, unpack
from .engine import ActiveTransfer, Engine
from .errors import raised

_count = itertools.count()
_NO_METADATA = ("nixlMismatchError", "nixlInvalidParamError", "nixlNotFoundError")
"""Errors of bytes that are no agent's metadata."""
# `wait` polls without a pause at first, for _HOT seconds: on a busy machine a sleep takes longer
# than most transfers, and NIXL releases the GIL in each poll. Then it polls at growing intervals.
_HOT = 2e-3
_MIN_PAUSE, _MAX_PAUSE = 20e-6, 1e-3


class Notification(NamedTuple):
    """A message from a peer."""

    peer: str
    """Name of the peer's agent."""
    message: bytes


class Agent:
    """One party of transfers. It registers a whole pool once.

    ``name`` must differ from the names of all peers; None generates one. ``backend`` is one of
    NIXL's. Any thread may use the agent; it makes one call at a time. The pool cannot be closed or
    shortened until the agent is closed. If the pool grows later, the new memory is not registered.
    Raises :class:`NotAvailableError` if NIXL is not installed or lacks the backend,
    :class:`NotReadyError` if the pool is still being initialized, and :class:`TransferError` if it
    cannot be registered."""

    def __init__(self, pool: Pool, name: str | None = None, backend: str = "UCX") -> None:
        if name is None:
            name = (
                f"kvmem-{socket.gethostname()}-{os.getpid()}-{next(_count)}-{secrets.token_hex(4)}"
            )
        if not name:
            raise InvalidArgumentError("the agent's name is empty: give one that no peer has")
        self.name = name
        """Name by which peers know the agent."""
        self.backend = backend
        self._engine = Engine(pool, name, backend)
        # Also at the end of the program, without waiting for transfers.
        self._end = weakref.finalize(self, self._engine.end, 0.0)

    @property
    def engine(self) -> Any:
        """NIXL's own agent (``nixl_agent``), for other calls. The caller makes one at a time."""
        with self._engine.lock:
            return self._engine.use()

    @property
    def metadata(self) -> bytes:
        """Bytes for the :meth:`connect` of a peer, which can then read and write the whole pool."""
        with self._engine.calling("cannot get the metadata") as agent:
            return bytes(agent.get_agent_metadata())

    def connect(self, metadata: bytes) -> Peer:
        """Returns the peer whose agent has these metadata. The first transfer makes the connection.
        Raises :class:`InvalidArgumentError` if the bytes are no metadata. Running transfers with an
        agent of that name fail, and their blocks stay viewed until this agent is closed. Therefore
        close the old :class:`Peer` first."""
        with self._engine.lock:
            agent = self._engine.use()
            self._engine.poll_abandoned()
            try:
                name = agent.add_remote_agent(metadata)
            except Exception as error:
                if type(error).__name__ in _NO_METADATA:
                    message = (
                        f"{len(metadata)} bytes are no agent's metadata: pass what "
                        "Agent.metadata of the peer has returned, unchanged"
                    )
                    raise InvalidArgumentError(message) from error
                raise raised("cannot add the peer", error) from error
            name = name.decode() if isinstance(name, bytes) else str(name)
            self._engine.peers.add(name)
            return Peer(self, name)

    def descriptors(self, blocks: Blocks) -> bytes:
        """Returns the positions of blocks: bytes for the :meth:`read` and :meth:`write` of a peer.
        They do not hold the blocks.

        ``blocks`` is a block, a batch, another object with the buffer protocol in the pool (a value
        pinned in a :class:`KvCache`, an array), or an iterable of those. Raises
        :class:`NotInPoolError`."""
        with self._engine.lock:
            self._engine.use()
        views = transfer_views(blocks, self._engine.start, self._engine.stop)
        views.release()
        return pack(self.name, views.spans)

    def write(
        self, blocks: Blocks, peer: Peer, descriptors: bytes, notify: bytes = b""
    ) -> Transfer:
        """Starts to copy blocks of this pool into blocks of the peer, one by one in order. Two
        corresponding blocks must have the same length.

        ``notify``: message that the peer receives when all bytes have arrived. Raises
        :class:`NotInPoolError`, :class:`UnregisteredError` if the peer has not registered the
        memory that the descriptors name, :class:`InvalidArgumentError` and :class:`TransferError`.
        """
        return self._begin("WRITE", blocks, peer, descriptors, notify)

    def read(self, blocks: Blocks, peer: Peer, descriptors: bytes, notify: bytes = b"") -> Transfer:
        """Starts to copy blocks of the peer into blocks of this pool, as :meth:`write` does."""
        return self._begin("READ", blocks, peer, descriptors, notify)

    def _begin(
        self, operation: str, blocks: Blocks, peer: Peer, descriptors: bytes, notify: bytes
    ) -> Transfer:
        owner, there = unpack(descriptors)
        if peer._agent is not self:
            raise InvalidArgumentError(
                f"{peer.name} is a peer of another agent: connect this one to it"
            )
        if owner != peer.name:
            raise InvalidArgumentError(
                f"the descriptors are of {owner}, and the peer is {peer.name}"
            )
        here = transfer_views(
            blocks, self._engine.start, self._engine.stop, writable=operation == "READ"
        )
        try:
            if [nbytes for _, nbytes in here.spans] != [nbytes for _, nbytes in there]:
                raise InvalidArgumentError(
                    f"{len(here.spans)} block(s) of {here.nbytes} bytes here, {len(there)} of "
                    f"{sum(nbytes for _, nbytes in there)} at the peer: pass as many blocks, each "
                    "as long as its counterpart"
                )
            what = (
                f"{operation.lower()} of {here.nbytes} bytes in {len(there)} block(s), "
                f"{'to' if operation == 'WRITE' else 'from'} {peer.name}"
            )
            transfer = ActiveTransfer(what, peer.name, None, here)
        except BaseException:
            here.release()
            raise
        try:
            with self._engine.lock:
                self._launch(operation, transfer, there, peer, notify)
        except BaseException:
            transfer.abandoned = True
            if transfer not in self._engine.active:
                here.release()
            # Otherwise Ctrl-C arrived after the start: it is polled like any other abandoned
            # transfer.
            raise
        return Transfer(self, transfer)

    def _launch(
        self,
        operation: str,
        transfer: ActiveTransfer,
        there: list[tuple[int, int]],
        peer: Peer,
        notify: bytes,
    ) -> None:
        engine, agent = self._engine, self._engine.use()
        peer._check()
        engine.poll_abandoned()
        try:
            local = agent.get_xfer_descs(
                [(address, nbytes, 0) for address, nbytes in transfer.views.spans], mem_type="DRAM"
            )
            remote = agent.get_xfer_descs(
                [(address, nbytes, 0) for address, nbytes in there], mem_type="DRAM"
            )
            transfer.handle = agent.initialize_xfer(
                operation, local, remote, peer.name, notify, [self.backend]
            )
        except Exception as error:
            raise raised(transfer.what, error) from error
        # From here on NIXL may use the memory, even if it reports an error.
        engine.active.add(transfer)
        try:
            state = agent.transfer(transfer.handle)
        except Exception as error:
            failure = raised(transfer.what, error)
            engine.finish(transfer, failure)
            raise failure from error
        if state == "DONE":
            engine.finish(transfer, None)

    def notifications(self, timeout: float = 0.0) -> list[Notification]:
        """Returns new messages from peers. Waits at most ``timeout`` seconds for the first."""
        deadline = time.monotonic() + timeout
        while True:
            with self._engine.calling("cannot get notifications") as agent:
                found = agent.get_new_notifs([self.backend])
            if found or time.monotonic() >= deadline:
                return [
                    Notification(str(peer), bytes(message))
                    for peer, messages in found.items()
                    for message in messages
                ]
            time.sleep(0.0005)

    def close(self, timeout: float = 5.0) -> int:
        """Closes the agent: waits at most ``timeout`` seconds for running transfers, ends the
        others, deregisters the pool and releases it. Returns how many transfers were ended. Peers
        must have forgotten the agent before. A second call does nothing."""
        self._end.detach()
        return self._engine.end(timeout)

    @property
    def closed(self) -> bool:
        """Whether the agent has been closed."""
        return self._engine.agent is None

    def __enter__(self) -> Self:
        with self._engine.lock:
            self._engine.use()
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()

    def __repr__(self) -> str:
        if self.closed:
            return f"<kvmem.nixl.Agent {self.name}, closed>"
        return (
            f"<kvmem.nixl.Agent {self.name} with {self._engine.stop - self._engine.start} "
            "bytes registered>"
        )


class Peer:
    """Another agent, made by :meth:`Agent.connect`. Leaving a ``with`` block forgets it."""

    def __init__(self, agent: Agent, name: str) -> None:
        self._agent = agent
        self._closed = False
        self.name = name
        """Name of the peer's agent."""

    def _check(self) -> None:
        if self._closed:
            raise ClosedError(f"{self.name} has been forgotten: connect to it again")

    def notify(self, message: bytes) -> None:
        """Sends a message, which the peer's :meth:`Agent.notifications` returns."""
        with self._agent._engine.calling(f"cannot notify {self.name}") as agent:
            self._check()
            agent.send_notif(self.name, message)

    def close(self) -> None:
        """Forgets the peer. Raises :class:`InUseError` while transfers with it are running."""
        engine = self._agent._engine
        with engine.lock:
            if self._closed or engine.agent is None:
                self._closed = True
                return
            engine.use()
            running = sum(
                not engine.is_over(transfer)
                for transfer in list(engine.active)
                if transfer.peer == self.name
            )
            if running:
                raise InUseError(
                    f"{running} transfer(s) with {self.name} are running: wait until they are "
                    "over, or close the agent"
                )
            self._closed = True
            engine.peers.discard(self.name)
            with engine.calling(f"cannot forget {self.name}") as agent:
                agent.remove_remote_agent(self.name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<kvmem.nixl.Peer {self.name}{', forgotten' if self._closed else ''}>"


class Transfer:
    """A copy that :meth:`Agent.write` or :meth:`Agent.read` has started. Its blocks in this process
    cannot be freed until it is over. :meth:`wait` and :attr:`done` detect that; after this object
    is dropped, the agent's next transfer does."""

    def __init__(self, agent: Agent, active: ActiveTransfer) -> None:
        self._agent = agent  # the agent would close with its last reference
        self._active = active
        self.nbytes = active.views.nbytes
        """Number of bytes to copy."""

    @property
    def done(self) -> bool:
        """Whether the transfer is over, with or without success: :meth:`wait` raises the error."""
        return self._agent._engine.is_over(self._active)

    def wait(self, timeout: float | None = None) -> None:
        """Waits at most ``timeout`` seconds until the transfer is over. Raises
        :class:`TimeBudgetError` if it is not over by then; it goes on, and can be waited for again.
        Raises :class:`PeerLostError` if the peer has gone, and :class:`TransferError` for any other
        failure."""
        active, is_over = self._active, self._agent._engine.is_over
        if not is_over(active):
            started, pause = time.monotonic(), _MIN_PAUSE
            while not is_over(active):
                waited = time.monotonic() - started
                if timeout is not None and waited >= timeout:
                    raise TimeBudgetError(
                        f"{active.what}: not over after {timeout} s; the transfer goes on, and its "
                        "blocks cannot be freed until it is over or the agent is closed",
                        total=self.nbytes,
                        seconds=timeout,
                    )
                if waited > _HOT:
                    time.sleep(pause)
                    pause = min(2 * pause, _MAX_PAUSE)
        if active.error is not None:
            raise active.error

    def __del__(self) -> None:
        active = getattr(self, "_active", None)
        if active is not None:
            active.abandoned = True

    def __repr__(self) -> str:
        return f"<kvmem.nixl.Transfer, {self._active.what}>"
