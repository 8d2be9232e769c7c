//! [`Client`]: a client of this process, with all that it has, and what the histories have done.

use std::ops::AddAssign;

use kvmem_node::{ClientError, NodeClient, NodeReservation, PinBatch};

use super::model::{Id, SessionId};

/// Values that one call has pinned.
pub(super) struct Held {
    pub(super) pins: PinBatch,
    pub(super) ids: Vec<Option<Id>>,
}

impl Held {
    /// Returns the pinned blocks, one for each pin.
    pub(super) fn pinned(&self) -> Vec<Id> {
        self.ids.iter().copied().flatten().collect()
    }

    /// Compares all bytes.
    pub(super) fn check(&self) {
        assert!(self.pins.is_valid(), "pins are lost");
        assert_eq!(self.pins.len(), self.ids.len());
        for (found, id) in self.pins.values().zip(&self.ids) {
            match (found, id) {
                (None, None) => {}
                (Some(found), Some(id)) => {
                    assert!(has_bytes_of(*id, found.bytes()), "block {id} has other bytes");
                    match found.verify() {
                        // The writer calculates no checksums.
                        Ok(()) | Err(ClientError::Unverified) => {}
                        Err(error) => panic!("block {id}: {error}"),
                    }
                }
                (found, id) => panic!("{found:?} is not {id:?}"),
            }
        }
    }
}

/// A client of this process.
pub(super) struct Client {
    pub(super) client: NodeClient,
    pub(super) session: SessionId,
    pub(super) held: Vec<Held>,
    /// Batches of reservations, all bytes of which are written.
    pub(super) writing: Vec<Vec<(NodeReservation, Id)>>,
}

/// Writes the bytes of a block: every eight of them name the block and the place.
pub(super) fn write_bytes_of(id: Id, bytes: &mut [u8]) {
    for (at, eight) in (0..).zip(bytes.chunks_mut(8)) {
        eight.copy_from_slice(&word_of(id, at)[..eight.len()]);
    }
}

pub(super) fn has_bytes_of(id: Id, bytes: &[u8]) -> bool {
    (0..).zip(bytes.chunks(8)).all(|(at, eight)| *eight == word_of(id, at)[..eight.len()])
}

fn word_of(id: Id, at: u64) -> [u8; 8] {
    (id << 32 | at ^ id.wrapping_mul(0x9E37) & 0xFFFF_FFFF).to_le_bytes()
}

/// Counts of calls, to show that each kind was made and had each kind of outcome.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Done {
    pub(super) steps: u64,
    pub(super) pinned: u64,
    pub(super) committed: u64,
    pub(super) replaced: u64,
    pub(super) evicted: u64,
    pub(super) expired: u64,
    pub(super) removed: u64,
    pub(super) abandoned: u64,
    pub(super) quotas: u64,
    pub(super) out_of_space: u64,
    pub(super) restarts: u64,
    pub(super) left: u64,
    /// Values that have moved, or were evicted, for another size.
    pub(super) moved: u64,
}

impl Done {
    fn each(&mut self) -> [&mut u64; 13] {
        [
            &mut self.steps,
            &mut self.pinned,
            &mut self.committed,
            &mut self.replaced,
            &mut self.evicted,
            &mut self.expired,
            &mut self.removed,
            &mut self.abandoned,
            &mut self.quotas,
            &mut self.out_of_space,
            &mut self.restarts,
            &mut self.left,
            &mut self.moved,
        ]
    }

    /// Everything was done at least once.
    pub(super) fn check_each(mut self) {
        let all = format!("{self:?}");
        assert!(self.each().iter().all(|count| **count > 0), "something was never done: {all}");
    }
}

impl AddAssign for Done {
    fn add_assign(&mut self, mut other: Done) {
        self.each().into_iter().zip(other.each()).for_each(|(sum, more)| *sum += *more);
    }
}
