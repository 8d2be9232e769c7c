//! *Offset allocator* (L3): ranges of an abstract space.

use std::ffi::c_char;

use kvmem::offset::{OffsetAllocator, OffsetAllocatorBuilder, Placement, RawAllocation, RawHandle};
use kvmem::slab::{ExtentCache, ExtentState};

use crate::call::{
    destroy, guard, guard_for, list, on, out, ranges, read, size, write_list, write_text,
};
use crate::fail::Fail;
use crate::fork::Home;
use crate::last_error;
use crate::options::{self, Options, flag, hot_sizes};
use crate::status::*;
use crate::table::{Object, object};

/// Hands out ranges `[offset, offset + bytes)` of a space (layer 3), and never touches bytes: they
/// may be memory, a file, a GPU's. Owned by the caller: kvmem_offset_destroy. Any thread, several
/// at once.
pub struct kvmem_offset_allocator {
    _opaque: [u8; 0],
}

object!(kvmem_offset_allocator, Space, Offset, |_| Home::Heap);

/// A space, with magazines or without.
pub enum Space {
    /// Without: every call takes the lock of the books.
    Plain(OffsetAllocator),
    /// With.
    Cached(ExtentCache),
}

/// Runs with whichever it is.
macro_rules! either {
    ($space:expr, $name:ident => $run:expr) => {
        match $space {
            Space::Plain($name) => $run,
            Space::Cached($name) => $run,
        }
    };
}

/// An allocation by plain data: it may be copied and kept anywhere. Any bits are safe to hand back:
/// one that was freed before, or is of another allocator, is found out and nothing is touched.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct kvmem_allocation {
    /// Its allocator, by a number never used again in this process; 0: no allocation.
    pub allocator: u64,
    /// Its place in the allocator's books.
    pub slot: u32,
    /// Which of those that had the place.
    pub generation: u32,
    /// Where it begins.
    pub offset: u64,
    /// Its length, exactly as asked for.
    pub bytes: u64,
}

impl kvmem_allocation {
    #[inline(always)]
    pub(crate) fn handle(&self) -> RawHandle {
        handle(self.allocator, self.slot, self.generation)
    }
}

#[inline(always)]
pub(crate) fn handle(allocator: u64, slot: u32, generation: u32) -> RawHandle {
    RawHandle::from_bits(
        u128::from(allocator) << 64 | u128::from(slot) << 32 | u128::from(generation),
    )
}

/// The three numbers of a handle.
#[inline(always)]
pub(crate) fn numbers(handle: RawHandle) -> (u64, u32, u32) {
    let bits = handle.to_bits();
    ((bits >> 64) as u64, (bits >> 32) as u32, bits as u32)
}

impl From<RawAllocation> for kvmem_allocation {
    #[inline(always)]
    fn from(raw: RawAllocation) -> Self {
        let (allocator, slot, generation) = numbers(raw.handle);
        kvmem_allocation { allocator, slot, generation, offset: raw.offset, bytes: raw.size }
    }
}

/// Placement: by what holes are worth to the traffic of late, the default.
pub const KVMEM_PLACEMENT_RENEWAL: u32 = 0;
/// Placement: the tightest of the first four holes that fit: fewest instructions.
pub const KVMEM_PLACEMENT_BEST_FIT: u32 = 1;

/// How a space is to be. Fill it with kvmem_offset_options_init first.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvmem_offset_options {
    /// Bytes of this structure, as the program knows it.
    pub struct_size: u64,
    /// No allocation straddles a multiple of so many bytes, nor is longer; 0 (the default): there
    /// is no such boundary.
    pub boundary_bytes: u64,
    /// At most so many ranges, used and free together, are on the books; 0 (the default): about
    /// 2^32.
    pub max_ranges: u32,
    /// KVMEM_PLACEMENT_RENEWAL (the default) or KVMEM_PLACEMENT_BEST_FIT.
    pub placement: u32,
    /// 1: hot sizes are served from each thread's own magazines, without a lock (layer 4). Default
    /// 0.
    pub magazines: u32,
    /// With magazines, 1 (the default): sizes become hot that are asked for again and again.
    pub learn: u32,
    /// With magazines: sizes in bytes that are hot from the beginning, `hot_size_count` of them,
    /// at most 32.
    pub hot_sizes: *const u64,
    /// How many sizes are named.
    pub hot_size_count: u64,
    /// With magazines: they keep at most so many bytes; UINT64_MAX (the default): a 32nd part of
    /// the space.
    pub stranded_bytes: u64,
}

