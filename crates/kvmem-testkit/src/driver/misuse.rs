//! Invalid handles.

use anyhow::{Result, ensure};
use kvmem::offset::{RawError, RawHandle};

use super::space::allocator_of;
use super::tested_allocator::TestedAllocator;
use super::{Driver, pick_of};
use crate::op::{Call, Forgery};

impl<A: TestedAllocator> Driver<A> {
    /// Calls the raw interface with an invalid handle. The comparison after the step checks that
    /// the call changed nothing.
    pub(super) fn misuse(&mut self, call: Call, forgery: Forgery) -> Result<()> {
        let Some(handle) = self.forge(forgery) else { return Ok(()) };
        if self.space.is_raw_alive(handle) {
            return Ok(());
        }
        let allocator = self.space.allocator();
        // Sizes that a valid handle could have.
        let got = match call {
            Call::Free => allocator.free_raw(handle).map(drop),
            Call::Resolve => allocator.resolve_raw(handle).map(drop),
            Call::Shrink => allocator.shrink_raw(handle, 1),
            Call::Extend => allocator.extend_raw(handle, 1),
            Call::Adopt => allocator.adopt_raw(handle).map(drop),
        };
        let bits = handle.to_bits();
        let expected = if allocator_of(handle) == self.space.id {
            self.tally.count("misuse of a stale handle");
            RawError::Stale { slot: (bits >> 32) as u32, generation: bits as u32 }
        } else {
            self.tally.count("misuse of a foreign handle");
            RawError::Foreign { allocator: self.space.id, handle_of: allocator_of(handle) }
        };
        ensure!(got == Err(expected), "{call:?} of {handle:?}: {got:?} instead of {expected:?}");
        Ok(())
    }

    /// Makes an invalid handle; `None` if there is nothing to make it from. It may be valid by
    /// chance.
    fn forge(&self, forgery: Forgery) -> Option<RawHandle> {
        match forgery {
            Forgery::Stale(pick) => Some(self.stale[pick_of(pick, self.stale.len())?]),
            Forgery::Foreign(pick) => Some(self.foreign[pick_of(pick, self.foreign.len())?]),
            Forgery::Flipped(pick, bit) => {
                let good = self.space.raw_from(pick)?;
                Some(RawHandle::from_bits(good.to_bits() ^ 1 << (bit % 128)))
            }
            Forgery::Garbage(high, low) => {
                Some(RawHandle::from_bits(u128::from(high) << 64 | u128::from(low)))
            }
        }
    }
}
