//! *Checkpoint*: the index is written in pieces, while values are stored and fetched.
//!
//! A checkpoint [begins](DiskTier::begin_checkpoint) when three quarters of the journal are used.
//! From then on, a thread that has written a block of the journal writes pieces of the checkpoint
//! as well, as many as are due for it to be complete after another eighth. A piece locks the state
//! for a few hundred microseconds, to copy entries, and the journal while it is written. No call
//! waits for more than a piece, except for the end of the checkpoint, which takes three syncs.
//!
//! # Why the pieces make an index
//!
//! A piece has the entries as they are when it is copied, so the checkpoint as a whole is the index
//! of no moment. It has each entry that was there at the begin and still is, as
//! [`Index::walk`](crate::index::Index::walk) says, and of those that were replaced or removed
//! meanwhile some. The changes since the begin make up for that: they are recorded in the
//! [window](super::state::Window), and written to the *other* journal, in their order, behind which
//! the next changes follow. Replayed on any mixture of the states since the begin, they lead to the
//! state after them: the last change of a key decides what the key has, and a removal removes only
//! values of lower numbers than its own.
//!
//! The journal in use has each change as well, as at any other time. Until the superblock names the
//! new checkpoint, a process that opens the file reads the old one and the whole of that journal.
//! The superblock is written last: after the checkpoint, all changes up to that moment in the other
//! journal, and a sync of all of this and of the values that it names. A power cut therefore finds
//! one index or the other, each complete.
//!
//! # Why blocks that were left behind are never read
//!
//! A process that is killed before the superblock is written leaves blocks of changes in the other
//! journal, and the next process uses that journal first. The blocks must not pass for those that
//! it writes there. If the superblock has the epoch *n*, the window has the epoch *n* + 2. The next
//! process goes on with *n* + 1 in that journal, and *n* + 2 in the one after it; in this journal
//! it will not use *n* + 2, since both the epoch and the journal change with each checkpoint.
//! Programs of before, which add 1 at each checkpoint, never use *n* + 2 there either: the format
//! is the same.
//!
//! # At the end
//!
//! A tier that is dropped writes a checkpoint if anything was stored or removed since the last one.
//! Its syncs make the values durable, so none of them is unverified when the file is opened again,
//! and no journal is read. The time for it is bounded: entries of a large tier take seconds. If the
//! time is over, or a write fails, the old checkpoint and the journal are valid as they were.
//!
//! # When the changes are too many
//!
//! If more changes come than the other journal has room for, such as those of a call that removes
//! everything, the checkpoint is abandoned. A *snapshot* takes its place: the entries of one
//! moment, copied at once, with the epoch *n* + 1 and no changes behind them.

use std::mem::take;
use std::time::{Duration, Instant};

use super::error::TierError;
use super::journal::Journal;
use super::partial::{PartialCheckpoint, Switch};
use super::tier::DiskTier;
use crate::device::{AlignedBuffer, Device};
use crate::format::{
    BLOCK, Change, PackedBlock, RECORDS_PER_BLOCK, RecentKeys, Superblock, block_parts,
    write_checkpoint_block,
};
use crate::trace::event;

/// Entries of a piece at most: 128 KiB.
const MAX_PIECE: usize = 32 * RECORDS_PER_BLOCK;
/// The most time for the checkpoint of a tier that is dropped.
const MAX_LAST_CHECKPOINT: Duration = Duration::from_secs(10);
/// A checkpoint has at least this many pieces, if it has as many blocks.
const PIECES: usize = 16;

impl<D: Device> DiskTier<D> {
    /// Writes what is due of a checkpoint, after blocks have been added to the journal.
    pub(super) fn advance_checkpoint(&self, journal: &mut Journal) -> Result<(), TierError> {
        let blocks = journal.superblock.layout.journals[0].blocks();
        let used = u64::from(journal.next_block);
        if used < blocks - blocks / 4 {
            return Ok(());
        }
        let mut partial = match journal.partial.take() {
            Some(partial) => partial,
            None => {
                self.check_owner(&journal.superblock)?;
                self.begin_checkpoint(journal, 2)
            }
        };
        let room = (blocks / 8).max(1);
        let share = (used + 1 - u64::from(partial.began_at)).min(room);
        let due = partial.entries - (partial.entries as u64 * share / room) as usize;
        while partial.left > due {
            self.write_piece(&mut partial)?;
        }
        if partial.left == 0 {
            return self.end_checkpoint(journal, partial);
        }
        journal.partial = Some(partial);
        Ok(())
    }

