//! *Fetching*: values are read and verified.
//!
//! The values of a call are read side by side, and so are the extents of a value. The device gets
//! the reads in the order of their offsets: neighbours on the drive are read one after the other,
//! whatever the order of the keys. The thread computes the checksum of each read as soon as it is
//! complete, while others are in flight; that of an encoded value, when it decodes the value.
//!
//! Encoded values are read in *groups*, since their forms go through bounce buffers. While the
//! device reads one group, the thread decodes the previous one: the reads of a group complete at
//! nearly the same time, and if it was decoded only then, the device would have nothing to do.
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
use super::encoded::{Decoded, GROUP, group_len};
use super::fetched::Fetched;
use super::state::BadExtents;
use super::tier::DiskTier;
use crate::crc;
use crate::device::{AlignedBuffer, Device, Read};
use crate::format::{BLOCK, Digest, Entry};
use crate::side_by_side::side_by_side;

/// A value that is read.
struct Wanted<'a> {
    /// Its index among the requests.
    index: usize,
    entry: Entry,
    /// The bytes that are read into place, and those that go through a bounce buffer. All of an
    /// encoded value go there, whose form has another length.
    in_place: &'a mut [u8],
    rest: &'a mut [u8],
    /// What was read, if it is encoded and was opened at once.
    opened: Option<ValueRead>,
}

