//! *Leases*: rights to insert what is fetched from a lower tier, and the values in flight to it.
//!
//! A look-up that misses fetches from the lower tier. The fetched value may be old when it arrives:
//! meanwhile another thread may have inserted a new value under the key, or even removed it again.
//! The fetching thread therefore takes a *lease* first, and inserts the value only if the lease is
//! unbroken (Nishtala et al., *Scaling Memcache at Facebook*, NSDI 2013). Two rules make an
//! unbroken lease a proof that what was fetched under it is the latest value:
//!
//! 1. *Whatever puts or removes a key breaks its leases.* So from the lease to the commit the
//!    latest value is the same one.
//! 2. *No lease is given where the lower tier may have an older value*: while the cache has one,
//!    while an evicted one is being handed over, and while the lower tier is being told that one
//!    was removed. So what is read from the lower tier under the lease is of that time or later.
//!
//! Threads may hand over several values of one key at once, in any order. Which is the latest is
//! known here: what puts or removes a key *marks* all that is on its way under it, and a sink that
//! asks under its own lock takes no marked one in the place of a later one.
//!
//! All of it is by hash. Two keys of one hash break each other's leases and block each other, which
//! costs a fetch; marks must be of the key alone, so marking compares keys. Everything here is
//! done under the lock of the shard, and none of it knows what a block is: the model in
//! `tests/loom` is of this table.

// What is public is for that model.
#![cfg_attr(not(loom), allow(unreachable_pub))]

use hashbrown::HashTable;

/// The table of a shard; empty unless something is fetched, handed over or removed just now. `W`:
/// what is on its way, to be marked.
#[derive(Debug)]
pub struct Leases<W> {
    /// Unbroken leases, one entry for each hash.
    live: HashTable<Live>,
    /// Few: one for each thread that evicts.
    in_flight: Vec<InFlightValue<W>>,
    /// Removals that the lower tier is being told of. Few: one for each thread that removes.
    blocked: Vec<u64>,
    /// How often all are blocked.
    all_blocked: usize,
    /// Of these nobody knows what the lower tier has.
    untrusted: UntrustedKeys,
    /// The number of the next lease or hand-over: no two have the same.
    next: u64,
}

#[derive(Debug)]
struct Live {
    hash: u64,
    /// All leases of a hash that are unbroken have one number: what breaks one breaks all.
    number: u64,
    holders: usize,
}

#[derive(Debug)]
struct InFlightValue<W> {
    hash: u64,
    number: u64,
    what: W,
}

/// Keys whose eviction sinks failed, and which are not leased from then on.
#[derive(Debug, Default)]
pub struct UntrustedKeys {
    hashes: HashTable<u64>,
    all: bool,
}

impl<W> Default for Leases<W> {
    fn default() -> Self {
        Leases {
            live: HashTable::new(),
            in_flight: Vec::new(),
            blocked: Vec::new(),
            all_blocked: 0,
            untrusted: UntrustedKeys::default(),
            next: 0,
        }
    }
}

impl<W> Leases<W> {
    /// Whether there is nothing to break and nothing to mark, which is nearly always.
    #[inline]
    pub fn is_quiet(&self) -> bool {
        self.live.is_empty() && self.in_flight.is_empty()
    }

    /// A lease, by its number, if what the lower tier has can be relied upon. The caller knows that
    /// there is no value.
    pub fn lease(&mut self, hash: u64) -> Option<u64> {
        let blocked = self.all_blocked > 0 || self.blocked.contains(&hash);
        if blocked
            || self.in_flight.iter().any(|in_flight| in_flight.hash == hash)
            || self.untrusted.has(hash)
        {
            return None;
        }
        if let Some(live) = self.live.find_mut(hash, |live| live.hash == hash) {
            live.holders += 1;
            return Some(live.number);
        }
        let number = self.number();
        self.live.insert_unique(hash, Live { hash, number, holders: 1 }, |live| live.hash);
        Some(number)
    }

    /// Whether a lease is unbroken.
    pub fn is_live(&self, hash: u64, number: u64) -> bool {
        self.live.find(hash, |live| live.hash == hash && live.number == number).is_some()
    }

    /// Its holder lets go of a lease, broken or not.
    pub fn give_up(&mut self, hash: u64, number: u64) {
        if let Ok(mut entry) =
            self.live.find_entry(hash, |live| live.hash == hash && live.number == number)
        {
            entry.get_mut().holders -= 1;
            if entry.get().holders == 0 {
                entry.remove();
            }
        }
    }

    /// Something was put or removed: leases of the hash are broken, and `mark` is shown what is on
    /// its way under it.
    #[cold]
    pub fn supersede(&mut self, hash: u64, mut mark: impl FnMut(&W)) {
        if let Ok(entry) = self.live.find_entry(hash, |live| live.hash == hash) {
            entry.remove();
        }
        self.in_flight
            .iter()
            .filter(|in_flight| in_flight.hash == hash)
            .for_each(|in_flight| mark(&in_flight.what));
    }

    /// As `supersede`, for all.
    #[cold]
    pub fn supersede_all(&mut self, mut mark: impl FnMut(&W)) {
        self.live.clear();
        self.in_flight.iter().for_each(|in_flight| mark(&in_flight.what));
    }

    /// A value begins its way to the lower tier. Its number is for `handed_over`.
    pub fn hand_over(&mut self, hash: u64, what: W) -> u64 {
        let number = self.number();
        self.in_flight.push(InFlightValue { hash, number, what });
        number
    }

