//! *State*: the index, changes that are not yet in the journal, and ranges that wait for it.
//!
//! Every change has a *position*: how many were made before it since the tier was opened. A range
//! that a removed value had is *retired*: it is free once the change at its position is durable.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::mem::take;
use std::time::Instant;

use kvmem::offset::RawHandle;
use kvmem_encoding::DecodeError;

use super::encoded::Undecoded;
use super::fetched::Fetched;
use super::options::EvictionOrder;
use super::stats::TierStats;
use super::suspects::Suspects;
use crate::format::{Change, Digest, Entry, Extent, RECORDS_PER_BLOCK};
use crate::index::{Index, Indexed, Ranges};
use crate::trace::event;

/// Which extents of a value lost or falsified what was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct BadExtents(u8);

impl BadExtents {
    /// All of them: the checksum of the value is wrong, and does not say where.
    pub(super) const ALL: BadExtents = BadExtents(u8::MAX);

    pub(super) fn add(&mut self, place: usize) {
        self.0 |= 1 << place;
    }

    fn has(self, place: usize) -> bool {
        self.0 >> place & 1 == 1
    }
}

/// State under the lock of the tier.
pub(super) struct State {
    pub(super) index: Index,
    /// Extents that are not used any more, with their ranges.
    pub(super) quarantined: Vec<(Extent, RawHandle)>,
    /// Values that the device failed to read.
    pub(super) suspects: Suspects,
    /// The number of the next change.
    pub(super) next_number: u64,
    /// Changes that are not yet in the journal, in their order.
    queue: VecDeque<Change>,
    /// The position of the first change in the queue: all before it are in the journal.
    pub(super) written: u64,
    /// The positions of the last removals in the queue.
    removals: HashMap<Digest, u64>,
    /// Ranges that are free once all changes before a position are durable, with their blocks.
    retired: VecDeque<(u64, u32, RawHandle)>,
    /// The blocks of these ranges together.
    retired_blocks: u64,
    /// Values were evicted ahead: their ranges are needed before long.
    pub(super) sync_wanted: bool,
    /// All changes before this position are durable when the sync that has begun is complete.
    pub(super) syncing: Option<u64>,
    /// Uses since the queue was last written for the sake of uses.
    pub(super) uses: Uses,
    /// The changes since the checkpoint under way began, if one is.
    window: Option<Window>,
    /// Bytes that were written to the file before it was opened, since `since`, in seconds since
    /// 1970.
    pub(super) lifetime_before: u64,
    pub(super) since: u64,
    pub(super) stats: TierStats,
}

/// Uses that are in the queue, and perhaps not yet in the journal.
///
/// A use changes the order in which values are evicted. The journal has it, so a process that is
/// killed leaves the order of use, and not that of storing. Uses wait for other changes to be
/// written with, but not for long.
#[derive(Default)]
pub(super) struct Uses {
    bytes: u64,
    records: usize,
}

impl Uses {
    /// Bytes of used values for which a block of 4 KiB is written: a thousandth.
    const BYTES: u64 = 4 << 20;

    /// Returns whether there are enough to write a block, and begins to count anew then.
    pub(super) fn are_due(&mut self) -> bool {
        let due = self.bytes >= Uses::BYTES || self.records >= RECORDS_PER_BLOCK;
        if due {
            *self = Uses::default();
        }
        due
    }
}

/// The changes since a [checkpoint](super::checkpoint) began that are not in its journal yet.
#[derive(Default)]
pub(super) struct Window {
    changes: Vec<Change>,
    /// There were too many.
    has_overflowed: bool,
}

impl Window {
    /// The most changes between two pieces of a checkpoint: about 100 MB.
    const MAX_CHANGES: usize = 1 << 20;
}

impl State {
    pub(super) fn new(next_number: u64, eviction: EvictionOrder) -> Self {
        State {
            index: Index::new(eviction == EvictionOrder::Lru),
            quarantined: Vec::new(),
            suspects: Suspects::default(),
            next_number,
            queue: VecDeque::new(),
            written: 0,
            removals: HashMap::new(),
            retired: VecDeque::new(),
            retired_blocks: 0,
            sync_wanted: false,
            syncing: None,
            uses: Uses::default(),
            window: None,
            lifetime_before: 0,
            since: 0,
            stats: TierStats::default(),
        }
    }