/// The read of an extent of a value.
struct ExtentRead<'a> {
    /// The place of the value among those that are wanted.
    value: usize,
    /// Bytes of the value in the extent, or of its form, and the memory for those of the value that
    /// go through a bounce buffer.
    len: usize,
    rest: &'a mut [u8],
    /// The checksum of these bytes, unless the value is encoded: behind what comes before them, if
    /// the value has no other extent.
    sum: u32,
    /// The reason why they are not read.
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
        if !self.encoding.is_on() || self.is_forked() {
            return self.fetch_groups(requests, usize::MAX, hit);
        }
        let shares = self.shares(requests.iter().map(|request| request.into.len()));
        if shares.len() <= 1 {
            return self.fetch_groups(requests, GROUP, hit);
        }
        let mut results = Vec::with_capacity(requests.len());
        let (mut parts, mut rest, mut first) = (Vec::with_capacity(shares.len()), requests, 0);
        for len in shares {
            let (part, behind) = rest.split_at_mut(len);
            parts.push((first, part));
            (rest, first) = (behind, first + len);
        }
        let parts = side_by_side(parts, |(first, requests)| {
            let mut hits = Vec::new();
            let mut hit = |index, entry: &Entry, sum| hits.push((first + index, *entry, sum));
            let results = self.fetch_groups(requests, GROUP, &mut hit);
            (results, hits)
        });
        for (of_part, hits) in parts {
            results.extend(of_part);
            hits.iter().for_each(|(index, entry, sum)| hit(*index, entry, *sum));
        }
        results
    }

    /// Fetches values in groups of at most `most` bytes, each of at least one value.
    fn fetch_groups(
        &self,
        requests: &mut [TierRead<'_>],
        most: usize,
        hit: &mut dyn FnMut(usize, &Entry, Option<u32>),
    ) -> Vec<Fetched> {
        let mut results = Vec::with_capacity(requests.len());
        let (mut rest, mut previous) = (requests, None::<Group<'_, '_, '_>>);
        while !rest.is_empty() {
            let lens = rest.iter().map(|request| request.into.len());
            let (requests, behind) = rest.split_at_mut(group_len(lens, most));
            let mut work = || {
                let more = previous.as_mut().is_some_and(|group| group.open_next(self));
                if !more && let Some(group) = previous.take() {
                    self.end_group(group, &mut results, hit);
                }
                more
            };
            let group = self.read_group(requests, behind.is_empty(), &mut work);
            previous = Some(group);
            rest = behind;
        }
        if let Some(group) = previous {
            self.end_group(group, &mut results, hit);
        }
        results
    }

    /// Reads the values of a group, and opens the form of each at once if it is the last group.
    /// Calls `meanwhile` until it returns false.
    fn read_group<'r, 'v, 'b>(
        &'b self,
        requests: &'r mut [TierRead<'v>],
        is_last: bool,
        meanwhile: &mut dyn FnMut() -> bool,
    ) -> Group<'r, 'v, 'b> {
        let mut results = vec![Fetched::Absent; requests.len()];
        if self.is_forked() {
            return Group { requests, results, outcomes: Vec::new(), next: 0 };
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
                let error = Some(io::ErrorKind::Other);
                extents.push(ExtentRead { value, len, rest, sum: 0, error });
            }
        }
        reads.sort_unstable_by_key(|(_, read)| read.at);
        // The extent of each read.
        let (order, mut reads): (Vec<usize>, Vec<Read<'_>>) = reads.into_iter().unzip();
        self.device.read_meanwhile(&mut reads, meanwhile, &mut |one, read, result| {
            let ExtentRead { value, len, rest, sum, error } = &mut extents[order[one]];
            *error = result.as_ref().err().map(io::Error::kind);
            if result.is_ok() {
                let [in_place, bounce] = &mut read.parts;
                let Wanted { entry, rest: into, opened, .. } = &mut wanted[*value];
                let is_scattered = entry.extents.is_scattered();
                if entry.encoded.is_some() {
                    if is_last && !is_scattered {
                        *opened = Some(self.open_form(entry, &mut bounce[..*len], into));
                    }
                    return;
                }
                let begin = match is_scattered {
                    true => 0,
                    false => checksum_begin(&entry.digest, entry.len),
                };
                rest.copy_from_slice(&bounce[..rest.len()]);
                *sum = crc::append(crc::append(begin, in_place), rest);
            }
        });
        drop(reads);
        let outcomes = outcomes(&wanted, &extents, bounces);
        Group { requests, results, outcomes, next: 0 }
    }

    /// Opens the forms of a group that are left, and adds the results of its values to those of
    /// the groups before it.
    fn end_group(
        &self,
        mut group: Group<'_, '_, '_>,
        results: &mut Vec<Fetched>,
        hit: &mut dyn FnMut(usize, &Entry, Option<u32>),
    ) {
        while group.open_next(self) {}
        let Group { requests, results: mut of_group, mut outcomes, .. } = group;
        for outcome in &mut outcomes {
            if matches!(outcome.read, ValueRead::Verified { .. }) && !outcome.is_whole() {
                self.read_again(outcome, requests[outcome.index].into);
            }
        }
        let first = results.len();
        let mut hit = |index, entry: &Entry, sum| hit(first + index, entry, sum);
        self.settle(&outcomes, &mut of_group, &mut hit);
        self.write_uses();
        for Outcome { index, .. } in outcomes {
            if of_group[index] != Fetched::Hit {
                requests[index].into.fill(0);
            }
        }
        results.append(&mut of_group);
    }

    /// Reads a value into memory of the tier, and copies or decodes it to the caller's if its
    /// checksum is right.
    #[cold]
    fn read_again(&self, outcome: &mut Outcome<'_>, into: &mut [u8]) {
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
                let (_, bad) = unread.get_or_insert((error.kind(), BadExtents::default()));
                bad.add(place);
            }
        });
        drop(reads);
        let stored = &mut private[..entry.len as usize];
        outcome.read = match unread {
            Some((error, bad)) => ValueRead::Unread { error, bad },
            None if entry.encoded.is_some() => self.open_form(entry, stored, into),
            None => {
                let sum = checksum(&entry.digest, stored);
                if sum == entry.checksum {
                    into.copy_from_slice(stored);
                }
                ValueRead::Verified { sum, decoded: None }
            }
        };
    }

    /// Verifies the form of a value, and decodes it into place if it is what was stored.
    fn open_form(&self, entry: &Entry, form: &mut [u8], into: &mut [u8]) -> ValueRead {
        let sum = checksum(&entry.digest, form);
        let decoded = (sum == entry.checksum).then(|| self.decode(entry, form, into));
        ValueRead::Verified { sum, decoded }
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
            wanted.push(Wanted { index, entry, in_place, rest, opened: None });
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
        outcomes: &[Outcome<'_>],
        results: &mut [Fetched],
        hit: &mut dyn FnMut(usize, &Entry, Option<u32>),
    ) {
        let is_durable = self.device.writes_are_durable();
        let mut state = self.state();
        let isolated =
            !outcomes.is_empty() && state.suspects.end_fetch(outcomes.iter().any(Outcome::is_read));
        for outcome in outcomes {
            let Outcome { index, entry, read, .. } = outcome;
            if state.index.number_of(&entry.digest) != Some(entry.number) {
                continue;
            }
            results[*index] = match *read {
                ValueRead::Unread { error, bad } => {
                    state.fail(entry, error, bad, isolated, self.device.now());
                    Fetched::Failed
                }
                ValueRead::Verified { decoded, .. } if outcome.is_whole() => {
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
                        Some(Err(why)) => state.fail_to_decode(entry, why),
                    }
                }
                _ if state.remove_falsified(entry) => Fetched::Lost,
                _ => Fetched::Damaged,
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

/// A group whose values were read.
struct Group<'r, 'v, 'b> {
    requests: &'r mut [TierRead<'v>],
    /// The results of its values, as far as they are known without reading.
    results: Vec<Fetched>,
    outcomes: Vec<Outcome<'b>>,
    /// The first outcome whose form may be unopened.
    next: usize,
}

impl Group<'_, '_, '_> {
    /// Opens the next form that is not. Returns false if there is none.
    fn open_next<D: Device>(&mut self, tier: &DiskTier<D>) -> bool {
        while let Some(one) = self.outcomes.get_mut(self.next) {
            self.next += 1;
            if matches!(one.read, ValueRead::Form) {
                let form = &mut one.bounce[..one.entry.len as usize];
                one.read = tier.open_form(&one.entry, form, self.requests[one.index].into);
                return true;
            }
        }
        false
    }
}

