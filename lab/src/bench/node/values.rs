//! *Values* of 1 MiB: passes of stores, reads and look-ups by each contender.

use std::path::Path;
use std::time::Instant;

use kvmem::arena::{Populate, ProgressOptions, Region};
use kvmem_node::{ClientError, NewValue, NodeClient, PinBatch};
use kvmem_testkit::workload::stream;
use rand::seq::SliceRandom;
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use super::exchange::{KEYS, key};
use super::memory::{self, NodeFiles};
use super::role::{ServerProcess, connect};
use super::{NodeChild, NodeContenderId, NodeMeasureError};
use crate::bench::beside::{Beside, BesideProgram};
use crate::bench::values::Memory;

/// Bytes of a value.
pub(super) const VALUE_BYTES: u64 = 1 << 20;
/// Values of a call, as many as in the other sections.
pub(super) const BATCH: usize = KEYS;

/// A contender in this program.
trait ValueContender {
    /// Stores the values from the number `first` on, each under its key modulo the slots.
    fn store(&mut self, memory: &mut Memory, first: u64) -> Result<(), NodeMeasureError>;

    /// Reads these values into the rooms of `memory`.
    fn read(&mut self, memory: &mut Memory, numbers: &[u64]) -> Result<(), NodeMeasureError>;

    /// Looks up the keys of these values.
    fn lookup(&mut self, numbers: &[u64], times: u64) -> Result<(), NodeMeasureError>;
}

/// A client of a node.
struct NodeValues {
    client: NodeClient,
    slots: u64,
    _server: ServerProcess,
}

impl NodeValues {
    fn new(
        dir: &Path,
        rings: bool,
        slots: u64,
        count: u64,
        child: NodeChild,
    ) -> Result<NodeValues, NodeMeasureError> {
        let socket = dir.join(if rings { "ring" } else { "socket" });
        let blocks = blocks(slots, count);
        let files = NodeFiles::new(blocks * VALUE_BYTES, 2 * blocks as u32, true)?;
        let mut server = files.serve(&socket, child)?;
        server.wait()?;
        Ok(NodeValues { client: connect(&socket, rings, true)?, slots, _server: server })
    }

    fn keys(&self, numbers: impl IntoIterator<Item = u64>) -> Vec<[u8; 32]> {
        numbers.into_iter().map(|number| key(number % self.slots)).collect()
    }
}

impl ValueContender for NodeValues {
    fn store(&mut self, memory: &mut Memory, first: u64) -> Result<(), NodeMeasureError> {
        let keys = self.keys(first..first + memory.count as u64);
        let values: Vec<&[u8]> = memory.values(first).collect();
        for (keys, values) in keys.chunks(BATCH).zip(values.chunks(BATCH)) {
            let mut reserved = self.client.reserve(&vec![VALUE_BYTES; values.len()])?;
            for (block, value) in reserved.iter_mut().zip(values) {
                block.write(0, value)?;
            }
            self.client
                .commit(
                    keys.iter()
                        .zip(reserved)
                        .map(|(key, block)| NewValue::new(key, block))
                        .collect(),
                )
                .map_err(ClientError::from)?;
        }
        Ok(())
    }

    fn read(&mut self, memory: &mut Memory, numbers: &[u64]) -> Result<(), NodeMeasureError> {
        let keys = self.keys(numbers.iter().copied());
        let mut rooms = memory.rooms();
        for keys in keys.chunks(BATCH) {
            let pins: PinBatch = self.client.acquire(keys)?;
            NodeMeasureError::unless_all(pins.hits(), keys.len())?;
            for (value, room) in pins.values().flatten().zip(&mut rooms) {
                room.copy_from_slice(value.bytes());
            }
        }
        Ok(())
    }

    fn lookup(&mut self, numbers: &[u64], times: u64) -> Result<(), NodeMeasureError> {
        let keys = self.keys(numbers.iter().copied());
        for _ in 0..times {
            NodeMeasureError::unless_all(self.client.lookup(&keys)?, keys.len())?;
        }
        Ok(())
    }
}