    /// Returns whether a sync has begun, or is to begin.
    pub(super) fn has_sync(&self) -> bool {
        self.syncing.is_some() || self.sync_wanted
    }

    /// Returns the position after all changes.
    pub(super) fn position(&self) -> u64 {
        self.written + self.queue.len() as u64
    }

    /// Returns the bytes that were written to the file over its life.
    pub(super) fn lifetime_bytes(&self) -> u64 {
        let now = self.stats.written_bytes + self.stats.metadata_bytes;
        self.lifetime_before.saturating_add(now)
    }

    /// Returns the bytes that were written to the file in a day of its life, on average, at `now`
    /// in seconds since 1970. The first day counts whole.
    pub(super) fn bytes_per_day(&self, now: u64) -> u64 {
        const DAY: u64 = 86_400;
        let seconds = now.saturating_sub(self.since).max(DAY);
        (u128::from(self.lifetime_bytes()) * u128::from(DAY) / u128::from(seconds)) as u64
    }

    fn number(&mut self) -> u64 {
        let number = self.next_number;
        // A damaged file may have any number; its checksums are no secret.
        self.next_number = number.saturating_add(1);
        number
    }

    /// Makes `entry` the value of its key; its number is set here. The journal says whether the
    /// bytes are durable. A checkpoint that has the entry comes after a sync of them.
    pub(super) fn store(&mut self, mut entry: Entry, ranges: Ranges, is_durable: bool) {
        entry.number = self.number();
        self.record(Change::Stored(Entry { unverified: !is_durable, ..entry }));
        self.stats.stored += 1;
        self.add(Indexed { entry, ranges });
    }

    /// Records that the value `entry`, which its key has, was used: in this order, the next process
    /// evicts. The journal says whether the bytes are durable.
    pub(super) fn record_use(&mut self, entry: &Entry, is_durable: bool) {
        if !self.index.is_lru() {
            return;
        }
        let change = Change::Used(Entry { unverified: !is_durable, ..*entry });
        self.uses.bytes += entry.len;
        self.uses.records += change.records();
        self.record(change);
    }

    /// Adds a value to the index alone, as its journal says.
    pub(super) fn add(&mut self, indexed: Indexed) {
        self.stats.bytes += indexed.entry.value_len();
        if let Some(old) = self.index.insert(indexed) {
            self.retire_value(&old);
        }
    }

    /// Removes the value of a key; returns whether there was one.
    pub(super) fn remove(&mut self, digest: &Digest) -> bool {
        let Some(old) = self.index.remove(digest) else { return false };
        self.removed(&old);
        true
    }

    /// Removes the value that goes first, and returns it.
    pub(super) fn remove_first(&mut self) -> Option<Entry> {
        let old = self.index.remove_first()?;
        self.removed(&old);
        Some(old.entry)
    }

    /// Evicts the value that goes first; returns its blocks.
    pub(super) fn evict(&mut self) -> Option<u64> {
        let entry = self.remove_first()?;
        let expired = entry.hints.expires > 0 && entry.hints.has_expired(self.index.now());
        self.stats.expired += u64::from(expired);
        self.stats.evictions += 1;
        Some(entry.extents.blocks())
    }

    /// Records that a value is not in the index any more.
    fn removed(&mut self, old: &Indexed) {
        let number = self.number();
        self.record(Change::Removed(old.entry.digest, number));
        self.retire_value(old);
    }

    /// Counts a value that could not be read: with an error, or since the device ended before it.
    pub(super) fn count_unreadable(&mut self, error: io::ErrorKind) {
        match error {
            io::ErrorKind::UnexpectedEof => self.stats.short_misses += 1,
            _ => self.stats.io_misses += 1,
        }
    }

