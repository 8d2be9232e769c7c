//! *Debug tracking*: records every block by its address, and keeps freed blocks in quarantine for a
//! while.
//!
//! A freed block is filled with a pattern and goes into quarantine. When it leaves the quarantine,
//! or when the allocator is dropped, the pattern is checked and the block's memory is freed. A
//! quarantined block is not allocated again, so a second free is recognized, and a late write by
//! its former user harms no other block.

use std::collections::{HashMap, VecDeque};
use std::ptr::NonNull;
use std::slice;

use crate::slab::slabs::SlabFault;
use crate::sync::Mutex;

/// The byte that freed blocks are filled with.
const POISON: u8 = 0xdb;
/// The most blocks in quarantine.
const QUARANTINE_BLOCKS: usize = 1024;
/// The most bytes in quarantine; a single block may be larger.
const QUARANTINE_BYTES: usize = 4 << 20;

/// A block: its address, with the right to use the memory, and its size.
#[derive(Clone, Copy)]
pub(crate) struct TrackedBlock(pub(crate) NonNull<u8>, pub(crate) usize);

// SAFETY: a block in quarantine belongs to the table alone; a live block is only recorded.
unsafe impl Send for TrackedBlock {}

#[derive(Default)]
struct BlockTable {
    /// Sizes by address.
    live: HashMap<usize, usize>,
    /// Oldest first.
    quarantined: VecDeque<TrackedBlock>,
    /// By address.
    quarantined_sizes: HashMap<usize, usize>,
    quarantined_bytes: usize,
}

/// The tracking state of one allocator.
#[derive(Default)]
pub(crate) struct BlockTracker(Mutex<BlockTable>);

impl BlockTracker {
    /// Records a new block.
    pub(crate) fn track(&self, at: NonNull<u8>, size: usize) {
        self.0.lock().live.insert(at.addr().get(), size);
    }

    /// Takes a freed block into quarantine. Passes the blocks that leave the quarantine to `free`.
    ///
    /// # Safety
    /// If `at` is recorded as live with `size`, no code uses the block any more. There is no
    /// requirement otherwise.
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
        // SAFETY: a live block of this size that its user has freed.
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

    /// Frees all quarantined blocks.
    pub(crate) fn release_all(&self, free: impl FnMut(TrackedBlock)) -> Result<(), SlabFault> {
        let mut table = self.0.lock();
        let expired = std::iter::from_fn(|| table.pop_oldest()).collect();
        drop(table);
        release(expired, free)
    }

    /// Lists the live blocks, sorted by address.
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

/// Checks the pattern of blocks and frees them. Returns the first fault; all blocks are freed.
fn release(
    expired: Vec<TrackedBlock>,
    mut free: impl FnMut(TrackedBlock),
) -> Result<(), SlabFault> {
    let mut result = Ok(());
    for block in expired {
        let TrackedBlock(at, size) = block;
        // SAFETY: `quarantine` filled the block, and it has belonged to the table since.
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
