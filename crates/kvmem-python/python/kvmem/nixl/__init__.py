"""*NIXL*: blocks of a pool, copied to and from pools of other processes and hosts.

An :class:`Agent` is one party. It registers a pool once, as a whole; what its peers have to know of it is :attr:`Agent.metadata`, and what
they have to know of some blocks is :meth:`Agent.descriptors`: bytes, to be carried there by any way. A peer is what
:meth:`Agent.connect` makes of the former; a :class:`Transfer` is one copy under way, from or to blocks here, to or from blocks there.

``pip install --no-deps nixl-cu12 nixl`` and NumPy are needed when an agent is made, not before. No CUDA is needed.

What to keep in mind:

- **Peers are trusted.** Who has the metadata can read and write the whole pool, and over shared memory and TCP nobody checks
  whether that still holds. So nothing here claims to take the right back. The pool cannot be closed or made shorter while it has an agent, and
  before the agent is closed its peers must have forgotten it (:meth:`Peer.close`), or have ended.
- **A transfer cannot be called back.** NIXL lets go of one that is under way, and goes on to read and write its memory when the peer
  wakes up. So there is no such call here: blocks stay viewed, and cannot be freed, until NIXL says that the transfer is over, or
  the agent has ended.
- **Descriptors do not keep blocks.** Who sends them keeps the blocks until the peer has said that it is done, by a notification for example.
"""

from .agent import Agent, Notification, Peer
from .errors import NotInPoolError, PeerLostError, TransferError, UnregisteredError
from .transfer import Transfer

__all__ = [
    "Agent",
    "NotInPoolError",
    "Notification",
    "Peer",
    "PeerLostError",
    "Transfer",
    "TransferError",
    "UnregisteredError",
]
