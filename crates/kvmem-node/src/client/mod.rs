//! *Client*: keys, pins and reservations of a node, in another process.
//!
//! [`NodeClient`] connects to the server's socket, receives a descriptor of the memory, and maps it
//! once. Its calls say keys and get offsets. Values are read and written in place.
//!
//! A client with the option [`rings`](ConnectOptions::rings) makes its calls through shared memory,
//! and the socket only says that the connection lives.
//!
//! # When the server restarts
//!
//! The mapping stays, and with it all registrations with devices. A call that finds the connection
//! broken connects again, and names to the new server which pins and reservations the client has. A
//! client that has any and makes no call does so by a thread of its own. The server has retained
//! them: the index file names the session, whose client still lives. The call is then sent once
//! more. All calls may be repeated: a batch that was committed already is found so. Only if the new
//! server has other memory are the values gone: the bytes of pins stay readable, because the
//! mapping keeps alive the old file, and reservations can no longer be committed.

mod channel;
#[expect(clippy::module_inception, reason = "one noun a file")]
mod client;
mod connection;
mod error;
mod farewell;
mod grants;
mod greeting;
mod inner;
mod link;
mod memory;
mod operator;
mod options;
mod pending;
mod pins;
mod reservation;
mod resume;
#[cfg(all(test, not(loom)))]
mod tests;

pub use client::NodeClient;
pub use error::ClientError;
pub use operator::NodeOperator;
pub use options::{ClientRegistrars, ConnectOptions, Interrupt, ParentKey, ValueOptions};
pub use pending::PendingCall;
pub use pins::{NodePin, PinBatch, PinnedValue};
pub use reservation::{NewValue, NodeReservation, NotCommitted};
