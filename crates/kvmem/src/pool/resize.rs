//! *Resize*: moves the end of a pool, by whole parts.
//!
//! Growing populates and registers the new parts, and then lengthens the space of offsets.
//! Shrinking takes these steps in the reverse order. The pool therefore never allocates a byte that
//! is not ready.

use std::time::Instant;

use super::provision::{add_populated, add_registered};
use super::{Pool, PoolError};
use crate::offset::SpaceError;
use crate::register::RegisterError;
use crate::trace::span;

/// The outcome of shrinking.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Shrunk {
    /// Bytes by which the pool is shorter.
    pub bytes: u64,
    /// Keys that were deregistered.
    pub keys: usize,
    /// Bytes of pages returned to the kernel.
    pub discarded_bytes: u64,
    /// Bytes of pages that stay, because they come from a pool of hugepages, which takes none back
    /// singly.
    pub kept_bytes: u64,
    /// Duration in seconds.
    pub seconds: f64,
}

impl Pool {
    /// Grows the pool to at least `bytes`, in whole parts. The new parts are populated and
    /// registered first. Meanwhile other threads allocate and free blocks.
    ///
    /// # Errors
    /// [`PoolError::Limit`] beyond [`max_size`](super::PoolBuilder::max_size);
    /// [`PoolError::Initializing`]; [`SpaceError::WrongDirection`] if the pool is longer already;
    /// the errors of populating and registering. After an error the pool has its old length.
    pub fn grow_to(&self, bytes: u64) -> Result<(), PoolError> {
        let provisioning = &self.owner().provisioning;
        let mut grown = self.owner().resizing();
        if provisioning.is_initializing() {
            return Err(PoolError::Initializing);
        }
        let max = self.memory.len() as u64;
        if bytes > max {
            return Err(PoolError::Limit { requested: bytes, max });
        }
        let (old, new) = (self.capacity(), self.whole(bytes));
        if bytes < old {
            return Err(SpaceError::WrongDirection { capacity: old, requested: bytes }.into());
        }
        if new == old {
            return Ok(());
        }
        span!(INFO, "grow", pool = self.name(), from = old, to = new);
        let range = old as usize..new as usize;
        let parts =
            if self.owner().plan.registered { self.memory.parts_in(range.clone()) } else { &[] };
        for part in parts {
            // Keys whose deregistration failed when the pool shrank.
            let mut set = part.set_mut();
            if let Some(kept) = set.as_mut() {
                kept.deregister()?;
                *set = None;
            }
        }
        let provisioned = provisioning.provisioner.provision(&self.memory, range);
        let (populated, registered) = provisioned.map_err(|(_, error)| error)?;
        if let Err(error) = self.space.grow_to(new) {
            for part in parts {
                *part.set_mut() = None;
            }
            return Err(error.into());
        }
        add_populated(&mut grown.0, populated);
        add_registered(&mut grown.1, registered);
        provisioning.resized(old, new);
        Ok(())
    }

    /// Shrinks the pool to the smallest number of whole parts that has at least `bytes`. The parts
    /// behind the new end are deregistered, and their pages are returned to the kernel.
    /// [Growing](Self::grow_to) makes them available again.
    ///
    /// # Errors
    /// [`SpaceError::InUse`] if a block or a quarantined range lies behind the new end;
    /// [`PoolError::Initializing`]. The pool is unchanged then.
    /// [`RegisterError::DeregisterFailed`] if a registrar failed to deregister keys: those pages
    /// stay pinned, and the pool is shorter all the same.
    pub fn shrink_to(&self, bytes: u64) -> Result<Shrunk, PoolError> {
        let start = Instant::now();
        let provisioning = &self.owner().provisioning;
        let _alone = self.owner().resizing();
        if provisioning.is_initializing() {
            return Err(PoolError::Initializing);
        }
        let (old, new) = (self.capacity(), self.whole(bytes.max(1)));
        if new >= old {
            return Ok(Shrunk::default());
        }
        span!(INFO, "shrink", pool = self.name(), from = old, to = new);
        self.space.shrink_to(new)?;
        provisioning.resized(old, new);
        let mut shrunk = Shrunk { bytes: old - new, ..Shrunk::default() };
        let mut kept = Vec::new();
        let range = new as usize..old as usize;
        let parts =
            if self.owner().plan.registered { self.memory.parts_in(range.clone()) } else { &[] };
        for part in parts {
            let mut slot = part.set_mut();
            let Some(set) = slot.as_mut() else { continue };
            match set.deregister() {
                Ok(back) => {
                    shrunk.keys += back.keys;
                    *slot = None;
                }
                Err(RegisterError::DeregisterFailed { kept: more }) => kept.extend(more),
                Err(error) => return Err(error.into()),
            }
        }
        if !kept.is_empty() {
            return Err(RegisterError::DeregisterFailed { kept }.into());
        }
        let (discarded, stay) = self.memory.discard(range)?;
        (shrunk.discarded_bytes, shrunk.kept_bytes) = (discarded, stay);
        shrunk.seconds = start.elapsed().as_secs_f64();
        Ok(shrunk)
    }

    /// Shrinks the pool as far as the ranges in use allow. See [`shrink_to`](Self::shrink_to).
    ///
    /// # Errors
    /// Those of [`shrink_to`](Self::shrink_to), except [`SpaceError::InUse`].
    pub fn shrink(&self) -> Result<Shrunk, PoolError> {
        let mut least = 1;
        loop {
            let shrunk = self.shrink_to(least);
            match &shrunk {
                Err(PoolError::Space(error)) => match **error {
                    // Other threads may allocate behind that meanwhile, at most up to the end.
                    SpaceError::InUse { end_of_last, .. } => least = end_of_last.max(least + 1),
                    _ => return shrunk,
                },
                _ => return shrunk,
            }
        }
    }

    /// Returns `bytes` rounded up to whole parts, or to whole pages if nothing depends on parts.
    fn whole(&self, bytes: u64) -> u64 {
        let unit = self.owner().plan.unit;
        bytes.checked_next_multiple_of(unit).unwrap_or(u64::MAX).min(self.memory.len() as u64)
    }
}
