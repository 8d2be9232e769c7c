//! [`Index`]: the values by digest, and in the order in which they go.
//!
//! Each priority has a list of its values, of which the first one goes first: the one used least
//! recently, or stored first. An entry takes 60 bytes in its slot and two in the table. A value
//! that has expired is not found any more, and goes before all others.
//!
//! # Why this is not the policy of a cache
//!
//! A cache's [`History`](kvmem::cache::History) takes 130 to 220 bytes for each value and the
//! evicted ones that it remembers, and more memory for its orders. A tier has a hundred times as
//! many values, so its order is two links in the entry. The order must also survive the process: a
//! checkpoint writes the entries of each list from the first to the last, and the journal has the
//! uses since. Scans do not reach a tier that stores a value at its
//! [second eviction](crate::Admission::SecondEviction): the filter of keys is the tier's list of
//! ghosts. Without it, the policy of the cache has seen the uses of every value that arrives here.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use super::ranges::Indexed;
use super::slots::{NIL, Slots};
use super::table::Table;
use crate::format::{Digest, Entry};

/// The ends of a list: the entry that goes first, and the one that goes last.
#[derive(Clone, Copy)]
struct List {
    first: u32,
    last: u32,
}

/// Returns the wall clock in seconds since 1970, which ends in 2106.
pub(crate) fn seconds_now() -> u32 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u32::try_from(now.as_secs()).unwrap_or(u32::MAX)
}

/// A walk through the entries that were there when it began, in pieces between which entries come,
/// go and are used.
///
/// The lists are walked in the order of their priorities, each from its first entry. An entry that
/// is used goes behind the walk's place in its list, never before it. Each entry has the parity of
/// the last walk that has met it, so none is met twice, and entries that came later have it, too.
#[derive(Default)]
struct Walk {
    /// Whether the walks are odd now: the one under way, or the last one.
    is_odd: bool,
    /// Entries that are still to be met.
    left: usize,
    /// The list, and the entry in it, that come next; NIL if the list is at its end.
    priority: Option<i8>,
    next: u32,
}

/// The entries by digest.
pub(crate) struct Index {
    slots: Slots,
    table: Table,
    /// The lists that are not empty, by priority.
    lists: BTreeMap<i8, List>,
    /// Whether an entry that is used goes last.
    is_lru: bool,
    walk: Walk,
    clock: fn() -> u32,
}

impl Index {
    pub(crate) fn new(is_lru: bool) -> Self {
        let (slots, table, lists) = (Slots::new(), Table::new(), BTreeMap::new());
        Index { slots, table, lists, is_lru, walk: Walk::default(), clock: seconds_now }
    }

    pub(crate) fn is_lru(&self) -> bool {
        self.is_lru
    }

    /// Returns the seconds since 1970 by which entries expire.
    pub(crate) fn now(&self) -> u32 {
        (self.clock)()
    }

    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    /// Returns the bytes of the index in memory.
    pub(crate) fn bytes(&self) -> usize {
        self.slots.bytes() + self.table.bytes()
    }

    /// Returns the slot of a key whose entry has not expired.
    fn find(&self, digest: &Digest) -> Option<u32> {
        let slot = self.table.find(&self.slots, digest)?;
        let found = self.slots.get(slot);
        let expired = found.expires > 0 && found.has_expired(self.now());
        (!expired).then_some(slot)
    }

    /// Returns the length of the value of a key in bytes, if it has not expired.
    pub(crate) fn len_of(&self, digest: &Digest) -> Option<u64> {
        self.find(digest).map(|slot| self.slots.value_len(slot))
    }

    /// Returns the number of the change that stored the value of a key, if it has not expired.
    pub(crate) fn number_of(&self, digest: &Digest) -> Option<u64> {
        self.find(digest).map(|slot| self.slots.number(slot))
    }

    /// Returns the number of values in several extents.
    pub(crate) fn scattered(&self) -> usize {
        self.slots.scattered()
    }

