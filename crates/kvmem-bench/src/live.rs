//! The live set of a loop: the handles, who is evicted, and how many bytes were asked for.

use kvmem_testkit::workload::Rng;
use rand::RngExt;

use crate::contender::{Contender, Held};

/// A request failed although nothing was left to evict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{size} bytes do not fit into the empty space")]
pub struct Stuck {
    /// Bytes of the request.
    pub size: u64,
}

/// A space and what is alive in it.
pub struct Live<C: Contender> {
    // Handles go before their allocator.
    handles: Vec<C::Handle>,
    space: C,
    bytes: u64,
    victims: Rng,
}

impl<C: Contender> Live<C> {
    /// Nothing alive yet. `expected` handles fit without growing; `victims` says who is evicted.
    pub fn new(space: C, expected: usize, victims: Rng) -> Self {
        Self { handles: Vec::with_capacity(expected), space, bytes: 0, victims }
    }

    /// Bytes alive, as they were asked for.
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Handles alive.
    pub fn len(&self) -> usize {
        self.handles.len()
    }

    /// Whether nothing is alive.
    pub fn is_empty(&self) -> bool {
        self.handles.is_empty()
    }

    /// The allocator.
    pub fn space(&self) -> &C {
        &self.space
    }

    /// The handles.
    pub fn handles(&self) -> &[C::Handle] {
        &self.handles
    }

    /// Frees one handle, each equally likely. False when nothing was alive.
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
    pub fn put(&mut self, size: u64) -> Result<(), Stuck> {
        loop {
            if let Some(handle) = self.space.allocate(size) {
                self.bytes += size;
                self.handles.push(handle);
                return Ok(());
            }
            if !self.evict() {
                return Err(Stuck { size });
            }
        }
    }

    /// Allocates `size` bytes, evicting one twentieth of what is alive, and at least one object,
    /// until they fit; `before` is called with the live bytes before each eviction.
    pub fn put_with_sweeps(&mut self, size: u64, mut before: impl FnMut(u64)) -> Result<(), Stuck> {
        loop {
            if let Some(handle) = self.space.allocate(size) {
                self.bytes += size;
                self.handles.push(handle);
                return Ok(());
            }
            before(self.bytes);
            for _ in 0..(self.handles.len() / 20).max(1) {
                if !self.evict() {
                    return Err(Stuck { size });
                }
            }
        }
    }
}
