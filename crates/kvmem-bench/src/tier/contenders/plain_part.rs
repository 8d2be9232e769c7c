//! Plain transfers of a part of a file, by the device that a tier in another part has: without
//! index, checksums, journal and eviction.

use kvmem_tier::device::{Device, FileDevice, Read, Write};

use super::TierContender;
use crate::tier::TierMeasureError;
use crate::values::Memory;

/// A part of a file with room for values, one behind the other.
pub(in crate::tier) struct PlainPart<'a> {
    device: &'a FileDevice,
    start: u64,
    /// Values that have room.
    slots: u64,
}

impl<'a> PlainPart<'a> {
    /// Makes a part of `len` bytes, which begins at `start`.
    pub(in crate::tier) fn new(
        device: &'a FileDevice,
        start: u64,
        len: u64,
        memory: &Memory,
    ) -> PlainPart<'a> {
        PlainPart { device, start, slots: len / memory.stride as u64 }
    }

    /// Returns where the value with this number is.
    fn place(&self, memory: &Memory, number: u64) -> u64 {
        self.start + number % self.slots * memory.stride as u64
    }
}

impl TierContender for PlainPart<'_> {
    fn store(&mut self, memory: &mut Memory, first: u64) -> Result<(), TierMeasureError> {
        let places: Vec<u64> =
            (first..).take(memory.count).map(|number| self.place(memory, number)).collect();
        let values = memory.values(first).zip(places);
        let batch: Vec<Write<'_>> =
            values.map(|(value, at)| Write { at, parts: [value, &[]] }).collect();
        let written = self.device.write(&batch, &mut |_| {});
        written.into_iter().collect::<Result<(), _>>().map_err(TierMeasureError::system("write"))
    }

    fn fetch(&mut self, memory: &mut Memory, numbers: &[u64]) -> Result<(), TierMeasureError> {
        let places: Vec<u64> = numbers.iter().map(|&number| self.place(memory, number)).collect();
        let rooms = memory.rooms().zip(places);
        let mut batch: Vec<Read<'_>> =
            rooms.map(|(room, at)| Read { at, parts: [room, &mut []] }).collect();
        let mut result = Ok(());
        self.device.read(&mut batch, &mut |_, _, read| {
            if read.is_err() {
                result = read;
            }
        });
        result.map_err(TierMeasureError::system("read"))
    }
}