    /// Writes a checkpoint, or the rest of the one that has begun, after which the other journal is
    /// in use. The epoch of a new one is higher by `step`: 1 if nothing changes meanwhile, else 2.
    /// Returns false if the moment `until` comes before: the checkpoint stays one that has begun.
    pub(super) fn write_checkpoint(
        &self,
        journal: &mut Journal,
        step: u64,
        until: Option<Instant>,
    ) -> Result<bool, TierError> {
        let mut partial = match journal.partial.take() {
            Some(partial) => partial,
            None => {
                self.check_owner(&journal.superblock)?;
                self.begin_checkpoint(journal, step)
            }
        };
        while partial.left > 0 {
            if until.is_some_and(|until| Instant::now() >= until) {
                journal.partial = Some(partial);
                return Ok(false);
            }
            self.write_piece(&mut partial)?;
        }
        self.end_checkpoint(journal, partial).map(|()| true)
    }

    fn begin_checkpoint(&self, journal: &Journal, step: u64) -> PartialCheckpoint {
        let mut state = self.state();
        let entries = state.begin_window();
        let old = journal.superblock.clone();
        let superblock = Superblock {
            epoch: old.epoch + step,
            journal: 1 - old.journal,
            checkpoint: 1 - old.checkpoint,
            checkpoint_blocks: 0,
            ..old
        };
        PartialCheckpoint {
            superblock,
            next_block: 0,
            recent: RecentKeys::default(),
            entries,
            left: entries,
            began_at: journal.next_block,
            rest: state.quarantined_changes().collect(),
        }
    }

    /// Writes a piece of the checkpoint, and the changes since it began if they fill a block.
    fn write_piece(&self, partial: &mut PartialCheckpoint) -> Result<(), TierError> {
        let steps = (partial.entries / PIECES).clamp(RECORDS_PER_BLOCK, MAX_PIECE);
        let changes = {
            let mut state = self.state();
            let rest = &mut partial.rest;
            partial.left = state.index.walk(steps, |entry| rest.push(Change::Stored(entry)));
            state.window_changes(RECORDS_PER_BLOCK)
        };
        self.write_entries(partial, false)?;
        let packed = partial.recent.pack(&changes);
        if !partial.has_room(packed.len()) {
            self.state().overflow_window();
            return Ok(());
        }
        self.write_window(partial, &packed)
    }

    /// Writes the whole blocks of what is left of the checkpoint; with `all` the last one, too.
    fn write_entries(&self, partial: &mut PartialCheckpoint, all: bool) -> Result<(), TierError> {
        let changes = take(&mut partial.rest);
        let mut parts: Vec<&[Change]> = block_parts(&changes).collect();
        if !all && let Some(last) = parts.pop() {
            partial.rest = last.to_vec();
        }
        if all && partial.superblock.checkpoint_blocks == 0 && parts.is_empty() {
            parts.push(&[]);
        }
        let Superblock { file, epoch, checkpoint, layout, .. } = partial.superblock;
        let area = layout.checkpoints[checkpoint as usize];
        let first = partial.superblock.checkpoint_blocks;
        let end = first + parts.len() as u64;
        assert!(end <= area.blocks(), "{} entries are too many", partial.entries);
        let mut buffer = AlignedBuffer::new(parts.len());
        for ((index, changes), bytes) in (first..).zip(&parts).zip(buffer.chunks_exact_mut(BLOCK)) {
            write_checkpoint_block(file, epoch, index as u32, changes, bytes);
        }
        partial.superblock.checkpoint_blocks = end;
        if parts.is_empty() {
            return Ok(());
        }
        self.write_metadata(area.block(first as u32), &buffer)
    }

