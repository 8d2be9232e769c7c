//! *Storing*: values are written, and then recorded.
//!
//! The values of a call are written side by side. Their checksums are computed meanwhile, or the
//! next values encoded, so the device waits only for the first submission, and the caller only for
//! the device. The journal's block follows when all are written.
//!
//! A full tier evicts values to make room, and their ranges are free only after a sync, which
//! takes milliseconds. It therefore has a *reserve* of free blocks. When less is free, it evicts
//! as many again, and begins a sync for which no thread waits. A store that finds the reserve used
//! up waits for that sync, or evicts and syncs itself.

use std::collections::HashSet;
use std::mem::replace;

use kvmem::offset::{AllocError, Allocation, OffsetAllocator};
use kvmem::tier::TierValue;

use super::bounce::{Bounce, in_place};
use super::checksum::checksum;
use super::encoded::{Form, GROUP, MaybeForm, group_len};
use super::error::{StoreError, TierError};
use super::state::State;
use super::stored::stored_hints;
use super::tier::DiskTier;
use crate::device::{Device, Write};
use crate::format::{BLOCK, Encoded, Entry, Extent, Extents, Hints, MAX_EXTENTS, blocks_of};
use crate::index::{Ranges, seconds_now};
use crate::side_by_side::side_by_side;

/// The blocks of the reserve: more than a fast device writes while it syncs.
const RESERVE: u64 = (32 << 20) / BLOCK as u64;
/// The largest part of the space that is the reserve.
const PART_OF_SPACE: u64 = 32;
/// The largest part of the space that is evicted for the values of a call together.
const PART_OF_CALL: u64 = 4;

/// A value with its places on the device.
struct Placed<'a> {
    /// Its index among the values of the call.
    index: usize,
    entry: Entry,
    ranges: Ranges,
    /// The blocks that are written from where they are.
    in_place: &'a [u8],
    /// A copy of the rest, padded.
    bounce: Bounce<'a>,
}

impl Placed<'_> {
    /// Returns the checksum of what is stored, of one of the values of a call.
    fn checksum(&self, values: &[TierValue<'_>]) -> u32 {
        match self.entry.encoded {
            Some(_) => self.entry.checksum,
            None => checksum(&self.entry.digest, values[self.index].bytes),
        }
    }
}

