//! *Reserving*: extents for values that a session is about to write.

use kvmem::offset::{AllocError, RawAllocation};

use super::node::Node;
use super::{Granted, NO_NAMESPACE, SessionIndex};
use crate::error::{CallError, Quota};

impl Node {
    /// Reserves a block for each of `sizes`, all or none. Evicts what they need, up to
    /// `evictions_left` values; what was evicted before an error stays evicted.
    pub(crate) fn reserve(
        &mut self,
        session: SessionIndex,
        sizes: &[u64],
    ) -> Result<Vec<Granted>, CallError> {
        let space = |sum: u64, size: &u64| sum.saturating_add(self.space_for(*size));
        let requested = sizes.iter().fold(0, space);
        self.check_session_limits(session, sizes.len(), requested)?;
        let namespace = self.sessions.get(session).namespace;
        let mut made = Vec::with_capacity(sizes.len());
        for &size in sizes {
            match self.reserve_block(Some(session), namespace, size) {
                Ok(slot) => {
                    let space = self.space_of(slot);
                    self.sessions.add_reservation(session, slot, space);
                    made.push(slot);
                }
                Err(error) => {
                    made.into_iter().rev().for_each(|slot| self.end_reservation(session, slot));
                    return Err(error);
                }
            }
        }
        self.counters.reserved += made.len() as u64;
        Ok(made.into_iter().map(|slot| self.granted_reservation(slot)).collect())
    }

    fn granted_reservation(&self, slot: u32) -> Granted {
        Granted { checksum: None, ..self.granted(slot) }
    }

    fn check_session_limits(
        &self,
        session: SessionIndex,
        more: usize,
        bytes: u64,
    ) -> Result<(), CallError> {
        let session = self.sessions.get(session);
        if session.read_only {
            return Err(CallError::ReadOnly);
        }
        let (value, limit) =
            (session.reserved_bytes.saturating_add(bytes), self.options.max_reserved_per_session);
        if value > limit {
            return Err(CallError::Quota { what: Quota::SessionReserved, value, limit });
        }
        session.check_handles(more, self.options.max_handles_per_session)
    }

    /// Makes an entry a reservation of a session, or of the server.
    pub(super) fn reserve_block(
        &mut self,
        session: Option<SessionIndex>,
        namespace: u16,
        size: u64,
    ) -> Result<u32, CallError> {
        self.evicting_for = namespace;
        let made = self.reserve_evicting(session, namespace, size);
        self.evicting_for = NO_NAMESPACE;
        made
    }

    fn reserve_evicting(
        &mut self,
        session: Option<SessionIndex>,
        namespace: u16,
        size: u64,
    ) -> Result<u32, CallError> {
        let limit = self.max_len();
        if size == 0 || size > limit {
            return Err(CallError::BadLength { requested: size, limit });
        }
        // A namespace at its limit gives up its own values first.
        let space = self.space_for(size);
        while let Some(error) = self.namespaces.get(namespace).over_limit(space) {
            let victim = self.victim(Some(namespace));
            let Some(victim) = victim.filter(|_| self.evictions_left > 0) else {
                return Err(error);
            };
            self.evict(victim);
        }
        let extent = self.allocate(size)?;
        let Some(slot) = self.take_slot_evicting(extent) else {
            self.space.free_raw(extent.handle).expect("the extent was just allocated");
            return Err(self.out_of_space(size));
        };
        let generation = self.entry(slot).generation().wrapping_add(1);
        let range = extent.offset..extent.offset + size;
        self.entry(slot).reserve(generation, range, session.map(SessionIndex::number));
        self.namespaces.at(namespace).add_block(space);
        Ok(slot)
    }

    /// Allocates an extent, and evicts until there is one.
    fn allocate(&mut self, size: u64) -> Result<RawAllocation, CallError> {
        let (space, align) = (self.space_for(size), self.memory.header.align);
        loop {
            match self.space.allocate_aligned_raw(space, align) {
                Ok(extent) => return Ok(extent),
                Err(AllocError::OutOfSpace { .. } | AllocError::TooManyRanges { .. }) => {}
                Err(_) => {
                    let limit = self.max_len();
                    return Err(CallError::BadLength { requested: size, limit });
                }
            }
            let victim = self.victim(None);
            let Some(victim) = victim.filter(|_| self.evictions_left > 0) else {
                return Err(self.out_of_space(size));
            };
            self.evict(victim);
        }
    }

    fn take_slot_evicting(&mut self, extent: RawAllocation) -> Option<u32> {
        if !self.has_free_slot() {
            let victim = self.victim(None)?;
            self.evict(victim);
        }
        self.take_slot(extent.handle)
    }

    fn out_of_space(&mut self, requested: u64) -> CallError {
        self.counters.out_of_space += 1;
        let metrics = self.space.metrics();
        CallError::OutOfSpace { requested, free: metrics.free, largest: metrics.largest_free }
    }

    /// Ends a reservation, and frees its extent.
    pub(super) fn end_reservation(&mut self, session: SessionIndex, slot: u32) {
        self.release_extent(slot);
        let space = self.space_of(slot);
        self.sessions.remove_reservation(session, slot, space);
    }
}