    /// Writes changes since the begin of the checkpoint to the other journal, which has room for
    /// them.
    fn write_window(
        &self,
        partial: &mut PartialCheckpoint,
        blocks: &[PackedBlock<'_>],
    ) -> Result<(), TierError> {
        if blocks.is_empty() {
            return Ok(());
        }
        // None is durable before the superblock names them, which counts them.
        let durable = if self.device.writes_are_durable() { partial.next_block } else { 0 };
        self.write_packed(&partial.superblock, &mut partial.next_block, blocks, durable)
    }

    /// Makes the checkpoint valid, all of whose entries were met. Changes that come later are in
    /// neither journal yet, since that is locked.
    fn end_checkpoint(
        &self,
        journal: &mut Journal,
        mut partial: PartialCheckpoint,
    ) -> Result<(), TierError> {
        let window = {
            let mut state = self.state();
            state.end_window().map(|changes| (changes, state.position(), state.next_number))
        };
        let Some((changes, position, next_number)) = window else {
            return self.write_snapshot(journal);
        };
        let packed = partial.recent.pack(&changes);
        if !partial.has_room(packed.len()) {
            return self.write_snapshot(journal);
        }
        self.write_entries(&mut partial, true)?;
        self.write_window(&mut partial, &packed)?;
        let new = Superblock { next_number, ..partial.superblock };
        self.switch(journal, new, (partial.next_block, partial.recent), position)
    }

    /// Writes the entries of one moment, which are copied at once.
    fn write_snapshot(&self, journal: &mut Journal) -> Result<(), TierError> {
        journal.partial = None;
        let (mut partial, position, next_number) = {
            let mut partial = self.begin_checkpoint(journal, 1);
            let mut state = self.state();
            // Changes between the two locks are in what is copied now.
            let rest = &mut partial.rest;
            rest.clear();
            rest.extend(state.quarantined_changes());
            partial.left = state.index.walk(usize::MAX, |_| {});
            rest.extend(state.index.entries().map(Change::Stored));
            let _ = state.end_window();
            (partial, state.position(), state.next_number)
        };
        self.write_entries(&mut partial, true)?;
        let new = Superblock { next_number, ..partial.superblock };
        self.switch(journal, new, (0, RecentKeys::default()), position)
    }

    /// Makes `superblock` the valid one, whose checkpoint and first `next_block` blocks of the
    /// journal have all changes before `position`. `recent` are the keys of these blocks.
    fn switch(
        &self,
        journal: &mut Journal,
        superblock: Superblock,
        (next_block, recent): (u32, RecentKeys),
        position: u64,
    ) -> Result<(), TierError> {
        // What the superblock leads to, and the values that it names, must not be lost when the
        // superblock is not.
        self.sync()?;
        // Without the two superblocks that are written now.
        let lifetime_bytes = self.state().lifetime_bytes();
        let owner = Some(self.owner);
        // Namespaces may have come and gone since the checkpoint began.
        let Superblock { generation, namespaces, .. } = journal.superblock.clone();
        let superblock = Superblock {
            generation: generation + 1,
            namespaces,
            lifetime_bytes,
            counted_blocks: next_block,
            owner,
            ..superblock
        };
        self.check_owner(&journal.superblock)?;
        journal.switch = Some(Switch { superblock, next_block, recent, position });
        self.end_switch(journal)
    }

    /// Writes the index of a tier whose journal has failed anew, if the tier is still that of this
    /// process.
    pub(super) fn write_index_anew(&self, journal: &mut Journal) -> Result<(), TierError> {
        let switch = journal.switch.as_ref();
        self.check_owner(switch.map_or(&journal.superblock, |it| &it.superblock))?;
        self.end_switch(journal)?;
        self.write_snapshot(journal)
    }

    /// Makes the superblock of a [`Switch`] the valid one, if there is one. If the device fails,
    /// one copy of it may be in place: what it leads to stays as it is until both are.
    fn end_switch(&self, journal: &mut Journal) -> Result<(), TierError> {
        let Some(Switch { superblock, .. }) = &journal.switch else { return Ok(()) };
        let _failed = self.write_superblocks(superblock)?;
        if !journal.is_open {
            // Another process may have opened the tier at the same moment.
            self.check_owner(superblock)?;
        }
        let switch = journal.switch.take().expect("it is there");
        let Switch { superblock, next_block, recent, position } = switch;
        journal.superblock = superblock;
        journal.next_block = next_block;
        journal.recent = recent;
        journal.durable = position;
        (journal.durable_blocks, journal.syncing_blocks) = (next_block, 0);
        journal.is_open = true;
        let mut state = self.state();
        state.end_queued(position);
        state.stats.checkpoints += 1;
        drop(state);
        self.free_retired(position);
        Ok(())
    }

    /// Writes a checkpoint now: opening the tier after it reads no journal, unless values are
    /// stored or removed meanwhile.
    ///
    /// # Errors
    /// [`TierError`]: the tier is read-only then.
    pub fn checkpoint(&self) -> Result<(), TierError> {
        self.owned()?;
        self.begin_anew();
        let mut journal = self.journal();
        self.usable()?;
        self.write_whole_checkpoint(&mut journal, None).map(drop)
    }

    /// Writes a checkpoint as [`checkpoint`](Self::checkpoint) does, if values were stored or
    /// removed since the last one. Returns false if `time_budget` is over before it is complete:
    /// the next process reads the journal then, and finds the same values. A tier that is dropped
    /// does so, for at most ten seconds, and does not know its caller of an error.
    ///
    /// # Errors
    /// [`TierError`]: the tier is read-only then. Nothing that was stored is lost.
    pub fn checkpoint_within(&self, time_budget: Duration) -> Result<bool, TierError> {
        self.owned()?;
        self.begin_anew();
        let mut journal = self.journal();
        self.usable()?;
        if journal.next_block == 0 && self.state().is_recorded() {
            return Ok(true);
        }
        self.write_whole_checkpoint(&mut journal, Instant::now().checked_add(time_budget))
    }

    /// Writes a checkpoint after which the journal has no changes, unless some come meanwhile.
    fn write_whole_checkpoint(
        &self,
        journal: &mut Journal,
        until: Option<Instant>,
    ) -> Result<bool, TierError> {
        let has_begun = journal.partial.is_some();
        let mut result = self.write_checkpoint(journal, 2, until);
        if has_begun && matches!(result, Ok(true)) {
            // The changes since its begin are in the journal.
            result = self.write_checkpoint(journal, 2, until);
        }
        self.held(result)
    }

    /// Writes the checkpoint of a tier that is dropped. A tier whose opening failed has none.
    pub(super) fn last_checkpoint(&self) {
        if self.is_forked() || !self.journal().is_open {
            return;
        }
        match self.checkpoint_within(MAX_LAST_CHECKPOINT) {
            Ok(true) | Err(TierError::ReadOnly { .. }) => {}
            Ok(false) => event!(WARN, "no time was left for a checkpoint: the journal is read"),
            Err(_error) => event!(WARN, %_error, "the last checkpoint failed: the journal is read"),
        }
        // The next process needs no word that this one has ended.
        if let Err(_error) = self.release() {
            event!(WARN, %_error, "the superblocks name an owner that has ended");
        }
    }

    /// Writes the first checkpoint of a tier that is being opened.
    pub(super) fn first_checkpoint(&self) -> Result<(), TierError> {
        let mut journal = self.journal();
        let result = self.write_checkpoint(&mut journal, 1, None).map(drop);
        self.held(result)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use kvmem_testkit::random::Random;

    use super::{Journal, PIECES};
    use crate::device::MemoryDevice;
    use crate::tier::options::DiskTierOptions;
    use crate::tier::tier::DiskTier;

    /// Takes numbers for changes, as `by` changes of keys that are gone again would.
    fn skip(tier: &DiskTier<MemoryDevice>, by: u64) {
        tier.state().next_number += by;
        // Such changes store values: the index knows their numbers.
        assert!(tier.store(&[(b"skip", b"")])[0].is_ok());
        assert_eq!(tier.remove(&[b"skip"]).unwrap(), 1);
    }

    /// A checkpoint begins when three quarters of the journal are in use. Each block of the next
    /// eighth brings an equal share of the entries, whole pieces of at least a block.
    #[test]
    fn a_checkpoint_takes_an_eighth_of_the_journal() {
        const ENTRIES: usize = 3000;
        let options = DiskTierOptions {
            max_entries: Some(ENTRIES as u64),
            journal_bytes: Some(128 * 4096),
            ..DiskTierOptions::default()
        };
        let tier = DiskTier::on(MemoryDevice::new(20 << 20), &options).unwrap().0;
        let names: Vec<_> = (0..ENTRIES as u64 - 1).map(u64::to_le_bytes).collect();
        for names in names.chunks(100) {
            let values: Vec<(&[u8], &[u8])> =
                names.iter().map(|name| (&name[..], &name[..])).collect();
            assert!(tier.store(&values).iter().all(Result::is_ok));
        }
        let (epoch, piece) = (tier.journal().superblock.epoch, ENTRIES / PIECES);
        for next_block in 61..111 {
            assert!(tier.store(&[(b"one", b"")])[0].is_ok());
            tier.sync_all().unwrap();
            let journal = tier.journal();
            assert_eq!((journal.superblock.epoch, journal.next_block), (epoch, next_block));
            let left = journal.partial.as_ref().map(|it| it.left);
            let Some(share) = (next_block + 1).checked_sub(96).filter(|it| *it > 0) else {
                assert_eq!(left, None, "{next_block}");
                continue;
            };
            let due = ENTRIES - ENTRIES * share as usize / 16;
            let is_due = |left: usize| left <= due && left + piece > due;
            assert!(left.is_some_and(is_due), "{next_block}: {left:?}, {due}");
        }
        assert!(tier.store(&[(b"one", b"")])[0].is_ok());
        tier.sync_all().unwrap();
        assert_eq!(tier.journal().superblock.epoch, epoch + 2, "it is complete");
    }

    /// A tier with a journal of 16 blocks, 2,900 values, and the names of these.
    fn with_a_short_journal() -> (DiskTier<MemoryDevice>, DiskTierOptions, Vec<[u8; 8]>) {
        let options = DiskTierOptions {
            max_entries: Some(3000),
            journal_bytes: Some(16 * 4096),
            ..DiskTierOptions::default()
        };
        let tier = DiskTier::on(MemoryDevice::new(20 << 20), &options).unwrap().0;
        let names: Vec<_> = (0..2900_u64).map(u64::to_le_bytes).collect();
        for names in names.chunks(100) {
            let values: Vec<(&[u8], &[u8])> =
                names.iter().map(|name| (&name[..], &name[..])).collect();
            assert!(tier.store(&values).iter().all(Result::is_ok));
        }
        assert_eq!(tier.journal().superblock.layout.journals[0].blocks(), 16);
        (tier, options, names)
    }

    /// Stores a value until the journal is as `wanted`.
    fn store_until(tier: &DiskTier<MemoryDevice>, wanted: impl Fn(&Journal) -> bool) {
        while !wanted(&tier.journal()) {
            assert!(tier.store(&[(b"one", b"")])[0].is_ok());
            tier.sync_all().unwrap();
        }
    }

    fn remove(tier: &DiskTier<MemoryDevice>, names: &[[u8; 8]]) {
        let names: Vec<&[u8]> = names.iter().map(|name| &name[..]).collect();
        assert_eq!(tier.remove(&names).unwrap(), names.len());
    }

    fn reopened(
        tier: &DiskTier<MemoryDevice>,
        options: &DiskTierOptions,
    ) -> DiskTier<MemoryDevice> {
        DiskTier::on(MemoryDevice::holding(tier.device().bytes()), options).unwrap().0
    }

    /// Removals that fill more blocks than the journal has left, or as many, and the process ends.
    #[test]
    fn a_call_writes_nothing_behind_the_end_of_its_journal() {
        let (mut tier, options, mut names) = with_a_short_journal();
        for blocks in [5, 6, 12] {
            store_until(&tier, |it| it.next_block == 11 && it.partial.is_none());
            // A block has the 40 removals for which the keys of the block before leave room.
            let removed: Vec<_> = names.drain(..blocks * 40).collect();
            remove(&tier, &removed);
            tier = reopened(&tier, &options);
            assert_eq!(tier.stats().entries, names.len() as u64 + 1);
        }
    }

    /// A call removes more values than the other journal has room for, while a checkpoint is being
    /// written, and the process ends. Numbers of changes go on behind those of the removals.
    #[test]
    fn removals_that_no_journal_has_room_for_are_in_a_snapshot() {
        let (tier, options, names) = with_a_short_journal();
        store_until(&tier, |it| it.partial.is_some());
        remove(&tier, &names);
        let next_number = tier.state().next_number;
        let tier = reopened(&tier, &options);
        assert_eq!(tier.stats().entries, 1);
        assert!(tier.state().next_number >= next_number);
        // The same with a checkpoint, after which nothing is in the journal.
        assert!(tier.store(&[(b"two", b"")])[0].is_ok());
        assert_eq!(tier.remove(&[b"one", b"two"]).unwrap(), 2);
        tier.checkpoint().unwrap();
        let next_number = tier.state().next_number;
        let tier = reopened(&tier, &options);
        assert_eq!(tier.stats().entries, 0);
        assert!(tier.state().next_number >= next_number);
    }

    /// The index has the lower 32 bits of a number. Entries get higher ones when these bits wrap,
    /// and are removed and replaced before, while and after a checkpoint is written. The process
    /// ends at any moment.
    #[test]
    fn nothing_comes_back_when_the_numbers_of_changes_wrap() {
        const KEYS: u64 = 120;
        let options = DiskTierOptions {
            max_entries: Some(1000),
            journal_bytes: Some(32 * 4096),
            ..DiskTierOptions::default()
        };
        let (mut ends_within, mut wraps) = (0, 0);
        for seed in 0..20 {
            let mut random = Random::new(seed);
            let mut known: HashMap<u64, u64> = HashMap::new();
            let (mut tier, _) = DiskTier::on(MemoryDevice::new(2 << 20), &options).unwrap();
            for version in 0..600 {
                if random.once_in(20) {
                    let before = tier.state().next_number;
                    // To just before, or just behind, the next number with lower bits of 0.
                    let to = ((before >> 32) + 1) << 32;
                    skip(&tier, (to - before) + random.below(200) - 100_u64.min(to - before));
                    wraps += 1;
                }
                let key = random.below(KEYS);
                let name = key.to_le_bytes();
                if random.once_in(3) {
                    let had = known.remove(&key).is_some();
                    assert_eq!(tier.remove(&[&name]).unwrap(), usize::from(had));
                } else {
                    assert!(tier.store(&[(&name, &u64::to_le_bytes(version))])[0].is_ok());
                    known.insert(key, version);
                }
                let is_within = tier.journal().partial.is_some();
                if !random.once_in(if is_within { 3 } else { 30 }) {
                    continue;
                }
                ends_within += u32::from(is_within);
                let device = MemoryDevice::holding(tier.device().bytes());
                tier = DiskTier::on(device, &options).unwrap().0;
                assert_eq!(tier.stats().entries, known.len() as u64, "seed {seed}");
                for key in 0..KEYS {
                    let mut into = [0; 8];
                    let name = key.to_le_bytes();
                    let found =
                        tier.fetch(&mut [kvmem::tier::TierRead { key: &name, into: &mut into }]);
                    let found =
                        (found[0] == crate::Fetched::Hit).then_some(u64::from_le_bytes(into));
                    assert_eq!(found, known.get(&key).copied(), "seed {seed}, key {key}");
                }
            }
        }
        assert!(ends_within > 50 && wraps > 100, "{ends_within}, {wraps}");
    }
}
