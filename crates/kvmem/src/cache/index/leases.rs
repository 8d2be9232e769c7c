//! *Leases*: rights to insert a value fetched from a lower tier, and the values in flight to it.
//!
//! A look-up that misses fetches from the lower tier. The fetched value may be old when it arrives:
//! meanwhile another thread may have inserted a new value under the key, or even removed it again.
//! The fetching thread therefore takes a *lease* first, and inserts the value only if the lease is
//! still valid (Nishtala et al., *Scaling Memcache at Facebook*, NSDI 2013). Two rules make a valid
//! lease a proof that the value fetched under it is the latest:
//!
//! 1. *Each insertion and each removal of a key breaks its leases.* The latest value therefore does
//!    not change between the lease and the commit.
//! 2. *No lease is granted while the lower tier may have an older value*: while the cache has a
//!    value, while an evicted value is in flight to the sink, and while the lower tier is
//!    invalidating one. A value read from the lower tier under the lease is therefore the latest
//!    one at the time of the lease, or a later one.
//!
//! Several threads may pass values of one key to the sink at once, in any order. This table knows
//! which is the latest: an insertion or a removal *marks* all values in flight under its key. A
//! sink that checks the mark under its own lock never replaces a later value by a marked one.
//!
//! The table works by hash. Two keys with one hash break each other's leases and block each other,
//! which costs a fetch. Marks must concern the key alone, so marking compares keys. The caller has
//! the lock of the shard for all of this. The table does not know blocks: its model checks
//! need no memory.

use hashbrown::HashTable;

/// The table of a shard; empty unless a thread is fetching, evicting to a sink, or removing. `W`: a
/// value in flight, for marking.
#[derive(Debug)]
pub(crate) struct Leases<W> {
    /// Valid leases, one entry per hash.
    live: HashTable<Live>,
    /// Values in flight to the sink. Few: one for each thread that evicts.
    in_flight: Vec<InFlightValue<W>>,
    /// Hashes of keys that the lower tier is invalidating. Few: one for each thread that removes.
    blocked: Vec<u64>,
    /// The number of threads for which the lower tier is invalidating all keys.
    all_blocked: usize,
    /// Keys whose value in the lower tier is unknown.
    untrusted: UntrustedKeys,
    /// The last number of a lease or a value in flight; no two have the same number.
    next: u64,
}

#[derive(Debug)]
struct Live {
    hash: u64,
    /// All valid leases of a hash share one number, since they break together.
    number: u64,
    holders: usize,
}

#[derive(Debug)]
struct InFlightValue<W> {
    hash: u64,
    number: u64,
    what: W,
}

/// Keys whose sink or invalidation failed. They are not leased from then on.
#[derive(Debug, Default)]
pub(crate) struct UntrustedKeys {
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
    /// Returns whether there is no lease to break and no value to mark, which is nearly always so.
    #[inline]
    pub(crate) fn is_quiet(&self) -> bool {
        self.live.is_empty() && self.in_flight.is_empty()
    }