// SAFETY: numbers and pointers only, of 8 bytes or in pairs of 4; the first is the size.
unsafe impl Options for kvmem_offset_options {
    fn defaults() -> Self {
        kvmem_offset_options {
            struct_size: size_of::<Self>() as u64,
            boundary_bytes: 0,
            max_ranges: 0,
            placement: KVMEM_PLACEMENT_RENEWAL,
            magazines: 0,
            learn: 1,
            hot_sizes: std::ptr::null(),
            hot_size_count: 0,
            stranded_bytes: u64::MAX,
        }
    }
}

/// Fills in the defaults. `struct_size` is `sizeof *options`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_offset_options_init(
    options: *mut kvmem_offset_options,
    struct_size: u64,
) -> kvmem_status {
    // SAFETY: the caller's promise.
    guard(|| unsafe { options::init(options, struct_size) })
}

fn builder(capacity: u64, wanted: &kvmem_offset_options) -> Result<OffsetAllocatorBuilder, Fail> {
    let placement = match wanted.placement {
        KVMEM_PLACEMENT_RENEWAL => Placement::Renewal,
        KVMEM_PLACEMENT_BEST_FIT => Placement::BestFit,
        other => {
            return Err(Fail::invalid(format_args!(
                "placement {other}: say KVMEM_PLACEMENT_RENEWAL or KVMEM_PLACEMENT_BEST_FIT"
            )));
        }
    };
    let mut builder = OffsetAllocator::builder(capacity).placement(placement);
    if wanted.boundary_bytes != 0 {
        builder = builder.boundary(wanted.boundary_bytes);
    }
    if wanted.max_ranges != 0 {
        builder = builder.max_ranges(wanted.max_ranges);
    }
    Ok(builder)
}

/// Makes a space of `capacity_bytes` bytes, 1 to 2^63. `options` may be NULL. About 40 KiB whatever
/// the capacity.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_offset_create(
    capacity_bytes: u64,
    options: *const kvmem_offset_options,
    out_allocator: *mut *mut kvmem_offset_allocator,
) -> kvmem_status {
    guard(|| {
        let made = out(out_allocator, "out_allocator")?;
        // SAFETY: the caller's promise.
        let wanted = unsafe { options::read(options) }?;
        let builder = builder(capacity_bytes, &wanted)?;
        let space = if flag(wanted.magazines, "magazines")? {
            // SAFETY: the caller's promise.
            let hot = unsafe { hot_sizes(wanted.hot_sizes, wanted.hot_size_count) }?;
            let mut builder = ExtentCache::builder(builder)
                .hot_sizes(hot.iter().copied())
                .auto_hot_sizes(flag(wanted.learn, "learn")?);
            if wanted.stranded_bytes != u64::MAX {
                builder = builder.max_cached_bytes(wanted.stranded_bytes);
            }
            Space::Cached(builder.build()?)
        } else {
            Space::Plain(builder.build()?)
        };
        made.put(kvmem_offset_allocator::table().insert(space)?);
        Ok(())
    })
}

/// Grants `bytes` bytes. O(1). KVMEM_NO_ROOM, KVMEM_TOO_LARGE, KVMEM_ZERO_SIZE or KVMEM_BOOKS_FULL
/// if it cannot be; that costs nanoseconds too.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_offset_allocate(
    allocator: *const kvmem_offset_allocator,
    bytes: u64,
    out_allocation: *mut kvmem_allocation,
) -> kvmem_status {
    let Some(space) = kvmem_offset_allocator::table().find(allocator) else {
        return no_allocator(allocator);
    };
    // Before anything else: a full space answers most requests so. 0 wraps around to the top.
    let longest = match space {
        Space::Plain(space) => space.largest_free_hint(),
        Space::Cached(space) => space.limit_hint(),
    };
    if bytes.wrapping_sub(1) >= longest && !out_allocation.is_null() {
        return fail_early(space, bytes, longest);
    }
    allocate(space, allocator, bytes, out_allocation)
}

#[cold]
#[inline(never)]
fn no_allocator(allocator: *const kvmem_offset_allocator) -> kvmem_status {
    on(allocator, |_| Ok(()))
}