    /// Records that the value `entry`, which its key has, could not be read now: its `bad` extents
    /// failed. The value becomes a suspect, unless it is lost.
    pub(super) fn fail(
        &mut self,
        entry: &Entry,
        error: io::ErrorKind,
        bad: BadExtents,
        isolated: bool,
        now: Instant,
    ) {
        self.count_unreadable(error);
        if error == io::ErrorKind::UnexpectedEof
            || self.suspects.add_failure(&entry.digest, isolated, now)
        {
            self.quarantine(entry, bad);
        } else {
            event!(WARN, len = entry.len, block = entry.start(), %error, "a value cannot be read");
        }
    }

    /// Removes the value `entry`, if its key still has it: its checksum is wrong. A power cut may
    /// have taken the bytes of an unverified one, so its blocks become free; those of another are
    /// never used again. Returns whether it was unverified.
    pub(super) fn remove_falsified(&mut self, entry: &Entry) -> bool {
        if !entry.unverified {
            self.stats.checksum_misses += 1;
            self.quarantine(entry, BadExtents::ALL);
            return false;
        }
        self.stats.lost_misses += 1;
        if self.index.number_of(&entry.digest) == Some(entry.number) {
            event!(WARN, len = entry.len, block = entry.start(), "a power cut took a value");
            self.remove(&entry.digest);
        }
        true
    }

    /// Records that the value `entry`, which its key has, was read and cannot be decoded. It stays
    /// if a key is missing, which may come later; otherwise its blocks become free.
    #[cold]
    pub(super) fn fail_to_decode(&mut self, entry: &Entry, why: Undecoded) -> Fetched {
        if let Undecoded::Encoding(DecodeError::NoKey { key: _key }) = why {
            event!(WARN, len = entry.len, key = %_key, "no key decrypts a value");
            return Fetched::NoKey;
        }
        self.remove(&entry.digest);
        if why == Undecoded::Forgotten {
            return Fetched::Absent;
        }
        event!(WARN, len = entry.len, block = entry.start(), "the tag of a value is wrong");
        Fetched::BadTag
    }

    /// Removes the value `entry`, if its key still has it, and never uses its `bad` extents again.
    pub(super) fn quarantine(&mut self, entry: &Entry, bad: BadExtents) {
        if self.index.number_of(&entry.digest) != Some(entry.number) {
            return;
        }
        let Some(Indexed { ranges, .. }) = self.index.remove(&entry.digest) else { return };
        event!(WARN, len = entry.len, block = entry.start(), "a damaged value is quarantined");
        self.suspects.remove(&entry.digest);
        self.stats.bytes -= entry.value_len();
        let number = self.number();
        self.record(Change::Removed(entry.digest, number));
        for (place, (&extent, range)) in entry.extents.iter().zip(ranges.iter()).enumerate() {
            if bad.has(place) {
                let number = self.number();
                self.record(Change::Quarantined(extent, number));
                self.quarantined.push((extent, range));
            } else {
                self.retire(extent, range);
            }
        }
    }

    /// Lets the ranges of a value wait for its removal.
    fn retire_value(&mut self, Indexed { entry, ranges }: &Indexed) {
        self.suspects.remove(&entry.digest);
        self.stats.bytes -= entry.value_len();
        if !entry.extents.is_scattered() {
            return self.retire(entry.extents[0], ranges.first());
        }
        for (&extent, range) in entry.extents.iter().zip(ranges.iter()) {
            self.retire(extent, range);
        }
    }

    fn retire(&mut self, Extent { blocks, .. }: Extent, range: RawHandle) {
        self.retired_blocks += u64::from(blocks);
        self.retired.push_back((self.position(), blocks, range));
    }

    /// Returns the next range that is free when all changes before `durable` are.
    pub(super) fn next_free(&mut self, durable: u64) -> Option<RawHandle> {
        let &(position, blocks, range) = self.retired.front()?;
        if position > durable {
            return None;
        }
        self.retired.pop_front();
        self.retired_blocks -= u64::from(blocks);
        Some(range)
    }

    /// Returns the blocks of the ranges that wait for the journal.
    pub(super) fn retired_blocks(&self) -> u64 {
        self.retired_blocks
    }

    /// Returns the quarantined extents as a checkpoint has them.
    pub(super) fn quarantined_changes(&self) -> impl Iterator<Item = Change> {
        self.quarantined.iter().map(|&(extent, _)| Change::Quarantined(extent, 0))
    }

