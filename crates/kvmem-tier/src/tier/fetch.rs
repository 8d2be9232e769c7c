//! *Fetching*: values are read and verified.
//!
//! The values of a call are read side by side, and so are the extents of a value. The device gets
//! the reads in the order of their offsets: neighbours on the drive are read one after the other,
//! whatever the order of the keys. The thread computes the checksum of each read as soon as it is
//! complete, while others are in flight.
//!
//! Another process may write to the memory of the caller, and so between the read and the checksum.
//! A value whose checksum is wrong is therefore read again, into memory of the tier that no other
//! process has. Only a wrong checksum there is the disk's. Memory of a fetch that failed is filled
//! with zeros: it never has bytes that were not verified.

use std::io;
use std::mem::take;

use kvmem::tier::TierRead;

use super::bounce::{Bounce, blocks_of_rest, in_place};
use super::checksum::{checksum, checksum_begin, value_checksum};
use super::encoded::{Decoded, group_len};
use super::fetched::Fetched;
use super::state::BadExtents;
use super::tier::DiskTier;
use crate::crc;
use crate::device::{AlignedBuffer, Device, Read};
use crate::format::{BLOCK, Digest, Entry};

/// The most bytes of values of a group that may be encoded, if it has several values. A form is
/// read into a bounce buffer, so the buffers of a group are all in use at once. The next group uses
/// the same ones, whose memory is neither mapped nor cleared again.
const GROUP: usize = 16 << 20;

/// A value that is read.
struct Wanted<'a> {
    /// Its index among the requests.
    index: usize,
    entry: Entry,
    /// The bytes that are read into place, and those that go through a bounce buffer. All of an
    /// encoded value go there, whose form has another length.
    in_place: &'a mut [u8],
    rest: &'a mut [u8],
    /// The result of decoding, if it was.
    decoded: Option<Decoded>,
}

/// The read of an extent of a value.
struct ExtentRead<'a> {
    /// The place of the value among those that are wanted.
    value: usize,
    /// Bytes of the value in the extent, or of its form, and the memory for those of the value that
    /// go through a bounce buffer.
    len: usize,
    rest: &'a mut [u8],
    /// The checksum of these bytes: behind what comes before them, if the value has no other
    /// extent. `None` if they were not read.
    sum: Option<u32>,
    /// The error, if they were not.
    error: Option<io::ErrorKind>,
}

