//! [`PendingCall`]: a call that was sent, and whose answer is taken later.
//!
//! A copy of 64 MiB takes milliseconds. A message takes tens of microseconds, because the server
//! sleeps during the copy and has to wake up, and a reservation of many blocks takes as long as
//! their evictions. A thread that sends the call of the next batch before it copies the current one
//! does not wait for either:
//!
//! ```no_run
//! # use kvmem_node::{ClientError, NodeClient};
//! # fn read(client: &NodeClient, batches: &[Vec<[u8; 32]>]) -> Result<(), ClientError> {
//! let mut next = batches.first().map(|keys| client.begin_acquire(keys));
//! for number in 1..=batches.len() {
//!     let Some(pins) = next.take().map(|it| it.wait()).transpose()? else { break };
//!     next = batches.get(number).map(|keys| client.begin_acquire(keys));
//!     for value in pins.values().flatten() {
//!         // Copy `value.bytes()`.
//!     }
//! }
//! # Ok(())
//! # }
//! ```

use std::borrow::Cow;
use std::fmt;

use super::client::{Acquisition, acquire_call, commit_call};
use super::connection::{Connection, Sent};
use super::link::NO_PINS;
use super::{ClientError, NewValue, NodeClient, NodeReservation, PinBatch};
use crate::protocol::Call;

/// A call that was sent. Dropping it gives up the call: the server may do it yet, and what its
/// answer grants is released.
#[must_use = "the answer is taken by `wait`"]
pub struct PendingCall<'a, T> {
    connection: &'a Connection,
    /// `None`: it is sent when its answer is awaited.
    sent: Option<Sent>,
    finish: Finish<'a, T>,
}

/// Takes the answer of a call. Called once.
type Finish<'a, T> = Box<dyn FnMut(Option<Sent>) -> Result<T, ClientError> + 'a>;

impl<T> fmt::Debug for PendingCall<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingCall").field("sent", &self.sent).finish_non_exhaustive()
    }
}

impl<T> PendingCall<'_, T> {
    /// Waits for the answer. Sends the call again if the server has ended since.
    ///
    /// # Errors
    /// The errors of the call.
    pub fn wait(mut self) -> Result<T, ClientError> {
        (self.finish)(self.sent.take())
    }
}

impl<T> Drop for PendingCall<'_, T> {
    fn drop(&mut self) {
        if let Some(sent) = self.sent.take() {
            self.connection.abandon_sent(sent);
        }
    }
}

impl NodeClient {
    fn pending<'a, T>(&'a self, sent: Option<Sent>, finish: Finish<'a, T>) -> PendingCall<'a, T> {
        PendingCall { connection: &self.inner.connection, sent, finish }
    }

    /// Sends an [acquisition](Self::acquire), and does not wait for its answer.
    pub fn begin_acquire<'a, K: AsRef<[u8]>>(&'a self, keys: &'a [K]) -> PendingCall<'a, PinBatch> {
        let how = Acquisition::default();
        let call = acquire_call((NO_PINS, Vec::new()), keys, how);
        let sent = self.inner.connection.begin(&call);
        self.pending(sent, Box::new(move |sent| self.acquired(&call, keys.len(), how, sent)))
    }

    /// Sends a [reservation](Self::reserve), and does not wait for its answer.
    pub fn begin_reserve<'a>(&'a self, sizes: &'a [u64]) -> PendingCall<'a, Vec<NodeReservation>> {
        let call = Call::Reserve { sizes: Cow::Borrowed(sizes), wait: true };
        let sent = self.inner.connection.begin(&call);
        self.pending(sent, Box::new(move |sent| self.reserved(&call, sizes, sent)))
    }

    /// Sends a [commit](Self::commit), and does not wait for its answer. A call that fails releases
    /// the reservations.
    pub fn begin_commit<'a, K: AsRef<[u8]> + 'a>(
        &'a self,
        mut values: Vec<NewValue<K>>,
    ) -> PendingCall<'a, ()> {
        let (mut checksums, mut sent) = (Vec::new(), None);
        // A call that fails does so when its answer is awaited.
        if self.check_commit(&values).is_ok() {
            checksums = self.checksums_of(&values);
            sent = self.inner.connection.begin(&commit_call(&values, &checksums));
        }
        let finish = move |sent: Option<Sent>| {
            if sent.is_none() {
                self.check_commit(&values)?;
            }
            self.committed(&values, &checksums, sent)?;
            values.drain(..).for_each(|value| value.reservation.forget());
            Ok(())
        };
        self.pending(sent, Box::new(finish))
    }
}
