//! *Publishing*: the server's thread says to the [publisher](crate::kv_events) of events where the
//! values of the node are.

use std::net::TcpListener;
use std::sync::Arc;
use std::thread::JoinHandle;

use super::server::NodeServer;
use crate::error::NodeError;
use crate::kv_events::{self, Changes, Feed, KvEventsOptions, MAX_DESCRIPTION, News, SUFFIX};
use crate::node::{Change, NO_NAMESPACE, Node, NodeStats, Place};

/// Events that are handed over in one iteration of the loop, and entries of a list that are handed
/// over in a millisecond: a thirtieth of the time.
const AT_ONCE: usize = 512;
const LISTED_PER_MS: u32 = 1024;
/// Events that the node's log has at least.
const LOG: usize = 65_536;
/// Milliseconds between two lists of the values of the tier, whose time may end without an event.
const ROUND_MS: u64 = 60_000;
/// Milliseconds between two of them at least, if the tier evicts; and which part of the time they
/// take at most.
const PAUSE_MS: u64 = 1000;
const PART: u64 = 50;
/// Milliseconds until the next attempt if the publisher has the lock, or much to do.
const RETRY_MS: u64 = 1;

/// A list of values that is handed over.
#[derive(Debug)]
enum Listing {
    Nothing,
    /// All values: first those of the entries from this one on.
    Memory(u32),
    /// The values of the tier, of this number of keys; and whether the list is of all values.
    Tier {
        names: u32,
        of_all: bool,
    },
}

/// The progress of the server's thread through its log and through lists.
#[derive(Debug)]
pub(super) struct Publishing {
    feed: Arc<Feed>,
    thread: Option<JoinHandle<()>>,
    namespace: Option<String>,
    /// The position in the log.
    next: u64,
    listing: Listing,
    listed_at: u64,
    /// More is handed over soon.
    waits: bool,
    /// When the publisher last had everything.
    caught_up_at: u64,
    /// Lists of all values after the first one.
    lists: u64,
    /// The millisecond of the last attempt. Calls come in microseconds, and what is handed over
    /// is announced in milliseconds.
    handed_at: u64,
    tier_evicted: bool,
    /// When the tier may be listed again after evictions, and without.
    tier_may_at: u64,
    tier_due_at: u64,
    tier_began_at: u64,
}

impl Drop for Publishing {
    fn drop(&mut self) {
        self.feed.end();
        if let Some(thread) = self.thread.take() {
            // The panic hook has printed a panic.
            let _ = thread.join();
        }
    }
}

impl Publishing {
    /// Returns the milliseconds until more is to be handed over.
    pub(super) fn patience(&self) -> u64 {
        if self.waits { RETRY_MS } else { u64::MAX }
    }

    fn has_news(&self, node: &Node, now: u64) -> bool {
        node.next_event() != self.next
            || !matches!(self.listing, Listing::Nothing)
            || self.is_tier_due(now)
    }

    fn is_tier_due(&self, now: u64) -> bool {
        now >= self.tier_due_at || self.tier_evicted && now >= self.tier_may_at
    }

    fn hand_over(&mut self, node: &mut Node, now: u64) {
        let feed = Arc::clone(&self.feed);
        let added = feed.add(|changes| {
            if !changes.is_full() {
                self.follow(node, changes);
                self.list(node, changes, now);
            }
        });
        self.waits = !added || self.has_news(node, now);
        if !self.waits {
            self.caught_up_at = now;
        }
    }

    /// Adds its figures to the statistics.
    pub(super) fn fill(&self, stats: &mut NodeStats, now: u64) {
        if self.waits && self.caught_up_at > 0 {
            stats.kv_event_wait_ms = now.saturating_sub(self.caught_up_at);
        }
        stats.kv_event_lists_total = self.lists;
        self.feed.counts().fill(stats);
    }

    /// Hands over the events of the log.
    fn follow(&mut self, node: &mut Node, changes: &mut Changes) {
        let (mut tier_evicted, mut in_tier) = (false, Vec::new());
        let next = node.changes_since(self.next, AT_ONCE, |change| match change {
            Change::TierEvicted => tier_evicted = true,
            Change::Placed(namespace, key, place) => {
                self.push(node, changes, change);
                if place == Place::Tier {
                    in_tier.push((namespace, key.to_vec()));
                }
            }
        });
        // A list of what the tier has must not lack them.
        in_tier.into_iter().for_each(|(namespace, key)| node.name_in_tier(namespace, key));
        self.tier_evicted |= tier_evicted;
        match next {
            Some(next) => self.next = next,
            None => {
                self.next = node.next_event();
                self.listing = Listing::Memory(0);
                self.lists += u64::from(self.caught_up_at > 0);
                changes.push(News::Begin, NO_NAMESPACE, &[], &[]);
            }
        }
    }

