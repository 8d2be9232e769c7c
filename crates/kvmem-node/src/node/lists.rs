//! *Lists*: values that can be evicted, in the order of their last use.
//!
//! Each namespace has one list for each priority. A value is a *candidate* while it is committed,
//! no client has it pinned, and no child of it in memory holds it: see [`chains`](super::chains).
//! Each use gives a value a higher place in the order of use, and the first candidate is the
//! victim.
//!
//! A node with the scan-resistant policy has one list for each [kind](History) of value, and the
//! history of its values says which list gives up its first candidate.
//!
//! # Why a use takes O(1)
//!
//! A use adds a *record*, the value with its place, to the end of a queue, and takes out nothing.
//! The record of an earlier use is stale then: the value has another place. The record of
//! a value that is pinned or held stays. When the search for a victim meets a stale record, or that
//! of a value that is no candidate, it drops the record. It meets each record once, so the search
//! takes O(1) for each use before it. When more than half of the records may be stale, all of these
//! go.
//!
//! A value that becomes a candidate again after its record was dropped does so at its own place: it
//! is *late*. Late values are in a tree. There are few: the parents of evicted values, which go
//! next, and values whose pins were older than everything in the queue.
//!
//! The records are in the server's own memory. The index file has the positions alone.
//!
//! # Why these are not the rings of a cache
//!
//! The decision is the same code: cache and node pass the first candidate of each kind to
//! [`History::victim`]. The orders differ. A cache moves a block to the end of a linked ring at
//! each use, and counts a pinned block that the search meets as used. In a node a pinned value
//! stays at its position: clients hold pins for seconds, also across restarts, and the position is
//! in the index file. A value also becomes a candidate when its last child is evicted, at a
//! position that a ring finds only by walking.

use std::collections::{BTreeSet, VecDeque};

use kvmem::cache::History;

use super::local::Local;

/// The number of [priorities](kvmem::tier::Priority). Values of priority 0 are evicted first.
pub(super) const PRIORITIES: usize = kvmem::tier::Priority::MAX.get() as usize + 1;

/// Records that a list may have at any rate, stale ones included.
const MIN_RECORDS: usize = 64;

/// A value with its place in the order of use.
#[derive(Clone, Copy, Debug)]
struct Record {
    order: u64,
    slot: u32,
}

impl Record {
    /// Returns whether the value still has this place.
    fn is_current(self, locals: &[Local]) -> bool {
        let local = &locals[self.slot as usize];
        local.queued && local.order == self.order
    }
}

/// One list.
#[derive(Clone, Debug, Default)]
pub(super) struct List {
    /// Records with rising places.
    uses: VecDeque<Record>,
    /// Late values by their places.
    late: BTreeSet<(u64, u32)>,
    /// With more records than this, stale ones are removed.
    max_records: usize,
}

impl List {
    /// Adds the record of a value at the place that it has. Amortized O(1) for a place behind all
    /// others, otherwise O(log n) for n late values.
    pub(super) fn add(&mut self, locals: &mut [Local], slot: u32) {
        let local = &mut locals[slot as usize];
        local.queued = true;
        let order = local.order;
        if self.uses.back().is_none_or(|last| last.order < order) {
            self.uses.push_back(Record { order, slot });
        } else {
            self.late.insert((order, slot));
        }
        if self.uses.len() + self.late.len() > self.max_records.max(MIN_RECORDS) {
            self.uses.retain(|record| record.is_current(locals));
            self.late.retain(|&(order, slot)| Record { order, slot }.is_current(locals));
            self.max_records = 2 * (self.uses.len() + self.late.len());
        }
    }

    /// Removes the record of a value at a place, stale or not. O(n) for n records.
    fn remove(&mut self, order: u64, slot: u32) {
        self.late.remove(&(order, slot));
        let found = self.uses.binary_search_by_key(&order, |it| it.order);
        if let Some(at) = found.ok().filter(|at| self.uses[*at].slot == slot) {
            self.uses.remove(at);
        }
    }

    /// Returns the candidate that was used least recently and that no other thread reads.
    pub(super) fn victim(&mut self, locals: &mut [Local]) -> Option<u32> {
        while let Some(&Record { order, slot }) = self.uses.front() {
            let record = Record { order, slot };
            if record.is_current(locals) {
                let local = &mut locals[slot as usize];
                if !local.is_candidate() {
                    local.queued = false;
                } else if local.is_held() {
                    self.late.insert((order, slot));
                } else {
                    break;
                }
            }
            self.uses.pop_front();
        }
        let mut found = None;
        while let Some(&(order, slot)) = self.late.first() {
            let record = Record { order, slot };
            if record.is_current(locals) {
                let local = &mut locals[slot as usize];
                if local.is_candidate() {
                    // Values that another thread reads are few, and stay before the others.
                    let of_late = self.late.iter().map(|&(order, slot)| Record { order, slot });
                    let is_free = |it: &Record| {
                        let local = &locals[it.slot as usize];
                        it.is_current(locals) && local.is_candidate() && !local.is_held()
                    };
                    found = of_late.into_iter().find(is_free);
                    break;
                }
                local.queued = false;
            }
            self.late.pop_first();
        }
        let first = self.uses.front().copied();
        [found, first].into_iter().flatten().min_by_key(|it| it.order).map(|it| it.slot)
    }

