//! *Forgetting*: a lower tier is being told of what was taken out.

use super::leases::Lost;
use super::shard::Shard;

/// As long as this lives, the key is not leased. The lower tier has not been told unless it is said that it was.
pub(super) struct Forgetting<'a, K> {
    shard: &'a Shard<K>,
    hash: u64,
    told: bool,
}

impl<'a, K> Forgetting<'a, K> {
    /// The key has been barred.
    pub(super) fn new(shard: &'a Shard<K>, hash: u64) -> Self {
        Forgetting { shard, hash, told: false }
    }

    /// The lower tier has been told.
    pub(super) fn told(mut self) {
        self.told = true;
    }
}

impl<K> Drop for Forgetting<'_, K> {
    fn drop(&mut self) {
        self.shard.books().leases.unbar(self.hash, self.told);
    }
}

/// The same for all keys of a cache.
pub(super) struct ForgettingAll<'a, K> {
    shards: Vec<(&'a Shard<K>, Lost)>,
    told: bool,
}

impl<'a, K> ForgettingAll<'a, K> {
    /// None is barred yet.
    pub(super) fn new() -> Self {
        ForgettingAll { shards: Vec::new(), told: false }
    }

    /// All keys of the shard have been barred.
    pub(super) fn also(&mut self, shard: &'a Shard<K>, before: Lost) {
        self.shards.push((shard, before));
    }

    /// The lower tier has been told.
    pub(super) fn told(mut self) {
        self.told = true;
    }
}

impl<K> Drop for ForgettingAll<'_, K> {
    fn drop(&mut self) {
        for (shard, before) in self.shards.drain(..) {
            shard.books().leases.unbar_all(self.told, before);
        }
    }
}
