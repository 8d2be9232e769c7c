#![doc = include_str!("../docs/node.md")]

mod client;
mod crc;
mod error;
pub mod format;
mod kv_events;
mod memory_holder;
mod node;
pub mod observe;
mod polling;
mod protocol;
pub mod ring;
mod server;
mod session_file;
#[cfg(all(test, not(loom)))]
mod simulator;
mod socket;
mod sync;
#[cfg(all(test, not(loom)))]
mod test_heap;
#[cfg(all(test, not(loom)))]
mod test_stores;
mod tier;

pub use client::{
    ClientError, ClientRegistrars, ConnectOptions, Interrupt, NewValue, NodeClient, NodeOperator,
    NodePin, NodeReservation, NotCommitted, ParentKey, PendingCall, PinBatch, PinnedValue,
    ValueOptions,
};
pub use error::{AccessError, BadIndex, CallError, NodeError, Quota, TooMany};
pub use kv_events::KvEventsOptions;
pub use memory_holder::{
    MAX_RETAINED, MAX_RETAINED_NAME, MemoryHolder, MemoryHolderCallError, MemoryHolderClient,
    MemoryHolderError, MemoryHolderOptions, RetainedListed,
};
pub use node::{
    BlockHandle, Event, EventKind, Events, Eviction, Listed, Located, MAX_BATCH, Miss, MissReason,
    NO_BOUNDARY, NO_NAMESPACE, NamespaceLimits, NamespaceStats, Node, NodeOptions, NodeStats,
    RecoveryReport, Resized,
};
pub use protocol::{MAX_MESSAGE, PROTOCOL_VERSION, SessionListed};
pub use server::{
    AllowedGroup, DrainProgress, NamespaceRule, NodeObserver, NodeServer, Principal, ServerOptions,
    Stopper,
};
