//! [`Grants`]: the pins and reservations that the server has granted to the client.

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::FixedState;

use crate::node::{BlockHandle, Granted};

/// The pins and reservations of a client.
#[derive(Debug, Default)]
pub(super) struct Grants {
    /// The blocks of batches of pins.
    pub(super) pins: HashMap<u64, Blocks, FixedState>,
    /// The epoch of all pins.
    pub(super) epoch: u64,
    /// The number of the last batch; the first one has number 1.
    last: u64,
    pub(super) reservations: HashMap<BlockHandle, u64>,
}

/// Pinned blocks, one for each key that has a value.
pub(super) type Blocks = Arc<Vec<Option<Granted>>>;

impl Grants {
    /// Returns the grants of a session that begins.
    pub(super) fn of_epoch(epoch: u64) -> Grants {
        Grants { epoch, ..Grants::default() }
    }

    /// Adds a batch of pins, and returns its number.
    pub(super) fn add_pins(&mut self, blocks: &Blocks) -> u64 {
        self.last += 1;
        self.pins.insert(self.last, Arc::clone(blocks));
        self.last
    }

    /// Removes a batch of pins. Returns their epoch; `None`: the pins are revoked.
    pub(super) fn take_pins(&mut self, number: u64) -> Option<u64> {
        self.remove_pins(number).then_some(self.epoch)
    }

    /// Removes a batch of pins. Returns whether it was there: it is not if its pins are revoked.
    pub(super) fn remove_pins(&mut self, number: u64) -> bool {
        self.pins.remove(&number).is_some()
    }

    /// Makes several batches of one. Returns their numbers: 0 for parts without pins, and if the
    /// pins of the batch are revoked.
    pub(super) fn divide_pins<'a>(
        &mut self,
        number: u64,
        parts: impl Iterator<Item = &'a Option<Blocks>>,
    ) -> Vec<u64> {
        let has = self.remove_pins(number);
        let number_of = |part: &Option<Blocks>| {
            part.as_ref().filter(|_| has).map_or(0, |blocks| self.add_pins(blocks))
        };
        parts.map(number_of).collect()
    }

    /// Makes two batches of one. Returns their numbers: 0 if the pins of the batch are revoked.
    pub(super) fn split_pins(&mut self, number: u64, parts: [&Blocks; 2]) -> [u64; 2] {
        match self.pins.remove(&number) {
            Some(_) => parts.map(|blocks| self.add_pins(blocks)),
            None => [0; 2],
        }
    }

    /// Returns the number of batches of pins.
    #[cfg(all(test, not(loom)))]
    pub(super) fn batches(&self) -> usize {
        self.pins.len()
    }

    /// Returns the pinned blocks, and the number of pins of each.
    pub(super) fn pins(&self) -> HashMap<BlockHandle, u32> {
        let mut pins = HashMap::new();
        for block in self.pins.values().flat_map(|blocks| blocks.iter().flatten()) {
            *pins.entry(block.handle).or_default() += 1;
        }
        pins
    }

    /// Takes note that the server has released everything. Numbers are not used again.
    pub(super) fn revoke_all(&mut self) {
        self.pins.clear();
        self.reservations.clear();
    }
}
