//! *Recovery*: one scan of the index file makes the state that an earlier server left.
//!
//! The server may have ended between any two stores. The [format](crate::format) makes each such
//! file a valid state:
//!
//! | the file has | the recovery makes of it |
//! |---|---|
//! | a batch named in the header | its prepared entries are committed, as the server would have |
//! | other prepared entries | reservations, whose clients repeat the commit |
//! | reservations and pins of clients that live | orphaned sessions, until the clients return |
//! | those of clients that are gone | free extents, unpinned values |
//! | reservations of the server itself | free extents, once no device reads into them any more |
//! | two values under one key | the one of the later batch |
//! | detached entries that nobody uses | free extents |
//!
//! The kernel says which clients live: see [the session file](crate::session_file). If it cannot
//! tell, they live.
//!
//! A killed server may have reads of its tier in flight: the kernel completes them after the
//! process is gone. Until then their blocks stay reserved. Everything that may write to the memory
//! for a server has a locked index file open, so the next server knows when they are over.
//!
//! No value's bytes are read. An entry that no server wrote, or whose checksum does not match, is
//! counted and becomes free.

use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

use super::node::Node;
use super::sessions::{ReservationState, Session, SessionPin};
use super::{NodeMemory, NodeOptions};
use crate::error::NodeError;
use crate::format::{MAX_SESSIONS, SessionRecord, State, TierRemovals, Word, announce};
use crate::session_file::SessionFile;

/// Figures of a recovery.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecoveryReport {
    /// Values that can be found again.
    pub values: u64,
    /// Bytes of those values.
    pub bytes: u64,
    /// Values of a batch whose commit the earlier server had not completed.
    pub completed: u64,
    /// Reservations that are free again because their client is gone.
    pub freed_reservations: u64,
    /// Sessions whose client lives: their pins and reservations are resumed.
    pub orphaned_sessions: u64,
    /// Sessions whose client is gone.
    pub ended_sessions: u64,
    /// Blocks into which a device may still read for an earlier server. They become free when that
    /// is over.
    pub unfinished_reads: u64,
    /// Entries that are damaged, and free now.
    pub damaged: u64,
}

/// The highest place in the order of use: a server that notes 10^9 uses a second reaches it after a
/// century.
const LAST_ORDER: u64 = 1 << 62;

/// Returns whether the client of a session may still live.
pub(super) fn may_live(sessions: &SessionFile, record: &SessionRecord) -> bool {
    sessions.is_locked(record.lock_at).unwrap_or(true)
}

impl Node {
    /// Makes the state that an earlier server left in its three files, whose
    /// [descriptors](crate::NodeServer::descriptors) were retained. O(n log n) for n entries that
    /// were ever used.
    ///
    /// # Errors
    /// [`NodeError::BadIndex`]: the files cannot be used. They are not changed then.
    pub fn recover(
        files: [OwnedFd; 3],
        options: NodeOptions,
    ) -> Result<(Node, RecoveryReport), NodeError> {
        let memory = NodeMemory::attach(files, options.max_size)?;
        Node::recover_memory(memory, options, may_live)
    }

    /// Makes the state of mapped files. `may_live` returns whether the client of a session may
    /// still live.
    pub(super) fn recover_memory(
        memory: NodeMemory,
        options: NodeOptions,
        may_live: impl Fn(&SessionFile, &SessionRecord) -> bool,
    ) -> Result<(Node, RecoveryReport), NodeError> {
        let mut node = Node::over(memory, options)?;
        let mut report = RecoveryReport::default();
        node.recover_namespaces()?;
        node.cover_used()?;
        // The file is whole, and may be changed from here on.
        node.recover_sessions(may_live, &mut report);
        let header = node.memory.header_cell();
        if header.tier_removals() == TierRemovals::Recovered {
            // The process that had the keys has ended before a tier removed them.
            header.set_tier_removals(TierRemovals::Unknown);
        }
        node.complete_batch(&mut report);
        let used = node.survey(&mut report);
        node.restore_extents(used, &mut report);
        node.end_unused(&mut report);
        node.restore_values(&mut report);
        node.count_holders();
        if report.damaged > 0 {
            // Nothing says whose blocks the damaged entries were.
            for session in node.all_sessions() {
                node.revoke_pins(session);
            }
        }
        Ok((node, report))
    }

