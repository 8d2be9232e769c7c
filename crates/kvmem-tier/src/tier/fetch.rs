//! *Fetching*: values are read and verified.
//!
//! The values of a call are read side by side. The thread verifies each as soon as it is complete,
//! while others are in flight.

use super::bounce::{Bounce, blocks_of_rest, in_place};
use super::checksum::checksum_begin;
use super::tier::DiskTier;
use crate::crc;
use crate::device::{Device, Read};
use crate::format::{Digest, Entry};

/// A request for a value.
#[derive(Debug)]
pub struct Fetch<'a> {
    /// The key.
    pub key: &'a [u8],
    /// Where the value goes; it must be as long as the value.
    pub into: &'a mut [u8],
}

/// The result of a fetch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Fetched {
    /// The value is in place, and its checksum is right.
    Hit,
    /// There is no value, or it was replaced or evicted while it was read.
    Absent,
    /// The value has another length than the memory for it.
    Length {
        /// Bytes of the value.
        len: u64,
    },
    /// The bytes of the disk were not those that were stored: the value is removed.
    Damaged,
    /// The device failed: the value is removed.
    Failed,
}

/// A value that is read.
struct Wanted<'a> {
    /// Its index among the requests.
    index: usize,
    entry: Entry,
    /// The bytes that are read into place, and those that go through a bounce buffer.
    in_place: &'a mut [u8],
    rest: &'a mut [u8],
}

impl<D: Device> DiskTier<D> {
    /// Fetches values, and returns the result of each in the same order. Only after
    /// [`Fetched::Hit`] do the bytes mean anything.
    ///
    /// Memory that begins at a multiple of the block is read into directly; other memory is copied
    /// to.
    pub fn fetch(&self, requests: &mut [Fetch<'_>]) -> Vec<Fetched> {
        let mut results = vec![Fetched::Absent; requests.len()];
        if self.is_forked() {
            return results;
        }
        let digests: Vec<Digest> = requests.iter().map(|one| self.digest(one.key)).collect();
        let wanted = self.find(&digests, requests, &mut results);
        let mut bounces: Vec<Bounce<'_>> = wanted
            .iter()
            .map(|one| self.bounce.take(blocks_of_rest(one.in_place, one.rest)))
            .collect();
        let mut reads = Vec::with_capacity(wanted.len());
        let mut outcomes = Vec::with_capacity(wanted.len());
        for (Wanted { index, entry, in_place, rest }, bounce) in
            wanted.into_iter().zip(&mut bounces)
        {
            let at = self.layout.data.block(entry.start);
            reads.push(Read { at, parts: [in_place, bounce] });
            outcomes.push((index, entry, rest, Fetched::Failed));
        }
        self.device.read(&mut reads, &mut |one, read, result| {
            let (_, entry, rest, outcome) = &mut outcomes[one];
            if result.is_ok() {
                let [in_place, bounce] = &read.parts;
                rest.copy_from_slice(&bounce[..rest.len()]);
                let begin = checksum_begin(&entry.digest, entry.len);
                let sum = crc::append(crc::append(begin, in_place), rest);
                *outcome = if sum == entry.checksum { Fetched::Hit } else { Fetched::Damaged };
            }
        });
        let outcomes =
            outcomes.into_iter().map(|(index, entry, _, outcome)| (index, entry, outcome));
        self.settle(outcomes, &mut results);
        results
    }

    /// Looks up the values. Returns those to be read, and puts what is known about the others into
    /// `results`.
    fn find<'a>(
        &self,
        digests: &[Digest],
        requests: &'a mut [Fetch<'_>],
        results: &mut [Fetched],
    ) -> Vec<Wanted<'a>> {
        let (memory_align, read_align) = (self.device.memory_align(), self.device.read_align());
        let mut wanted = Vec::with_capacity(requests.len());
        let mut state = self.state();
        for (index, (request, digest)) in requests.iter_mut().zip(digests).enumerate() {
            state.index.touch(digest);
            let Some(entry) = state.index.get(digest).map(|found| found.entry) else { continue };
            if entry.len != request.into.len() as u64 {
                results[index] = Fetched::Length { len: entry.len };
                continue;
            }
            let in_place = in_place(request.into, memory_align, read_align);
            let (in_place, rest) = request.into.split_at_mut(in_place);
            wanted.push(Wanted { index, entry, in_place, rest });
        }
        wanted
    }

    /// Counts the results of reads. A value that was replaced or evicted meanwhile is absent: its
    /// blocks may hold another one.
    fn settle(
        &self,
        outcomes: impl Iterator<Item = (usize, Entry, Fetched)>,
        results: &mut [Fetched],
    ) {
        let mut state = self.state();
        for (index, entry, outcome) in outcomes {
            let now = state.index.get(&entry.digest);
            if now.is_none_or(|now| now.entry.number != entry.number) {
                continue;
            }
            results[index] = outcome;
            match outcome {
                Fetched::Damaged => state.stats.checksum_misses += 1,
                Fetched::Failed => state.stats.io_misses += 1,
                _ => continue,
            }
            state.quarantine(&entry);
        }
        for result in results.iter() {
            match result {
                Fetched::Hit => state.stats.hits += 1,
                Fetched::Absent => state.stats.misses += 1,
                _ => {}
            }
        }
    }
}
