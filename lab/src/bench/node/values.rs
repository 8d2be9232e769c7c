//! *Values* of 1 MiB: passes of stores, reads and look-ups by each contender.

use std::path::Path;

use anyhow::{Context, Result};
use kvmem::arena::{Populate, ProgressOptions, Region};
use kvmem_node::{NewValue, NodeClient, PendingCall, PinBatch};
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
        let sizes = [VALUE_BYTES; BATCH];
        let reserve = |number: usize| {
            let len = values.len().saturating_sub(number * BATCH).min(BATCH);
            (len > 0).then(|| self.client.begin_reserve(&sizes[..len]))
        };
        // Two messages in a row wake the server once.
        let (mut next, mut after) = (reserve(0), reserve(1));
        let mut committing: Option<PendingCall<'_, ()>> = None;
        for (number, (keys, values)) in keys.chunks(BATCH).zip(values.chunks(BATCH)).enumerate() {
            let reserving = next.take().context("each batch has a reservation")?;
            let mut reserved = reserving.wait()?;
            for (block, value) in reserved.iter_mut().zip(values) {
                block.write(0, value)?;
            }
            let values = keys.iter().zip(reserved).map(|(key, block)| NewValue::new(key, block));
            let earlier = committing.replace(self.client.begin_commit(values.collect()));
            (next, after) = (after.take(), reserve(number + 2));
            earlier.map_or(Ok(()), PendingCall::wait)?;
        }
        Ok(committing.map_or(Ok(()), PendingCall::wait)?)
    }

    fn fetch(&mut self, memory: &mut Memory, numbers: &[u64]) -> Result<()> {
        let keys = self.keys(numbers.iter().copied());
        let mut rooms = memory.rooms();
        let mut batches = keys.chunks(BATCH);
        let mut acquire =
            || batches.next().map(|keys| (keys.len(), self.client.begin_acquire(keys)));
        // Two messages in a row wake the server once.
        let (mut next, mut after) = (acquire(), acquire());
        let mut last = Vec::new();
        while let Some((count, acquiring)) = next {
            let pins: PinBatch = acquiring.wait()?;
            unless_all(pins.hits(), count)?;
            for (value, room) in pins.values().flatten().zip(&mut rooms) {
                room.copy_from_slice(value.bytes());
            }
            last.push(pins);
            if let Some(further) = acquire() {
                PinBatch::release_all(last.drain(..));
                (next, after) = (after.take(), Some(further));
            } else {
                next = after.take();
            }
        }
        PinBatch::release_all(last);
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
