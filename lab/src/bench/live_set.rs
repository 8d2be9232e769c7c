//! The live set of a loop: the handles, the choice of victims, and the requested bytes.

use kvmem_testkit::workload::Rng;
use rand::RngExt;

use crate::bench::contender::{Contender, RangeHandle};

/// A request failed although nothing was left to evict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a request for {size} bytes failed in an empty space")]
pub struct StuckError {
    /// Bytes of the request.
    pub size: u64,
}

/// A space and its live ranges.
pub struct LiveSet<C: Contender> {
    // Handles are dropped before their allocator.
    handles: Vec<C::Handle>,
    space: C,
    bytes: u64,
    victims: Rng,
}

impl<C: Contender> LiveSet<C> {
    /// Creates an empty set for `expected` handles; `victims` selects the ranges to evict.
    pub fn new(space: C, expected: usize, victims: Rng) -> Self {
        Self { handles: Vec::with_capacity(expected), space, bytes: 0, victims }
    }

    /// Returns the requested bytes of all live ranges.
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the number of live handles.
    pub fn len(&self) -> usize {
        self.handles.len()
    }

    /// Returns the allocator.
    pub fn space(&self) -> &C {
        &self.space
    }

    /// Frees one handle, each equally likely. Returns false if nothing is live.
    #[inline]
    pub fn evict(&mut self) -> bool {
        if self.handles.is_empty() {
            return false;
        }
        let victim = self.victims.random_range(0..self.handles.len());
        self.bytes -= self.handles.swap_remove(victim).size();
        true
    }

    /// Allocates `size` bytes, evicting one object at a time until they fit.
    #[inline]
    pub fn put(&mut self, size: u64) -> Result<(), StuckError> {
        loop {
            if let Some(handle) = self.space.allocate(size) {
                self.bytes += size;
                self.handles.push(handle);
                return Ok(());
            }
            if !self.evict() {
                return Err(StuckError { size });
            }
        }
    }

    /// Allocates `size` bytes, evicting one twentieth of the live ranges, and at least one, until
    /// they fit; calls `before` with the live bytes before each eviction.
    pub fn put_evicting_many(
        &mut self,
        size: u64,
        mut before: impl FnMut(u64),
    ) -> Result<(), StuckError> {
        loop {
            if let Some(handle) = self.space.allocate(size) {
                self.bytes += size;
                self.handles.push(handle);
                return Ok(());
            }
            before(self.bytes);
            for _ in 0..(self.handles.len() / 20).max(1) {
                if !self.evict() {
                    return Err(StuckError { size });
                }
            }
        }
    }
}