/// Out of line: nothing that it needs is saved for requests that succeed.
#[inline(never)]
fn fail_early(space: &Space, bytes: u64, longest: u64) -> kvmem_status {
    last_error::put_early(either!(space, space => space.fails_early(bytes, longest)))
}

/// Out of line: nothing that it needs is saved for requests that fail early.
#[inline(never)]
fn allocate(
    space: &Space,
    allocator: *const kvmem_offset_allocator,
    bytes: u64,
    out_allocation: *mut kvmem_allocation,
) -> kvmem_status {
    guard_for(allocator, || {
        let granted = out(out_allocation, "out_allocation")?;
        granted.put(either!(space, space => space.allocate_raw(bytes))?.into());
        Ok(())
    })
}

/// Grants `bytes` bytes that begin at a multiple of `align`, a power of two.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_offset_allocate_aligned(
    allocator: *const kvmem_offset_allocator,
    bytes: u64,
    align: u64,
    out_allocation: *mut kvmem_allocation,
) -> kvmem_status {
    on(allocator, |space| {
        let granted = out(out_allocation, "out_allocation")?;
        granted.put(either!(space, space => space.allocate_aligned_raw(bytes, align))?.into());
        Ok(())
    })
}

/// Grants `count` ranges of `bytes` bytes each, or none. `out_allocations` has room for `count`.
/// O(count).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_offset_allocate_batch(
    allocator: *const kvmem_offset_allocator,
    bytes: u64,
    count: u64,
    out_allocations: *mut kvmem_allocation,
) -> kvmem_status {
    on(allocator, |space| {
        if out_allocations.is_null() {
            return Err(Fail::Null("out_allocations"));
        }
        let count = ranges(count)?;
        let all = raw_all(space, |space| match space {
            Space::Plain(space) => Ok(Either::Plain(space.allocate_batch(bytes, count)?)),
            Space::Cached(space) => Ok(Either::Cached(space.allocate_batch(bytes, count)?)),
        })?;
        // SAFETY: the caller's promise: there is room for as many as were asked for.
        unsafe { out_allocations.copy_from_nonoverlapping(all.as_ptr(), all.len()) };
        Ok(())
    })
}

/// Grants `total_bytes` bytes in at most `max_ranges` ranges whose sizes add up, or nothing.
/// `out_allocations` has room for `max_ranges`; `out_count` is set to how many there are. One range
/// if there is one that fits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_offset_allocate_scattered(
    allocator: *const kvmem_offset_allocator,
    total_bytes: u64,
    max_ranges: u64,
    out_allocations: *mut kvmem_allocation,
    out_count: *mut u64,
) -> kvmem_status {
    on(allocator, |space| {
        let count = out(out_count, "out_count")?;
        if out_allocations.is_null() {
            return Err(Fail::Null("out_allocations"));
        }
        let most = size(max_ranges);
        let all = raw_all(space, |space| match space {
            Space::Plain(space) => Ok(Either::Plain(space.allocate_scattered(total_bytes, most)?)),
            Space::Cached(space) => {
                Ok(Either::Cached(space.allocate_scattered(total_bytes, most)?))
            }
        })?;
        // SAFETY: the caller's promise: there is room for `max_ranges`, and no more were granted.
        unsafe { out_allocations.copy_from_nonoverlapping(all.as_ptr(), all.len()) };
        count.put(all.len() as u64);
        Ok(())
    })
}

/// Allocations of either kind of space.
enum Either {
    Plain(Vec<kvmem::offset::Allocation>),
    Cached(Vec<kvmem::slab::Extent>),
}

/// What was granted, by plain data.
fn raw_all(
    space: &Space,
    grant: impl FnOnce(&Space) -> Result<Either, Fail>,
) -> Result<Vec<kvmem_allocation>, Fail> {
    match (space, grant(space)?) {
        (_, Either::Plain(all)) => Ok(all
            .into_iter()
            .map(|one| {
                let (offset, bytes) = (one.offset(), one.size());
                let (allocator, slot, generation) = numbers(one.into_raw());
                kvmem_allocation { allocator, slot, generation, offset, bytes }
            })
            .collect()),
        (Space::Cached(space), Either::Cached(all)) => all
            .into_iter()
            .map(|one| match space.seal_raw(one) {
                Ok(raw) => Ok(raw.into()),
                Err(_) => Err(Fail::said(
                    KVMEM_CHECK_FAILED,
                    "an extent is not of the space that granted it",
                )),
            })
            .collect(),
        (Space::Plain(_), Either::Cached(_)) => {
            Err(Fail::said(KVMEM_CHECK_FAILED, "a space without magazines granted extents"))
        }
    }
}

