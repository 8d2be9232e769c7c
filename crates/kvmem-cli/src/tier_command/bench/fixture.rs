//! *Fixture*: a full tier and a part for plain transfers, with the passes of both.

use std::io;
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use kvmem::pool::{Block, Pool};
use kvmem_tier::device::{Device, FileDevice, Read, Write};
use kvmem_tier::format::BLOCK;
use kvmem_tier::{DiskTier, Fetch, Fetched, TierError, TierOptions};

use super::report::TierBenchRow;
use super::turns::{Side, both, row};
use super::{failed, padded};
use crate::output::Failure;

/// Turns of each kind of pass, at least.
const MIN_TURNS: u32 = 3;
/// Bytes of a pass, about.
const PASS: u64 = 64 << 20;

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

/// A full tier with values of one size, and a half of the file with as many.
pub(super) struct Fixture<'a> {
    device: &'a FileDevice,
    tier: DiskTier<FirstPart<'a>>,
    /// Bytes of a value, and of its blocks.
    len: usize,
    stride: usize,
    /// Values of a batch, and batches of a pass.
    depth: usize,
    batches: u64,
    /// Where plain transfers begin in the file, and the batches that have room there.
    plain_start: u64,
    plain_batches: u64,
    /// The values of a batch, each from a multiple of the block on.
    source: Block,
    target: Block,
    pool: Pool,
    /// The number of the next batch to store, of each side.
    next_stored: u64,
    next_written: u64,
}

impl<'a> Fixture<'a> {
    /// Makes a tier in the first `half` bytes, and fills it and the other half.
    pub(super) fn new(
        device: &'a FileDevice,
        half: u64,
        len: u64,
        depth: u32,
    ) -> Result<Self, Failure> {
        let stride = padded(len);
        let options = TierOptions {
            format: true,
            // One is evicted while another takes its place.
            max_entries: Some(half / stride + u64::from(depth)),
            ..TierOptions::default()
        };
        let (tier, _) = DiskTier::on(FirstPart { device, len: half }, &options).map_err(
            |error| match error {
                TierError::TooSmall { .. } => Failure::usage(error),
                _ => failed(error),
            },
        )?;
        let batch = stride * u64::from(depth);
        let capacity = tier.stats().capacity;
        if capacity / 2 < batch {
            return Err(Failure::usage(format_args!(
                "{depth} values of {len} bytes at once do not fit twice into a tier of {capacity} \
                 bytes: raise --size, or lower --depth or --value-bytes"
            )));
        }
        // In the memory of a pool, as the values of a cache are, registered for both sides. What
        // cannot be registered is transferred by both without that.
        let pool = Pool::builder(2 * batch as usize + (1 << 20)).build().map_err(failed)?;
        let _ = device.register_memory(&pool);
        let mut source = pool.allocate_aligned(batch as usize, BLOCK).map_err(failed)?;
        let target = pool.allocate_aligned(batch as usize, BLOCK).map_err(failed)?;
        fill(source.bytes_mut());
        let mut fixture = Fixture {
            device,
            tier,
            len: len as usize,
            stride: stride as usize,
            depth: depth as usize,
            batches: (PASS / batch).clamp(1, capacity / 2 / batch),
            plain_start: half,
            plain_batches: half / batch,
            source,
            target,
            pool,
            next_stored: 0,
            next_written: 0,
        };
        for _ in 0..capacity / batch + 1 {
            fixture.store(1)?;
        }
        for _ in 0..fixture.plain_batches {
            fixture.write(1)?;
        }
        Ok(fixture)
    }

    /// Takes turns for that long, at least [`MIN_TURNS`]; returns the rows of storing and of
    /// fetching. The bar has advanced by `before` already.
    pub(super) fn measure(
        mut self,
        turns: Duration,
        bar: &ProgressBar,
        before: Duration,
    ) -> Result<[TierBenchRow; 2], Failure> {
        let batches = self.batches;
        let (mut stores, mut fetches) = (Vec::new(), Vec::new());
        let start = Instant::now();
        let mut turn = 0;
        while turn < MIN_TURNS || start.elapsed() < turns {
            let sides =
                if turn % 2 == 0 { [Side::Tier, Side::Plain] } else { [Side::Plain, Side::Tier] };
            stores.push(both(sides, |side| match side {
                Side::Tier => self.store(batches),
                Side::Plain => self.write(batches),
            })?);
            fetches.push(both(sides, |side| match side {
                Side::Tier => self.fetch(batches),
                Side::Plain => self.read(batches),
            })?);
            let done = before.saturating_add(start.elapsed().min(turns));
            bar.set_position(done.as_millis() as u64);
            turn += 1;
        }
        self.compare()?;
        let bytes = batches * self.depth as u64 * self.len as u64;
        Ok([row("store", self.len, bytes, &stores), row("fetch", self.len, bytes, &fetches)])
    }

