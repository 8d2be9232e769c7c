"""*Transfer*: one copy between pools."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ..errors import TimeBudgetError
from .engine import ActiveTransfer

if TYPE_CHECKING:
    from .agent import Agent

# `wait` polls without a pause at first, for _HOT seconds: on a busy machine a sleep takes longer
# than most transfers, and NIXL releases the GIL in each poll. Then it polls at growing intervals.
_HOT = 2e-3
_MIN_PAUSE, _MAX_PAUSE = 20e-6, 1e-3


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
