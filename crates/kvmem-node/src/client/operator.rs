//! [`NodeOperator`]: the calls that concern all namespaces and other clients.

use super::ClientError;
use super::client::NodeClient;
use super::inner::UNEXPECTED;
use crate::node::{Listed, Miss, Resized};
use crate::protocol::{Answer, Call, SessionListed};

/// The calls of operators on a node. The server answers them to its own user, to root and to its
/// [operators](crate::ServerOptions::operators); others get
/// [`NotOperator`](crate::CallError::NotOperator). It is a handle of the client that it was
/// [made](NodeClient::as_operator) of.
#[derive(Clone, Debug)]
pub struct NodeOperator {
    client: NodeClient,
}

impl NodeOperator {
    pub(super) fn new(client: NodeClient) -> NodeOperator {
        NodeOperator { client }
    }

    /// Lists at most `max` values from entry `from` on. Returns the entry to go on
    /// with.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn list(&self, from: u32, max: u32) -> Result<(Vec<Listed>, Option<u32>), ClientError> {
        self.client.inner.connection.call(&Call::List { from, max }, |_, answer| match answer {
            Answer::Listed { values, next } => Ok((values, next)),
            _ => Err(UNEXPECTED),
        })
    }

    /// Returns at most `max` of the last misses of all namespaces, as
    /// [`NodeClient::misses`] those of one.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn misses(&self, max: u32) -> Result<Vec<Miss>, ClientError> {
        self.client.list_misses(true, max)
    }

    /// Lists the clients.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn sessions(&self) -> Result<Vec<SessionListed>, ClientError> {
        self.client.inner.connection.call(&Call::Sessions, |_, answer| match answer {
            Answer::Sessions(sessions) => Ok(sessions),
            _ => Err(UNEXPECTED),
        })
    }

    /// Evicts values of at least `bytes`, of a namespace or of all. Returns the
    /// bytes that were evicted.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn evict(&self, namespace: Option<&str>, bytes: u64) -> Result<u64, ClientError> {
        self.client.count(&Call::Evict { namespace, bytes }).map(|bytes| bytes as u64)
    }

    /// Removes all values of a namespace, or of all. Returns how many there were.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn clear(&self, namespace: Option<&str>) -> Result<usize, ClientError> {
        self.client.count(&Call::Clear { namespace })
    }

    /// Changes the bytes of the memory that are used, up to the length of its file. A smaller
    /// memory evicts values in the usual order, moves others to its front, and gives its pages back
    /// to the kernel. Blocks that are pinned or reserved stay: the server answers how far it came,
    /// and goes on when they are free.
    ///
    /// # Errors
    /// [`ClientError::Call`] with [`BadSize`](crate::CallError::BadSize).
    pub fn resize(&self, size: u64) -> Result<Resized, ClientError> {
        self.client.inner.connection.call(&Call::Resize { size }, |_, answer| match answer {
            Answer::Resized(resized) => Ok(resized),
            _ => Err(UNEXPECTED),
        })
    }

    /// Ends the pins of a process that is connected, and of which the caller knows that it no
    /// longer reads. Returns how many values were pinned.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn reclaim_pins(&self, pid: u32) -> Result<usize, ClientError> {
        self.client.count(&Call::ReclaimPins { pid })
    }
}

impl NodeClient {
    /// Returns the calls of operators: those that concern other namespaces and other clients.
    #[must_use]
    pub fn as_operator(&self) -> NodeOperator {
        NodeOperator::new(self.clone())
    }
}