    /// Begins to record changes for the checkpoint that begins now, and a walk through the entries.
    /// Returns how many there are.
    pub(super) fn begin_window(&mut self) -> usize {
        self.window = Some(Window::default());
        self.index.begin_walk();
        self.index.len()
    }

    /// Takes the changes out of the window if there are `least` or more.
    pub(super) fn window_changes(&mut self, least: usize) -> Vec<Change> {
        let window = self.window.as_mut().filter(|window| window.changes.len() >= least);
        window.map(|window| take(&mut window.changes)).unwrap_or_default()
    }

    /// Gives the window up: it cannot be written.
    pub(super) fn overflow_window(&mut self) {
        self.window = Some(Window { changes: Vec::new(), has_overflowed: true });
    }

    /// Ends the window. Returns the changes that are in it still; `None` if it was abandoned.
    pub(super) fn end_window(&mut self) -> Option<Vec<Change>> {
        let window = self.window.take().filter(|window| !window.has_overflowed)?;
        Some(window.changes)
    }

    /// Returns whether the journal has all changes.
    pub(super) fn is_recorded(&self) -> bool {
        self.queue.is_empty()
    }

    /// Returns the changes that are not yet in the journal.
    pub(super) fn queued(&self) -> Vec<Change> {
        self.queue.iter().copied().collect()
    }

    /// Takes the changes before a position out of the queue: the journal has them.
    pub(super) fn end_queued(&mut self, position: u64) {
        let changes = self.queue.drain(..(position - self.written) as usize);
        for (at, change) in (self.written..).zip(changes) {
            if let Change::Removed(digest, _) = change
                && self.removals.get(&digest) == Some(&at)
            {
                self.removals.remove(&digest);
            }
        }
        self.written = position;
    }

    /// Returns whether a value of a key may be found after a restart: it is there, or the journal
    /// does not have its removal yet.
    pub(super) fn may_have(&self, digest: &Digest) -> bool {
        self.removals.contains_key(digest) || self.index.number_of(digest).is_some()
    }

    /// Adds a change to the queue, and to the window.
    fn record(&mut self, change: Change) {
        if let Change::Removed(digest, _) = change {
            self.removals.insert(digest, self.position());
        }
        self.queue.push_back(change);
        let Some(window) = &mut self.window else { return };
        if window.changes.len() == Window::MAX_CHANGES {
            self.overflow_window();
        } else if !window.has_overflowed {
            window.changes.push(change);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only the last removal of a key counts.
    #[test]
    fn a_key_may_have_a_value_until_its_removal_is_recorded() {
        let mut state = State::new(0, EvictionOrder::Lru);
        let keys @ [a, b, _] = [1, 2, 3].map(|byte| Digest([byte; 16]));
        for (number, digest) in (0..).zip([a, b, a]) {
            state.record(Change::Removed(digest, number));
        }
        let expected = [(0, [true, true, false]), (2, [true, false, false]), (3, [false; 3])];
        for (position, may_have) in expected {
            state.end_queued(position);
            assert_eq!(keys.map(|key| state.may_have(&key)), may_have, "until {position}");
            assert_eq!(state.is_recorded(), position == 3);
        }
    }

    #[test]
    fn a_day_has_the_bytes_of_the_whole_life_by_its_days() {
        let mut state = State::new(0, EvictionOrder::Lru);
        (state.lifetime_before, state.since) = (900, 1_000_000);
        state.stats.written_bytes = 60;
        state.stats.metadata_bytes = 40;
        assert_eq!(state.lifetime_bytes(), 1000);
        for (days, expected) in [(0.0, 1000), (0.5, 1000), (1.0, 1000), (2.0, 500), (10.0, 100)] {
            let now = state.since + (days * 86_400.0) as u64;
            assert_eq!(state.bytes_per_day(now), expected, "{days}");
        }
        assert_eq!(state.bytes_per_day(0), 1000, "the clock went back");
        state.lifetime_before = u64::MAX;
        assert_eq!(state.bytes_per_day(0), u64::MAX);
    }
}
