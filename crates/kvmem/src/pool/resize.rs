//! *Resize*: the end of a pool moves, by whole parts.
//!
//! Growing: populate, register, then tell the offsets. Shrinking: the other way round. So at no
//! time is a byte handed out that is not ready.

use std::time::Instant;

use super::provisioner::{add_populated, add_registered};
use super::{Pool, PoolError};
use crate::offset::SpaceError;
use crate::register::RegisterError;
use crate::trace::span;

/// What shrinking has given back.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Shrunk {
    /// Bytes by which the pool is shorter.
    pub bytes: u64,
    /// Keys given back.
    pub keys: usize,
    /// Bytes of pages given back to the kernel.
    pub discarded_bytes: u64,
    /// Bytes of pages that stay, because they are of a pool of hugepages, which takes none back
    /// one by one.
    pub kept_bytes: u64,
    /// Seconds that it took.
    pub seconds: f64,
}

impl Pool {
    /// The pool is at least `bytes` long afterwards, in whole parts: what is added is populated and
    /// registered first. Blocks are handed out meanwhile as ever.
    ///
    /// # Errors
    /// [`PoolError::Limit`] beyond [`max_size`](super::PoolBuilder::max_size);
    /// [`PoolError::Initializing`]; [`SpaceError::WrongDirection`] if it is longer already; and
    /// what populating and registering can fail with. The pool is as long as it was then.
    pub fn grow_to(&self, bytes: u64) -> Result<(), PoolError> {
        let provisioning = &self.owner().provisioning;
        let mut grown = self.owner().resizing();
        if provisioning.is_under_way() {
            return Err(PoolError::Initializing);
        }
        let most = self.memory.len() as u64;
        if bytes > most {
            return Err(PoolError::Limit { requested: bytes, most });
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
            // Keys that were not taken back when the pool shrank.
            let mut set = part.set_mut();
            if let Some(kept) = set.as_mut() {
                kept.deregister()?;
                *set = None;
            }
        }
        let populated = self
            .memory
            .each_in(range, |region, within| provisioning.provisioner.populate(region, within))?;
        let registered =
            if parts.is_empty() { None } else { provisioning.provisioner.register(parts)? };
        if let Err(error) = self.space.grow_to(new) {
            for part in parts {
                *part.set_mut() = None;
            }
            return Err(error.into());
        }
        populated.into_iter().for_each(|one| add_populated(&mut grown.0, one));
        add_registered(&mut grown.1, registered);
        provisioning.resized(old, new);
        Ok(())
    }

    /// The pool is as short as whole parts allow, but not shorter than `bytes`: what lies behind is
    /// deregistered, and its pages are given back. They can be had again by
    /// [growing](Self::grow_to).
    ///
    /// # Errors
    /// [`SpaceError::InUse`] if a block, or what is quarantined, lies behind;
    /// [`PoolError::Initializing`]. Nothing is changed then. [`RegisterError::DeregisterFailed`] if
    /// keys were not taken back: those pages stay pinned, and the pool is shorter all the same.
    pub fn shrink_to(&self, bytes: u64) -> Result<Shrunk, PoolError> {
        let start = Instant::now();
        let provisioning = &self.owner().provisioning;
        let _alone = self.owner().resizing();
        if provisioning.is_under_way() {
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

    /// As [`shrink_to`](Self::shrink_to), as far as what is in use allows.
    ///
    /// # Errors
    /// As there; it is not refused because of what is in use.
    pub fn shrink(&self) -> Result<Shrunk, PoolError> {
        let mut least = 1;
        loop {
            let shrunk = self.shrink_to(least);
            match &shrunk {
                Err(PoolError::Space(error)) => match **error {
                    // Others may allocate further on meanwhile, at most up to the end.
                    SpaceError::InUse { end_of_last, .. } => least = end_of_last.max(least + 1),
                    _ => return shrunk,
                },
                _ => return shrunk,
            }
        }
    }

    /// So many bytes in whole parts; where nothing depends on parts, in whole pages.
    fn whole(&self, bytes: u64) -> u64 {
        let unit = self.owner().plan.unit;
        bytes.checked_next_multiple_of(unit).unwrap_or(u64::MAX).min(self.memory.len() as u64)
    }
}
