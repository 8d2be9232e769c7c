//! Exact best fit over two ordered maps, behind a mutex.
//!
//! The free ranges are kept twice: by address, to find the neighbours of a freed range, and by
//! size, to find the smallest that is large enough; of equal ones the lowest address. The request
//! takes the low end. It is the yardstick for placement without any foresight: nothing is rounded,
//! no range that fits is missed. O(log n) per operation.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Contender, ContenderId, CreateError, Held, Space};

/// The free ranges of a space.
#[derive(Default)]
struct Holes {
    /// Start → length.
    by_offset: BTreeMap<u64, u64>,
    /// (length, start).
    by_size: BTreeSet<(u64, u64)>,
}

impl Holes {
    fn insert(&mut self, offset: u64, size: u64) {
        self.by_offset.insert(offset, size);
        self.by_size.insert((size, offset));
    }

    fn remove(&mut self, offset: u64, size: u64) {
        self.by_offset.remove(&offset);
        self.by_size.remove(&(size, offset));
    }

    fn take(&mut self, size: u64) -> Option<u64> {
        let &(total, offset) = self.by_size.range((size, 0)..).next()?;
        self.remove(offset, total);
        if total > size {
            self.insert(offset + size, total - size);
        }
        Some(offset)
    }

    fn largest(&self) -> u64 {
        self.by_size.last().map_or(0, |&(size, _)| size)
    }

    fn give(&mut self, mut offset: u64, mut size: u64) {
        if let Some((&before, &len)) = self.by_offset.range(..offset).next_back()
            && before + len == offset
        {
            self.remove(before, len);
            offset = before;
            size += len;
        }
        if let Some(&len) = self.by_offset.get(&(offset + size)) {
            self.remove(offset + size, len);
            size += len;
        }
        self.insert(offset, size);
    }
}

type Shared = Arc<Mutex<Holes>>;

fn lock(shared: &Shared) -> MutexGuard<'_, Holes> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The allocator.
pub struct BestFit(Shared);

/// A live range.
pub struct Handle {
    owner: Shared,
    offset: u64,
    size: u64,
}

impl Held for Handle {
    fn offset(&self) -> u64 {
        self.offset
    }

    fn size(&self) -> u64 {
        self.size
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        lock(&self.owner).give(self.offset, self.size);
    }
}

impl Contender for BestFit {
    const ID: ContenderId = ContenderId::BestFit;
    const SCATTERS: bool = true;
    type Handle = Handle;

    fn create(space: Space) -> Result<Self, CreateError> {
        let mut holes = Holes::default();
        if space.capacity > 0 {
            holes.insert(0, space.capacity);
        }
        Ok(Self(Arc::new(Mutex::new(holes))))
    }

    fn allocate(&self, size: u64) -> Option<Handle> {
        if size == 0 {
            return None;
        }
        let offset = lock(&self.0).take(size)?;
        Some(Handle { owner: self.0.clone(), offset, size })
    }

    /// One range if one fits; otherwise the largest free range whole, and the same again for what
    /// is left.
    fn allocate_scattered(&self, total: u64, max_ranges: usize) -> Option<Vec<Handle>> {
        let mut holes = lock(&self.0);
        let mut taken = Vec::with_capacity(max_ranges);
        let mut left = total;
        while left > 0 && taken.len() < max_ranges {
            let size = left.min(holes.largest());
            let Some(offset) = holes.take(size).filter(|_| size > 0) else { break };
            taken.push((offset, size));
            left -= size;
        }
        if left > 0 {
            for (offset, size) in taken {
                holes.give(offset, size);
            }
            return None;
        }
        drop(holes);
        let owner = |(offset, size)| Handle { owner: self.0.clone(), offset, size };
        Some(taken.into_iter().map(owner).collect())
    }
}
