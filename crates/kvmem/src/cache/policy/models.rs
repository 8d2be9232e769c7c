//! Published ages: shards that publish how old their next victims are, and threads that choose the
//! shard with the oldest without its lock, and verify the choice under it.

use loom::sync::{Arc, Mutex};

use super::clock::{AgeClock, NONE, ORDERS, Oldest, Rank, time_of};
use crate::sync::models::preemptions;
use crate::sync::models::spawn;

/// A shard: the times of its blocks, the oldest first.
#[derive(Default)]
struct Shard {
    blocks: Mutex<Vec<u64>>,
    oldest: Oldest,
}

struct Cache {
    clock: AgeClock,
    shards: [Shard; 2],
}

fn ranks(blocks: &[u64]) -> [Rank; ORDERS] {
    let mut ranks = [NONE; ORDERS];
    if let Some(&first) = blocks.first() {
        // The count of blocks with the same time is 0.
        ranks[0] = first << 12;
        assert_eq!(time_of(ranks[0]), first);
    }
    ranks
}

impl Cache {
    fn commit(&self, shard: usize) {
        let shard = &self.shards[shard];
        let mut blocks = shard.blocks.lock().unwrap();
        self.clock.advance(1);
        blocks.push(self.clock.now());
        shard.oldest.publish(&ranks(&blocks));
    }

    /// Evicts a block. The choice is verified at most twice; then any shard evicts one.
    fn evict(&self) -> Option<u64> {
        for look in 0..2 {
            let seen = [0, 1].map(|shard: usize| self.shards[shard].oldest.ranks());
            let (at, seen) = (0..2).zip(seen).min_by_key(|(_, seen)| seen[0])?;
            if seen[0] == NONE {
                break;
            }
            let shard = &self.shards[at];
            let mut blocks = shard.blocks.lock().unwrap();
            // Published ages are never behind the shard: they change under its lock.
            assert_eq!(shard.oldest.ranks(), ranks(&blocks));
            if look == 0 && shard.oldest.ranks() != seen {
                continue;
            }
            if blocks.is_empty() {
                break;
            }
            let evicted = blocks.remove(0);
            shard.oldest.publish(&ranks(&blocks));
            return Some(evicted);
        }
        for shard in &self.shards {
            let mut blocks = shard.blocks.lock().unwrap();
            if !blocks.is_empty() {
                let evicted = blocks.remove(0);
                shard.oldest.publish(&ranks(&blocks));
                return Some(evicted);
            }
        }
        None
    }
}

#[test]
fn every_block_is_evicted_once_whatever_was_published() {
    preemptions::check(3, || {
        let cache = Arc::new(Cache { clock: AgeClock::default(), shards: Default::default() });
        cache.commit(0);
        let threads: Vec<_> = (0..2)
            .map(|number| {
                spawn(&cache, move |cache| {
                    if number == 0 {
                        cache.commit(1);
                    }
                    cache.evict()
                })
            })
            .collect();
        let mut evicted: Vec<u64> =
            threads.into_iter().filter_map(|thread| thread.join().unwrap()).collect();
        while let Some(time) = cache.evict() {
            evicted.push(time);
        }
        evicted.sort_unstable();
        assert_eq!(evicted, [1, 2]);
        assert!(cache.shards.iter().all(|shard| shard.oldest.ranks() == [NONE; ORDERS]));
    });
}
