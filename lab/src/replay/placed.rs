//! *Placed*: objects where another allocator places them.
//!
//! The index, the order of eviction and the pins are those of a [`KvCache`] whose values are one
//! byte each. The key of an object owns its range, which is freed with the key. Allocators are thus
//! compared under the same cache that a pool has. A contender need not be thread-safe, so the
//! replay uses one thread.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use kvmem::cache::KvCache;
use kvmem::cache::{Eviction, KvCacheError, Pinned, Reservation};
use kvmem::pool::{Block, Pool};
use kvmem_bench::contender::{Contender, ContenderId, RangeHandle};

use super::backing::{self, BackingError};
use super::calls::{ask, ticket};
use super::key::Key;
use super::store::{Store, StoreError};
use crate::ops::recorder::Recorder;
use kvmem_cli::workload::object::ObjectId;

/// Maximum number of objects: as many bytes of addresses are reserved for their entries.
const MOST: u64 = 1 << 36;

/// The allocator returned a range beyond the end of the pool.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the range {}..{} lies outside the pool of {pool_bytes} bytes", .range.start, .range.end)]
pub struct OutsidePool {
    /// The range.
    pub range: Range<u64>,
    /// The pool's size.
    pub pool_bytes: u64,
}

/// A cache as index, and a contender.
pub struct Placed<C: Contender> {
    // The ranges are dropped before the allocator.
    cache: KvCache<Key<ObjectRange<C::Handle>>>,
    space: C,
    memory: Option<RefCell<Block>>,
    usage: Rc<Usage>,
    recorder: Option<Arc<Recorder>>,
}

/// The ranges in use.
#[derive(Default)]
struct Usage {
    bytes: Cell<u64>,
    /// Length by offset, if samples are drawn.
    ranges: Option<RefCell<BTreeMap<u64, u64>>>,
}

/// The range of an object.
pub struct ObjectRange<H: RangeHandle> {
    held: H,
    usage: Rc<Usage>,
}

impl<H: RangeHandle> Drop for ObjectRange<H> {
    fn drop(&mut self) {
        self.usage.bytes.set(self.usage.bytes.get() - self.held.size());
        if let Some(ranges) = &self.usage.ranges {
            ranges.borrow_mut().remove(&self.held.offset());
        }
    }
}

impl<C: Contender> Placed<C> {
    /// Makes an empty store, over `memory` if objects are written. With `seen` it keeps what
    /// [`spans`](Store::spans) returns.
    ///
    /// # Errors
    /// [`BackingError`] if there are not enough addresses for the entries.
    pub fn new(
        space: C,
        memory: Option<Block>,
        eviction: Eviction,
        seen: bool,
        recorder: Option<Arc<Recorder>>,
    ) -> Result<Self, BackingError> {
        let entries: Pool = backing::pool(MOST, false, false)?;
        let cache =
            KvCache::builder(&entries).eviction(eviction).shards(1).exact_recency(true).build();
        let ranges = (seen && C::ID != ContenderId::Null).then(RefCell::default);
        Ok(Placed {
            cache: cache.expect("one shard, without limits and watermarks, is valid"),
            space,
            memory: memory.map(RefCell::new),
            usage: Rc::new(Usage { bytes: Cell::new(0), ranges }),
            recorder,
        })
    }

    /// Returns the allocator.
    pub fn space(&self) -> &C {
        &self.space
    }

    fn span(&self, held: &C::Handle, memory: &Block) -> Result<Range<usize>, OutsidePool> {
        let (start, pool_bytes) = (held.offset(), memory.len() as u64);
        let end = start.saturating_add(held.size());
        if end > pool_bytes {
            return Err(OutsidePool { range: start..end, pool_bytes });
        }
        // Both ends are at most the block's length, which is a usize.
        Ok(start as usize..end as usize)
    }
}

impl<C: Contender> Store for Placed<C> {
    type Pin = Pinned<Key<ObjectRange<C::Handle>>>;
    type Room = Reservation<Key<ObjectRange<C::Handle>>>;

    fn get(&self, id: ObjectId) -> Option<Self::Pin> {
        self.cache.get(&id)
    }

    fn holds(&self, id: ObjectId) -> bool {
        self.cache.contains(&id)
    }

    fn reserve(
        &self,
        id: ObjectId,
        size: u64,
        depth: u32,
    ) -> Result<Option<Self::Room>, StoreError> {
        let attempt = || self.space.allocate(size).ok_or(());
        let held = loop {
            if let Ok(held) = ask(self.recorder.as_ref(), size, attempt, RangeHandle::offset) {
                break held;
            }
            let objects = self.cache.bytes();
            if objects == 0 || self.cache.evict_to(objects - 1) == objects {
                return Ok(None);
            }
        };
        let ticket = ticket();
        self.usage.bytes.set(self.usage.bytes.get() + held.size());
        if let Some(ranges) = &self.usage.ranges {
            ranges.borrow_mut().insert(held.offset(), held.size());
        }
        let key = Key::new(id, ObjectRange { held, usage: Rc::clone(&self.usage) });
        key.answer_for(ticket);
        match self.cache.reserve(key, 1) {
            Ok(mut room) => {
                // LRU's order is exact without, and so comparable with a plain list.
                if matches!(self.cache.eviction(), Eviction::ScanResistant) {
                    room.set_depth(depth);
                }
                Ok(Some(room))
            }
            Err(KvCacheError::NothingToEvict { .. }) => Ok(None),
            Err(error) => Err(StoreError::Cache(error)),
        }
    }

    fn write(&self, room: &mut Self::Room, fill: impl FnOnce(&mut [u8])) -> Result<(), StoreError> {
        if let Some(memory) = &self.memory {
            let mut memory = memory.borrow_mut();
            let span = self.span(&room.key().place.held, &memory)?;
            fill(&mut memory.bytes_mut()[span]);
        }
        Ok(())
    }

    fn commit(&self, room: Self::Room) -> Self::Pin {
        room.commit()
    }

    fn read<T>(&self, pin: &Self::Pin, look: impl FnOnce(&[u8]) -> T) -> Result<T, StoreError> {
        let Some(memory) = &self.memory else { return Ok(look(&[])) };
        let memory = memory.borrow();
        let span = self.span(&pin.key().place.held, &memory)?;
        Ok(look(&memory.bytes()[span]))
    }

    fn offset(&self, pin: &Self::Pin) -> u64 {
        pin.key().place.held.offset()
    }

    fn objects(&self) -> u64 {
        self.cache.len()
    }

    fn bytes(&self) -> u64 {
        self.usage.bytes.get()
    }

    fn evictions(&self) -> u64 {
        self.cache.stats().evictions
    }

    fn spans(&self, spans: &mut Vec<Range<u64>>) -> bool {
        let Some(ranges) = &self.usage.ranges else { return false };
        spans.extend(
            ranges.borrow().iter().map(|(&offset, &size)| offset..offset.saturating_add(size)),
        );
        true
    }

    fn metadata_bytes(&self) -> Option<u64> {
        self.space.metadata_bytes()
    }

    fn into_memory(self) -> Option<Block> {
        self.memory.map(RefCell::into_inner)
    }
}