/// Returns the blocks of a node with room for those of a call besides the ones that it replaces, so
/// that nothing is evicted.
fn blocks(slots: u64, count: u64) -> u64 {
    slots + count.max(2 * BATCH as u64)
}

/// A memory file of this process, of as many blocks as the memory of a node.
struct PlainCopies {
    region: Region,
    blocks: u64,
}

impl PlainCopies {
    fn new(blocks: u64) -> Result<PlainCopies, NodeMeasureError> {
        // Mapped a second time, as a client maps the memory of a node.
        let file = memory::map(blocks * VALUE_BYTES, true)?.share()?;
        let region = Region::attach(file.expect("a shared region has a file"), None)?;
        region.populate(.., Populate::Auto, &ProgressOptions::default())?;
        Ok(PlainCopies { region, blocks })
    }

    fn slot(&self, number: u64) -> *mut u8 {
        let at = (number % self.blocks * VALUE_BYTES) as usize;
        // SAFETY: the slot lies in the region.
        unsafe { self.region.base().as_ptr().add(at) }
    }
}

impl ValueContender for PlainCopies {
    fn store(&mut self, memory: &mut Memory, first: u64) -> Result<(), NodeMeasureError> {
        for (number, value) in (first..).zip(memory.values(first)) {
            // SAFETY: the slot has the bytes of a value, and `self`, which owns the only mapping,
            // is borrowed exclusively.
            let slot =
                unsafe { std::slice::from_raw_parts_mut(self.slot(number), VALUE_BYTES as usize) };
            slot.copy_from_slice(value);
        }
        Ok(())
    }

    fn read(&mut self, memory: &mut Memory, numbers: &[u64]) -> Result<(), NodeMeasureError> {
        for (&number, room) in numbers.iter().zip(memory.rooms()) {
            // SAFETY: as in `store`.
            let slot =
                unsafe { std::slice::from_raw_parts(self.slot(number), VALUE_BYTES as usize) };
            room.copy_from_slice(slot);
        }
        Ok(())
    }

    fn lookup(&mut self, _: &[u64], _: u64) -> Result<(), NodeMeasureError> {
        unreachable!("the plan has no look-ups of plain copies");
    }
}

