//! *Forgetting*: a lower tier is being told of what was taken out.

use super::leases::Lost;
use super::room::Inner;
use super::shard::Shard;

/// As long as this lives, the key is not leased. The lower tier has not been told unless it is said
/// that it was.
pub(super) struct Forgetting<'a, K> {
    cache: &'a Inner<K>,
    shard: &'a Shard<K>,
    hash: u64,
    told: bool,
}

impl<'a, K> Forgetting<'a, K> {
    /// The key has been barred.
    pub(super) fn new(cache: &'a Inner<K>, shard: &'a Shard<K>, hash: u64) -> Self {
        Forgetting { cache, shard, hash, told: false }
    }

    /// The lower tier has been told.
    pub(super) fn told(mut self) {
        self.told = true;
    }
}

impl<K> Drop for Forgetting<'_, K> {
    fn drop(&mut self) {
        // What forgets may fork.
        if !self.cache.process.is_gone() {
            self.shard.change_leases(|leases| leases.unbar(self.hash, self.told));
        }
    }
}

/// The same for all keys of a cache.
pub(super) struct ForgettingAll<'a, K>(Vec<ForgettingShard<'a, K>>);

/// The same for all keys of a shard.
struct ForgettingShard<'a, K> {
    cache: &'a Inner<K>,
    shard: &'a Shard<K>,
    before: Option<Lost>,
    told: bool,
}

impl<'a, K> ForgettingAll<'a, K> {
    /// None is barred yet.
    pub(super) fn new() -> Self {
        ForgettingAll(Vec::new())
    }

    /// All keys of the shard have been barred.
    pub(super) fn also(&mut self, cache: &'a Inner<K>, shard: &'a Shard<K>, before: Lost) {
        self.0.push(ForgettingShard { cache, shard, before: Some(before), told: false });
    }

    /// The lower tier has been told.
    pub(super) fn told(mut self) {
        self.0.iter_mut().for_each(|shard| shard.told = true);
    }
}

impl<K> Drop for ForgettingShard<'_, K> {
    fn drop(&mut self) {
        if let Some(before) = self.before.take().filter(|_| !self.cache.process.is_gone()) {
            self.shard.change_leases(|leases| leases.unbar_all(self.told, before));
        }
    }
}
