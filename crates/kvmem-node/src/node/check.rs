//! *Check*: the numbered invariants of a node, for tests and fuzz targets.

use std::collections::{HashMap, HashSet};

use super::node::Node;
use crate::format::State;

impl Node {
    /// Checks the invariants:
    ///
    /// 1. The extents of entries in use do not overlap, lie in the memory, and are allocated.
    /// 2. A key has one committed entry, which is found under it, and no other entry is.
    /// 3. An entry counts the sessions that have pins of it, and the server's own pins, and has the
    ///    bits of those sessions.
    /// 4. A committed entry that has no pin and that no child holds is a candidate of its list,
    ///    once, and no other entry is. The index file has the order of each list.
    /// 5. The sums of namespaces, sessions and holders are those of their entries. Blocks of
    ///    unfinished reads are in no sum.
    /// 6. Every entry that was used is in use or in the list of free entries, and not in both.
    /// 7. The children of a value are counted, and so are those that hold it and the dead bytes. No
    ///    value is its own ancestor. If there are unpinned values, one of them is a candidate.
    ///
    /// O(entries + sessions × pins).
    ///
    /// # Errors
    /// The invariant that is violated: a defect of this library.
    pub fn check(&self) -> Result<(), String> {
        let used: Vec<u32> = (0..self.locals.len() as u32)
            .filter(|it| self.word(*it).state != State::Free)
            .collect();
        self.check_extents(&used)?;
        self.check_keys(&used)?;
        self.check_pins(&used)?;
        self.check_sums(&used)?;
        self.check_chains()?;
        let free: HashSet<u32> = self.free_slots().iter().copied().collect();
        let apart = used.iter().all(|slot| !free.contains(slot));
        if free.len() != self.free_slots().len() || !apart {
            return Err("6: an entry is free twice, or free and in use".to_owned());
        }
        if used.len() + free.len() != self.locals.len() {
            let (used, all) = (used.len(), self.locals.len());
            return Err(format!("6: {used} entries in use and {} free are not {all}", free.len()));
        }
        Ok(())
    }

    fn check_extents(&self, used: &[u32]) -> Result<(), String> {
        let mut extents: Vec<_> =
            used.iter().map(|slot| (self.entry(*slot).extent(), *slot)).collect();
        extents.sort_unstable_by_key(|(extent, _)| extent.start);
        for pair in extents.windows(2) {
            if pair[0].0.end > pair[1].0.start {
                return Err(format!("1: entries {} and {} overlap", pair[0].1, pair[1].1));
            }
        }
        let mut sum = 0;
        for (extent, slot) in extents {
            let extent = self.range_of(extent);
            let allocated = self.space.resolve_raw(self.locals[slot as usize].extent);
            if allocated.as_ref() != Ok(&extent) {
                return Err(format!("1: entry {slot} has {extent:?}, allocated is {allocated:?}"));
            }
            sum += extent.end - extent.start;
        }
        let allocated = self.used();
        if sum != allocated {
            return Err(format!("1: {sum} bytes are in use and {allocated} are allocated"));
        }
        self.space.check().map_err(|error| format!("1: {error}"))
    }

    fn check_keys(&self, used: &[u32]) -> Result<(), String> {
        let mut committed = 0;
        for &slot in used {
            let (word, entry) = (self.word(slot), self.entry(slot));
            if word.state != State::Committed {
                continue;
            }
            committed += 1;
            let key = &entry.key()[..word.key_len.into()];
            let found = self.find(entry.namespace(), key);
            if found != Some(slot) {
                return Err(format!("2: entry {slot} has a key under which {found:?} is found"));
            }
        }
        if committed != self.len() {
            return Err(format!("2: {committed} entries are committed, {} are found", self.len()));
        }
        Ok(())
    }