    fn recover_sessions(
        &mut self,
        may_live: impl Fn(&SessionFile, &SessionRecord) -> bool,
        report: &mut RecoveryReport,
    ) {
        for number in 0..MAX_SESSIONS {
            let Some(record) = self.memory.sessions()[number].read() else { continue };
            // One that waits for its namespace has nothing, and begins anew.
            let known = usize::from(record.namespace) < self.namespaces.all().len();
            // The words of a session end before its record does: a server was killed between them.
            let begun = self.memory.session_file.has_begun(number);
            if known && begun && may_live(&self.memory.session_file, &record) {
                self.sessions.add_orphan(number, &record);
                report.orphaned_sessions += 1;
            } else {
                // First the words, then the blocks.
                self.memory.session_file.end(number);
                self.memory.sessions()[number].clear();
                report.ended_sessions += 1;
            }
        }
    }

    /// Completes or undoes the commit that the earlier server had begun.
    fn complete_batch(&mut self, report: &mut RecoveryReport) {
        let header = self.memory.header_cell();
        // Acquire: pairs with the Release of `announce` in `commit`, in the earlier process.
        let batch = header.committing.load(Ordering::Acquire);
        for entry in &self.memory.entries()[..self.locals.len()] {
            let Some(word) = entry.word().filter(|word| word.state == State::Prepared) else {
                continue;
            };
            if batch != 0 && entry.batch() == batch && entry.commit_is_whole(word) {
                entry.commit(word);
                report.completed += 1;
            } else {
                entry.unprepare(word);
            }
        }
        announce(&header.committing, 0);
    }

    /// Returns the entries with extents, in the order of their offsets, and collects those without.
    fn survey(&mut self, report: &mut RecoveryReport) -> Vec<(u64, u32)> {
        let (mut used, mut free) = (Vec::new(), Vec::new());
        let known = self.namespaces.all().len();
        for (slot, entry) in (0..self.locals.len() as u32).zip(self.memory.entries()) {
            let is_whole = |word: Word| {
                let keyed = matches!(word.state, State::Committed | State::Detached);
                let named = usize::from(entry.namespace()) < known && word.key_len > 0;
                entry.extent_is_whole(word.generation)
                    && (!keyed || (named && entry.commit_is_whole(word)))
            };
            match entry.word() {
                Some(word) if word.state == State::Free => free.push(slot),
                Some(word) if is_whole(word) => used.push((entry.extent().start, slot)),
                _ => {
                    report.damaged += 1;
                    entry.free(entry.generation());
                    free.push(slot);
                }
            }
        }
        free.into_iter().rev().for_each(|slot| self.add_free_slot(slot));
        used.sort_unstable();
        used
    }

    /// Allocates the extents of entries again. Of two entries that overlap, the second one is
    /// damaged.
    fn restore_extents(&mut self, used: Vec<(u64, u32)>, report: &mut RecoveryReport) {
        let (mut damaged, mut end) = (Vec::new(), 0);
        for (_, slot) in used {
            let range = self.range_of(self.entry(slot).extent());
            match self.space.allocate_raw_at(range.clone()) {
                Ok(extent) => (self.locals[slot as usize].extent, end) = (extent.handle, range.end),
                Err(_) => damaged.push(slot),
            }
        }
        self.fit_space(Some(end));
        for slot in damaged {
            report.damaged += 1;
            let entry = self.entry(slot);
            entry.free(entry.generation());
            self.add_free_slot(slot);
        }
    }

    /// Frees what nobody uses any more, and gives the rest to its sessions.
    fn end_unused(&mut self, report: &mut RecoveryReport) {
        let may_be_read_into = self.memory.has_earlier_transfers();
        for slot in 0..self.locals.len() as u32 {
            let entry = &self.memory.entries()[slot as usize];
            let Some(word) = entry.word().filter(|word| word.state != State::Free) else {
                continue;
            };
            if may_be_read_into && word.state == State::Reserved && entry.users().next().is_none() {
                // The earlier server has reserved it for a value of its tier.
                self.unfinished_reads.push(slot);
                report.unfinished_reads += 1;
                continue;
            }
            for user in entry.users().collect::<Vec<_>>() {
                if self.sessions.at(user).is_none() {
                    self.entry(slot).remove_user(user);
                }
            }
            let users: Vec<usize> = self.entry(slot).users().collect();
            match word.state {
                State::Reserved => match users.first() {
                    Some(&user) => {
                        // No server writes more than one.
                        users[1..].iter().for_each(|other| self.entry(slot).remove_user(*other));
                        self.restore_reservation(user, slot);
                    }
                    None => {
                        report.freed_reservations += 1;
                        self.free_recovered(slot, word);
                    }
                },
                State::Detached if users.is_empty() => {
                    self.recover_removal(slot, word);
                    self.free_recovered(slot, word);
                }
                _ => {
                    self.recover_removal(slot, word);
                    let (namespace, space) = (self.entry(slot).namespace(), self.space_of(slot));
                    self.namespaces.at(namespace).add_block(space);
                    for user in &users {
                        let session = self.session_numbered(*user);
                        session.pins.insert(slot, SessionPin::of(1));
                        session.pinned_bytes += space;
                    }
                    self.locals[slot as usize].pins = users.len() as u32;
                    if !users.is_empty() {
                        let namespace = self.namespaces.at(namespace);
                        namespace.pinned += 1;
                        namespace.pinned_bytes += space;
                    }
                }
            }
        }
    }