    /// It has arrived, or nobody knows what became of it.
    pub fn handed_over(&mut self, number: u64, arrived: bool) {
        if let Some(at) = self.in_flight.iter().position(|in_flight| in_flight.number == number) {
            let in_flight = self.in_flight.swap_remove(at);
            if !arrived {
                self.untrusted.add(in_flight.hash);
            }
        }
    }

    /// The lower tier is being told of a removal.
    pub fn block(&mut self, hash: u64) {
        self.blocked.push(hash);
    }

    /// It has been told, or nobody knows whether.
    pub fn unblock(&mut self, hash: u64, told: bool) {
        if let Some(at) = self.blocked.iter().position(|&blocked| blocked == hash) {
            self.blocked.swap_remove(at);
        }
        if !told {
            self.untrusted.add(hash);
        }
    }

    /// The lower tier is being told that all was removed. What was untrusted until now is not if it
    /// hears: see `unblock_all`.
    pub fn block_all(&mut self) -> UntrustedKeys {
        self.all_blocked += 1;
        std::mem::take(&mut self.untrusted)
    }

    /// It has been told; or nobody knows whether, and what was untrusted before is so still.
    pub fn unblock_all(&mut self, told: bool, before: UntrustedKeys) {
        self.all_blocked -= 1;
        if !told {
            before.hashes.iter().for_each(|&hash| self.untrusted.add(hash));
            self.untrusted.all = true;
        }
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// What is wrong with the table, if anything: one entry for each hash, with a holder, and no
    /// number twice.
    pub fn defect(&self) -> Option<String> {
        for live in &self.live {
            let same = |other: &&Live| other.hash == live.hash;
            if live.holders == 0 || self.live.iter_hash(live.hash).filter(same).count() != 1 {
                return Some(format!("{live:?} has no holder, or there are two of its hash"));
            }
        }
        let numbers = self.live.iter().map(|live| live.number);
        let mut numbers: Vec<u64> =
            numbers.chain(self.in_flight.iter().map(|in_flight| in_flight.number)).collect();
        numbers.sort_unstable();
        let twice = numbers.windows(2).find(|two| two[0] == two[1]);
        twice.map(|two| format!("the number {} was given twice", two[0]))
    }
}

impl UntrustedKeys {
    fn has(&self, hash: u64) -> bool {
        self.all || self.hashes.find(hash, |&untrusted| untrusted == hash).is_some()
    }

    fn add(&mut self, hash: u64) {
        if !self.has(hash) {
            self.hashes.insert_unique(hash, hash, |&hash| hash);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn quiet() -> Leases<Cell<bool>> {
        Leases::default()
    }

    #[test]
    fn whatever_is_put_or_removed_breaks_the_leases_of_its_hash_alone() {
        let mut leases = quiet();
        let (one, same, other) =
            (leases.lease(1).unwrap(), leases.lease(1).unwrap(), leases.lease(2).unwrap());
        leases.supersede(1, |_| ());
        assert!(!leases.is_live(1, one) && !leases.is_live(1, same) && leases.is_live(2, other));
        // A later lease is another one, and those that were broken do not end it.
        let later = leases.lease(1).unwrap();
        leases.give_up(1, one);
        leases.give_up(1, same);
        assert!(leases.is_live(1, later) && !leases.is_live(1, one));
        leases.supersede_all(|_| ());
        assert!(!leases.is_live(1, later) && !leases.is_live(2, other) && leases.is_quiet());
        assert_eq!(leases.defect(), None);
    }

    #[test]
    fn leases_of_one_hash_live_until_the_last_is_given_up() {
        let mut leases = quiet();
        let (one, two) = (leases.lease(9).unwrap(), leases.lease(9).unwrap());
        leases.give_up(9, one);
        assert!(leases.is_live(9, two) && !leases.is_quiet());
        leases.give_up(9, two);
        assert!(!leases.is_live(9, two) && leases.is_quiet());
        leases.give_up(9, two);
        assert_eq!(leases.defect(), None);
    }

    #[test]
    fn what_is_on_its_way_is_barred_and_marked() {
        let mut leases = quiet();
        let (first, second) =
            (leases.hand_over(1, Cell::new(false)), leases.hand_over(1, Cell::new(false)));
        let other = leases.hand_over(2, Cell::new(false));
        leases.supersede(1, |mark| mark.set(true));
        assert!(
            leases.in_flight.iter().all(|in_flight| in_flight.what.get() == (in_flight.hash == 1))
        );
        leases.handed_over(first, true);
        assert!(
            leases.lease(1).is_none() && leases.lease(2).is_none() && leases.lease(3).is_some()
        );
        leases.handed_over(second, true);
        leases.handed_over(other, true);
        assert!(leases.lease(1).is_some() && leases.lease(2).is_some());
    }

    #[test]
    fn what_was_lost_is_not_leased_until_the_lower_tier_has_forgotten_all() {
        let mut leases = quiet();
        let number = leases.hand_over(1, Cell::new(false));
        leases.handed_over(number, false);
        leases.block(2);
        leases.block(2);
        leases.unblock(2, true);
        assert!(leases.lease(2).is_none(), "another still tells");
        leases.unblock(2, false);
        assert!(leases.lease(1).is_none() && leases.lease(2).is_none() && leases.is_quiet());
        let before = leases.block_all();
        assert!(leases.lease(3).is_none());
        leases.unblock_all(false, before);
        assert!(leases.lease(3).is_none(), "it has not heard");
        let before = leases.block_all();
        let number = leases.hand_over(4, Cell::new(false));
        leases.handed_over(number, false);
        leases.unblock_all(true, before);
        assert!((1..4).all(|hash| leases.lease(hash).is_some()));
        assert!(
            leases.lease(4).is_none(),
            "it was untrusted after it had been told to forget, for all one knows"
        );
    }
}
