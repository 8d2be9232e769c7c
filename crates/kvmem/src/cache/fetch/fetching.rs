//! [`Fetching`]: values that are being fetched.

use std::fmt;
use std::future::Future;
use std::hash::Hash;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use crate::cache::state::FetchId;
use crate::cache::{KvCache, Pinned};

/// Values of several keys, some of which are being fetched from the lower tier. See
/// [`KvCache::start_fetch`].
///
/// The values that are there are pinned. Dropping this cancels the reads that no thread has
/// started, unless others want the same values; reads that have begun end in the background, and
/// their values are in the cache then. It keeps the cache alive.
///
/// It is a future of the values, for any executor.
#[must_use = "dropping it cancels what has not begun"]
pub struct Fetching<K: Hash + Eq + Clone> {
    cache: KvCache<K>,
    /// The values by the places of their keys.
    found: Vec<Option<Pinned<K>>>,
    /// The places of the other keys, and handles of their fetches.
    places: Vec<usize>,
    ids: Vec<FetchId>,
}

impl<K: Hash + Eq + Clone> Fetching<K> {
    /// Joins or begins the fetches of those of the keys that were not found in memory.
    pub(super) fn of(cache: &KvCache<K>, keys: &[K], found: Vec<Option<Pinned<K>>>) -> Self {
        let (mut places, mut ids) = (Vec::new(), Vec::new());
        if cache.inner.lower_tier.is_some() && !cache.is_forked() {
            places = (0..keys.len()).filter(|&place| found[place].is_none()).collect();
            if !places.is_empty() {
                ids = cache.join_fetches(places.iter().map(|&place| &keys[place]));
            }
        }
        Fetching { cache: cache.clone(), found, places, ids }
    }

    /// Returns the handles.
    pub(super) fn ids(&self) -> &[FetchId] {
        &self.ids
    }

    /// Returns whether no call would wait.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.ids.is_empty()
            || self.cache.is_forked()
            || self.cache.inner.fetches.are_done(&self.ids)
    }

    /// Waits for all values; returns them in the order of the keys. `None` where neither memory nor
    /// the tier has one, as for [`get_batch`](KvCache::get_batch). This thread reads what no
    /// other thread has begun to read.
    #[must_use]
    pub fn wait(self) -> Vec<Option<Pinned<K>>> {
        if !self.ids.is_empty() && !self.cache.is_forked() {
            let fetches = &self.cache.inner.fetches;
            self.cache.read(fetches.start(&self.ids));
            fetches.wait(&self.ids);
        }
        self.into_values()
    }

    /// Waits for all values, until `deadline` at most. Returns whether all are done.
    pub fn wait_until(&self, deadline: Instant) -> bool {
        self.ids.is_empty()
            || self.cache.is_forked()
            || self.cache.inner.fetches.wait_until(&self.ids, deadline)
    }

    /// Returns the values that are there by now, in the order of the keys, without waiting. The
    /// others are cancelled or end in the background, as for a drop.
    #[must_use]
    pub fn into_values(mut self) -> Vec<Option<Pinned<K>>> {
        self.end(false)
    }

    /// Lets all reads go on without a handle. Their values are in the cache when they end, and are
    /// not pinned.
    pub fn detach(mut self) {
        drop(self.end(true));
    }

    fn end(&mut self, keep: bool) -> Vec<Option<Pinned<K>>> {
        let mut found = std::mem::take(&mut self.found);
        let (places, ids) = (std::mem::take(&mut self.places), std::mem::take(&mut self.ids));
        if !ids.is_empty() && !self.cache.is_forked() {
            let values = self.cache.inner.fetches.leave(&ids, keep);
            for (place, value) in places.into_iter().zip(values) {
                found[place] = value;
            }
        }
        found
    }
}

impl<K: Hash + Eq + Clone> Drop for Fetching<K> {
    fn drop(&mut self) {
        drop(self.end(false));
    }
}

impl<K: Hash + Eq + Clone> Future for Fetching<K> {
    type Output = Vec<Option<Pinned<K>>>;

    /// Returns the values once all are done. A later call returns none.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let is_done = self.ids.is_empty()
            || self.cache.is_forked()
            || self.cache.inner.fetches.poll(&self.ids, context.waker());
        if is_done { Poll::Ready(self.end(false)) } else { Poll::Pending }
    }
}

impl<K: Hash + Eq + Clone> fmt::Debug for Fetching<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fetching").field("fetches", &self.ids.len()).finish_non_exhaustive()
    }
}
