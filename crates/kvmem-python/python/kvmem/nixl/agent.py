"""*Agent*: one party of transfers, with a pool that it has registered."""

from __future__ import annotations

import itertools
import os
import secrets
import socket
import time
import weakref
from types import TracebackType
from typing import Any, NamedTuple, Self

from .._kvmem import Pool
from ..errors import ClosedError, InUseError, InvalidArgumentError
from .descriptors import Blocks, pack, pieces, unpack
from .engine import Engine, Flight
from .errors import raised
from .transfer import Transfer

_count = itertools.count()


class Notification(NamedTuple):
    """What a peer has said."""

    peer: str
    """Its agent's name."""
    message: bytes


class Agent:
    """One party of transfers, with a pool that it registers as a whole, once.

    ``name`` must be one that no peer has; None makes one up. ``backend``: one of NIXL's. Any thread may use it; calls are made one at a
    time. The pool cannot be closed or made shorter until the agent is closed; what it grows by later is not registered.

    Raises :class:`NotAvailableError` if NIXL is not installed or has no such backend, :class:`NotReadyError` if the pool is still being made
    ready, and :class:`TransferError` if it cannot be registered.
    """

    def __init__(self, pool: Pool, name: str | None = None, backend: str = "UCX") -> None:
        if name is None:
            name = (
                f"kvmem-{socket.gethostname()}-{os.getpid()}-{next(_count)}-{secrets.token_hex(4)}"
            )
        if not name:
            raise InvalidArgumentError("an agent needs a name: one that no peer has")
        self.name = name
        """By what peers know it."""
        self.backend = backend
        self._engine = Engine(pool, name, backend)
        # At the end of the program, too. By then nobody waits.
        self._end = weakref.finalize(self, self._engine.end, 0.0)

    @property
    def engine(self) -> Any:
        """NIXL's own agent (``nixl_agent``), for what is not here. It takes one call at a time, and nobody sees to that."""
        with self._engine.lock:
            return self._engine.use()

    @property
    def metadata(self) -> bytes:
        """What a peer has to know to reach the pool: bytes for its :meth:`connect`. Who has them can read and write all of it."""
        with self._engine.lock:
            agent = self._engine.use()
            try:
                return bytes(agent.get_agent_metadata())
            except Exception as error:
                raise raised("there is no metadata", error) from error

    def connect(self, metadata: bytes) -> Peer:
        """The agent that some metadata are of. The connection itself is made by the first transfer.

        Raises :class:`InvalidArgumentError` if they are no agent's. Transfers that are under way with an agent of that name fail, and their
        blocks stay viewed until this agent is closed: close the :class:`Peer` first.
        """
        with self._engine.lock:
            agent = self._engine.use()
            self._engine.sweep()
            try:
                name = agent.add_remote_agent(metadata)
            except Exception as error:
                if type(error).__name__ in (
                    "nixlMismatchError",
                    "nixlInvalidParamError",
                    "nixlNotFoundError",
                ):
                    message = f"{len(metadata)} bytes are no agent's metadata: pass what Agent.metadata of the peer has given, unchanged"
                    raise InvalidArgumentError(message) from error
                raise raised("the peer was not taken", error) from error
            name = name.decode() if isinstance(name, bytes) else str(name)
            self._engine.peers.add(name)
            return Peer(self, name)

    def descriptors(self, blocks: Blocks) -> bytes:
        """Where blocks are, for a peer: bytes for its :meth:`read` and :meth:`write`. They do not keep the blocks.

        Takes a block, a batch, anything else with the buffer protocol that lies in the pool (a value pinned in a :class:`KvCache`, an array),
        or an iterable of those. Raises :class:`NotInPoolError`.
        """
        with self._engine.lock:
            self._engine.use()
        taken = pieces(blocks, self._engine.start, self._engine.stop)
        taken.let_go()
        return pack(self.name, taken.spans)

    def write(
        self, blocks: Blocks, peer: Peer, descriptors: bytes, notify: bytes = b""
    ) -> Transfer:
        """Begins to copy blocks of this pool into those of the peer, one by one in order; each two are equally long.

        ``notify``: what the peer is told when all of it is there. Raises :class:`NotInPoolError`, :class:`UnregisteredError` if the peer has not
        registered what the descriptors name, :class:`InvalidArgumentError`, :class:`TransferError`.
        """
        return self._begin("WRITE", blocks, peer, descriptors, notify)

    def read(self, blocks: Blocks, peer: Peer, descriptors: bytes, notify: bytes = b"") -> Transfer:
        """Begins to copy blocks of the peer into those of this pool; otherwise as :meth:`write`."""
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
        here = pieces(blocks, self._engine.start, self._engine.stop, writable=operation == "READ")
        try:
            if [nbytes for _, nbytes in here.spans] != [nbytes for _, nbytes in there]:
                raise InvalidArgumentError(
                    f"{len(here.spans)} block(s) of {here.nbytes} bytes here, {len(there)} of {sum(nbytes for _, nbytes in there)} "
                    "there: there must be as many, and each as long as its counterpart"
                )
            what = f"{operation.lower()} of {here.nbytes} bytes in {len(there)} block(s), {'to' if operation == 'WRITE' else 'from'} {peer.name}"
            flight = Flight(what, peer.name, None, here)
        except BaseException:
            here.let_go()
            raise
        try:
            with self._engine.lock:
                self._launch(operation, flight, there, peer, notify)
        except BaseException:
            flight.forgotten = True
            if flight not in self._engine.flights:
                here.let_go()
            # Else Ctrl-C came when it had begun: it is looked after as any other that nobody waits for.
            raise
        return Transfer(self, flight)

    def _launch(
        self,
        operation: str,
        flight: Flight,
        there: list[tuple[int, int]],
        peer: Peer,
        notify: bytes,
    ) -> None:
        engine, agent = self._engine, self._engine.use()
        peer._check()
        engine.sweep()
        try:
            local = agent.get_xfer_descs(
                [(address, nbytes, 0) for address, nbytes in flight.pieces.spans], mem_type="DRAM"
            )
            remote = agent.get_xfer_descs(
                [(address, nbytes, 0) for address, nbytes in there], mem_type="DRAM"
            )
            flight.handle = agent.initialize_xfer(
                operation, local, remote, peer.name, notify, [self.backend]
            )
        except Exception as error:
            raise raised(flight.what, error) from error
        # From here on NIXL may use the memory, whatever it says.
        engine.flights.add(flight)
        try:
            state = agent.transfer(flight.handle)
        except Exception as error:
            failure = raised(flight.what, error)
            engine.land(flight, failure)
            raise failure from error
        if state == "DONE":
            engine.land(flight, None)

    def notifications(self, timeout: float = 0.0) -> list[Notification]:
        """What peers have said since the last call; waits so many seconds for the first."""
        deadline = time.monotonic() + timeout
        while True:
            with self._engine.lock:
                agent = self._engine.use()
                try:
                    found = agent.get_new_notifs([self.backend])
                except Exception as error:
                    raise raised("there are no notifications to be had", error) from error
            if found or time.monotonic() >= deadline:
                return [
                    Notification(str(peer), bytes(message))
                    for peer, messages in found.items()
                    for message in messages
                ]
            time.sleep(0.0005)

    def close(self, timeout: float = 5.0) -> int:
        """Ends it: waits so many seconds for transfers under way, then ends these; gives the registration back; lets go of the pool.

        Returns how many transfers had to be ended. Peers must have forgotten it before. A second time does nothing.
        """
        self._end.detach()
        return self._engine.end(timeout)

    @property
    def closed(self) -> bool:
        return self._engine.agent is None

    def __enter__(self) -> Self:
        with self._engine.lock:
            self._engine.use()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        raised: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        if self.closed:
            return f"<kvmem.nixl.Agent {self.name}, closed>"
        return f"<kvmem.nixl.Agent {self.name} with {self._engine.stop - self._engine.start} bytes registered>"