    /// Grants a lease and returns its number; `None` if the value of the lower tier may be old. The
    /// caller has checked that the cache has no value.
    pub(crate) fn lease(&mut self, hash: u64) -> Option<u64> {
        if !self.may_lease(hash) {
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

    /// Returns whether the lower tier has no older value under a hash than the latest one.
    pub(crate) fn may_lease(&self, hash: u64) -> bool {
        self.all_blocked == 0
            && !self.blocked.contains(&hash)
            && !self.in_flight.iter().any(|in_flight| in_flight.hash == hash)
            && !self.untrusted.has(hash)
    }

    /// Returns whether a lease is valid.
    pub(crate) fn is_live(&self, hash: u64, number: u64) -> bool {
        self.live.find(hash, |live| live.hash == hash && live.number == number).is_some()
    }

    /// Gives a lease up, valid or broken.
    pub(crate) fn give_up(&mut self, hash: u64, number: u64) {
        if let Ok(mut entry) =
            self.live.find_entry(hash, |live| live.hash == hash && live.number == number)
        {
            entry.get_mut().holders -= 1;
            if entry.get().holders == 0 {
                entry.remove();
            }
        }
    }

    /// Records an insertion or a removal: breaks the leases of the hash, and calls `mark` for each
    /// value in flight under it.
    #[cold]
    pub(crate) fn supersede(&mut self, hash: u64, mut mark: impl FnMut(&W)) {
        if let Ok(entry) = self.live.find_entry(hash, |live| live.hash == hash) {
            entry.remove();
        }
        self.in_flight
            .iter()
            .filter(|in_flight| in_flight.hash == hash)
            .for_each(|in_flight| mark(&in_flight.what));
    }

    /// Records the removal of all keys: breaks all leases, and calls `mark` for all values in
    /// flight.
    #[cold]
    pub(crate) fn supersede_all(&mut self, mut mark: impl FnMut(&W)) {
        self.live.clear();
        self.in_flight.iter().for_each(|in_flight| mark(&in_flight.what));
    }

    /// Records that a value is in flight to the sink. Returns its number, for `handed_over`.
    pub(crate) fn hand_over(&mut self, hash: u64, what: W) -> u64 {
        let number = self.number();
        self.in_flight.push(InFlightValue { hash, number, what });
        number
    }

    /// Records that the sink has returned: it stored the value, or its state is unknown.
    pub(crate) fn handed_over(&mut self, number: u64, arrived: bool) {
        if let Some(at) = self.in_flight.iter().position(|in_flight| in_flight.number == number) {
            let in_flight = self.in_flight.swap_remove(at);
            if !arrived {
                self.untrusted.add(in_flight.hash);
            }
        }
    }

    /// Blocks leases of a hash while the lower tier invalidates the key.
    pub(crate) fn block(&mut self, hash: u64) {
        self.blocked.push(hash);
    }

    /// Ends one block of a hash. If `confirmed` is false, the invalidation failed.
    pub(crate) fn unblock(&mut self, hash: u64, confirmed: bool) {
        if let Some(at) = self.blocked.iter().position(|&blocked| blocked == hash) {
            self.blocked.swap_remove(at);
        }
        if !confirmed {
            self.untrusted.add(hash);
        }
    }

    /// Blocks all leases while the lower tier invalidates all keys. Returns the keys that were
    /// untrusted until now, for `unblock_all`.
    pub(crate) fn block_all(&mut self) -> UntrustedKeys {
        self.all_blocked += 1;
        std::mem::take(&mut self.untrusted)
    }

    /// Ends one block of all leases. If `confirmed` is false, the invalidation failed, and the keys
    /// that were untrusted before are untrusted again.
    pub(crate) fn unblock_all(&mut self, confirmed: bool, before: UntrustedKeys) {
        self.all_blocked -= 1;
        if !confirmed {
            before.hashes.iter().for_each(|&hash| self.untrusted.add(hash));
            self.untrusted.all = true;
        }
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Returns a description of a defect, if there is one: each hash must have one entry with at
    /// least one holder, and no number may occur twice.
    pub(crate) fn defect(&self) -> Option<String> {
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
        twice.map(|two| format!("the number {} was used twice", two[0]))
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

#[cfg(all(test, not(loom)))]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn quiet() -> Leases<Cell<bool>> {
        Leases::default()
    }

    #[test]
    fn an_insertion_or_a_removal_breaks_the_leases_of_its_hash_alone() {
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
    fn values_in_flight_block_leases_and_are_marked() {
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
    fn untrusted_keys_are_not_leased_until_the_lower_tier_has_invalidated_all() {
        let mut leases = quiet();
        let number = leases.hand_over(1, Cell::new(false));
        leases.handed_over(number, false);
        leases.block(2);
        leases.block(2);
        leases.unblock(2, true);
        assert!(leases.lease(2).is_none(), "another thread is still invalidating");
        leases.unblock(2, false);
        assert!(leases.lease(1).is_none() && leases.lease(2).is_none() && leases.is_quiet());
        let before = leases.block_all();
        assert!(leases.lease(3).is_none());
        leases.unblock_all(false, before);
        assert!(leases.lease(3).is_none(), "the invalidation failed");
        let before = leases.block_all();
        let number = leases.hand_over(4, Cell::new(false));
        leases.handed_over(number, false);
        leases.unblock_all(true, before);
        assert!((1..4).all(|hash| leases.lease(hash).is_some()));
        assert!(leases.lease(4).is_none(), "its sink may have failed after the invalidation");
    }
}