    /// Returns the number of values whose bytes a power cut may have taken.
    pub(crate) fn unverified(&self) -> usize {
        self.slots.unverified()
    }

    /// Records that the bytes of the value of a key were read, and are right.
    pub(crate) fn set_verified(&mut self, digest: &Digest) {
        if let Some(slot) = self.table.find(&self.slots, digest) {
            self.slots.set_verified(slot);
        }
    }

    /// Returns the entry of a key, if it has not expired, and records a use of it.
    pub(crate) fn get_used(&mut self, digest: &Digest) -> Option<Entry> {
        let slot = self.find(digest)?;
        if self.is_lru {
            self.unlink(slot);
            self.link_last(slot);
        }
        Some(self.slots.entry(slot))
    }

    /// Adds an entry, which goes last of its priority; returns the one that it replaces.
    pub(crate) fn insert(&mut self, indexed: Indexed) -> Option<Indexed> {
        let old = self.remove(&indexed.entry.digest);
        let slot = self.slots.add(&indexed);
        self.slots.get_mut(slot).set_odd(self.walk.is_odd);
        self.table.insert(&mut self.slots, slot);
        self.link_last(slot);
        old
    }

    /// Removes the entry of a key, also one that has expired.
    pub(crate) fn remove(&mut self, digest: &Digest) -> Option<Indexed> {
        let slot = self.table.find(&self.slots, digest)?;
        Some(self.remove_slot(slot))
    }

    /// Removes the entry that goes first: one that has expired, or the first of the lowest
    /// priority.
    pub(crate) fn remove_first(&mut self) -> Option<Indexed> {
        let expired = if self.slots.has_times() { self.slots.expired(self.now()) } else { None };
        let slot = expired.or_else(|| self.lists.values().next().map(|list| list.first))?;
        Some(self.remove_slot(slot))
    }

    fn remove_slot(&mut self, slot: u32) -> Indexed {
        let indexed = Indexed { entry: self.slots.entry(slot), ranges: self.slots.ranges(slot) };
        self.walk.left -= usize::from(self.slots.get(slot).is_odd() != self.walk.is_odd);
        self.unlink(slot);
        self.table.remove(&mut self.slots, slot);
        self.slots.remove(slot);
        indexed
    }

    /// Returns all entries, in the order in which they go, except that expired ones are among the
    /// others.
    pub(crate) fn entries(&self) -> impl Iterator<Item = Entry> {
        self.lists.values().flat_map(move |list| {
            let mut slot = list.first;
            std::iter::from_fn(move || {
                let entry = (slot != NIL).then(|| self.slots.entry(slot))?;
                slot = self.slots.get(slot).next;
                Some(entry)
            })
        })
    }

    /// Begins a walk through all entries. A walk before that was abandoned, because the device
    /// failed, ends first: otherwise the entries that it has not met would count as met.
    pub(crate) fn begin_walk(&mut self) {
        if self.walk.left > 0 {
            self.walk(usize::MAX, |_| {});
        }
        let is_odd = !self.walk.is_odd;
        self.walk = Walk { is_odd, left: self.len(), priority: None, next: NIL };
    }

    /// Walks on by at most `steps` entries, in the order in which they go; calls `met` with those
    /// that were there when the walk began. Returns how many of these are left: the walk is
    /// complete with the last one.
    pub(crate) fn walk(&mut self, steps: usize, mut met: impl FnMut(Entry)) -> usize {
        for _ in 0..steps {
            if self.walk.left == 0 {
                break;
            }
            if self.walk.next == NIL {
                let is_behind =
                    |&(&priority, _): &(&i8, &List)| Some(priority) > self.walk.priority;
                let next = self.lists.iter().find(is_behind);
                let (&priority, list) = next.expect("entries are left");
                (self.walk.priority, self.walk.next) = (Some(priority), list.first);
            }
            let slot = self.walk.next;
            let one = self.slots.get_mut(slot);
            self.walk.next = one.next;
            if one.is_odd() != self.walk.is_odd {
                one.set_odd(self.walk.is_odd);
                self.walk.left -= 1;
                met(self.slots.entry(slot));
            }
        }
        self.walk.left
    }