    /// Returns all candidates, in their order.
    pub(super) fn candidates<'a>(&'a self, locals: &'a [Local]) -> impl Iterator<Item = u32> + 'a {
        let current =
            move |it: &Record| it.is_current(locals) && locals[it.slot as usize].is_candidate();
        let late = self.late.iter().map(|&(order, slot)| Record { order, slot });
        let mut late = late.filter(current).peekable();
        let mut uses = self.uses.iter().copied().filter(current).peekable();
        std::iter::from_fn(move || {
            let is_late = match (late.peek(), uses.peek()) {
                (Some(one), Some(other)) => one.order <= other.order,
                (one, _) => one.is_some(),
            };
            if is_late { late.next() } else { uses.next() }.map(|it| it.slot)
        })
    }

    /// Returns whether there is a candidate.
    pub(super) fn has_candidates(&self, locals: &[Local]) -> bool {
        self.candidates(locals).next().is_some()
    }

    /// Returns the places and the values of all records that are not stale, in no order.
    pub(super) fn records<'a>(
        &'a self,
        locals: &'a [Local],
    ) -> impl Iterator<Item = (u64, u32)> + 'a {
        let late = self.late.iter().map(|&(order, slot)| Record { order, slot });
        let all = self.uses.iter().copied().chain(late);
        all.filter(|it| it.is_current(locals)).map(|it| (it.order, it.slot))
    }
}

/// The lists of one priority: one for each kind of value. Without a history all values are of the
/// first kind.
#[derive(Clone, Debug, Default)]
pub(super) struct Lists([List; History::KINDS]);

impl Lists {
    /// Adds the record of a value, as [`List::add`].
    pub(super) fn add(&mut self, locals: &mut [Local], history: Option<&History>, slot: u32) {
        let kind = history.map_or(0, |history| history.kind(slot));
        self.0[kind].add(locals, slot);
    }

    /// Removes the record of a value at a place, as [`List::remove`].
    pub(super) fn remove(&mut self, order: u64, slot: u32) {
        self.0.iter_mut().for_each(|list| list.remove(order, slot));
    }

    /// Returns the value to evict first, as [`List::victim`].
    pub(super) fn victim(
        &mut self,
        locals: &mut [Local],
        history: Option<&History>,
    ) -> Option<u32> {
        let firsts = self.0.each_mut().map(|list| list.victim(locals));
        first_of(history, firsts)
    }

    /// Returns all candidates, in the order in which they would be evicted now.
    pub(super) fn candidates<'a>(
        &'a self,
        locals: &'a [Local],
        history: Option<&'a History>,
    ) -> impl Iterator<Item = u32> + 'a {
        let mut lists = self.0.each_ref().map(|list| list.candidates(locals).peekable());
        std::iter::from_fn(move || {
            let firsts = lists.each_mut().map(|list| list.peek().copied());
            let first = first_of(history, firsts)?;
            lists.iter_mut().find_map(|list| list.next_if_eq(&first))
        })
    }

    /// Returns whether there is a candidate.
    pub(super) fn has_candidates(&self, locals: &[Local]) -> bool {
        self.0.iter().any(|list| list.has_candidates(locals))
    }

    /// Returns the list of each kind.
    pub(super) fn by_kind(&self) -> &[List; History::KINDS] {
        &self.0
    }
}

/// Returns the value to evict first, of the first candidates by kind.
fn first_of(history: Option<&History>, firsts: [Option<u32>; History::KINDS]) -> Option<u32> {
    match history {
        Some(history) => history.victim(firsts),
        None => firsts[0],
    }
}

#[cfg(test)]
mod tests {
    use kvmem::offset::RawHandle;

    use super::*;

    /// The histories of a whole node judge every victim.
    #[test]
    fn stale_records_take_no_memory() {
        let mut list = List::default();
        let mut locals = vec![Local::new(RawHandle::from_bits(0)); 10];
        for order in 1..=10_000 {
            let slot = (order % 10) as u32;
            locals[slot as usize].order = order;
            list.add(&mut locals, slot);
        }
        assert!(list.uses.len() <= MIN_RECORDS, "{}", list.uses.len());
        assert!(list.candidates(&locals).eq((1..10).chain([0])));
    }

    /// When more than half of the records may be stale, these go: a use takes O(1) on average.
    #[test]
    fn records_are_dropped_when_half_of_them_may_be_stale() {
        let mut list = List::default();
        let mut locals = vec![Local::new(RawHandle::from_bits(0)); 100];
        let use_of = |list: &mut List, locals: &mut Vec<Local>, slot: u32, order: u64| {
            locals[slot as usize].order = order;
            list.add(locals, slot);
        };
        // Twenty values come at places before the others.
        (0..80).for_each(|slot| use_of(&mut list, &mut locals, slot, 1000 + u64::from(slot)));
        (80..100).for_each(|slot| use_of(&mut list, &mut locals, slot, u64::from(slot)));
        assert_eq!((list.uses.len(), list.late.len()), (80, 20));
        let order: Vec<u32> = (80..100).chain(0..80).collect();
        assert!(list.candidates(&locals).eq(order));
        for at in 0..10_000_u64 {
            let slot = (at * 37 % 80) as u32;
            use_of(&mut list, &mut locals, slot, 2000 + at);
            let records = list.uses.len() + list.late.len();
            assert!((100..=200).contains(&records), "{records} after {at} uses");
        }
        assert_eq!((list.late.len(), list.max_records), (20, 200));
    }
}
