//! *Check*: the numbered invariants of a node, for tests and fuzz targets.

use super::lists::PRIORITIES;
use super::node::Node;
use crate::format::{MAX_SESSIONS, State};

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
    /// 8. The words of a session have begun, and those of one that ends have ended.
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
        self.check_words()?;
        let mut is_free = vec![false; self.locals.len()];
        let free = self.free_slots();
        let twice = free.iter().any(|it| std::mem::replace(&mut is_free[*it as usize], true));
        if twice || used.iter().any(|it| is_free[*it as usize]) {
            return Err("6: an entry is free twice, or free and in use".to_owned());
        }
        if used.len() + free.len() != self.locals.len() {
            let (used, all) = (used.len(), self.locals.len());
            return Err(format!("6: {used} entries in use and {} free are not {all}", free.len()));
        }
        Ok(())
    }

    fn check_words(&self) -> Result<(), String> {
        for (session, it) in self.sessions.all() {
            let (number, ends) = (session.number(), it.ends());
            let begun = self.memory.session_file.has_begun(number);
            if begun == ends {
                return Err(format!("8: session {number} ends: {ends}, its words go on: {begun}"));
            }
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
        let mut pins = vec![0; self.locals.len()];
        let mut users = vec![Users::default(); self.locals.len()];
        for (session, it) in self.sessions.all() {
            for slot in it.pins.keys() {
                pins[*slot as usize] += 1;
                add(&mut users[*slot as usize], session.number());
            }
            for slot in it.reservations.keys() {
                add(&mut users[*slot as usize], session.number());
            }
        }
        for (slot, count) in &self.server_pins {
            pins[*slot as usize] += count;
        }
        let listed = self.check_order()?;
        for &slot in used {
            let (had, local) =
                (std::mem::take(&mut pins[slot as usize]), &self.locals[slot as usize]);
            let counted = local.pins;
            if had != counted {
                return Err(format!("3: {had} users have pins of entry {slot}, not {counted}"));
            }
            let (users, mut named) = (users[slot as usize], Users::default());
            self.entry(slot).users().for_each(|user| add(&mut named, user));
            if users != named {
                return Err(format!("3: entry {slot} is used by {users:x?} and names {named:x?}"));
            }
            let evictable = self.word(slot).state == State::Committed && local.is_candidate();
            if listed[slot as usize] != evictable {
                return Err(format!("4: entry {slot} is evictable: {evictable}, its list differs"));
            }
            let unpinned = self.word(slot).state == State::Committed && counted == 0;
            let namespace = self.entry(slot).namespace();
            if unpinned && !self.namespaces.get(namespace).has_candidates(&self.locals) {
                return Err(format!("7: entry {slot} and all of its namespace hold each other"));
            }
        }
        match pins.iter().position(|count| *count > 0) {
            None => Ok(()),
            Some(slot) => Err(format!("3: free entry {slot} is pinned")),
        }
    }

    fn check_sums(&self, used: &[u32]) -> Result<(), String> {
        let mut all_sums = vec![[0; 4]; self.namespaces.all().len()];
        for &slot in used.iter().filter(|slot| !self.unfinished_reads.contains(slot)) {
            let Some(sums) = all_sums.get_mut(usize::from(self.namespace_of(slot))) else {
                return Err(format!("5: entry {slot} is of no namespace"));
            };
            let is_pinned = u64::from(self.locals[slot as usize].pins > 0);
            let space = self.space_of(slot);
            let more = [space, 1, is_pinned, is_pinned * space];
            *sums = std::array::from_fn(|at| sums[at] + more[at]);
        }
        for (sums, it) in all_sums.into_iter().zip(self.namespaces.all()) {
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

    /// Returns which entries are candidates.
    fn check_order(&self) -> Result<Vec<bool>, String> {
        let mut recorded = vec![false; self.locals.len()];
        let mut listed = vec![false; self.locals.len()];
        for (namespace, it) in (0..).zip(self.namespaces.all()) {
            let lists = (0..).zip(it.lists());
            let of_kinds = lists
                .flat_map(|(priority, it)| (0..).zip(it.by_kind()).map(move |it| (priority, it)));
            for (priority, (kind, list)) in of_kinds {
                let mut last = 0;
                for slot in list.candidates(&self.locals) {
                    let order = self.entry(slot).order();
                    let twice = std::mem::replace(&mut listed[slot as usize], true);
                    if twice || order < last || order >= self.next_order {
                        return Err(format!(
                            "4: the file has entry {slot} of a list at {order}, behind {last}"
                        ));
                    }
                    last = order;
                }
                for (order, slot) in list.records(&self.locals) {
                    let entry = self.entry(slot);
                    let level = entry.priority().min(PRIORITIES as u8 - 1);
                    let of = (entry.namespace(), level, entry.order());
                    let own = self.history.as_ref().map_or(0, |it| it.kind(slot));
                    let twice = std::mem::replace(&mut recorded[slot as usize], true);
                    if of != (namespace, priority, order) || own != kind || twice {
                        return Err(format!("4: entry {slot} has two records, or is another's"));
                    }
                }
            }
        }
        Ok(listed)
    }
}

/// The numbers of sessions, as bits.
type Users = [u64; MAX_SESSIONS / 64];

fn add(users: &mut Users, number: usize) {
    users[number / 64] |= 1 << (number % 64);
}
