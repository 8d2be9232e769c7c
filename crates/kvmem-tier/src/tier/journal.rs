//! *Journal*: how changes become durable.
//!
//! A thread that needs its changes in the journal takes the journal's lock and writes all changes
//! that are queued, those of other threads too. Threads that waited for the lock then find theirs
//! written, and write nothing (*group commit*; DeWitt et al. 1984).
//!
//! When the journal is nearly full, the threads that write to it write a
//! [checkpoint](super::checkpoint) as well, piece by piece.
//!
//! # When the journal fails
//!
//! A change that cannot be recorded ends the journal, because the next start would lose all changes
//! behind it. The tier stores nothing more, and finds what it has. Drives fail for a moment, and
//! file systems are full for a while, so the tier tries again by itself, in pauses that grow: with
//! the next call that changes something, it writes a [snapshot](super::checkpoint) of what memory
//! has, the changes that were not recorded among it, and the other journal behind it is the one in
//! use. A tier that another process has taken over never does.
//!
//! A write is durable after a sync, or at once on a device whose writes are durable. There the
//! ranges of removed values are free as soon as the journal has the removal.

use std::io;
use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::error::TierError;
use super::partial::{PartialCheckpoint, Switch};
use super::tier::DiskTier;
use crate::device::{AlignedBuffer, Device};
use crate::format::{BLOCK, BlockOf, Change, PackedBlock, RecentKeys, Superblock, write_packed};
use crate::trace::event;

/// The first and the longest pause before the journal is begun anew.
const PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];

/// Why the journal has ended.
pub(super) struct JournalFailure {
    cause: String,
    /// When it is begun anew, and after which pause. `None`: never, because another process has the
    /// tier.
    retry: Option<(Instant, Duration)>,
}

impl JournalFailure {
    fn new(error: &TierError, now: Instant, pause: Duration) -> JournalFailure {
        let is_lost = matches!(error, TierError::TakenOver { .. });
        let retry = (!is_lost).then(|| (now + pause, pause));
        JournalFailure { cause: error.to_string(), retry }
    }
}

/// State under the lock of the journal.
pub(super) struct Journal {
    /// The superblock that is valid.
    pub(super) superblock: Superblock,
    /// The next block of the journal in use.
    pub(super) next_block: u32,
    /// All changes before this position are durable.
    pub(super) durable: u64,
    /// The first blocks of the journal in use that are durable, and those that are when the sync
    /// that has begun is complete.
    pub(super) durable_blocks: u32,
    pub(super) syncing_blocks: u32,
    /// The keys of the last blocks of the journal in use.
    pub(super) recent: RecentKeys,
    /// The checkpoint that is being written.
    pub(super) partial: Option<PartialCheckpoint>,
    /// A complete checkpoint whose superblocks are being written, or could not be.
    pub(super) switch: Option<Switch>,
    /// When the superblocks were last compared with what this process wrote.
    pub(super) checked_at: Instant,
    /// Whether the first checkpoint of this process is complete: the tier is not being opened.
    pub(super) is_open: bool,
}

impl Journal {
    pub(super) fn new(superblock: Superblock) -> Self {
        Journal {
            superblock,
            next_block: 0,
            durable: 0,
            durable_blocks: 0,
            syncing_blocks: 0,
            recent: RecentKeys::default(),
            partial: None,
            switch: None,
            checked_at: Instant::now(),
            is_open: false,
        }
    }
}

impl<D: Device> DiskTier<D> {
    pub(super) fn journal(&self) -> std::sync::MutexGuard<'_, Journal> {
        self.journal.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the identity of the file, which is random and as old as the tier.
    #[must_use]
    pub fn identity(&self) -> [u8; 16] {
        self.journal().superblock.file
    }

