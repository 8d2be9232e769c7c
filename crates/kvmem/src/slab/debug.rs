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
const RESTING: usize = 1024;
/// Bytes that rest at most; one block may be larger.
const RESTING_BYTES: usize = 4 << 20;

/// A block: its address with the right to use it, and its size.
#[derive(Clone, Copy)]
pub(crate) struct Block(pub(crate) NonNull<u8>, pub(crate) usize);

// SAFETY: a block in these books belongs to the books alone, or is only counted there.
unsafe impl Send for Block {}

#[derive(Default)]
struct Books {
    live: HashMap<usize, usize>,
    /// Oldest first; and their sizes by address.
    resting: VecDeque<Block>,
    resting_sizes: HashMap<usize, usize>,
    resting_bytes: usize,
}

/// The books of one allocator.
#[derive(Default)]
pub(crate) struct Debug(Mutex<Books>);

impl Debug {
    /// Enters a new block.
    pub(crate) fn enter(&self, at: NonNull<u8>, size: usize) {
        self.0.lock().live.insert(at.addr().get(), size);
    }

    /// Takes a block that its user is done with. Blocks that have rested long enough are handed to
    /// `free`.
    ///
    /// # Safety
    /// If the books know `at` as live with `size`, nobody uses the block any more. Nothing is asked
    /// otherwise.
    pub(crate) unsafe fn retire(
        &self,
        at: NonNull<u8>,
        size: usize,
        free: impl FnMut(Block),
    ) -> Result<(), SlabFault> {
        let address = at.addr().get();
        let mut books = self.0.lock();
        match books.live.get(&address) {
            Some(&allocated) if allocated == size => books.live.remove(&address),
            Some(&allocated) => {
                return Err(SlabFault::WrongSize { address, allocated, freed: size });
            }
            None => {
                return Err(match books.resting_sizes.get(&address) {
                    Some(&size) => SlabFault::DoubleFree { address, size },
                    None => SlabFault::Foreign { address, size },
                });
            }
        };
        // SAFETY: a live block of this size, and its user is done with it.
        unsafe { at.write_bytes(POISON, size) };
        books.resting.push_back(Block(at, size));
        books.resting_sizes.insert(address, size);
        books.resting_bytes += size;
        let mut rested = Vec::new();
        while books.resting.len() > RESTING
            || books.resting_bytes > RESTING_BYTES && books.resting.len() > 1
        {
            rested.extend(books.wake());
        }
        drop(books);
        release(rested, free)
    }

    /// Frees all blocks that rest.
    pub(crate) fn wake_all(&self, free: impl FnMut(Block)) -> Result<(), SlabFault> {
        let mut books = self.0.lock();
        let rested = std::iter::from_fn(|| books.wake()).collect();
        drop(books);
        release(rested, free)
    }

    /// The blocks that are live, by address.
    pub(crate) fn live(&self) -> Vec<SlabFault> {
        let books = self.0.lock();
        let mut live: Vec<_> = books.live.iter().map(|(&address, &size)| (address, size)).collect();
        live.sort_unstable();
        live.into_iter().map(|(address, size)| SlabFault::Leak { address, size }).collect()
    }
}

impl Books {
    fn wake(&mut self) -> Option<Block> {
        let block = self.resting.pop_front()?;
        self.resting_sizes.remove(&block.0.addr().get());
        self.resting_bytes -= block.1;
        Some(block)
    }
}

/// Looks blocks over and frees them. The first fault is told; all are freed.
fn release(rested: Vec<Block>, mut free: impl FnMut(Block)) -> Result<(), SlabFault> {
    let mut result = Ok(());
    for block in rested {
        let Block(at, size) = block;
        // SAFETY: the block was filled by `retire` and has belonged to the books since.
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
