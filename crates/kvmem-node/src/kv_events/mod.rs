//! *KV events*: what the node holds, for routers that read vLLM's events.
//!
//! A router sends a request where its prefix is. It learns that from *KV events*: batches in
//! MessagePack over ZeroMQ, as vLLM's engines publish them. A node publishes its own, with
//! [`NodeServer::publish_events`](crate::NodeServer::publish_events), whether an engine runs or
//! not.
//!
//! ```text
//! server's thread ──▶ feed ──▶ publisher's thread: index ──▶ batches ──▶ subscribers
//!  log of events,     bounded                                      └────▶ replays
//!  where values are
//! ```
//!
//! - The server's thread says where the values of changed keys are, and never waits ([`feed`]).
//! - The publisher's thread publishes the difference to what it has announced ([`index`]), in the
//!   form of vLLM's publisher ([`batch`], [`description`]).
//! - One address serves subscribers and those that ask for replays: a peer says what it is
//!   ([`zmtp`], [`peer`]).
//!
//! # Numbers
//!
//! Batches have consecutive numbers, which begin at the time of the server's start: a later server
//! has larger ones. A subscriber first gets `AllBlocksCleared` and everything that the node holds,
//! and then what changes; so does one that connects again. The numbers of these batches are used
//! for them alone: other subscribers get batches without events under them, so a missing number
//! always is a loss. A replay from a number that is no longer known is everything, under numbers
//! before the next one.
//!
//! # What cannot happen
//!
//! A peer that reads too slowly, or violates the protocol, is disconnected. Nothing that a peer
//! does reaches the server's thread.

mod batch;
mod description;
mod feed;
mod index;
mod peer;
mod publisher;
#[cfg(all(test, not(loom)))]
mod tests;
mod zmtp;

use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::thread::JoinHandle;

pub(crate) use self::description::{MAX_DESCRIPTION, SUFFIX};
pub(crate) use self::feed::{Changes, Feed, News};
use self::publisher::Publisher;

/// Which values are published, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvEventsOptions {
    /// The topic of all batches.
    pub topic: String,
    /// The namespace whose values are published; `None`: those of all.
    pub namespace: Option<String>,
    /// Whether hashes are whole, as vLLM publishes them if `VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES` is
    /// 0. By default they are numbers of their last 64 bits, as they are there.
    pub whole_hashes: bool,
    /// Bytes that may wait for a peer. One that reads no faster is disconnected: it connects again,
    /// and learns everything.
    #[doc(hidden)]
    pub max_waiting: usize,
}

impl Default for KvEventsOptions {
    fn default() -> KvEventsOptions {
        KvEventsOptions {
            topic: String::new(),
            namespace: None,
            whole_hashes: false,
            max_waiting: 64 << 20,
        }
    }
}

/// Starts the thread. It ends with the feed.
pub(crate) fn start(
    feed: &Arc<Feed>,
    listener: TcpListener,
    options: &KvEventsOptions,
) -> io::Result<JoinHandle<()>> {
    let publisher = Publisher::new(Arc::clone(feed), listener, options)?;
    std::thread::Builder::new().name("kvmem-events".to_owned()).spawn(move || publisher.run())
}