    fn failed(&self) -> MutexGuard<'_, Option<JournalFailure>> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the reason why the tier stores nothing now; `None` if it does. It tries again by
    /// itself, unless another process has taken it over.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        self.failed().as_ref().map(|failure| failure.cause.clone())
    }

    /// Returns the error that ended the journal, if one did.
    pub(super) fn usable(&self) -> Result<(), TierError> {
        self.failure().map_or(Ok(()), |cause| Err(TierError::ReadOnly { cause }))
    }

    /// Keeps the error of a write to the journal: what follows it would be lost.
    pub(super) fn held<T>(&self, result: Result<T, TierError>) -> Result<T, TierError> {
        if let Err(error) = &result {
            event!(WARN, %error, "the journal failed: the tier is read-only");
            let failure = || JournalFailure::new(error, self.device.now(), PAUSES[0]);
            self.failed().get_or_insert_with(failure);
        }
        result
    }

    /// Begins the journal anew, if it has failed and it is time to.
    pub(super) fn begin_anew(&self) {
        let due = || {
            let (at, pause) = self.failed().as_ref()?.retry?;
            (self.device.now() >= at).then_some(pause)
        };
        if due().is_none() {
            return;
        }
        let mut journal = self.journal();
        // Another thread may have done it.
        let Some(pause) = due() else { return };
        *self.failed() = match self.write_index_anew(&mut journal) {
            Ok(()) => None,
            Err(error) => {
                let pause = (2 * pause).min(PAUSES[1]);
                Some(JournalFailure::new(&error, self.device.now(), pause))
            }
        };
        if self.usable().is_ok() {
            event!(INFO, "the journal is begun anew: the tier stores again");
        }
    }

    /// Lets the next call that changes something begin a failed journal anew, and the next fetches
    /// read values that the device has failed to read, without a pause. For programs that know that
    /// the cause is gone.
    pub fn retry_now(&self) {
        self.state().suspects.end_pauses(self.device.now());
        if let Some(JournalFailure { retry: Some((at, _)), .. }) = &mut *self.failed() {
            *at = self.device.now();
        }
    }

    /// Returns once all changes before `position` are in the journal: they survive the process.
    pub(super) fn commit(&self, position: u64) -> Result<(), TierError> {
        self.commit_to(&mut self.journal(), position)
    }

    /// [Commits](Self::commit) under the lock of the journal.
    pub(super) fn commit_to(&self, journal: &mut Journal, position: u64) -> Result<(), TierError> {
        // Most threads that waited for the lock find nothing left to write.
        if self.state().written < position {
            self.usable()?;
            let result = self.write_queued(journal, position);
            self.held(result)?;
        }
        if self.device.writes_are_durable() {
            journal.durable = self.state().written;
            journal.durable_blocks = journal.next_block;
            self.free_retired(journal.durable);
            return Ok(());
        }
        // Its errors concern later calls: the changes are in the journal.
        let _ = self.sync_ahead(journal);
        Ok(())
    }

    /// Frees the ranges that waited for the sync that has begun, if it is complete. Waits for no
    /// other thread: one that has the journal does it, too.
    pub(super) fn end_sync_if_complete(&self) {
        if self.state().syncing.is_some()
            && let Ok(mut journal) = self.journal.try_lock()
        {
            // Its errors concern later calls.
            let _ = self.sync_ahead(&mut journal);
        }
    }

    /// Ends the sync that has begun, if it is complete, and begins the next one if it is wanted.
    fn sync_ahead(&self, journal: &mut Journal) -> Result<(), TierError> {
        let begun = self.state().syncing;
        if let Some(position) = begun {
            let Some(synced) = self.device.end_sync(false) else { return Ok(()) };
            self.end_sync(journal, position, synced)?;
        }
        let position = {
            let mut state = self.state();
            if !std::mem::take(&mut state.sync_wanted) {
                return Ok(());
            }
            state.written
        };
        let begun = self.device.begin_sync().map_err(TierError::device("sync", 0));
        self.held(begun)?;
        journal.syncing_blocks = journal.next_block;
        self.state().syncing = Some(position);
        Ok(())
    }

    /// Frees the ranges that waited for a sync.
    fn end_sync(
        &self,
        journal: &mut Journal,
        position: u64,
        synced: io::Result<()>,
    ) -> Result<(), TierError> {
        self.state().syncing = None;
        self.held(synced.map_err(TierError::device("sync", 0)))?;
        journal.durable = journal.durable.max(position);
        journal.durable_blocks = journal.durable_blocks.max(journal.syncing_blocks);
        self.free_retired(journal.durable);
        Ok(())
    }

    /// Waits for the sync that has begun. Returns false if none has.
    pub(super) fn await_sync(&self) -> Result<bool, TierError> {
        let mut journal = self.journal();
        let Some(position) = self.state().syncing else { return Ok(false) };
        let Some(synced) = self.device.end_sync(true) else { return Ok(false) };
        self.end_sync(&mut journal, position, synced)?;
        Ok(true)
    }

    /// Returns once all changes before `position` are durable, and frees the ranges that wait for
    /// them.
    pub(super) fn flush(&self, position: u64) -> Result<(), TierError> {
        let mut journal = self.journal();
        self.usable()?;
        if journal.durable < position {
            let written = self.write_queued(&mut journal, position);
            let is_durable = self.device.writes_are_durable();
            let result = written.and_then(|()| if is_durable { Ok(()) } else { self.sync() });
            self.held(result)?;
            // The lock of the journal is held: no more changes are in it than then.
            journal.durable = self.state().written;
            journal.durable_blocks = journal.next_block;
        }
        self.free_retired(journal.durable);
        Ok(())
    }

    /// Frees the ranges of values whose removal is durable.
    pub(super) fn free_retired(&self, durable: u64) {
        let mut state = self.state();
        while let Some(range) = state.next_free(durable) {
            // The index had this range, and gave it up once.
            let freed = self.space.free_raw(range);
            debug_assert!(freed.is_ok(), "{freed:?}");
        }
    }

    /// Writes the queued changes, until all before `position` are in the journal in use. If it is
    /// full, a checkpoint has them.
    fn write_queued(&self, journal: &mut Journal, position: u64) -> Result<(), TierError> {
        loop {
            let left =
                journal.superblock.layout.journals[0].blocks() - u64::from(journal.next_block);
            let changes: Vec<Change> = {
                let state = self.state();
                if state.written >= position {
                    return Ok(());
                }
                state.queued()
            };
            let blocks = journal.recent.pack(&changes);
            if blocks.len() as u64 > left {
                // The other journal begins anew, without the keys of these.
                return self.write_checkpoint(journal, 2, None).map(drop);
            }
            self.write_blocks(journal, &blocks)?;
            let mut state = self.state();
            let position = state.written + changes.len() as u64;
            state.end_queued(position);
            drop(state);
            self.advance_checkpoint(journal)?;
        }
    }

    /// Writes the changes of each block into the next ones of the journal, which has room for them.
    fn write_blocks(
        &self,
        journal: &mut Journal,
        blocks: &[PackedBlock<'_>],
    ) -> Result<(), TierError> {
        self.check_owner_at_times(journal)?;
        let durable_blocks = journal.durable_blocks;
        let Journal { superblock, next_block, .. } = journal;
        self.write_packed(superblock, next_block, blocks, durable_blocks)
    }

    /// Writes blocks into the journal of a superblock, from the block `next` on, when its first
    /// `durable_blocks` blocks are durable.
    pub(super) fn write_packed(
        &self,
        superblock: &Superblock,
        next: &mut u32,
        blocks: &[PackedBlock<'_>],
        durable_blocks: u32,
    ) -> Result<(), TierError> {
        let Superblock { file, epoch, journal, layout, .. } = *superblock;
        let mut buffer = AlignedBuffer::new(blocks.len());
        let at = layout.journals[journal as usize].block(*next);
        for (packed, bytes) in blocks.iter().zip(buffer.chunks_exact_mut(BLOCK)) {
            let of = BlockOf { file, epoch, index: *next };
            write_packed(of, packed, durable_blocks, bytes);
            *next += 1;
        }
        self.write_metadata(at, &buffer)
    }

    /// Writes both copies of the superblock, one after the other: one of them is always whole. One
    /// that the device fails to write is counted, and the other one alone leads to the index. Its
    /// error is returned.
    pub(super) fn write_superblocks(
        &self,
        superblock: &Superblock,
    ) -> Result<Option<TierError>, TierError> {
        let mut buffer = AlignedBuffer::new(1);
        buffer.copy_from_slice(&superblock.to_bytes());
        let mut first = None;
        for copy in 0..2 {
            if let Err(error) = self.write_metadata(copy * BLOCK as u64, &buffer) {
                self.state().stats.superblock_failures += 1;
                if let Some(first) = first.replace(error) {
                    return Err(first);
                }
            }
            self.sync()?;
        }
        Ok(first)
    }

    pub(super) fn write_metadata(&self, at: u64, bytes: &[u8]) -> Result<(), TierError> {
        self.device.write_at(at, bytes).map_err(TierError::device("write", at))?;
        self.state().stats.metadata_bytes += bytes.len() as u64;
        self.doorkeeper.count(bytes.len() as u64);
        Ok(())
    }

    pub(super) fn sync(&self) -> Result<(), TierError> {
        self.device.sync().map_err(TierError::device("sync", 0))
    }
}
