"""*Transfer*: one copy between pools, under way."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ..errors import TimeBudgetError
from .engine import Flight

if TYPE_CHECKING:
    from .agent import Agent

# How often is looked: all the time at first, for so many seconds, since to sleep takes longer than most transfers where the machine is
# busy, and NIXL releases the GIL in each look; then at growing intervals.
_HOT = 2e-3
_SHORTEST, _LONGEST = 20e-6, 1e-3


class Transfer:
    """A copy that :meth:`Agent.write` or :meth:`Agent.read` has begun.

    Its blocks here cannot be freed until it is over. That is found out by :meth:`wait` and :attr:`done`; where nobody asks
    any more, by the agent's next transfer.
    """

    def __init__(self, agent: Agent, flight: Flight) -> None:
        self._agent = agent  # which would end with its last reference
        self._flight = flight
        self.nbytes = flight.pieces.nbytes
        """Bytes to be copied."""

    @property
    def done(self) -> bool:
        """Whether it is over, well or not: :meth:`wait` says which."""
        return self._agent._engine.is_over(self._flight)

    def wait(self, timeout: float | None = None) -> None:
        """Until it is over; at most so many seconds.

        Raises :class:`TimeBudgetError` if it is not over by then: it goes on, and can be waited for again. Raises
        :class:`PeerLostError` if the peer has gone, and :class:`TransferError` for anything else.
        """
        flight, is_over = self._flight, self._agent._engine.is_over
        if not is_over(flight):
            begun, pause = time.monotonic(), _SHORTEST
            while not is_over(flight):
                waited = time.monotonic() - begun
                if timeout is not None and waited >= timeout:
                    raise TimeBudgetError(
                        f"{flight.what}: it is not over after {timeout} s; it goes on, and its blocks cannot be freed until it "
                        "is over or the agent is closed",
                        total=self.nbytes,
                        seconds=timeout,
                    )
                if waited > _HOT:
                    time.sleep(pause)
                    pause = min(2 * pause, _LONGEST)
        if flight.error is not None:
            raise flight.error

    def __del__(self) -> None:
        flight = getattr(self, "_flight", None)
        if flight is not None:
            flight.forgotten = True

    def __repr__(self) -> str:
        return f"<kvmem.nixl.Transfer, {self._flight.what}>"
