//! *Values* of the suites that store bytes: those of a pass to store, and room for those to read;
//! and the contenders that store and fetch them, in this program or beside it.
//!
//! A contender outside of this program talks as [`beside`](super::beside) has it. The heads of the
//! suites have the calls.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use kvmem::arena::PageSize;
use kvmem::pool::{Block, Pool};
use kvmem_testkit::workload::stream;
use rand::seq::SliceRandom;
use rustix::time::{ClockId, clock_gettime};
use serde::Deserialize;
use serde_json::{Value, json};

use super::beside::{Beside, BesideProgram};

/// Bytes at the beginning of a value that tell its number.
const NUMBER: usize = 8;
/// Bytes of a block of a device.
pub(crate) const BLOCK: u64 = kvmem_tier::format::BLOCK as u64;

/// Returns the bytes of the blocks of a value.
pub fn padded(len: u64) -> u64 {
    len.div_ceil(BLOCK).max(1).saturating_mul(BLOCK)
}

/// Values of one length, each in blocks of its own. Their memory is a pool's.
pub(crate) struct Memory {
    pub(crate) pool: Pool,
    source: Block,
    target: Block,
    pub(crate) len: usize,
    pub(crate) stride: usize,
    pub(crate) count: usize,
}

impl Memory {
    /// Makes `count` values of `len` bytes, and room for as many.
    pub(crate) fn new(len: u64, count: u64) -> Result<Memory> {
        let stride = padded(len) as usize;
        let bytes = stride * count as usize;
        let size = (2 * bytes).next_multiple_of(PageSize::Thp.bytes()) + (4 << 20);
        let pool = Pool::builder(size).ladder(PageSize::Thp).build()?;
        let block = || pool.allocate_aligned(bytes, BLOCK as usize);
        let (mut source, target) = (block()?, block()?);
        fill(source.bytes_mut());
        Ok(Memory { pool, source, target, len: len as usize, stride, count: count as usize })
    }

    /// Fills the values with `content`, as often as it fits.
    pub(crate) fn fill(&mut self, content: &[u8]) {
        for part in self.source.bytes_mut().chunks_mut(content.len()) {
            part.copy_from_slice(&content[..part.len()]);
        }
    }

    /// Returns the values `first` to `first + count − 1`, each with the padding behind it. `first`
    /// is a multiple of the count.
    pub(crate) fn values(&mut self, first: u64) -> impl Iterator<Item = &[u8]> {
        let source = self.source.bytes_mut();
        for (number, value) in (first..).zip(source.chunks_exact_mut(self.stride)) {
            value[..NUMBER].copy_from_slice(&number.to_le_bytes());
        }
        source.chunks_exact(self.stride)
    }

    /// Returns room for each value, with its padding.
    pub(crate) fn rooms(&mut self) -> impl Iterator<Item = &mut [u8]> {
        self.target.bytes_mut().chunks_exact_mut(self.stride)
    }

    /// Makes values that are not fetched differ from those that are.
    pub(crate) fn forget(&mut self) {
        for room in self.target.bytes_mut().chunks_exact_mut(self.stride) {
            room[..NUMBER].fill(0xff);
        }
    }

