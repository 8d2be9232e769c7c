//! Exact best fit over two ordered maps, behind a mutex.
//!
//! One map orders the free ranges by address and finds the neighbours of a freed range. The other
//! orders them by size and finds the smallest range that is large enough, and among equal ones the
//! lowest address. The request takes the low end. Best fit is the baseline for placement without
//! prediction: it rounds nothing and misses no range that fits. O(log n) per operation.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Result;

use super::{Contender, RangeHandle, Space};

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

type SharedHoles = Arc<Mutex<Holes>>;

fn lock(shared: &SharedHoles) -> MutexGuard<'_, Holes> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The allocator.
pub struct BestFit(SharedHoles);

/// A live range.
pub struct BestFitHandle {
    owner: SharedHoles,
    offset: u64,
    size: u64,
}

impl RangeHandle for BestFitHandle {
    fn size(&self) -> u64 {
        self.size
    }
}

impl Drop for BestFitHandle {
    fn drop(&mut self) {
        lock(&self.owner).give(self.offset, self.size);
    }
}

impl Contender for BestFit {
    type Handle = BestFitHandle;

    fn create(space: Space) -> Result<Self> {
        let mut holes = Holes::default();
        holes.insert(0, space.capacity);
        Ok(Self(Arc::new(Mutex::new(holes))))
    }

    fn allocate(&self, size: u64) -> Option<BestFitHandle> {
        if size == 0 {
            return None;
        }
        let offset = lock(&self.0).take(size)?;
        Some(BestFitHandle { owner: self.0.clone(), offset, size })
    }

    /// Takes one range if one fits; otherwise takes the whole largest free range and repeats with
    /// the remaining bytes.
    fn allocate_scattered(&self, total: u64, max_ranges: usize) -> Option<Vec<BestFitHandle>> {
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
        let owner = |(offset, size)| BestFitHandle { owner: self.0.clone(), offset, size };
        Some(taken.into_iter().map(owner).collect())
    }
}