/// What a program beside is told.
#[derive(Serialize)]
#[serde(tag = "call", rename_all = "lowercase")]
enum ValueCall<'a> {
    Open { dir: &'a str, bytes: u64, value_bytes: u64, batch: usize },
    Store { first: u64, count: u64 },
    Read { numbers: &'a [u64] },
    Lookup { numbers: &'a [u64], times: u64 },
}

/// What it says.
#[derive(Deserialize)]
struct ValueAnswer {
    seconds: Option<f64>,
}

/// A program of its own, which times itself.
struct ValuesBeside(BesideProgram);

impl ValuesBeside {
    fn call(&mut self, call: &ValueCall<'_>) -> Result<f64, NodeMeasureError> {
        let ValueAnswer { seconds } = self.0.call(call)?;
        Ok(seconds.ok_or_else(|| self.0.failed("it answered without `seconds`"))?)
    }
}

enum AnyValues {
    Here(Box<dyn ValueContender>),
    Beside(ValuesBeside),
}

/// A contender that takes turns, and the number of its next value.
struct ValueTurn {
    name: String,
    contender: AnyValues,
    next: u64,
}

/// The contenders, each with a value under every key.
pub(super) struct ValuesFixture {
    turns: Vec<ValueTurn>,
    memory: Memory,
    slots: u64,
    // The sockets are in it, so it is dropped last.
    _dir: TempDir,
}

impl ValuesFixture {
    /// Makes the contenders for passes of `count` values.
    pub(super) fn new(
        dir: TempDir,
        names: &[&str],
        beside: &[Beside],
        count: u64,
        child: NodeChild,
    ) -> Result<ValuesFixture, NodeMeasureError> {
        let slots = 2 * count;
        let mut memory = Memory::new(VALUE_BYTES, count)?;
        // The first read does not wait for pages.
        memory.rooms().for_each(|room| room.fill(0));
        let mut turns = Vec::new();
        for &name in names {
            let contender = match beside.iter().find(|beside| beside.name == name) {
                Some(beside) => {
                    let mut program = ValuesBeside(BesideProgram::start(beside)?);
                    let own = dir.path().join(name);
                    std::fs::create_dir(&own)
                        .map_err(NodeMeasureError::system("make a directory"))?;
                    let dir = own.to_str();
                    let dir = dir.ok_or_else(|| program.0.failed("the directory is no UTF-8"))?;
                    let bytes = slots * VALUE_BYTES;
                    let open =
                        ValueCall::Open { dir, bytes, value_bytes: VALUE_BYTES, batch: BATCH };
                    let _: ValueAnswer = program.0.call(&open)?;
                    AnyValues::Beside(program)
                }
                None if name == NodeContenderId::Memcpy.name() => {
                    AnyValues::Here(Box::new(PlainCopies::new(blocks(slots, count))?))
                }
                None => {
                    let rings = name == NodeContenderId::Ring.name();
                    let values = NodeValues::new(dir.path(), rings, slots, count, child)?;
                    AnyValues::Here(Box::new(values))
                }
            };
            let mut turn = ValueTurn { name: name.to_owned(), contender, next: 0 };
            while turn.next < slots {
                turn.store(&mut memory)?;
            }
            turns.push(turn);
        }
        Ok(ValuesFixture { turns, memory, slots, _dir: dir })
    }

    fn turn(&mut self, name: &str) -> (&mut ValueTurn, &mut Memory) {
        let turn = self.turns.iter_mut().find(|turn| turn.name == name);
        (turn.expect("every contender was made"), &mut self.memory)
    }

    /// Returns the seconds of a pass of stores.
    pub(super) fn store(&mut self, name: &str) -> Result<f64, NodeMeasureError> {
        let (turn, memory) = self.turn(name);
        turn.store(memory)
    }

    /// Returns the seconds of a pass of reads.
    pub(super) fn read(&mut self, name: &str, rep: u32) -> Result<f64, NodeMeasureError> {
        let slots = self.slots;
        let (turn, memory) = self.turn(name);
        turn.read(memory, slots, rep)
    }

    /// Returns the seconds of this many look-ups.
    pub(super) fn lookup(&mut self, name: &str, times: u64) -> Result<f64, NodeMeasureError> {
        let slots = self.slots;
        self.turn(name).0.lookup(slots, times)
    }
}

impl ValueTurn {
    fn store(&mut self, memory: &mut Memory) -> Result<f64, NodeMeasureError> {
        let first = self.next;
        self.next += memory.count as u64;
        match &mut self.contender {
            AnyValues::Here(contender) => timed(|| contender.store(memory, first)),
            AnyValues::Beside(beside) => {
                beside.call(&ValueCall::Store { first, count: memory.count as u64 })
            }
        }
    }

    /// Reads as many values as `memory` has rooms, in random order.
    fn read(&mut self, memory: &mut Memory, slots: u64, rep: u32) -> Result<f64, NodeMeasureError> {
        let mut numbers: Vec<u64> = (1..=slots).map(|back| self.next - back).collect();
        numbers.shuffle(&mut stream(1, rep.into()));
        numbers.truncate(memory.count);
        match &mut self.contender {
            AnyValues::Here(contender) => {
                memory.forget();
                let seconds = timed(|| contender.read(memory, &numbers))?;
                memory.compare(&numbers)?;
                Ok(seconds)
            }
            AnyValues::Beside(beside) => beside.call(&ValueCall::Read { numbers: &numbers }),
        }
    }

    fn lookup(&mut self, slots: u64, times: u64) -> Result<f64, NodeMeasureError> {
        let stored = (0..slots).map(|back| self.next - slots + back);
        let numbers: Vec<u64> = stored.cycle().take(KEYS).collect();
        match &mut self.contender {
            AnyValues::Here(contender) => timed(|| contender.lookup(&numbers, times)),
            AnyValues::Beside(beside) => {
                beside.call(&ValueCall::Lookup { numbers: &numbers, times })
            }
        }
    }
}

fn timed(pass: impl FnOnce() -> Result<(), NodeMeasureError>) -> Result<f64, NodeMeasureError> {
    let start = Instant::now();
    pass()?;
    Ok(start.elapsed().as_secs_f64())
}
