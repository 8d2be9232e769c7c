//! *Halves*: one file, of which the first half is a tier and the second one is for plain transfers.
//!
//! Both transfer by the same device, from and to the same memory, the same number of values at a
//! time, and are full before the first pass. `kvmem-lab tier` measures them in turns.

use std::io;

use kvmem_tier::TierError;
use kvmem_tier::device::{Device, FileDevice, Read, Write};

use super::contenders::{PassTime, PlainPart, Tier, TierContender, timed};
use super::{TierMeasureError, TierTransfer};
use crate::values::{Memory, padded};

/// Bytes of a pass, about.
const PASS: u64 = 64 << 20;

/// The halves of a file cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum HalvesError {
    /// The first half is too small for a tier.
    #[error(transparent)]
    TooSmall(TierError),
    /// The tier has no room for two batches.
    #[error(
        "{count} values of {len} bytes at once do not fit twice into a tier of {capacity} bytes: \
         use more bytes of the file, or fewer or shorter values"
    )]
    NoRoom {
        /// Values of a batch.
        count: u64,
        /// Bytes of a value.
        len: u64,
        /// Bytes that the tier holds.
        capacity: u64,
    },
    /// A measurement failed.
    #[error(transparent)]
    Measure(#[from] TierMeasureError),
}

/// The first bytes of a device, as a device of its own.
struct FirstPart<'a> {
    device: &'a FileDevice,
    len: u64,
}

impl Device for FirstPart<'_> {
    fn len(&self) -> u64 {
        self.len
    }

    fn is_new(&self) -> bool {
        self.device.is_new()
    }

    fn memory_align(&self) -> usize {
        self.device.memory_align()
    }

    fn read_align(&self) -> usize {
        self.device.read_align()
    }

    fn writes_are_durable(&self) -> bool {
        self.device.writes_are_durable()
    }

    fn write(&self, batch: &[Write<'_>], meanwhile: &mut dyn FnMut(usize)) -> Vec<io::Result<()>> {
        self.device.write(batch, meanwhile)
    }

    fn read(&self, batch: &mut [Read<'_>], done: &mut dyn FnMut(usize, &Read<'_>, io::Result<()>)) {
        self.device.read(batch, done)
    }

    fn sync(&self) -> io::Result<()> {
        self.device.sync()
    }

    fn begin_sync(&self) -> io::Result<()> {
        self.device.begin_sync()
    }

    fn end_sync(&self, wait: bool) -> Option<io::Result<()>> {
        self.device.end_sync(wait)
    }
}

/// One of the two, with the number of its next value.
struct Half<'a> {
    contender: Box<dyn TierContender + 'a>,
    next: u64,
}

/// A full tier with values of one length, and as many in the other half of its file.
pub struct Halves<'a> {
    device: &'a FileDevice,
    tier: Half<'a>,
    plain: Half<'a>,
    /// The values of a batch.
    memory: Memory,
    /// Batches of a pass.
    batches: u64,
}

impl<'a> Halves<'a> {
    /// Makes a tier in the first `half` bytes, and fills it and the other half with values of `len`
    /// bytes. A batch has `count` values.
    ///
    /// # Errors
    /// [`HalvesError`].
    pub fn new(
        device: &'a FileDevice,
        half: u64,
        len: u64,
        count: u64,
    ) -> Result<Halves<'a>, HalvesError> {
        let memory = Memory::new(len, count).map_err(TierMeasureError::from)?;
        let tier =
            Tier::on(FirstPart { device, len: half }, &memory).map_err(|error| match error {
                TierError::TooSmall { .. } => HalvesError::TooSmall(error),
                error => HalvesError::Measure(error.into()),
            })?;
        let (batch, capacity) = (padded(len) * count, tier.capacity());
        if capacity / 2 < batch {
            return Err(HalvesError::NoRoom { count, len, capacity });
        }
        // As the values of a cache are; what cannot be registered, neither side has.
        let _ = device.register_memory(&memory.pool);
        let plain = PlainPart::new(device, half, half / batch * batch, &memory);
        let mut halves = Halves {
            device,
            tier: Half { contender: Box::new(tier), next: 0 },
            plain: Half { contender: Box::new(plain), next: 0 },
            memory,
            batches: (PASS / batch).clamp(1, capacity / 2 / batch),
        };
        halves.tier.store(&mut halves.memory, capacity / batch + 1)?;
        halves.plain.store(&mut halves.memory, half / batch)?;
        Ok(halves)
    }

    /// Returns the bytes of the values of a pass, without padding.
    #[must_use]
    pub fn pass_bytes(&self) -> u64 {
        self.batches * (self.memory.count * self.memory.len) as u64
    }

    /// Stores or fetches the values of a pass through the tier, or by plain transfers. The values
    /// that are fetched are those that were stored last. The last batch of them is compared outside
    /// of the time.
    ///
    /// # Errors
    /// [`TierMeasureError`] when a transfer fails, or other bytes come back than were stored.
    pub fn pass(
        &mut self,
        is_tier: bool,
        transfer: TierTransfer,
    ) -> Result<PassTime, TierMeasureError> {
        let (memory, batches) = (&mut self.memory, self.batches);
        let half = if is_tier { &mut self.tier } else { &mut self.plain };
        match transfer {
            TierTransfer::Store => timed(|| half.store(memory, batches)),
            TierTransfer::Fetch => half.fetch(memory, batches),
        }
    }
}

impl Drop for Halves<'_> {
    fn drop(&mut self) {
        self.device.deregister_memory(&self.memory.pool);
    }
}

impl Half<'_> {
    fn store(&mut self, memory: &mut Memory, batches: u64) -> Result<(), TierMeasureError> {
        for _ in 0..batches {
            self.contender.store(memory, self.next)?;
            self.next += memory.count as u64;
        }
        Ok(())
    }

    fn fetch(&mut self, memory: &mut Memory, batches: u64) -> Result<PassTime, TierMeasureError> {
        let count = memory.count as u64;
        let numbers: Vec<u64> = (self.next - batches * count..self.next).collect();
        memory.forget();
        let time = timed(|| {
            let mut batches = numbers.chunks_exact(memory.count);
            batches.try_for_each(|numbers| self.contender.fetch(memory, numbers))
        })?;
        memory.compare(&numbers[numbers.len() - memory.count..])?;
        Ok(time)
    }
}
