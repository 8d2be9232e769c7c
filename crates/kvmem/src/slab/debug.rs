//! *Debug books*: every block by its address, and the freed ones kept away for a while.
//!
//! A freed block is filled with a pattern and rests; when it has rested long enough, or the
//! allocator goes, the pattern is looked over and the block freed in earnest. As long as it rests
//! it is not handed out, so a second free is known for one, and a write by its old owner hits
//! nobody.

use std::collections::{HashMap, VecDeque};
use std::ptr::NonNull;
use std::slice;

use super::fault::SlabFault;
use crate::sync::Mutex;

/// What freed blocks are filled with.
const POISON: u8 = 0xdb;
/// Blocks that rest at most.
const QUARANTINE_BLOCKS: usize = 1024;
/// Bytes that rest at most; one block may be larger.
const QUARANTINE_BYTES: usize = 4 << 20;

/// A block: its address with the right to use it, and its size.
#[derive(Clone, Copy)]
pub(crate) struct TrackedBlock(pub(crate) NonNull<u8>, pub(crate) usize);

// SAFETY: a block in these books belongs to the books alone, or is only counted there.
unsafe impl Send for TrackedBlock {}

#[derive(Default)]
struct BlockTable {
    live: HashMap<usize, usize>,
    /// Oldest first; and their sizes by address.
    quarantined: VecDeque<TrackedBlock>,
    quarantined_sizes: HashMap<usize, usize>,
    quarantined_bytes: usize,
}

/// The books of one allocator.
#[derive(Default)]
pub(crate) struct BlockTracker(Mutex<BlockTable>);

impl BlockTracker {
    /// Enters a new block.
    pub(crate) fn track(&self, at: NonNull<u8>, size: usize) {
        self.0.lock().live.insert(at.addr().get(), size);
    }

    /// Takes a block that its user is done with. Blocks that have rested long enough are handed to
    /// `free`.
    ///
    /// # Safety
    /// If the books know `at` as live with `size`, nobody uses the block any more. Nothing is asked
    /// otherwise.
    pub(crate) unsafe fn quarantine(
        &self,
        at: NonNull<u8>,
        size: usize,
        free: impl FnMut(TrackedBlock),
    ) -> Result<(), SlabFault> {
        let address = at.addr().get();
        let mut table = self.0.lock();
        match table.live.get(&address) {
            Some(&allocated) if allocated == size => table.live.remove(&address),
            Some(&allocated) => {
                return Err(SlabFault::WrongSize { address, allocated, freed: size });
            }
            None => {
                return Err(match table.quarantined_sizes.get(&address) {
                    Some(&size) => SlabFault::DoubleFree { address, size },
                    None => SlabFault::Foreign { address, size },
                });
            }
        };
        // SAFETY: a live block of this size, and its user is done with it.
        unsafe { at.write_bytes(POISON, size) };
        table.quarantined.push_back(TrackedBlock(at, size));
        table.quarantined_sizes.insert(address, size);
        table.quarantined_bytes += size;
        let mut expired = Vec::new();
        while table.quarantined.len() > QUARANTINE_BLOCKS
            || table.quarantined_bytes > QUARANTINE_BYTES && table.quarantined.len() > 1
        {
            expired.extend(table.pop_oldest());
        }
        drop(table);
        release(expired, free)
    }

    /// Frees all blocks that rest.
    pub(crate) fn release_all(&self, free: impl FnMut(TrackedBlock)) -> Result<(), SlabFault> {
        let mut table = self.0.lock();
        let expired = std::iter::from_fn(|| table.pop_oldest()).collect();
        drop(table);
        release(expired, free)
    }

    /// The blocks that are live, by address.
    pub(crate) fn live(&self) -> Vec<SlabFault> {
        let table = self.0.lock();
        let mut live: Vec<_> = table.live.iter().map(|(&address, &size)| (address, size)).collect();
        live.sort_unstable();
        live.into_iter().map(|(address, size)| SlabFault::Leak { address, size }).collect()
    }
}

impl BlockTable {
    fn pop_oldest(&mut self) -> Option<TrackedBlock> {
        let block = self.quarantined.pop_front()?;
        self.quarantined_sizes.remove(&block.0.addr().get());
        self.quarantined_bytes -= block.1;
        Some(block)
    }
}

/// Looks blocks over and frees them. The first fault is told; all are freed.
fn release(
    expired: Vec<TrackedBlock>,
    mut free: impl FnMut(TrackedBlock),
) -> Result<(), SlabFault> {
    let mut result = Ok(());
    for block in expired {
        let TrackedBlock(at, size) = block;
        // SAFETY: the block was filled by `quarantine` and has belonged to the books since.
        let bytes = unsafe { slice::from_raw_parts(at.as_ptr(), size) };
        if let Some(offset) = bytes.iter().position(|byte| *byte != POISON) {
            result = result.and(Err(SlabFault::WriteAfterFree {
                address: at.addr().get(),
                size,
                offset,
            }));
        }
        free(block);
    }
    result
}