    fn link_last(&mut self, slot: u32) {
        let priority = self.slots.get(slot).priority;
        let list = self.lists.entry(priority).or_insert(List { first: slot, last: NIL });
        let prev = std::mem::replace(&mut list.last, slot);
        let one = self.slots.get_mut(slot);
        (one.prev, one.next) = (prev, NIL);
        if prev != NIL {
            self.slots.get_mut(prev).next = slot;
        }
        // The walk was at the end of this list, which has one more now.
        if self.walk.next == NIL && self.walk.priority == Some(priority) {
            self.walk.next = slot;
        }
    }

    fn unlink(&mut self, slot: u32) {
        let one = *self.slots.get(slot);
        if self.walk.next == slot {
            self.walk.next = one.next;
        }
        if one.prev != NIL {
            self.slots.get_mut(one.prev).next = one.next;
        }
        if one.next != NIL {
            self.slots.get_mut(one.next).prev = one.prev;
        }
        if one.prev == NIL && one.next == NIL {
            self.lists.remove(&one.priority);
        } else if let Some(list) = self.lists.get_mut(&one.priority) {
            if one.prev == NIL {
                list.first = one.next;
            }
            if one.next == NIL {
                list.last = one.prev;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use kvmem::offset::RawHandle;
    use kvmem_testkit::random::Random;

    use super::*;
    use crate::format::{Encoded, Extent, Extents, Hints, MAX_EXTENTS, blocks_of};
    use crate::index::Ranges;

    thread_local! {
        static NOW: Cell<u32> = const { Cell::new(1000) };
    }

    fn index(is_lru: bool) -> Index {
        NOW.set(1000);
        Index { clock: || NOW.get(), ..Index::new(is_lru) }
    }

    fn digest(key: u64) -> Digest {
        let word = (key + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let both = [word, word.rotate_left(32)].map(u64::to_le_bytes);
        Digest(both.concat().try_into().unwrap())
    }

    fn indexed(key: u64, number: u64, expires: u32, priority: i8) -> Indexed {
        let len = (key << 12 | 5) & 0xFFFF_FFFF_FFFF;
        let entry = Entry {
            digest: digest(key),
            number,
            extents: Extents::contiguous(key as u32, len),
            checksum: number as u32 ^ 7,
            len,
            encoded: Encoded::new(len ^ 7, 9).filter(|_| key % 4 == 3),
            hints: Hints { expires, priority },
            unverified: key % 3 == 1,
        };
        Indexed { entry, ranges: RawHandle::from_bits(99 << 64 | u128::from(number)).into() }
    }

    /// The same in several extents: as many as it has blocks, at most 4.
    fn scattered(key: u64, number: u64, priority: i8) -> Indexed {
        let Indexed { mut entry, .. } = indexed(key, number, 0, priority);
        let blocks = blocks_of(entry.len);
        let count = blocks.min(MAX_EXTENTS as u32);
        let last = blocks - (count - 1);
        let parts: Vec<Extent> = (0..count)
            .map(|part| Extent {
                start: key as u32 + 9 * part,
                blocks: if part + 1 == count { last } else { 1 },
            })
            .collect();
        entry.extents = Extents::of(&parts).unwrap();
        let handle = |part: u32| {
            RawHandle::from_bits(99 << 64 | u128::from(part) << 40 | u128::from(number))
        };
        Indexed { entry, ranges: Ranges::of((0..count).map(handle)) }
    }

    fn drain(index: &mut Index) -> Vec<Entry> {
        std::iter::from_fn(|| Some(index.remove_first()?.entry)).collect()
    }

    #[test]
    fn values_of_lower_priority_go_first_and_of_one_priority_in_the_order_of_use() {
        for is_lru in [true, false] {
            let mut index = index(is_lru);
            for (number, (key, priority)) in
                [(1, 0), (2, -3), (3, 0), (4, 127), (5, -3)].into_iter().enumerate()
            {
                assert!(index.insert(indexed(key, number as u64, 0, priority)).is_none());
            }
            assert!(index.get_used(&digest(2)).is_some() && index.get_used(&digest(1)).is_some());
            assert!(index.get_used(&digest(9)).is_none());
            let order = if is_lru { [5, 2, 3, 1, 4] } else { [2, 5, 1, 3, 4] };
            assert_eq!(index.entries().map(|entry| entry.start()).collect::<Vec<_>>(), order);
            assert_eq!(drain(&mut index).iter().map(Entry::start).collect::<Vec<_>>(), order);
            assert_eq!(index.len(), 0);
        }
    }

    #[test]
    fn a_value_may_be_longer_than_32_bits_count() {
        let mut index = index(true);
        for len in [u64::from(u32::MAX), 5 << 32 | 7, (1 << 44) - 1] {
            let mut one = indexed(8, len, 0, 0);
            one.entry.len = len;
            one.entry.extents = Extents::contiguous(8, len);
            let entry = one.entry;
            index.insert(one);
            assert_eq!(
                (index.len_of(&digest(8)), index.number_of(&digest(8))),
                (Some(len), Some(len))
            );
            assert_eq!(index.get_used(&digest(8)), Some(entry));
        }
    }

    #[test]
    fn numbers_of_changes_pass_32_bits() {
        let mut index = index(true);
        let numbers = [(3 << 32) + 5, (4 << 32) - 1, 4 << 32, (4 << 32) + 2];
        for (key, number) in (0..).zip(numbers) {
            index.insert(indexed(key, number, 0, 0));
            for (key, number) in (0..=key).zip(numbers).skip(key as usize & !1) {
                assert_eq!(index.number_of(&digest(key)), Some(number));
            }
        }
    }

    #[test]
    fn a_slot_that_is_used_again_keeps_nothing_of_the_value_before() {
        let mut index = index(true);
        let (encoded, plain) = (indexed(3, 1, 0, 0), indexed(4, 2, 0, 0));
        let entry = plain.entry;
        assert!(encoded.entry.encoded.is_some() && entry.encoded.is_none());
        index.insert(encoded);
        index.remove(&digest(3));
        index.insert(plain);
        assert_eq!(index.get_used(&digest(4)), Some(entry));
        let bytes = index.bytes();
        for key in 0..5000 {
            index.insert(indexed(4 * key, key, 0, 0));
            index.remove(&digest(4 * key));
        }
        assert_eq!(index.bytes(), bytes, "free slots are used");
    }

    /// Of two values with times the second one is found when its time is over, also if the first
    /// was removed before, whether or not others without times are among them.
    #[test]
    fn each_value_goes_first_from_its_second_on() {
        for others in [false, true] {
            let mut index = index(true);
            for (key, expires) in [(1, 1001), (2, 1005), (3, 1005)] {
                index.insert(indexed(key, key, expires, 5));
            }
            for key in 10..20 {
                index.insert(indexed(key, key, if others { 0 } else { 9000 }, 0));
            }
            let mut first = |now: u32| {
                NOW.set(now);
                index.remove_first().unwrap().entry.start()
            };
            let order = [1000, 1001, 1002, 1004, 1005, 1006, 1007].map(&mut first);
            assert_eq!(order, [10, 1, 11, 12, 2, 3, 13]);
        }
    }

    #[test]
    fn expired_values_are_not_found_and_go_first() {
        let mut index = index(true);
        for key in 0..5000 {
            let expires = if key % 10 == 0 { 1001 + key as u32 % 7 } else { 0 };
            index.insert(indexed(key, key, expires, if key % 3 == 0 { -1 } else { 1 }));
        }
        let first = index.remove_first().unwrap();
        assert_eq!(first.entry.start(), 0, "it has the lowest priority");
        index.insert(first);
        NOW.set(1003);
        let expired = |key: u64| key.is_multiple_of(10) && 1001 + key as u32 % 7 <= 1003;
        for key in 0..5000 {
            assert_eq!(index.len_of(&digest(key)).is_none(), expired(key), "{key}");
        }
        let gone: Vec<u64> = (0..5000).filter(|&key| expired(key)).collect();
        for key in &gone {
            let first = index.remove_first().unwrap().entry;
            assert_eq!(u64::from(first.start()), *key);
        }
        NOW.set(2000);
        assert_eq!(index.len(), 5000 - gone.len());
        let rest = drain(&mut index);
        let (first, last) = rest.split_at(500 - gone.len());
        assert!(first.iter().all(|entry| entry.hints.expires > 0));
        assert!(last.iter().all(|entry| entry.hints.expires == 0));
    }

    /// Values with a time expire early when the wall clock is set forward, and late when it is set
    /// back. Those without one stay, whatever the clock says.
    #[test]
    fn a_wall_clock_that_is_set_changes_no_value_without_a_time() {
        const START: u32 = 1_000_000;
        let expires = |key: u64| if key.is_multiple_of(2) { START + 3600 } else { 0 };
        for step in [7200, -7200, i64::from(u32::MAX), -i64::from(START)] {
            NOW.set(START);
            let mut index = index(true);
            for key in 0..100 {
                index.insert(indexed(key, key, expires(key), 0));
            }
            NOW.set(u32::try_from(i64::from(START) + step).unwrap_or(u32::MAX));
            let expired = |key: u64| step > 3600 && key.is_multiple_of(2);
            for key in 0..100 {
                assert_eq!(index.len_of(&digest(key)).is_none(), expired(key), "{key} by {step}");
            }
            let first = index.remove_first().unwrap().entry;
            assert_eq!(first.start(), 0, "an expired value, or the oldest one");
            // Back at the right time, nothing else is gone.
            NOW.set(START);
            assert!((1..100).all(|key| index.len_of(&digest(key)).is_some()));
        }
    }

    /// Random changes, compared with lists that are searched; numbers pass the 32 bits of a slot.
    #[test]
    fn random_changes_keep_every_entry_whole() {
        for is_lru in [true, false] {
            let mut index = index(is_lru);
            let mut known: Vec<Indexed> = Vec::new();
            let mut random = Random::new(1);
            let mut number = (5 << 32) - 4000;
            for _ in 0..12_000 {
                let key = random.below(1500);
                let at = known.iter().position(|one| one.entry.digest == digest(key));
                match random.below(5) {
                    0 => {
                        let old = index.remove(&digest(key));
                        let parts = |one: Indexed| (one.entry, one.ranges);
                        assert_eq!(old.map(parts), at.map(|at| parts(known.remove(at))));
                    }
                    1 => {
                        let used = index.get_used(&digest(key));
                        assert_eq!(used, at.map(|at| known[at].entry));
                        if let Some(at) = at.filter(|_| is_lru) {
                            let one = known.remove(at);
                            known.push(one);
                        }
                    }
                    _ => {
                        number += 1;
                        let priority = (key % 4) as i8 - 2;
                        let new = if random.once_in(3) {
                            scattered(key, number, priority)
                        } else {
                            indexed(key, number, 0, priority)
                        };
                        let old = index.insert(new);
                        assert_eq!(old.map(|one| one.entry), at.map(|at| known.remove(at).entry));
                        known.push(new);
                    }
                }
                let scattered = known.iter().filter(|one| one.entry.extents.is_scattered()).count();
                let unverified = known.iter().filter(|one| one.entry.unverified).count();
                assert_eq!(index.unverified(), unverified);
                assert_eq!((index.len(), index.scattered()), (known.len(), scattered));
            }
            for one in &mut known {
                let digest = one.entry.digest;
                if random.once_in(2) {
                    index.set_verified(&digest);
                    one.entry.unverified = false;
                }
                assert_eq!(index.len_of(&digest), Some(one.entry.value_len()));
                assert_eq!(index.number_of(&digest), Some(one.entry.number));
                let found = index.table.find(&index.slots, &digest).unwrap();
                assert_eq!(index.slots.ranges(found), one.ranges);
            }
            known.sort_by_key(|one| one.entry.hints.priority);
            let known: Vec<Entry> = known.iter().map(|one| one.entry).collect();
            assert_eq!(index.entries().collect::<Vec<_>>(), known);
            assert_eq!(drain(&mut index), known);
        }
    }

    /// A device that fails ends a checkpoint, and its walk, in the middle.
    #[test]
    fn a_walk_after_one_that_was_abandoned_meets_every_entry() {
        for left_after in [1, 7, 99] {
            let mut index = index(false);
            for key in 0..100 {
                let _ = index.insert(indexed(key, key, 0, 0));
            }
            index.begin_walk();
            assert_eq!(index.walk(left_after, |_| {}), 100 - left_after);
            index.begin_walk();
            let mut met = 0;
            while index.walk(10, |_| met += 1) > 0 {}
            assert_eq!(met, 100);
        }
    }

    /// A walk meets each entry once that was there when it began and still is, whatever happens
    /// between its pieces; it may meet one that is removed later.
    #[test]
    fn a_walk_meets_every_entry_once_while_others_come_and_go() {
        let mut random = Random::new(5);
        for round in 0..60 {
            let mut index = index(round % 2 == 0);
            let mut number = 0;
            let mut store = |index: &mut Index, key: u64| {
                number += 1;
                let _ = index.insert(indexed(key, number, 0, (key % 5) as i8 - 2));
                number
            };
            for key in 0..random.below(400) {
                store(&mut index, key);
            }
            for _ in 0..3 {
                let mut at_begin: Vec<Entry> = index.entries().collect();
                let mut removed: Vec<Digest> = Vec::new();
                let mut met: Vec<Entry> = Vec::new();
                index.begin_walk();
                while index.walk(1 + random.below(20) as usize, |entry| met.push(entry)) > 0 {
                    for _ in 0..random.below(30) {
                        let key = random.below(500);
                        match random.below(6) {
                            0 => {
                                index.remove(&digest(key));
                                removed.push(digest(key));
                            }
                            1 => {
                                store(&mut index, key);
                                removed.push(digest(key));
                            }
                            2 => removed.extend(index.remove_first().map(|one| one.entry.digest)),
                            _ => drop(index.get_used(&digest(key))),
                        }
                    }
                }
                for entry in &met {
                    assert!(at_begin.contains(entry), "it came later");
                }
                at_begin.retain(|entry| !removed.contains(&entry.digest));
                for entry in at_begin {
                    assert_eq!(met.iter().filter(|one| **one == entry).count(), 1);
                }
            }
        }
    }

    /// The memory of all entries, with the table, at every number of them.
    #[test]
    fn an_entry_takes_at_most_64_bytes() {
        let mut index = index(true);
        for key in 0..300_000 {
            let mut one = indexed(key, key, 0, 0);
            one.entry.encoded = None;
            index.insert(one);
            // A chunk may have just begun.
            assert!(index.bytes() <= 64 * index.len() + (61 << 10), "{key}: {}", index.bytes());
        }
        let each = index.bytes() as f64 / index.len() as f64;
        assert!((62.0..63.0).contains(&each), "{each:.2}");
        // A value in several extents takes more, and others take no more then.
        let before = index.bytes();
        for key in 1..1001 {
            index.insert(scattered(key, key, 0));
        }
        let more = (index.bytes() - before) / index.scattered();
        assert!((52..128).contains(&more), "{more}");
    }
}
