"""*Fetching*: tasks of an event loop await fetches, without a thread that waits."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._kvmem import Fetching, Pinned


async def wait(fetching: Fetching) -> list[Pinned | None]:
    """Waits until all values are there, and returns them. A task that is cancelled cancels them."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()

    def wake() -> None:
        # A thread of the cache calls this. The loop may have ended meanwhile.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(ready.set)

    # Raises if another task awaits it, whose callback stays.
    done = fetching._poll(wake)
    try:
        while not done:
            await ready.wait()
            ready.clear()
            done = fetching._poll(wake)
    except asyncio.CancelledError:
        fetching.cancel()
        raise
    finally:
        fetching._forget()
    return fetching.result(0)