impl<D: Device> DiskTier<D> {
    /// Fetches values, and returns the result of each in the same order. Only after
    /// [`Fetched::Hit`] do the bytes mean anything. The memory of a value that was read and is no
    /// hit has zeros.
    ///
    /// Memory that begins at a multiple of the block is read into directly; other memory is copied
    /// to.
    pub fn fetch(&self, requests: &mut [TierRead<'_>]) -> Vec<Fetched> {
        self.fetch_entries(requests, &mut |_, _, _| {})
    }

    /// Returns the CRC-32C of the bytes of a value, as they are on the disk: whatever another
    /// process writes to the memory that they were fetched into, it is that of the value that was
    /// stored.
    pub(crate) fn checksum_of(&self, entry: &Entry) -> u32 {
        value_checksum(entry)
    }

    /// Fetches values, and calls `hit` with the index and the entry of each that is in place, and
    /// with the CRC-32C of one that was encoded.
    pub(crate) fn fetch_entries(
        &self,
        requests: &mut [TierRead<'_>],
        hit: &mut dyn FnMut(usize, &Entry, Option<u32>),
    ) -> Vec<Fetched> {
        if !self.encoding.is_on() {
            return self.fetch_group(requests, hit);
        }
        let mut results = Vec::with_capacity(requests.len());
        let mut rest = requests;
        while !rest.is_empty() {
            let lens = rest.iter().map(|request| request.into.len());
            let (group, behind) = rest.split_at_mut(group_len(lens, GROUP));
            let first = results.len();
            let mut hit = |index, entry: &Entry, sum| hit(first + index, entry, sum);
            results.extend(self.fetch_group(group, &mut hit));
            rest = behind;
        }
        results
    }

    /// Fetches the values of one group.
    fn fetch_group(
        &self,
        requests: &mut [TierRead<'_>],
        hit: &mut dyn FnMut(usize, &Entry, Option<u32>),
    ) -> Vec<Fetched> {
        let mut results = vec![Fetched::Absent; requests.len()];
        if self.is_forked() {
            return results;
        }
        let digests: Vec<Digest> = requests.iter().map(|one| self.digest(one.key)).collect();
        let mut wanted = self.find(&digests, requests, &mut results);
        let mut bounces: Vec<Bounce<'_>> = wanted
            .iter()
            .map(|one| match one.entry.encoded {
                None => self.bounce.take(blocks_of_rest(one.in_place, one.rest)),
                Some(_) => self.bounce.take_for_form(one.entry.extents.blocks() as usize),
            })
            .collect();
        let mut reads = Vec::with_capacity(wanted.len());
        let mut extents = Vec::with_capacity(wanted.len());
        for (value, (one, bounce)) in wanted.iter_mut().zip(&mut bounces).enumerate() {
            let mut bounce = &mut **bounce;
            let (mut in_place, mut rest) = match one.entry.encoded {
                None => (take(&mut one.in_place), take(&mut one.rest)),
                Some(_) => Default::default(),
            };
            let mut left = one.entry.len as usize;
            for extent in one.entry.extents.iter() {
                let bytes = extent.blocks as usize * BLOCK;
                let first = split_off(&mut in_place, bytes);
                let second = split_off(&mut bounce, bytes - first.len());
                let rest = split_off(&mut rest, second.len());
                let len = left.min(bytes);
                left -= len;
                let at = self.layout.data.block(extent.start);
                reads.push((extents.len(), Read { at, parts: [first, second] }));
                extents.push(ExtentRead { value, len, rest, sum: None, error: None });
            }
        }
        reads.sort_unstable_by_key(|(_, read)| read.at);
        // The extent of each read.
        let (order, mut reads): (Vec<usize>, Vec<Read<'_>>) = reads.into_iter().unzip();
        // Whether an encoded value has several extents.
        let mut has_parts = false;
        self.device.read(&mut reads, &mut |one, read, result| {
            let ExtentRead { value, len, rest, sum, error } = &mut extents[order[one]];
            *error = result.as_ref().err().map(io::Error::kind);
            if result.is_ok() {
                let [in_place, bounce] = &mut read.parts;
                let Wanted { entry, rest: into, decoded, .. } = &mut wanted[*value];
                let begin = match entry.extents.is_scattered() {
                    true => 0,
                    false => checksum_begin(&entry.digest, entry.len),
                };
                if entry.encoded.is_some() {
                    let form = &mut bounce[..*len];
                    let sum = *sum.insert(crc::append(begin, form));
                    if entry.extents.is_scattered() {
                        has_parts = true;
                    } else if sum == entry.checksum {
                        *decoded = Some(self.decode(entry, form, into));
                    }
                    return;
                }
                rest.copy_from_slice(&bounce[..rest.len()]);
                *sum = Some(crc::append(crc::append(begin, in_place), rest));
            }
        });
        let mut outcomes = outcomes(&wanted, &extents);
        drop((reads, extents));
        if has_parts {
            // All extents are read now.
            for ((outcome, one), form) in outcomes.iter_mut().zip(&mut wanted).zip(&mut bounces) {
                if one.entry.encoded.is_some() && one.decoded.is_none() && outcome.is_whole() {
                    let form = &mut form[..one.entry.len as usize];
                    outcome.decoded = Some(self.decode(&one.entry, form, one.rest));
                }
            }
        }
        drop(wanted);
        for outcome in &mut outcomes {
            if outcome.read.is_ok() && !outcome.is_whole() {
                self.read_again(outcome, requests[outcome.index].into);
            }
        }
        self.settle(&outcomes, &mut results, hit);
        self.write_uses();
        for Outcome { index, .. } in outcomes {
            if results[index] != Fetched::Hit {
                requests[index].into.fill(0);
            }
        }
        results
    }

    /// Reads a value into memory of the tier, and copies or decodes it to the caller's if its
    /// checksum is right.
    #[cold]
    fn read_again(&self, outcome: &mut Outcome, into: &mut [u8]) {
        let entry = &outcome.entry;
        let mut private = AlignedBuffer::new(entry.extents.blocks() as usize);
        let mut rest = &mut *private;
        let mut reads = Vec::with_capacity(entry.extents.len());
        for extent in entry.extents.iter() {
            let part = split_off(&mut rest, extent.blocks as usize * BLOCK);
            let at = self.layout.data.block(extent.start);
            reads.push(Read { at, parts: [part, &mut []] });
        }
        let mut unread = None;
        self.device.read(&mut reads, &mut |place, _, result| {
            if let Err(error) = result {
                let Unread { bad, .. } = unread
                    .get_or_insert(Unread { error: error.kind(), bad: BadExtents::default() });
                bad.add(place);
            }
        });
        drop(reads);
        if let Some(unread) = unread {
            outcome.read = Err(unread);
            return;
        }
        let stored = &mut private[..entry.len as usize];
        let sum = checksum(&entry.digest, stored);
        outcome.read = Ok(sum);
        if sum != entry.checksum {
        } else if entry.encoded.is_some() {
            outcome.decoded = Some(self.decode(entry, stored, into));
        } else {
            into.copy_from_slice(stored);
        }
    }

    /// Looks up the values. Returns those to be read, and puts what is known about the others into
    /// `results`.
    fn find<'a>(
        &self,
        digests: &[Digest],
        requests: &'a mut [TierRead<'_>],
        results: &mut [Fetched],
    ) -> Vec<Wanted<'a>> {
        let (memory_align, read_align) = (self.device.memory_align(), self.device.read_align());
        let mut wanted = Vec::with_capacity(requests.len());
        let mut state = self.state();
        for (index, (request, digest)) in requests.iter_mut().zip(digests).enumerate() {
            if state.suspects.is_paused(digest, || self.device.now()) {
                results[index] = Fetched::Suspect;
                continue;
            }
            let Some(entry) = state.index.get_used(digest) else { continue };
            if entry.value_len() != request.into.len() as u64 {
                results[index] = Fetched::Length { len: entry.value_len() };
                continue;
            }
            let in_place = match entry.encoded {
                None => in_place(request.into, memory_align, read_align),
                Some(_) => 0,
            };
            let (in_place, rest) = request.into.split_at_mut(in_place);
            wanted.push(Wanted { index, entry, in_place, rest, decoded: None });
        }
        wanted
    }

    /// Writes the uses to the journal, if there are enough of them. Waits for no other thread: one
    /// that has the journal writes these, too, and a store may write for long. The values were
    /// fetched, so an error concerns the changes that come later.
    fn write_uses(&self) {
        if !self.state().uses.are_due() {
            return;
        }
        if let Ok(mut journal) = self.journal.try_lock() {
            let position = self.state().position();
            let _ = self.commit_to(&mut journal, position);
        }
    }

    /// Counts the results of reads. A value that was replaced or evicted meanwhile is absent: its
    /// blocks may hold another one.
    fn settle(
        &self,
        outcomes: &[Outcome],
        results: &mut [Fetched],
        hit: &mut dyn FnMut(usize, &Entry, Option<u32>),
    ) {
        let is_durable = self.device.writes_are_durable();
        let mut state = self.state();
        let isolated = !outcomes.is_empty()
            && state.suspects.end_fetch(outcomes.iter().any(|one| one.read.is_ok()));
        for outcome in outcomes {
            let Outcome { index, entry, read, decoded } = outcome;
            if state.index.number_of(&entry.digest) != Some(entry.number) {
                continue;
            }
            results[*index] = match read {
                Ok(_) if outcome.is_whole() => {
                    state.suspects.remove(&entry.digest);
                    if entry.unverified {
                        state.index.set_verified(&entry.digest);
                    }
                    match decoded {
                        None | Some(Ok(_)) => {
                            state.record_use(entry, is_durable);
                            hit(*index, entry, decoded.and_then(Result::ok));
                            Fetched::Hit
                        }
                        Some(Err(why)) => state.fail_to_decode(entry, *why),
                    }
                }
                Ok(_) if state.remove_falsified(entry) => Fetched::Lost,
                Ok(_) => Fetched::Damaged,
                Err(Unread { error, bad }) => {
                    state.fail(entry, *error, *bad, isolated, self.device.now());
                    Fetched::Failed
                }
            };
        }
        for result in results.iter() {
            match result {
                Fetched::Hit => state.stats.hits += 1,
                Fetched::Absent => state.stats.misses += 1,
                Fetched::Suspect => state.stats.suspect_misses += 1,
                Fetched::NoKey => state.stats.key_misses += 1,
                Fetched::BadTag => state.stats.tag_misses += 1,
                _ => {}
            }
        }
    }
}

/// A value that was read.
struct Outcome {
    /// Its index among the requests.
    index: usize,
    entry: Entry,
    /// The checksum of what was read.
    read: Result<u32, Unread>,
    /// The result of decoding, if it was.
    decoded: Option<Decoded>,
}

impl Outcome {
    /// Returns whether what was read is what was stored.
    fn is_whole(&self) -> bool {
        matches!(self.read, Ok(sum) if sum == self.entry.checksum)
    }
}

/// The reason why a value was not read.
#[derive(Clone, Copy)]
struct Unread {
    error: io::ErrorKind,
    /// The extents that were not read.
    bad: BadExtents,
}

/// Returns what was read of each value.
fn outcomes(wanted: &[Wanted<'_>], extents: &[ExtentRead<'_>]) -> Vec<Outcome> {
    let mut left = extents;
    let mut outcome = |&Wanted { index, entry, decoded, .. }: &Wanted<'_>| {
        let (extents, behind) = left.split_at(entry.extents.len());
        left = behind;
        let (sum, bad) = checksum_of(&entry, extents);
        let error = || extents.iter().find_map(|extent| extent.error);
        let unread = || Unread { error: error().unwrap_or(io::ErrorKind::Other), bad };
        Outcome { index, entry, read: sum.ok_or_else(unread), decoded }
    };
    wanted.iter().map(&mut outcome).collect()
}

/// Returns the checksum of a value, of which all extents were read; `None` with those that were
/// not.
fn checksum_of(entry: &Entry, extents: &[ExtentRead<'_>]) -> (Option<u32>, BadExtents) {
    if let [extent] = extents
        && extent.sum.is_some()
    {
        return (extent.sum, BadExtents::default());
    }
    let (mut whole, mut bad) = (checksum_begin(&entry.digest, entry.len), BadExtents::default());
    for (place, extent) in extents.iter().enumerate() {
        match extent.sum {
            Some(sum) => whole = crc::combine(whole, sum, extent.len as u64),
            None => bad.add(place),
        }
    }
    (bad.is_none().then_some(whole), bad)
}

/// Takes the first `len` bytes out of a slice, at most all.
pub(super) fn split_off<'a>(bytes: &mut &'a mut [u8], len: usize) -> &'a mut [u8] {
    let whole = take(bytes);
    let (first, behind) = whole.split_at_mut(len.min(whole.len()));
    *bytes = behind;
    first
}
