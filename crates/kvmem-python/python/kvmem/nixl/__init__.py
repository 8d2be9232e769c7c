"""*NIXL*: copies blocks of a pool to and from pools of other processes and hosts.

An :class:`Agent` is one party. It registers a whole pool once. :attr:`Agent.metadata` is what its
peers must know about the pool, and :meth:`Agent.descriptors` what they must know about some blocks.
Both are bytes, to be sent by any means. :meth:`Agent.connect` makes a peer from metadata. A
:class:`Transfer` is one copy between blocks of this pool and blocks of a peer. ``pip install
--no-deps nixl-cu12 nixl`` and NumPy are needed when an agent is made, not before.

- **Peers are trusted.** A peer that has the metadata can read and write the whole pool. Before the
  agent is closed, its peers must have forgotten it (:meth:`Peer.close`) or have ended.
- **A transfer cannot be cancelled.** NIXL can release a running transfer, but goes on to read and
  write its memory. Blocks stay viewed and cannot be freed until NIXL reports that the transfer is
  over, or the agent has ended.
- **Descriptors do not hold blocks.** The sender holds the blocks until the peer has reported that
  it is done, by a notification for example."""

from .agent import Agent, Notification, Peer, Transfer
from .errors import NotInPoolError, PeerLostError, TransferError, UnregisteredError

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