impl<D: Device> DiskTier<D> {
    /// Stores values that were [admitted](Self::admits), in groups if they are encoded.
    pub(super) fn store_groups(&self, values: &[TierValue<'_>]) -> Vec<Result<(), StoreError>> {
        if self.is_forked() {
            return values.iter().map(|_| Err(TierError::Forked.into())).collect();
        }
        if !self.encoding.is_on() {
            let mut results = self.store_group(values, Vec::new(), &mut || {});
            self.commit_stored(&mut results);
            return results;
        }
        let shares = self.shares(values.iter().map(|value| value.bytes.len()));
        let mut keys = HashSet::new();
        // The later one of two values with one key counts, so one thread stores both.
        if shares.len() <= 1 || !values.iter().all(|value| keys.insert(value.key)) {
            return self.store_encoded(values);
        }
        self.make_room_for_call(values);
        let mut rest = values;
        let mut part = |len| {
            let (part, behind) = rest.split_at(len);
            rest = behind;
            part
        };
        let parts = shares.into_iter().map(&mut part).collect();
        side_by_side(parts, |values| self.store_encoded(values)).into_iter().flatten().collect()
    }

    /// Encodes and stores values in groups.
    fn store_encoded(&self, values: &[TierValue<'_>]) -> Vec<Result<(), StoreError>> {
        self.begin_anew();
        let mut results = Vec::with_capacity(values.len());
        // Made here: making one writes to the device, which cannot be while it writes a group.
        let mut namespaces = self.namespaces_of(values).into_iter();
        let (mut group, mut rest, mut committed) = ([].as_slice(), values, 0);
        let mut forms = Vec::new();
        while !group.is_empty() || !rest.is_empty() {
            let lens = rest.iter().map(|value| value.bytes.len());
            // The device has nothing to do until the first group is encoded.
            let most = if results.is_empty() && group.is_empty() { GROUP / 4 } else { GROUP };
            let (next, behind) = rest.split_at(group_len(lens, most));
            let mut left = next.iter().zip(&mut namespaces);
            let mut next_forms = Vec::with_capacity(next.len());
            let mut encode_next = || {
                let form = left.next().map(|(value, namespace)| self.encode(value, namespace));
                next_forms.extend(form);
            };
            if !group.is_empty() {
                results.extend(self.store_group(group, forms, &mut encode_next));
            }
            (0..next.len()).for_each(|_| encode_next());
            (group, rest, forms) = (next, behind, next_forms);
            // All groups share a commit, unless a sync is to begin, behind what it makes durable.
            if self.state().sync_wanted || rest.is_empty() && group.is_empty() {
                self.commit_stored(&mut results[committed..]);
                committed = results.len();
            } else {
                self.end_sync_if_complete();
            }
        }
        results
    }

    /// Commits the values with these results. If that fails, none of them is stored.
    fn commit_stored(&self, results: &mut [Result<(), StoreError>]) {
        let position = self.state().position();
        if self.commit(position).is_err() {
            for result in results.iter_mut().filter(|result| result.is_ok()) {
                *result = self.usable().map_err(StoreError::from);
            }
        }
    }

    /// Writes values, and adds them to the index, which is not committed: with the forms of those
    /// that are encoded, none without `forms`. Calls `meanwhile` for each value while the device
    /// writes.
    fn store_group<'a>(
        &'a self,
        values: &[TierValue<'a>],
        mut forms: Vec<MaybeForm<'a>>,
        meanwhile: &mut dyn FnMut(),
    ) -> Vec<Result<(), StoreError>> {
        self.begin_anew();
        self.check_before_storing();
        let now = seconds_now();
        let mut results: Vec<Result<(), StoreError>> = Vec::with_capacity(values.len());
        let mut placed = Vec::with_capacity(values.len());
        let stored_len = |form: &MaybeForm<'_>, bytes: &[u8]| match form {
            Ok(Some(form)) => form.len,
            _ => bytes.len() as u64,
        };
        let blocks = |len: u64| u64::from(blocks_of(len));
        // Those of the values that have no range yet.
        let mut left: u64 = match forms.is_empty() {
            true => values.iter().map(|one| blocks(one.bytes.len() as u64)).sum(),
            false => forms
                .iter()
                .zip(values)
                .map(|(form, one)| blocks(stored_len(form, one.bytes)))
                .sum(),
        };
        for (index, value) in values.iter().enumerate() {
            let form = forms.get_mut(index).map_or(Ok(None), |form| replace(form, Ok(None)));
            let len = stored_len(&form, value.bytes);
            let one = form.and_then(|form| {
                self.usable()?;
                Ok(self.placed(index, value, form, self.place(len, left)?))
            });
            results.push(one.map(|one| placed.push(one)));
            left -= blocks(len);
        }
        let mut writes = Vec::with_capacity(placed.len());
        placed.iter().for_each(|one| self.add_writes(one, &mut writes));
        let mut checksums = Vec::with_capacity(placed.len());
        // The write of each value's first extent; the device says which one is in flight in order.
        let mut first = 0;
        let written = self.device.write(&writes, &mut |one| {
            if one == first {
                let one = &placed[checksums.len()];
                first += one.entry.extents.len();
                checksums.push(one.checksum(values));
                meanwhile();
            }
        });
        drop(writes);
        // All of them, on a device that does not call back.
        for one in &placed[checksums.len()..] {
            checksums.push(one.checksum(values));
        }
        let mut written = written.into_iter();
        let is_durable = self.device.writes_are_durable();
        let mut state = self.state();
        self.evict_ahead(&mut state);
        for (one, checksum) in placed.iter().zip(checksums) {
            let Placed { index, entry, ranges, .. } = one;
            let of_value = entry.extents.iter().zip(&mut written);
            let error = of_value.filter_map(|(at, written)| Some((at, written.err()?))).last();
            match error {
                None => {
                    state.stats.written_bytes += entry.extents.blocks() * BLOCK as u64;
                    if let Some(encoded) = entry.encoded {
                        state.stats.encoded_before_bytes += encoded.value_len();
                        state.stats.encoded_after_bytes += entry.len;
                    }
                    let hints = stored_hints(&values[*index].hints, now);
                    let entry = Entry { checksum, hints, ..*entry };
                    state.store(entry, *ranges, is_durable);
                }
                Some((extent, error)) => {
                    self.free(ranges);
                    let at = self.layout.data.block(extent.start);
                    results[*index] = Err(TierError::device("write", at)(error).into());
                }
            }
        }
        while state.index.len() as u64 > self.max_entries(&state) {
            state.evict();
        }
        results
    }

    /// Returns the value with index `index` in its ranges. Its checksum is not known yet, unless it
    /// is encoded.
    fn placed<'a>(
        &'a self,
        index: usize,
        value: &TierValue<'a>,
        form: Option<Form<'a>>,
        (extents, ranges): (Extents, Ranges),
    ) -> Placed<'a> {
        let (digest, bytes) = (self.digest(value.key), value.bytes);
        let entry = |len: u64, checksum: u32, encoded: Option<Encoded>| Entry {
            digest,
            number: 0,
            extents,
            checksum,
            len,
            encoded,
            hints: Hints::default(),
            unverified: false,
        };
        if let Some(Form { bounce, len, checksum, encoded }) = form {
            let entry = entry(len, checksum, encoded);
            return Placed { index, entry, ranges, in_place: &[], bounce };
        }
        let align = self.device.memory_align();
        let (in_place, rest) = bytes.split_at(in_place(bytes, align, BLOCK));
        // A value without bytes has a block, too.
        let bounce = if rest.is_empty() && !bytes.is_empty() {
            self.bounce.take(0)
        } else {
            self.bounce.copy_of(rest)
        };
        Placed { index, entry: entry(bytes.len() as u64, 0, None), ranges, in_place, bounce }
    }

    /// Adds the writes of a value: one for each extent.
    fn add_writes<'a>(&self, placed: &'a Placed<'_>, writes: &mut Vec<Write<'a>>) {
        let (mut in_place, mut bounce) = (placed.in_place, &*placed.bounce);
        for extent in placed.entry.extents.iter() {
            let bytes = extent.blocks as usize * BLOCK;
            let (first, behind) = in_place.split_at(bytes.min(in_place.len()));
            let (second, bounce_behind) = bounce.split_at((bytes - first.len()).min(bounce.len()));
            (in_place, bounce) = (behind, bounce_behind);
            let at = self.layout.data.block(extent.start);
            writes.push(Write { at, parts: [first, second] });
        }
    }

    /// Allocates the blocks of a value, and evicts others if need be. The rest of the call needs
    /// `left` blocks, with these.
    fn place(&self, len: u64, left: u64) -> Result<(Extents, Ranges), StoreError> {
        let blocks = len.div_ceil(BLOCK as u64).max(1);
        loop {
            match self.space.allocate_raw(blocks) {
                Ok(range) => {
                    let extents = Extents::contiguous(range.offset as u32, len);
                    return Ok((extents, range.handle.into()));
                }
                Err(AllocError::TooLarge { limit, .. }) => {
                    return Err(StoreError::TooLarge { len, limit: limit * BLOCK as u64 });
                }
                Err(_) => {}
            }
            if let Some(scattered) = self.scatter(blocks) {
                return Ok(scattered);
            }
            if !self.await_sync()? && !self.make_room(blocks, left)? {
                return Err(StoreError::NoRoom { len });
            }
        }
    }

    /// Allocates blocks in several ranges, if enough are free and the index has room for them.
    #[cold]
    fn scatter(&self, blocks: u64) -> Option<(Extents, Ranges)> {
        let has_room = {
            let state = self.state();
            state.index.len() as u64 + MAX_EXTENTS as u64 <= self.max_entries(&state)
        };
        has_room.then(|| scatter(&self.space, blocks)).flatten()
    }

    /// Frees ranges that no value has.
    fn free(&self, ranges: &Ranges) {
        for range in ranges.iter() {
            let freed = self.space.free_raw(range);
            debug_assert!(freed.is_ok(), "{freed:?}");
        }
    }

    /// Evicts values of at least `blocks` blocks together, and more: what is evicted is free only
    /// after a sync. Returns false if there was nothing to evict.
    fn make_room(&self, blocks: u64, left: u64) -> Result<bool, TierError> {
        // What the call needs may be all that the tier can hold.
        let of_call = left.min(self.layout.data.blocks() / PART_OF_CALL);
        let wanted = blocks.max(self.reserve()).max(of_call);
        let (position, found) = {
            let mut state = self.state();
            let mut evicted = 0;
            let mut found = state.retired_blocks() > 0;
            while evicted < wanted
                && let Some(blocks) = state.evict()
            {
                evicted += blocks;
                found = true;
            }
            (state.position(), found)
        };
        if found {
            self.flush(position)?;
        }
        Ok(found)
    }

    /// Evicts values for those of a call that threads share, and begins the sync that they would
    /// wait for one after the other.
    fn make_room_for_call(&self, values: &[TierValue<'_>]) {
        let position = {
            let mut state = self.state();
            let bytes: u64 = values.iter().map(|value| value.bytes.len() as u64).sum();
            // As long as the forms of the values before.
            let (before, after) =
                (state.stats.encoded_before_bytes, state.stats.encoded_after_bytes);
            let ratio = if before > 0 { after as f64 / before as f64 } else { 1.0 };
            let blocks = (bytes as f64 * ratio) as u64 / BLOCK as u64 + values.len() as u64;
            let wanted = blocks.min(self.layout.data.blocks() / PART_OF_CALL);
            let free = self.space.metrics().free;
            if free >= wanted {
                return;
            }
            let wanted = wanted + self.reserve();
            while free + state.retired_blocks() < wanted && state.evict().is_some() {}
            state.sync_wanted = !self.device.writes_are_durable() && state.retired_blocks() > 0;
            state.position()
        };
        // An error concerns the values, too, which find the journal unusable.
        let _ = self.commit(position);
    }

    /// Returns the blocks that stay free for the values to come, while a sync makes others
    /// free.
    fn reserve(&self) -> u64 {
        RESERVE.min(self.layout.data.blocks() / PART_OF_SPACE)
    }

    /// Evicts values if less than the reserve is free and no sync makes more free. The sync begins
    /// when the change is in the journal.
    fn evict_ahead(&self, state: &mut State) {
        let (free, reserve) = (self.space.metrics().free, self.reserve());
        if free >= reserve || state.has_sync() {
            return;
        }
        while free + state.retired_blocks() < 2 * reserve && state.evict().is_some() {}
        state.sync_wanted = !self.device.writes_are_durable() && state.retired_blocks() > 0;
    }
}

/// Allocates blocks in up to [`MAX_EXTENTS`] ranges of a space.
pub(super) fn scatter(space: &OffsetAllocator, blocks: u64) -> Option<(Extents, Ranges)> {
    let mut ranges = space.allocate_scattered(blocks, MAX_EXTENTS).ok()?;
    ranges.sort_unstable_by_key(Allocation::offset);
    let extent =
        |range: &Allocation| Extent { start: range.offset() as u32, blocks: range.len() as u32 };
    let extents: Vec<Extent> = ranges.iter().map(extent).collect();
    let extents = Extents::of(&extents)?;
    Some((extents, Ranges::of(ranges.into_iter().map(Allocation::into_raw))))
}