    /// Stores batches of values under new keys.
    fn store(&mut self, batches: u64) -> Result<(), Failure> {
        for _ in 0..batches {
            let keys = self.keys(self.next_stored);
            let values = keys.iter().zip(self.source.bytes().chunks_exact(self.stride));
            let batch: Vec<(&[u8], &[u8])> =
                values.map(|(key, value)| (&key[..], &value[..self.len])).collect();
            for stored in self.tier.store(&batch) {
                stored.map_err(failed)?;
            }
            self.next_stored += 1;
        }
        Ok(())
    }

    /// Fetches the batches that were stored last.
    fn fetch(&mut self, batches: u64) -> Result<(), Failure> {
        for batch in self.next_stored - batches..self.next_stored {
            let keys = self.keys(batch);
            let memory = self.target.bytes_mut().chunks_exact_mut(self.stride);
            let mut requests: Vec<Fetch<'_>> = keys
                .iter()
                .zip(memory)
                .map(|(key, into)| Fetch { key, into: &mut into[..self.len] })
                .collect();
            if let Some(other) =
                self.tier.fetch(&mut requests).into_iter().find(|one| *one != Fetched::Hit)
            {
                return Err(failed(format_args!(
                    "a value that was stored is not found: {other:?}"
                )));
            }
        }
        Ok(())
    }

    /// Writes batches to the other half, one behind the other.
    fn write(&mut self, batches: u64) -> Result<(), Failure> {
        for _ in 0..batches {
            let values = self.source.bytes().chunks_exact(self.stride);
            let batch: Vec<Write<'_>> = values
                .zip(self.places(self.next_written))
                .map(|(value, at)| Write { at, parts: [value, &[]] })
                .collect();
            for written in self.device.write(&batch, &mut |_| {}) {
                written.map_err(failed)?;
            }
            self.next_written += 1;
        }
        Ok(())
    }

    /// Reads the batches that were written last.
    fn read(&mut self, batches: u64) -> Result<(), Failure> {
        for batch in self.next_written - batches..self.next_written {
            let places = self.places(batch);
            let memory = self.target.bytes_mut().chunks_exact_mut(self.stride);
            let mut batch: Vec<Read<'_>> =
                memory.zip(places).map(|(into, at)| Read { at, parts: [into, &mut []] }).collect();
            let mut result = Ok(());
            self.device.read(&mut batch, &mut |_, _, read| {
                if read.is_err() {
                    result = read;
                }
            });
            result.map_err(failed)?;
        }
        Ok(())
    }

    /// Fetches the last batch and compares it with what was stored.
    fn compare(&mut self) -> Result<(), Failure> {
        self.target.bytes_mut().fill(0);
        self.fetch(1)?;
        let values = |block: &Block| -> Vec<Vec<u8>> {
            let values = block.bytes().chunks_exact(self.stride);
            values.map(|value| value[..self.len].to_vec()).collect()
        };
        if values(&self.source) == values(&self.target) {
            Ok(())
        } else {
            Err(failed("the tier has returned other bytes than were stored"))
        }
    }

    /// Returns the keys of a batch.
    fn keys(&self, batch: u64) -> Vec<[u8; 8]> {
        let first = batch * self.depth as u64;
        (first..first + self.depth as u64).map(u64::to_le_bytes).collect()
    }

    /// Returns where the values of a batch begin in the other half.
    fn places(&self, batch: u64) -> impl Iterator<Item = u64> + use<> {
        let stride = self.stride as u64;
        let first = self.plain_start + batch % self.plain_batches * self.depth as u64 * stride;
        (0..self.depth as u64).map(move |value| first + value * stride)
    }
}

impl Drop for Fixture<'_> {
    fn drop(&mut self) {
        self.device.deregister_memory(&self.pool);
    }
}

/// Fills memory with bytes that no device can compress.
fn fill(memory: &mut [u8]) {
    // Marsaglia's xorshift64.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for word in memory.chunks_exact_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word.copy_from_slice(&state.to_le_bytes());
    }
}
