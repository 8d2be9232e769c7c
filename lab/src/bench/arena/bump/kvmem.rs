//! The library's bump arena, through its public interface.

use std::ptr::NonNull;

use ::kvmem::arena::BumpArena;

use super::Bump;
use crate::bench::arena::ArenaMeasureError;
use crate::bench::arena::mapping::Mapping;

/// The library's arena on the same kind of mapping as the other contenders.
#[derive(Debug)]
pub struct KvmemArena(BumpArena<Mapping>);

impl Bump for KvmemArena {
    fn create(capacity: usize) -> Result<Self, ArenaMeasureError> {
        Ok(Self(BumpArena::new(Mapping::reserve(capacity)?)))
    }

    #[inline]
    fn allocate(&self, size: usize, align: usize) -> Option<NonNull<u8>> {
        self.0.allocate_bytes(size, align).ok().map(NonNull::cast)
    }
}