class Peer:
    """Another agent, as :meth:`Agent.connect` knows it. A ``with`` forgets it."""

    def __init__(self, agent: Agent, name: str) -> None:
        self._agent = agent
        self._closed = False
        self.name = name
        """By what it calls itself."""

    def _check(self) -> None:
        if self._closed:
            raise ClosedError(f"{self.name} has been forgotten: connect to it again")

    def notify(self, message: bytes) -> None:
        """Tells it something, by its :meth:`Agent.notifications`."""
        engine = self._agent._engine
        with engine.lock:
            agent = engine.use()
            self._check()
            try:
                agent.send_notif(self.name, message)
            except Exception as error:
                raise raised(f"{self.name} was not told", error) from error

    def close(self) -> None:
        """Forgets it. Raises :class:`InUseError` while transfers with it are under way. A second time does nothing."""
        engine = self._agent._engine
        with engine.lock:
            if self._closed or engine.agent is None:
                self._closed = True
                return
            agent = engine.use()
            under_way = sum(
                not engine.is_over(flight)
                for flight in list(engine.flights)
                if flight.peer == self.name
            )
            if under_way:
                raise InUseError(
                    f"{under_way} transfer(s) with {self.name} are under way: wait until they are over, or close the agent"
                )
            self._closed = True
            engine.peers.discard(self.name)
            try:
                agent.remove_remote_agent(self.name)
            except Exception as error:
                raise raised(f"{self.name} was not forgotten", error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        raised: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<kvmem.nixl.Peer {self.name}{', forgotten' if self._closed else ''}>"