/// Frees an allocation. O(1). KVMEM_STALE_ALLOCATION if it was freed before,
/// KVMEM_FOREIGN_ALLOCATION if it is of another allocator. Only the first three members of
/// `allocation` are looked at, and nothing is written to it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_offset_free(
    allocator: *const kvmem_offset_allocator,
    allocation: *const kvmem_allocation,
) -> kvmem_status {
    on(allocator, |space| {
        // SAFETY: the caller's promise.
        let allocation = unsafe { read(allocation, "allocation") }?;
        either!(space, space => space.free_raw(allocation.handle()))?;
        Ok(())
    })
}

/// Frees `count` allocations. Those that cannot be freed are left out: the status is that of the
/// first of them, and `out_freed` (may be NULL) is set to how many were freed, also then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_offset_free_batch(
    allocator: *const kvmem_offset_allocator,
    allocations: *const kvmem_allocation,
    count: u64,
    out_freed: *mut u64,
) -> kvmem_status {
    on(allocator, |space| {
        // SAFETY: the caller's promise.
        let all = unsafe { list(allocations, count, "allocations") }?;
        let (mut freed, mut first) = (0, Ok(()));
        for one in all {
            match either!(space, space => space.free_raw(one.handle())) {
                Ok(_) => freed += 1,
                Err(error) => first = first.and(Err(error)),
            }
        }
        if let Ok(count) = out(out_freed, "") {
            count.put(freed);
        }
        Ok(first?)
    })
}

/// Where an allocation lies, as the books know it, for those who have kept its first three members
/// only.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_offset_resolve(
    allocator: *const kvmem_offset_allocator,
    allocation: *const kvmem_allocation,
    out_offset: *mut u64,
    out_bytes: *mut u64,
) -> kvmem_status {
    on(allocator, |space| {
        // SAFETY: the caller's promise.
        let allocation = unsafe { read(allocation, "allocation") }?;
        let (offset, bytes) = (out(out_offset, "out_offset")?, out(out_bytes, "out_bytes")?);
        let range = either!(space, space => space.resolve_raw(allocation.handle()))?;
        offset.put(range.start);
        bytes.put(range.end - range.start);
        Ok(())
    })
}

/// The allocation that is alive at a place in the books, which is its member `slot`: for programs
/// that have kept no more of it, and for handing over what another part of the program has
/// forgotten. O(1). KVMEM_NOT_FOUND if there is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_offset_allocation_at(
    allocator: *const kvmem_offset_allocator,
    slot: u32,
    out_allocation: *mut kvmem_allocation,
) -> kvmem_status {
    on(allocator, |space| {
        let found = out(out_allocation, "out_allocation")?;
        let none =
            || Fail::said(KVMEM_NOT_FOUND, format_args!("no allocation is alive at slot {slot}"));
        found.put(either!(space, space => space.raw_at(slot)).ok_or_else(none)?.into());
        Ok(())
    })
}

/// All allocations that are alive, in the order of their offsets. O(n log n) for the most that ever
/// were alive at once. Lists as for kvmem_registration_chunks; while other threads allocate, the
/// next call may find more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_offset_allocations(
    allocator: *const kvmem_offset_allocator,
    out_allocations: *mut kvmem_allocation,
    capacity: u64,
    out_count: *mut u64,
) -> kvmem_status {
    on(allocator, |space| {
        let all = either!(space, space => space.raw_allocations());
        let all: Vec<kvmem_allocation> = all.into_iter().map(kvmem_allocation::from).collect();
        // SAFETY: the caller's promise.
        unsafe { write_list(&all, out_allocations, capacity, out_count) }
    })
}

/// Gives back the tail: the allocation is `new_bytes` bytes afterwards, which is written to it, and
/// begins where it did. O(1).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_offset_shrink(
    allocator: *const kvmem_offset_allocator,
    allocation: *mut kvmem_allocation,
    new_bytes: u64,
) -> kvmem_status {
    on(allocator, |space| {
        // SAFETY: the caller's promise.
        let mut resized = *unsafe { read(allocation, "allocation") }?;
        either!(space, space => space.shrink_raw(resized.handle(), new_bytes))?;
        resized.bytes = new_bytes;
        out(allocation, "allocation")?.put(resized);
        Ok(())
    })
}

