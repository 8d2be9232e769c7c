//! [`Feed`]: what the server's thread says to the publisher's.
//!
//! The server's thread appends to the feed, and the publisher's thread takes all of it at once.
//! The lock is held for a copy of some keys, or an exchange of two buffers; the server's thread
//! does not even wait for that, but comes back in its next iteration. What the feed has no room for
//! stays in the node's log of events, and what that has lost begins with a list of all values.
//!
//! The publisher looks at the feed every few milliseconds while something comes, and less often
//! while that is more than it has time for. It sleeps when
//! nothing has come for a while, and says so: only then the server makes a system call.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use crate::node::{NodeStats, Place};

/// Changes, and bytes of their keys and descriptions, that may wait for the publisher. It takes
/// them at once, in less time than between two looks of a thread that [polls](crate::polling): a
/// longer one would let the server sleep.
const MAX_RECORDS: usize = 512;
const MAX_BYTES: usize = 1 << 20;

/// The kinds of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// Where the value of a key is.
    Placed(Place),
    /// A list begins, of all values or of those of the tier.
    Begin,
    /// A list of all values ends: all others are nowhere.
    EndAll,
    /// A list of the values of the tier alone ends: no others are there.
    EndTier,
}

#[derive(Clone, Copy, Debug)]
struct FeedRecord {
    news: News,
    namespace: u16,
    key_len: u32,
    about_len: u32,
}

/// Records in order.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    records: Vec<FeedRecord>,
    /// The keys and descriptions of the records.
    bytes: Vec<u8>,
}

impl Changes {
    /// Adds a record. `about` is the description that is the value of the key, if it is one.
    pub(crate) fn push(&mut self, news: News, namespace: u16, key: &[u8], about: &[u8]) {
        let (key_len, about_len) = (key.len() as u32, about.len() as u32);
        self.records.push(FeedRecord { news, namespace, key_len, about_len });
        self.bytes.extend(key);
        self.bytes.extend(about);
    }

    /// Returns whether there is no room for more.
    pub(crate) fn is_full(&self) -> bool {
        self.records.len() >= MAX_RECORDS || self.bytes.len() >= MAX_BYTES
    }

    pub(super) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Passes the records on, and has none afterwards.
    pub(super) fn drain(&mut self, mut take: impl FnMut(News, u16, &[u8], &[u8])) {
        let mut rest = &self.bytes[..];
        for FeedRecord { news, namespace, key_len, about_len } in self.records.drain(..) {
            let (key, more) = rest.split_at(key_len as usize);
            let (about, more) = more.split_at(about_len as usize);
            rest = more;
            take(news, namespace, key, about);
        }
        self.bytes.clear();
    }
}

#[derive(Debug, Default)]
struct FeedState {
    changes: Changes,
    /// The publisher sleeps until the bell.
    sleeps: bool,
    ended: bool,
}

/// Figures of the publisher. They pair with nothing: each is read alone.
#[derive(Debug, Default)]
pub(crate) struct PublisherCounts {
    pub(super) subscribers: AtomicU64,
    pub(super) batches: AtomicU64,
    pub(super) events: AtomicU64,
    pub(super) replayed: AtomicU64,
    pub(super) disconnected: AtomicU64,
}

impl PublisherCounts {
    pub(super) fn add(count: &AtomicU64, more: u64) {
        count.fetch_add(more, Ordering::Relaxed);
    }

    /// Adds them to the statistics.
    pub(crate) fn fill(&self, stats: &mut NodeStats) {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        stats.kv_event_subscribers = read(&self.subscribers);
        stats.kv_event_batches_total = read(&self.batches);
        stats.kv_events_total = read(&self.events);
        stats.kv_event_replayed_total = read(&self.replayed);
        stats.kv_event_disconnected_total = read(&self.disconnected);
    }
}

/// The queue from the server's thread to the publisher's.
#[derive(Debug)]
pub(crate) struct Feed {
    counts: PublisherCounts,
    state: Mutex<FeedState>,
    /// An eventfd.
    bell: OwnedFd,
}

impl Feed {
    pub(crate) fn new() -> Result<Feed, Errno> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Feed { counts: PublisherCounts::default(), state: Mutex::default(), bell })
    }

    /// Returns the figures of the publisher.
    pub(crate) fn counts(&self) -> &PublisherCounts {
        &self.counts
    }

    fn lock(&self) -> MutexGuard<'_, FeedState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets the caller add to the feed. Returns false if the publisher has the lock at this moment:
    /// then nothing was added.
    pub(crate) fn add(&self, fill: impl FnOnce(&mut Changes)) -> bool {
        let Ok(mut state) = self.state.try_lock() else { return false };
        fill(&mut state.changes);
        let wakes = !state.changes.is_empty() && std::mem::take(&mut state.sleeps);
        drop(state);
        if wakes {
            self.ring();
        }
        true
    }

    /// Ends the publisher.
    pub(crate) fn end(&self) {
        self.lock().ended = true;
        self.ring();
    }

    fn ring(&self) {
        // The counter of an eventfd cannot overflow here, so the write does not block.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }

    /// Returns whether the publisher is to end.
    pub(super) fn has_ended(&self) -> bool {
        self.lock().ended
    }

    /// Exchanges what has come for `empty`.
    pub(super) fn take(&self, empty: &mut Changes) {
        let mut state = self.lock();
        state.sleeps = false;
        std::mem::swap(&mut state.changes, empty);
    }

    /// Says that the publisher sleeps until the bell, if nothing has come. Returns whether it may.
    pub(super) fn sleep(&self) -> bool {
        let mut state = self.lock();
        state.sleeps = state.changes.is_empty() && !state.ended;
        state.sleeps
    }

    /// Returns what becomes readable when the bell rings.
    pub(super) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Takes the ringing.
    pub(super) fn heard(&self) {
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_is_added_is_taken_in_order_and_rings_for_a_sleeper_alone() {
        let feed = Feed::new().expect("an eventfd");
        let rings = || rustix::io::read(&feed.bell, &mut [0; 8]).is_ok();
        let add = |key: &[u8], about: &[u8]| {
            feed.add(|changes| changes.push(News::Placed(Place::Memory), 7, key, about))
        };
        let taken = |feed: &Feed| {
            let (mut changes, mut all) = (Changes::default(), Vec::new());
            feed.take(&mut changes);
            changes.drain(|_, namespace, key, about| {
                all.push((namespace, key.to_vec(), about.to_vec()));
            });
            all
        };
        assert!(add(b"a", b"") && !rings() && !feed.sleep());
        assert!(add(b"b", b"about"));
        assert_eq!(
            taken(&feed),
            [(7, b"a".to_vec(), vec![]), (7, b"b".to_vec(), b"about".to_vec())]
        );
        assert!(feed.sleep() && add(b"c", b"") && rings() && add(b"d", b"") && !rings());
        assert_eq!(taken(&feed).len(), 2);
        // The publisher has the lock: the server's thread goes on.
        let held = feed.lock();
        assert!(!add(b"e", b""));
        drop(held);
        feed.end();
        assert!(rings() && !feed.sleep() && feed.has_ended());
    }

    #[test]
    fn a_feed_is_full_before_it_is_long() {
        let mut changes = Changes::default();
        for (count, about) in [(MAX_RECORDS, 0), (MAX_BYTES >> 16, 1 << 16)] {
            for _ in 0..count {
                assert!(!changes.is_full());
                changes.push(News::Begin, 0, &[], &vec![0; about]);
            }
            assert!(changes.is_full());
            changes.drain(|_, _, _, _| ());
            assert!(changes.is_empty());
        }
    }
}