    /// Compares the values in the rooms with those of these numbers.
    pub(crate) fn compare(&self, numbers: &[u64]) -> Result<()> {
        let rooms = self.target.bytes().chunks_exact(self.stride);
        for (&number, room) in numbers.iter().zip(rooms) {
            let at = (number % self.count as u64) as usize * self.stride;
            let value = &self.source.bytes()[at..at + self.len];
            if room[..NUMBER] != number.to_le_bytes() || room[NUMBER..self.len] != value[NUMBER..] {
                bail!("value {number} came back with other bytes than were stored");
            }
        }
        Ok(())
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

/// A contender in this program.
pub(crate) trait ValueContender {
    /// Stores the values from the number `first` on, one for each in `memory`, and forgets the
    /// oldest ones that have no room.
    fn store(&mut self, memory: &mut Memory, first: u64) -> Result<()>;

    /// Prepares for a pass of fetches, outside of its time.
    fn before_fetch(&mut self, _numbers: &[u64]) -> Result<()> {
        Ok(())
    }

    /// Fetches these values into the rooms of `memory`, as many as there are.
    fn fetch(&mut self, memory: &mut Memory, numbers: &[u64]) -> Result<()>;

    /// Returns the bytes of values that it has written to the device, if it counts them.
    fn written_bytes(&self) -> Option<u64> {
        None
    }

    /// Looks up the keys of these values.
    fn lookup(&mut self, _numbers: &[u64], _times: u64) -> Result<()> {
        bail!("this contender has no keys");
    }
}

/// Time of a pass.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct PassTime {
    /// Wall time.
    pub(crate) seconds: f64,
    /// Processor time of the process, with the kernel's threads for its rings.
    pub(crate) cpu_seconds: Option<f64>,
}

impl PassTime {
    fn of(pass: impl FnOnce() -> Result<()>) -> Result<PassTime> {
        let (start, cpu) = (Instant::now(), processor_time());
        pass()?;
        let seconds = start.elapsed().as_secs_f64();
        Ok(PassTime { seconds, cpu_seconds: Some(processor_time() - cpu) })
    }
}

/// Returns the processor time of this process in seconds, with the kernel's threads for its rings.
fn processor_time() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// A contender that takes turns, and the number of its next value.
pub(crate) struct ValueTurn {
    name: String,
    contender: AnyContender,
    next: u64,
}

/// A program of its own times itself.
enum AnyContender {
    Here(Box<dyn ValueContender>),
    Beside(BesideProgram),
}

impl ValueTurn {
    /// Makes the contender `name`: one of `beside`, which gets `open` for its first call, or the
    /// one that `here` makes. Stores values until it has `fill` of them.
    pub(crate) fn new(
        name: &str,
        beside: &[Beside],
        open: &Value,
        here: impl FnOnce() -> Result<Box<dyn ValueContender>>,
        memory: &mut Memory,
        fill: u64,
    ) -> Result<ValueTurn> {
        let contender = match beside.iter().find(|beside| beside.name == name) {
            Some(Beside { program, .. }) => {
                let mut program = BesideProgram::run(name, &mut Command::new(program))?;
                program.call::<Value>(open)?;
                AnyContender::Beside(program)
            }
            None => AnyContender::Here(here()?),
        };
        let mut turn = ValueTurn { name: name.to_owned(), contender, next: 0 };
        while turn.next < fill {
            turn.store(memory)?;
        }
        Ok(turn)
    }

    /// Returns the first call of a program beside. `more` is a field of the suite.
    pub(crate) fn open(
        dir: &Path,
        bytes: u64,
        value_bytes: u64,
        more: (&str, u64),
    ) -> Result<Value> {
        let dir = dir.to_str().context("the directory is no UTF-8")?;
        let mut call =
            json!({"call": "open", "dir": dir, "bytes": bytes, "value_bytes": value_bytes});
        call[more.0] = more.1.into();
        Ok(call)
    }

    /// Returns the contender `name` of several.
    pub(crate) fn of<'a>(turns: &'a mut [ValueTurn], name: &str) -> &'a mut ValueTurn {
        turns.iter_mut().find(|turn| turn.name == name).expect("every contender was made")
    }

    /// Stores as many values as `memory` has.
    pub(crate) fn store(&mut self, memory: &mut Memory) -> Result<PassTime> {
        let (first, count) = (self.next, memory.count as u64);
        self.next += count;
        match &mut self.contender {
            AnyContender::Here(contender) => PassTime::of(|| contender.store(memory, first)),
            AnyContender::Beside(beside) => {
                beside.call(&json!({"call": "store", "first": first, "count": count}))
            }
        }
    }

    /// Returns the bytes written over those of all values stored, if the contender counts them.
    pub(crate) fn written_share(&self, memory: &Memory) -> Option<f64> {
        let AnyContender::Here(contender) = &self.contender else { return None };
        Some(contender.written_bytes()? as f64 / (self.next * memory.len as u64) as f64)
    }

    /// Fetches as many of the `window` values that were stored last as `memory` has rooms, in
    /// random order. `call` is what a program beside calls it.
    pub(crate) fn fetch(
        &mut self,
        memory: &mut Memory,
        window: u64,
        rep: u32,
        call: &str,
    ) -> Result<PassTime> {
        // All contenders fetch the same ones, counted from the last.
        let mut numbers: Vec<u64> = (1..=window).map(|back| self.next - back).collect();
        numbers.shuffle(&mut stream(1, rep.into()));
        numbers.truncate(memory.count);
        match &mut self.contender {
            AnyContender::Here(contender) => {
                contender.before_fetch(&numbers)?;
                memory.forget();
                let time = PassTime::of(|| contender.fetch(memory, &numbers))?;
                memory.compare(&numbers)?;
                Ok(time)
            }
            AnyContender::Beside(beside) => beside.call(&json!({"call": call, "numbers": numbers})),
        }
    }

    /// Looks up the keys of `count` of the `window` values that were stored last, `times` times.
    pub(crate) fn lookup(&mut self, window: u64, count: usize, times: u64) -> Result<PassTime> {
        let stored = (0..window).map(|back| self.next - window + back);
        let numbers: Vec<u64> = stored.cycle().take(count).collect();
        match &mut self.contender {
            AnyContender::Here(contender) => PassTime::of(|| contender.lookup(&numbers, times)),
            AnyContender::Beside(beside) => {
                beside.call(&json!({"call": "lookup", "numbers": numbers, "times": times}))
            }
        }
    }
}
