//! A bump pointer behind a mutex: the simplest arena that threads can share.

use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

use ::kvmem::arena::Memory;

use super::Bump;
use crate::bench::arena::ArenaMeasureError;
use crate::bench::arena::mapping::Mapping;

/// A bump pointer behind a mutex, without statistics.
#[derive(Debug)]
pub struct MutexArena {
    /// Bytes allocated so far, from the start.
    used: Mutex<usize>,
    mapping: Mapping,
}

impl Bump for MutexArena {
    fn create(capacity: usize) -> Result<Self, ArenaMeasureError> {
        Ok(Self { used: Mutex::new(0), mapping: Mapping::reserve(capacity)? })
    }

    #[inline]
    fn allocate(&self, size: usize, align: usize) -> Option<NonNull<u8>> {
        let base = self.mapping.base().as_ptr() as usize;
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let start = (base + *used).checked_next_multiple_of(align)? - base;
        let end = start.checked_add(size)?;
        if end > self.mapping.len() {
            return None;
        }
        *used = end;
        // SAFETY: `start` is within the mapping.
        Some(unsafe { self.mapping.base().add(start) })
    }
}