/// Takes in free bytes that lie behind: the allocation is `new_bytes` bytes afterwards, which is
/// written to it, and begins where it did. Nothing is moved. O(1). KVMEM_BLOCKED if they are not
/// free.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_offset_extend(
    allocator: *const kvmem_offset_allocator,
    allocation: *mut kvmem_allocation,
    new_bytes: u64,
) -> kvmem_status {
    on(allocator, |space| {
        // SAFETY: the caller's promise.
        let mut resized = *unsafe { read(allocation, "allocation") }?;
        either!(space, space => space.extend_raw(resized.handle(), new_bytes))?;
        resized.bytes = new_bytes;
        out(allocation, "allocation")?.put(resized);
        Ok(())
    })
}

/// Moves the end of the space up to `capacity_bytes`. O(1).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_offset_grow(
    allocator: *const kvmem_offset_allocator,
    capacity_bytes: u64,
) -> kvmem_status {
    on(allocator, |space| Ok(either!(space, space => space.grow(capacity_bytes))?))
}

/// Moves the end of the space down to `capacity_bytes`; KVMEM_IN_USE if something in use lies
/// behind it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_offset_shrink_to(
    allocator: *const kvmem_offset_allocator,
    capacity_bytes: u64,
) -> kvmem_status {
    on(allocator, |space| Ok(either!(space, space => space.shrink_to(capacity_bytes))?))
}

/// Figures of a space. What magazines keep counts as free.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvmem_metrics {
    /// Length of the space.
    pub capacity_bytes: u64,
    /// Bytes in use; exactly what was asked for.
    pub allocated_bytes: u64,
    /// Bytes not in use.
    pub free_bytes: u64,
    /// The longest range that would be granted now.
    pub largest_free_bytes: u64,
    /// Allocations alive.
    pub live: u64,
    /// Free ranges on the books.
    pub free_ranges: u64,
    /// Heap memory of the books.
    pub metadata_bytes: u64,
    /// What no allocation straddles; 0: there is no boundary.
    pub boundary_bytes: u64,
}

impl kvmem_metrics {
    pub(crate) fn new(metrics: &kvmem::offset::Metrics, boundary: Option<u64>) -> Self {
        kvmem_metrics {
            capacity_bytes: metrics.capacity,
            allocated_bytes: metrics.allocated,
            free_bytes: metrics.free,
            largest_free_bytes: metrics.largest_free,
            live: metrics.live,
            free_ranges: metrics.free_ranges,
            metadata_bytes: metrics.metadata_bytes,
            boundary_bytes: boundary.unwrap_or(0),
        }
    }
}

/// Figures of a space. O(1); with magazines O(threads).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_offset_get_metrics(
    allocator: *const kvmem_offset_allocator,
    out_metrics: *mut kvmem_metrics,
) -> kvmem_status {
    on(allocator, |space| {
        let figures = out(out_metrics, "out_metrics")?;
        figures
            .put(either!(space, space => kvmem_metrics::new(&space.metrics(), space.boundary())));
        Ok(())
    })
}

/// An upper bound of the longest range that would be granted now, without the lock.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_offset_largest_free_hint(
    allocator: *const kvmem_offset_allocator,
    out_bytes: *mut u64,
) -> kvmem_status {
    on(allocator, |space| {
        out(out_bytes, "out_bytes")?.put(either!(space, space => space.largest_free_hint()));
        Ok(())
    })
}

/// The free ranges of sizes that are close together.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvmem_bin {
    /// Least size, in bytes.
    pub min_bytes: u64,
    /// Greatest size, in bytes.
    pub max_bytes: u64,
    /// Free ranges of such sizes.
    pub ranges: u64,
    /// Their sum in bytes.
    pub bytes: u64,
}

impl From<&kvmem::offset::BinReport> for kvmem_bin {
    fn from(bin: &kvmem::offset::BinReport) -> Self {
        kvmem_bin {
            min_bytes: bin.size_min,
            max_bytes: bin.size_max,
            ranges: bin.ranges,
            bytes: bin.bytes,
        }
    }
}