/// A value that was read.
struct Outcome<'b> {
    /// Its index among the requests.
    index: usize,
    entry: Entry,
    read: ValueRead,
    /// The form, if the value is encoded.
    bounce: Bounce<'b>,
}

impl Outcome<'_> {
    /// Returns whether all extents were read.
    fn is_read(&self) -> bool {
        !matches!(self.read, ValueRead::Unread { .. })
    }

    /// Returns whether what was read is what was stored.
    fn is_whole(&self) -> bool {
        matches!(self.read, ValueRead::Verified { sum, .. } if sum == self.entry.checksum)
    }
}

/// What was read of a value.
#[derive(Clone, Copy)]
enum ValueRead {
    /// Not all of its extents, and why.
    Unread { error: io::ErrorKind, bad: BadExtents },
    /// All of its form, which is not opened.
    Form,
    /// Bytes with this checksum. If they are the form of an encoded value, they were decoded.
    Verified { sum: u32, decoded: Option<Decoded> },
}

/// Returns what was read of each value, with its bounce buffer.
fn outcomes<'b>(
    wanted: &[Wanted<'_>],
    extents: &[ExtentRead<'_>],
    bounces: Vec<Bounce<'b>>,
) -> Vec<Outcome<'b>> {
    let mut left = extents;
    let mut outcome = |(one, bounce): (&Wanted<'_>, _)| {
        let &Wanted { index, entry, opened, .. } = one;
        let (extents, behind) = left.split_at(entry.extents.len());
        left = behind;
        let read = opened.unwrap_or_else(|| value_read(&entry, extents));
        Outcome { index, entry, read, bounce }
    };
    wanted.iter().zip(bounces).map(&mut outcome).collect()
}

/// Returns what was read of a value, whose form is not opened if it has one.
fn value_read(entry: &Entry, extents: &[ExtentRead<'_>]) -> ValueRead {
    let mut bad = BadExtents::default();
    for (place, _) in extents.iter().enumerate().filter(|(_, extent)| extent.error.is_some()) {
        bad.add(place);
    }
    if let Some(error) = extents.iter().find_map(|extent| extent.error) {
        return ValueRead::Unread { error, bad };
    }
    let sum = match extents {
        _ if entry.encoded.is_some() => return ValueRead::Form,
        [extent] => extent.sum,
        _ => extents.iter().fold(checksum_begin(&entry.digest, entry.len), |sum, extent| {
            crc::combine(sum, extent.sum, extent.len as u64)
        }),
    };
    ValueRead::Verified { sum, decoded: None }
}

/// Takes the first `len` bytes out of a slice, at most all.
pub(super) fn split_off<'a>(bytes: &mut &'a mut [u8], len: usize) -> &'a mut [u8] {
    let whole = take(bytes);
    let (first, behind) = whole.split_at_mut(len.min(whole.len()));
    *bytes = behind;
    first
}
