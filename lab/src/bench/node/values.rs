//! *Values* of 1 MiB: passes of stores, reads and look-ups by each contender.

use std::path::Path;

use anyhow::{Context, Result};
use kvmem::arena::{Populate, ProgressOptions, Region};
use kvmem_node::{ClientError, NewValue, NodeClient, PinBatch};
use tempfile::TempDir;

use super::exchange::{KEYS, key};
use super::memory::{self, NodeFiles};
use super::role::{ServerProcess, connect};
use super::{NodeChild, NodeContenderId, unless_all};
use crate::bench::beside::Beside;
use crate::bench::values::{Memory, ValueContender, ValueTurn};

/// Bytes of a value.
pub(super) const VALUE_BYTES: u64 = 1 << 20;
/// Values of a call, as many as in the other sections.
pub(super) const BATCH: usize = KEYS;

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
        blocks: u64,
        child: NodeChild,
    ) -> Result<NodeValues> {
        let socket = dir.join(if rings { "ring" } else { "socket" });
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
    fn store(&mut self, memory: &mut Memory, first: u64) -> Result<()> {
        let keys = self.keys(first..first + memory.count as u64);
        let values: Vec<&[u8]> = memory.values(first).collect();
        for (keys, values) in keys.chunks(BATCH).zip(values.chunks(BATCH)) {
            let mut reserved = self.client.reserve(&vec![VALUE_BYTES; values.len()])?;
            for (block, value) in reserved.iter_mut().zip(values) {
                block.write(0, value)?;
            }
            let values = keys.iter().zip(reserved).map(|(key, block)| NewValue::new(key, block));
            self.client.commit(values.collect()).map_err(ClientError::from)?;
        }
        Ok(())
    }

    fn fetch(&mut self, memory: &mut Memory, numbers: &[u64]) -> Result<()> {
        let keys = self.keys(numbers.iter().copied());
        let mut rooms = memory.rooms();
        for keys in keys.chunks(BATCH) {
            let pins: PinBatch = self.client.acquire(keys)?;
            unless_all(pins.hits(), keys.len())?;
            for (value, room) in pins.values().flatten().zip(&mut rooms) {
                room.copy_from_slice(value.bytes());
            }
        }
        Ok(())
    }

    fn lookup(&mut self, numbers: &[u64], times: u64) -> Result<()> {
        let keys = self.keys(numbers.iter().copied());
        for _ in 0..times {
            unless_all(self.client.lookup(&keys)?, keys.len())?;
        }
        Ok(())
    }
}

/// A memory file of this process, of as many blocks as the memory of a node.
struct PlainCopies {
    region: Region,
    blocks: u64,
}

impl PlainCopies {
    fn new(blocks: u64) -> Result<PlainCopies> {
        // Mapped a second time, as a client maps the memory of a node.
        let file = memory::map(blocks * VALUE_BYTES, true)?.share()?;
        let region = Region::attach(file.context("a shared region has a file")?, None)?;
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
    fn store(&mut self, memory: &mut Memory, first: u64) -> Result<()> {
        for (number, value) in (first..).zip(memory.values(first)) {
            // SAFETY: the slot has the bytes of a value, and `self`, which owns the only mapping,
            // is borrowed exclusively.
            let slot =
                unsafe { std::slice::from_raw_parts_mut(self.slot(number), VALUE_BYTES as usize) };
            slot.copy_from_slice(value);
        }
        Ok(())
    }

    fn fetch(&mut self, memory: &mut Memory, numbers: &[u64]) -> Result<()> {
        for (&number, room) in numbers.iter().zip(memory.rooms()) {
            // SAFETY: as in `store`.
            let slot =
                unsafe { std::slice::from_raw_parts(self.slot(number), VALUE_BYTES as usize) };
            room.copy_from_slice(slot);
        }
        Ok(())
    }
}

/// Makes the contenders for passes of as many values as `memory` has, each with a value under every
/// key: twice as many.
pub(super) fn turns(
    dir: &TempDir,
    names: &[&str],
    beside: &[Beside],
    memory: &mut Memory,
    child: NodeChild,
) -> Result<Vec<ValueTurn>> {
    let count = memory.count as u64;
    let slots = 2 * count;
    // Room for the new values of a call beside the values that they replace, so nothing is evicted.
    let blocks = slots + count.max(2 * BATCH as u64);
    // The first read does not wait for pages.
    memory.rooms().for_each(|room| room.fill(0));
    let turn = |name: &&str| {
        let own = dir.path().join(name);
        std::fs::create_dir(&own)?;
        let batch = ("batch", BATCH as u64);
        let open = ValueTurn::open(&own, slots * VALUE_BYTES, VALUE_BYTES, batch)?;
        let here = || -> Result<Box<dyn ValueContender>> {
            if *name == NodeContenderId::Memcpy.name() {
                return Ok(Box::new(PlainCopies::new(blocks)?));
            }
            let rings = *name == NodeContenderId::Ring.name();
            Ok(Box::new(NodeValues::new(&own, rings, slots, blocks, child)?))
        };
        ValueTurn::new(name, beside, &open, here, memory, slots)
    };
    names.iter().map(turn).collect()
}