    fn check_pins(&self, used: &[u32]) -> Result<(), String> {
        let mut pins: HashMap<u32, u32> = HashMap::new();
        let mut users: HashMap<u32, HashSet<usize>> = HashMap::new();
        for (session, it) in self.sessions.all() {
            for slot in it.pins.keys() {
                *pins.entry(*slot).or_default() += 1;
                users.entry(*slot).or_default().insert(session.number());
            }
            for slot in it.reservations.keys() {
                users.entry(*slot).or_default().insert(session.number());
            }
        }
        for (slot, count) in &self.server_pins {
            *pins.entry(*slot).or_default() += count;
        }
        self.check_order()?;
        let listed = self.listed();
        for &slot in used {
            let had = pins.remove(&slot).unwrap_or(0);
            let counted = self.locals[slot as usize].pins;
            if had != counted {
                return Err(format!("3: {had} users have pins of entry {slot}, not {counted}"));
            }
            let users = users.remove(&slot).unwrap_or_default();
            let bits: HashSet<usize> = self.entry(slot).users().collect();
            if users != bits {
                return Err(format!("3: entry {slot} is used by {users:?} and names {bits:?}"));
            }
            let local = &self.locals[slot as usize];
            let evictable = self.word(slot).state == State::Committed && local.is_candidate();
            if listed.contains(&slot) != evictable {
                return Err(format!("4: entry {slot} is evictable: {evictable}, its list differs"));
            }
            let unpinned = self.word(slot).state == State::Committed && counted == 0;
            let namespace = self.entry(slot).namespace();
            if unpinned && !self.namespaces.get(namespace).has_candidates(&self.locals) {
                return Err(format!("7: entry {slot} and all of its namespace hold each other"));
            }
        }
        if pins.is_empty() { Ok(()) } else { Err(format!("3: free entries are pinned: {pins:?}")) }
    }

    fn check_sums(&self, used: &[u32]) -> Result<(), String> {
        let (mut bytes, mut pinned) = (HashMap::<u16, u64>::new(), HashMap::<u16, u64>::new());
        let mut pinned_bytes = HashMap::<u16, u64>::new();
        let mut entries = HashMap::<u16, u64>::new();
        for &slot in used.iter().filter(|slot| !self.unfinished_reads.contains(slot)) {
            let namespace = self.namespace_of(slot);
            *bytes.entry(namespace).or_default() += self.space_of(slot);
            *entries.entry(namespace).or_default() += 1;
            if self.locals[slot as usize].pins > 0 {
                *pinned.entry(namespace).or_default() += 1;
                *pinned_bytes.entry(namespace).or_default() += self.space_of(slot);
            }
        }
        for (number, it) in (0..).zip(self.namespaces.all()) {
            let sums = [&bytes, &entries, &pinned, &pinned_bytes];
            let sums = sums.map(|sum| sum.get(&number).copied().unwrap_or(0));
            let counted = [it.bytes, it.entries(), it.pinned, it.pinned_bytes];
            if sums != counted {
                return Err(format!("5: {} has {sums:?}, counted are {counted:?}", it.name));
            }
        }
        for (session, it) in self.sessions.all() {
            let sum: u64 = it.reservations.keys().map(|slot| self.space_of(*slot)).sum();
            let fenced = it.reservations.iter().filter(|(_, reservation)| reservation.fenced);
            let fenced: u64 = fenced.map(|(slot, _)| self.space_of(*slot)).sum();
            let pinned: u64 = it.pins.keys().map(|slot| self.space_of(*slot)).sum();
            let (sums, number) = ([sum, fenced, pinned], session.number());
            let counted = [it.reserved_bytes, it.fenced_bytes, it.pinned_bytes];
            if sums != counted {
                return Err(format!(
                    "5: session {number} has {sums:?} bytes, counted are {counted:?}"
                ));
            }
        }
        self.check_holdings()
    }

    fn check_order(&self) -> Result<(), String> {
        let mut recorded = HashSet::new();
        for (namespace, it) in (0..).zip(self.namespaces.all()) {
            let lists = (0..).zip(it.lists());
            let of_kinds = lists
                .flat_map(|(priority, it)| (0..).zip(it.by_kind()).map(move |it| (priority, it)));
            for (priority, (kind, list)) in of_kinds {
                let order = |slot| self.entry(slot).order();
                let orders: Vec<u64> = list.candidates(&self.locals).map(order).collect();
                let last = orders.last().copied().unwrap_or(0);
                if !orders.is_sorted() || last >= self.next_order {
                    return Err(format!("4: the file has another order of a list: {orders:?}"));
                }
                for (order, slot) in list.records(&self.locals) {
                    let entry = self.entry(slot);
                    let of = (entry.namespace(), entry.priority(), entry.order());
                    let own = self.history.as_ref().map_or(0, |it| it.kind(slot));
                    if of != (namespace, priority, order) || own != kind || !recorded.insert(slot) {
                        return Err(format!("4: entry {slot} has two records, or is another's"));
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns the entries of all lists.
    fn listed(&self) -> HashSet<u32> {
        let lists = self.namespaces.all().iter().flat_map(|it| it.lists());
        lists.flat_map(|list| list.candidates(&self.locals, self.history.as_deref())).collect()
    }
}