    /// Hands over the next part of a list.
    fn list(&mut self, node: &Node, changes: &mut Changes, now: u64) {
        if matches!(self.listing, Listing::Nothing) && self.is_tier_due(now) {
            changes.push(News::Begin, NO_NAMESPACE, &[], &[]);
            self.begin_tier(node, false, now);
        }
        if self.listed_at == now {
            return;
        }
        self.listed_at = now;
        let push = |change: Change<'_>| self.push(node, changes, change);
        match self.listing {
            Listing::Nothing => {}
            Listing::Memory(from) => match node.placed_in_memory(from, LISTED_PER_MS, push) {
                Some(from) => self.listing = Listing::Memory(from),
                None => self.begin_tier(node, true, now),
            },
            Listing::Tier { names, of_all } => {
                if let Some(names) = node.placed_in_tier(names, LISTED_PER_MS, push) {
                    self.listing = Listing::Tier { names, of_all };
                    return;
                }
                let end = if of_all { News::EndAll } else { News::EndTier };
                changes.push(end, NO_NAMESPACE, &[], &[]);
                self.listing = Listing::Nothing;
                let took = now.saturating_sub(self.tier_began_at);
                self.tier_may_at = now + PAUSE_MS.max(took * PART);
                self.tier_due_at = now + ROUND_MS;
            }
        }
    }

    fn begin_tier(&mut self, node: &Node, of_all: bool, now: u64) {
        self.listing = Listing::Tier { names: node.tier_names() as u32, of_all };
        (self.tier_began_at, self.tier_evicted) = (now, false);
    }

    fn push(&self, node: &Node, changes: &mut Changes, change: Change<'_>) {
        let Change::Placed(namespace, key, place) = change else { return };
        // That a value has gone is said in any case: the number may have had another name.
        let is_of = |name: &String| node.name_of_namespace(namespace) == name;
        if place != Place::Nowhere && !self.namespace.as_ref().is_none_or(is_of) {
            return;
        }
        let about = match place {
            Place::Memory if key.ends_with(SUFFIX) => description(node, namespace, key),
            _ => Vec::new(),
        };
        changes.push(News::Placed(place), namespace, key, &about);
    }
}

/// Returns the bytes of a description that is in memory.
fn description(node: &Node, namespace: u16, key: &[u8]) -> Vec<u8> {
    let Some(extent) = node.extent_in_memory(namespace, key) else { return Vec::new() };
    let memory = &node.memory.bytes;
    if extent.end > memory.len() as u64 || extent.end - extent.start > MAX_DESCRIPTION {
        return Vec::new();
    }
    // SAFETY: the value lies in the region, as was just checked. It is committed, so no client
    // that follows the protocol writes to it; what another one writes are bytes that are read with
    // care.
    let bytes = unsafe {
        let first = memory.base().as_ptr().add(extent.start as usize);
        std::slice::from_raw_parts(first, (extent.end - extent.start) as usize)
    };
    bytes.to_vec()
}

impl NodeServer {
    /// Publishes what the node holds, for routers that read vLLM's [KV events](KvEventsOptions), to
    /// all that connect to `listener`. They need no authentication.
    ///
    /// # Errors
    /// [`NodeError::System`] if there is no descriptor, or no thread.
    pub fn publish_events(
        &mut self,
        listener: TcpListener,
        options: &KvEventsOptions,
    ) -> Result<(), NodeError> {
        let feed = Arc::new(Feed::new().map_err(NodeError::system("eventfd"))?);
        let started = kv_events::start(&feed, listener, options);
        let thread = started
            .map_err(|error| NodeError::System { call: "the publisher of events", error })?;
        self.node.log_at_least(LOG);
        // No position of the log: it begins with a list.
        self.publishing = Some(Publishing {
            feed,
            thread: Some(thread),
            namespace: options.namespace.clone(),
            next: 1,
            listing: Listing::Nothing,
            listed_at: 0,
            waits: true,
            caught_up_at: 0,
            lists: 0,
            handed_at: 0,
            tier_evicted: false,
            tier_may_at: 0,
            tier_due_at: u64::MAX,
            tier_began_at: 0,
        });
        Ok(())
    }

    /// Says to the publisher what it does not know.
    pub(super) fn hand_over(&mut self, now: u64) {
        let Some(publishing) = &mut self.publishing else { return };
        let has_news = publishing.waits || publishing.has_news(&self.node, now);
        if !has_news {
            publishing.caught_up_at = now;
        }
        publishing.waits = has_news;
        if has_news && now != publishing.handed_at {
            publishing.handed_at = now;
            publishing.hand_over(&mut self.node, now);
        }
    }
}