/// The free ranges by size, ascending: bins that hold any. Lists as for kvmem_registration_chunks;
/// about 2000 are always enough.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_offset_bins(
    allocator: *const kvmem_offset_allocator,
    out_bins: *mut kvmem_bin,
    capacity: u64,
    out_count: *mut u64,
) -> kvmem_status {
    on(allocator, |space| {
        let bins = either!(space, space => space.bins());
        let bins: Vec<kvmem_bin> = bins.iter().map(kvmem_bin::from).collect();
        // SAFETY: the caller's promise.
        unsafe { write_list(&bins, out_bins, capacity, out_count) }
    })
}

/// A free range.
pub const KVMEM_RANGE_FREE: u32 = 0;
/// A range in use.
pub const KVMEM_RANGE_USED: u32 = 1;
/// A range that magazines keep for the next request of its size.
pub const KVMEM_RANGE_CACHED: u32 = 2;

/// One range of the map.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvmem_map_range {
    /// Where it begins.
    pub offset: u64,
    /// Its length.
    pub bytes: u64,
    /// KVMEM_RANGE_FREE, KVMEM_RANGE_USED or KVMEM_RANGE_CACHED.
    pub state: u32,
    /// 0.
    pub reserved: u32,
}

impl kvmem_map_range {
    pub(crate) fn of_extents(map: &[kvmem::slab::ExtentMapRange]) -> Vec<Self> {
        let state = |state| match state {
            ExtentState::Used => KVMEM_RANGE_USED,
            ExtentState::Cached => KVMEM_RANGE_CACHED,
            ExtentState::Free => KVMEM_RANGE_FREE,
        };
        let range = |range: &kvmem::slab::ExtentMapRange| kvmem_map_range {
            offset: range.offset,
            bytes: range.size,
            state: state(range.state),
            reserved: 0,
        };
        map.iter().map(range).collect()
    }
}

/// The whole space in address order: a range for every allocation, and free ranges joined.
/// O(ranges). Lists as for kvmem_registration_chunks; while other threads allocate, the next call
/// may find more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_offset_map(
    allocator: *const kvmem_offset_allocator,
    out_ranges: *mut kvmem_map_range,
    capacity: u64,
    out_count: *mut u64,
) -> kvmem_status {
    on(allocator, |space| {
        let map = match space {
            Space::Cached(space) => kvmem_map_range::of_extents(&space.map()),
            Space::Plain(space) => {
                let range = |range: &kvmem::offset::MapRange| kvmem_map_range {
                    offset: range.offset,
                    bytes: range.size,
                    state: if range.used { KVMEM_RANGE_USED } else { KVMEM_RANGE_FREE },
                    reserved: 0,
                };
                space.map().iter().map(range).collect()
            }
        };
        // SAFETY: the caller's promise.
        unsafe { write_list(&map, out_ranges, capacity, out_count) }
    })
}

/// Takes back what magazines keep, so that neighbours join. Without magazines it does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_offset_trim(
    allocator: *const kvmem_offset_allocator,
) -> kvmem_status {
    on(allocator, |space| {
        if let Space::Cached(space) = space {
            space.trim();
        }
        Ok(())
    })
}

/// Checks the books against their numbered invariants. O(ranges). KVMEM_CHECK_FAILED is a defect of
/// this library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_offset_check(
    allocator: *const kvmem_offset_allocator,
) -> kvmem_status {
    on(allocator, |space| Ok(either!(space, space => space.check())?))
}

/// Figures of a space as a text, for logs; see kvmem_region_report.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_offset_report(
    allocator: *const kvmem_offset_allocator,
    buffer: *mut c_char,
    capacity: u64,
    out_needed: *mut u64,
) -> kvmem_status {
    on(allocator, |space| {
        let m = either!(space, space => space.metrics());
        let text = format!(
            "{} of {} bytes in use by {} allocations; {} bytes free in {} ranges, the longest {}; books of {} bytes\n",
            m.allocated,
            m.capacity,
            m.live,
            m.free,
            m.free_ranges,
            m.largest_free,
            m.metadata_bytes
        );
        // SAFETY: the caller's promise.
        unsafe { write_text(&text, buffer, capacity, out_needed) }
    })
}

/// Destroys an allocator. Its allocations need not be freed before; freeing them afterwards is
/// KVMEM_BAD_HANDLE and harms nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_offset_destroy(
    allocator: *mut kvmem_offset_allocator,
) -> kvmem_status {
    destroy(allocator)
}