    /// Takes over a removal from the tier that the earlier server did not finish. The entry that
    /// names the key becomes free now, or when its last pin ends.
    fn recover_removal(&mut self, slot: u32, word: Word) {
        let entry = self.entry(slot);
        if word.state != State::Detached || !entry.is_to_remove() {
            return;
        }
        let named = (entry.namespace(), entry.key()[..word.key_len.into()].to_vec());
        self.to_remove.push(named);
        let header = self.memory.header_cell();
        if header.tier_removals() == TierRemovals::None {
            header.set_tier_removals(TierRemovals::Recovered);
        }
    }

    /// Frees the blocks into which a device read for an earlier server, if that is over.
    pub(crate) fn end_unfinished_reads(&mut self) {
        if self.unfinished_reads.is_empty() || self.memory.has_earlier_transfers() {
            return;
        }
        for slot in std::mem::take(&mut self.unfinished_reads) {
            self.free_recovered(slot, self.word(slot));
        }
    }

    fn session_numbered(&mut self, number: usize) -> &mut Session {
        self.sessions.at_mut(number).expect("the session lives")
    }

    fn restore_reservation(&mut self, user: usize, slot: u32) {
        let space = self.space_of(slot);
        let session = self.session_numbered(user);
        session.reservations.insert(slot, ReservationState::default());
        session.reserved_bytes += space;
        let namespace = session.namespace;
        self.namespaces.at(namespace).add_block(space);
    }

    fn free_recovered(&mut self, slot: u32, word: Word) {
        self.entry(slot).free(word.generation);
        self.free_space(slot);
        self.add_free_slot(slot);
    }

    /// Makes the values known under their keys, and evictable in the order of their last use.
    fn restore_values(&mut self, report: &mut RecoveryReport) {
        let mut values: Vec<(u64, u64, u32)> = (0..self.locals.len() as u32)
            .filter(|slot| self.word(*slot).state == State::Committed)
            .map(|slot| (self.entry(slot).order(), self.entry(slot).batch(), slot))
            .collect();
        values.sort_unstable();
        let last = values.last().map_or(0, |(order, _, _)| *order);
        if last <= LAST_ORDER {
            self.next_order = last + 1;
        } else {
            // No server counts that far: the word is damaged.
            values.iter().for_each(|(_, _, slot)| self.set_order(*slot));
        }
        self.chains.begin_linking(values.len());
        self.reserve_keys(values.len());
        for (_, batch, slot) in values {
            let word = self.word(slot);
            let (namespace, key) = (self.entry(slot).namespace(), self.entry(slot).key());
            let key = &key[..word.key_len.into()];
            // The earlier server ended between a commit and the end of the value before.
            match self.find(namespace, key) {
                Some(other) if self.entry(other).batch() >= batch => self.withdraw_unknown(slot),
                Some(other) => {
                    self.withdraw(other, super::EventKind::Replaced);
                    self.enter(slot, |_| false);
                }
                None => self.enter(slot, |_| false),
            }
        }
        let values: HashSet<u32> = self.committed_slots().collect();
        report.values = values.len() as u64;
        report.bytes = values.iter().map(|slot| self.len_of(*slot)).sum();
    }

    /// Withdraws a committed value that is not known under its key.
    fn withdraw_unknown(&mut self, slot: u32) {
        if self.locals[slot as usize].pins > 0 {
            self.entry(slot).detach(self.word(slot));
        } else {
            self.release_extent(slot);
        }
    }
}
