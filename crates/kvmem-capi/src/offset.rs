//! *Offset allocator* (L3): ranges of an abstract space.

use std::ffi::c_char;
use std::ptr;

use kvmem::offset::{
    OffsetAllocator, OffsetAllocatorBuilder, Placement, RawAllocation, RawHandle, SpaceRef,
};
use kvmem::slab::{ExtentCache, ExtentSpaceRef, ExtentState};

use crate::call::{
    destroy, guard, guard_for, guard_or, list, on, out, ranges, read, size, write_list, write_text,
};
use crate::error::CallError;
use crate::fork::ForkScope;
use crate::last_error;
use crate::options::{self, Options, flag, hot_sizes};
use crate::promise::ObjectPromise;
use crate::status::*;
use crate::table::{Object, object};

/// Allocates ranges `[offset, offset + bytes)` of a space (layer 3). It never touches the bytes,
/// which may be memory, a file, or a GPU's memory. Owned by the caller:
/// kvmem_offset_allocator_destroy. Any thread, several at once.
pub struct kvmem_offset_allocator {
    _opaque: [u8; 0],
}

object!(kvmem_offset_allocator, Space, Offset, |_| ForkScope::Copied);

/// A space, with or without magazines.
pub enum Space {
    /// Without magazines: every call takes the lock of the metadata.
    Plain(OffsetAllocator),
    /// With magazines.
    Cached(ExtentCache),
}

/// Runs the expression on the space of either kind.
macro_rules! either {
    ($space:expr, $name:ident => $run:expr) => {
        match $space {
            Space::Plain($name) => $run,
            Space::Cached($name) => $run,
        }
    };
}

/// An allocation as plain data: it may be copied and stored anywhere. Any bits are safe to pass
/// back. If the allocation was freed before, or belongs to another allocator, the call returns an
/// error and changes nothing.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct kvmem_allocation {
    /// Number of its allocator, never reused in this process; 0: no allocation.
    pub allocator: u64,
    /// Its slot in the allocator's metadata.
    pub slot: u32,
    /// Generation of the slot.
    pub generation: u32,
    /// First offset.
    pub offset: u64,
    /// Length in bytes, exactly as requested.
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

/// Returns the three numbers of a handle.
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

/// Placement by renewal value: what each hole is worth to the recent traffic. The default.
pub const KVMEM_PLACEMENT_RENEWAL: u32 = 0;
/// Placement in the tightest of the first four holes that fit. Fewest instructions.
pub const KVMEM_PLACEMENT_BEST_FIT: u32 = 1;

/// No size becomes hot by itself.
pub const KVMEM_AUTO_HOT_SIZES_OFF: u32 = 0;
/// Sizes that are requested frequently become hot. The default.
pub const KVMEM_AUTO_HOT_SIZES_ON: u32 = 1;
/// Sizes that are requested frequently become hot, but none before the first free. Until then,
/// ranges follow each other from offset 0 up, as without magazines. Without named hot sizes.
pub const KVMEM_AUTO_HOT_SIZES_AFTER_FIRST_FREE: u32 = 2;

/// Options of a space. Fill them in with kvmem_offset_allocator_options_init first.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvmem_offset_allocator_options {
    /// Size of this structure in bytes, as the program knows it.
    pub struct_size: u64,
    /// No allocation crosses a multiple of this many bytes, or is longer. 0 (the default): no
    /// boundary.
    pub boundary_bytes: u64,
    /// Limits the number of ranges, used and free. 0 (the default): about 2^32.
    pub max_ranges: u32,
    /// KVMEM_PLACEMENT_RENEWAL (the default) or KVMEM_PLACEMENT_BEST_FIT.
    pub placement: u32,
    /// 1: hot sizes are served from each thread's own magazines, without a lock (layer 4). Default
    /// 0.
    pub magazines: u32,
    /// With magazines: KVMEM_AUTO_HOT_SIZES_ON (the default), KVMEM_AUTO_HOT_SIZES_OFF or
    /// KVMEM_AUTO_HOT_SIZES_AFTER_FIRST_FREE.
    pub auto_hot_sizes: u32,
    /// With magazines: sizes in bytes that are hot from the start, `hot_size_count` of them, at
    /// most 32.
    pub hot_sizes: *const u64,
    /// Number of hot sizes.
    pub hot_size_count: u64,
    /// With magazines: limits the bytes that all of them cache. UINT64_MAX (the default): 1/32 of
    /// the space.
    pub max_cached_bytes: u64,
}

// SAFETY: `Options` requires a `u64` size first, no padding, and that all bits are valid: the
// members are numbers, raw pointers and optional functions, of 8 bytes or in pairs of 4.
unsafe impl Options for kvmem_offset_allocator_options {
    fn defaults() -> Self {
        kvmem_offset_allocator_options {
            struct_size: size_of::<Self>() as u64,
            boundary_bytes: 0,
            max_ranges: 0,
            placement: KVMEM_PLACEMENT_RENEWAL,
            magazines: 0,
            auto_hot_sizes: KVMEM_AUTO_HOT_SIZES_ON,
            hot_sizes: std::ptr::null(),
            hot_size_count: 0,
            max_cached_bytes: u64::MAX,
        }
    }
}

/// Fills in the defaults. `struct_size` is `sizeof *options`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_offset_allocator_options_init(
    options: *mut kvmem_offset_allocator_options,
    struct_size: u64,
) -> kvmem_status {
    // SAFETY: promise 1 of the C caller, for `options`.
    guard(|| unsafe { options::init(options, struct_size) })
}

fn builder(
    capacity: u64,
    wanted: &kvmem_offset_allocator_options,
) -> Result<OffsetAllocatorBuilder, CallError> {
    let placement = match wanted.placement {
        KVMEM_PLACEMENT_RENEWAL => Placement::Renewal,
        KVMEM_PLACEMENT_BEST_FIT => Placement::BestFit,
        other => {
            return Err(CallError::invalid(format_args!(
                "placement is {other}: use KVMEM_PLACEMENT_RENEWAL or KVMEM_PLACEMENT_BEST_FIT"
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

/// Makes a space of `capacity_bytes` bytes, 1 to 2^63. `options` may be NULL. Takes about 40 KiB of
/// memory for any capacity.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_offset_allocator_create(
    capacity_bytes: u64,
    options: *const kvmem_offset_allocator_options,
    out_allocator: *mut *mut kvmem_offset_allocator,
) -> kvmem_status {
    guard(|| {
        // SAFETY: promise 1 of the C caller, for `out_allocator`.
        let made = unsafe { out(out_allocator, "out_allocator") }?;
        // SAFETY: promise 1 of the C caller, for `options`.
        let wanted = unsafe { options::read(options) }?;
        let builder = builder(capacity_bytes, &wanted)?;
        let space = if flag(wanted.magazines, "magazines")? {
            // SAFETY: promise 1 of the C caller, for `hot_sizes` of the options.
            let hot = unsafe { hot_sizes(wanted.hot_sizes, wanted.hot_size_count) }?;
            let mut builder = ExtentCache::builder(builder).hot_sizes(hot.iter().copied());
            builder = match wanted.auto_hot_sizes {
                KVMEM_AUTO_HOT_SIZES_OFF => builder.auto_hot_sizes(false),
                KVMEM_AUTO_HOT_SIZES_ON => builder.auto_hot_sizes(true),
                KVMEM_AUTO_HOT_SIZES_AFTER_FIRST_FREE => builder.hot_sizes_after_first_free(),
                other => {
                    return Err(CallError::invalid(format_args!(
                        "auto_hot_sizes is {other}: use KVMEM_AUTO_HOT_SIZES_OFF, \
                         KVMEM_AUTO_HOT_SIZES_ON or KVMEM_AUTO_HOT_SIZES_AFTER_FIRST_FREE"
                    )));
                }
            };
            if wanted.max_cached_bytes != u64::MAX {
                builder = builder.max_cached_bytes(wanted.max_cached_bytes);
            }
            Space::Cached(builder.build()?)
        } else {
            Space::Plain(builder.build()?)
        };
        made.put(kvmem_offset_allocator::table().insert(space)?);
        Ok(())
    })
}

/// Allocates `bytes` bytes. O(1), also on failure. Fails with KVMEM_ERR_OUT_OF_SPACE,
/// KVMEM_ERR_TOO_LARGE, KVMEM_ERR_ZERO_SIZE or KVMEM_ERR_TOO_MANY_RANGES.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_offset_allocator_allocate(
    allocator: *const kvmem_offset_allocator,
    bytes: u64,
    out_allocation: *mut kvmem_allocation,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    let Some(space) = kvmem_offset_allocator::table().find(&promise, allocator) else {
        // SAFETY: promise 2 of the C caller.
        return unsafe { no_allocator(allocator) };
    };
    // Checked first, because a full space answers most requests here. A size of 0 wraps around to
    // the largest number.
    let longest = match space {
        Space::Plain(space) => space.largest_free_hint(),
        Space::Cached(space) => space.limit_hint(),
    };
    if bytes.wrapping_sub(1) >= longest && !out_allocation.is_null() {
        return fail_allocation(space, bytes, longest);
    }
    // SAFETY: promise 1 of the C caller, for `out_allocation`.
    unsafe { allocate(space, allocator, bytes, out_allocation) }
}

/// # Safety
/// Promise 2 of the C caller.
#[cold]
#[inline(never)]
unsafe fn no_allocator(allocator: *const kvmem_offset_allocator) -> kvmem_status {
    // SAFETY: promise 2 of the C caller, which this function's caller has.
    let promise = unsafe { ObjectPromise::of_caller() };
    on(&promise, allocator, |_| Ok(()))
}

/// Not inlined, so requests that succeed save no registers for it.
#[inline(never)]
fn fail_allocation(space: &Space, bytes: u64, longest: u64) -> kvmem_status {
    last_error::record_alloc(either!(space, space => space.fails_early(bytes, longest)))
}

/// Not inlined, so requests that fail early save no registers for it.
///
/// # Safety
/// Promise 1 of the C caller for `out_allocation`.
#[inline(never)]
unsafe fn allocate(
    space: &Space,
    allocator: *const kvmem_offset_allocator,
    bytes: u64,
    out_allocation: *mut kvmem_allocation,
) -> kvmem_status {
    guard_for(allocator, || {
        // SAFETY: promise 1 of the C caller, for `out_allocation`.
        let place = unsafe { out(out_allocation, "out_allocation") }?;
        place.put(either!(space, space => space.allocate_raw(bytes))?.into());
        Ok(())
    })
}

/// Allocates `bytes` bytes at a multiple of `align`, a power of two.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_offset_allocator_allocate_aligned(
    allocator: *const kvmem_offset_allocator,
    bytes: u64,
    align: u64,
    out_allocation: *mut kvmem_allocation,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    on(&promise, allocator, |space| {
        // SAFETY: promise 1 of the C caller, for `out_allocation`.
        let place = unsafe { out(out_allocation, "out_allocation") }?;
        place.put(either!(space, space => space.allocate_aligned_raw(bytes, align))?.into());
        Ok(())
    })
}

/// Allocates `count` ranges of `bytes` bytes each, or none. `out_allocations` has room for `count`.
/// O(count).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_offset_allocator_allocate_batch(
    allocator: *const kvmem_offset_allocator,
    bytes: u64,
    count: u64,
    out_allocations: *mut kvmem_allocation,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    on(&promise, allocator, |space| {
        if out_allocations.is_null() {
            return Err(CallError::Null("out_allocations"));
        }
        let count = ranges(count)?;
        let all = raw_all(space, |space| match space {
            Space::Plain(space) => Ok(AllocatedRanges::Plain(space.allocate_batch(bytes, count)?)),
            Space::Cached(space) => {
                Ok(AllocatedRanges::Cached(space.allocate_batch(bytes, count)?))
            }
        })?;
        // SAFETY: promise 1 of the C caller: `out_allocations`, which is not NULL, is aligned and
        // has room for `count` elements, and `all` has `count`. `all` is new, so the two do not
        // overlap.
        unsafe { out_allocations.copy_from_nonoverlapping(all.as_ptr(), all.len()) };
        Ok(())
    })
}

/// Allocates `total_bytes` bytes in at most `max_ranges` ranges, or nothing. Uses a single range if
/// one is long enough. `out_allocations` has room for `max_ranges`; `out_count` receives the number
/// of ranges.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_offset_allocator_allocate_scattered(
    allocator: *const kvmem_offset_allocator,
    total_bytes: u64,
    max_ranges: u64,
    out_allocations: *mut kvmem_allocation,
    out_count: *mut u64,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    on(&promise, allocator, |space| {
        // SAFETY: promise 1 of the C caller, for `out_count`.
        let count = unsafe { out(out_count, "out_count") }?;
        if out_allocations.is_null() {
            return Err(CallError::Null("out_allocations"));
        }
        let max_ranges = size(max_ranges);
        let all = raw_all(space, |space| match space {
            Space::Plain(space) => {
                Ok(AllocatedRanges::Plain(space.allocate_scattered(total_bytes, max_ranges)?))
            }
            Space::Cached(space) => {
                Ok(AllocatedRanges::Cached(space.allocate_scattered(total_bytes, max_ranges)?))
            }
        })?;
        // SAFETY: promise 1 of the C caller: `out_allocations`, which is not NULL, is aligned and
        // has room for `max_ranges` elements, and `all` has no more. `all` is new, so the two do
        // not overlap.
        unsafe { out_allocations.copy_from_nonoverlapping(all.as_ptr(), all.len()) };
        count.put(all.len() as u64);
        Ok(())
    })
}

/// Allocations from either kind of space.
enum AllocatedRanges {
    Plain(Vec<kvmem::offset::Allocation>),
    Cached(Vec<kvmem::slab::Extent>),
}

/// Converts allocated ranges to plain data.
fn raw_all(
    space: &Space,
    allocate: impl FnOnce(&Space) -> Result<AllocatedRanges, CallError>,
) -> Result<Vec<kvmem_allocation>, CallError> {
    match (space, allocate(space)?) {
        (_, AllocatedRanges::Plain(all)) => Ok(all
            .into_iter()
            .map(|one| {
                let (offset, bytes) = (one.offset(), one.len());
                let (allocator, slot, generation) = numbers(one.into_raw());
                kvmem_allocation { allocator, slot, generation, offset, bytes }
            })
            .collect()),
        (Space::Cached(space), AllocatedRanges::Cached(all)) => all
            .into_iter()
            .map(|one| match space.make_raw(one) {
                Ok(raw) => Ok(raw.into()),
                Err(_) => Err(CallError::new(
                    KVMEM_ERR_CHECK_FAILED,
                    "an extent does not belong to the space that allocated it",
                )),
            })
            .collect(),
        (Space::Plain(_), AllocatedRanges::Cached(_)) => Err(CallError::new(
            KVMEM_ERR_CHECK_FAILED,
            "a space without magazines allocated extents",
        )),
    }
}

/// Frees an allocation. O(1). KVMEM_ERR_STALE_ALLOCATION if it was freed before,
/// KVMEM_ERR_FOREIGN_ALLOCATION if it belongs to another allocator. Reads only the first three
/// members of `allocation`, and writes nothing to it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_offset_allocator_free(
    allocator: *const kvmem_offset_allocator,
    allocation: *const kvmem_allocation,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    on(&promise, allocator, |space| {
        // SAFETY: promise 1 of the C caller, for `allocation`.
        let allocation = unsafe { read(allocation, "allocation") }?;
        either!(space, space => space.free_raw(allocation.handle()))?;
        Ok(())
    })
}

/// Frees `count` allocations. Skips those that cannot be freed; the status is that of the first of
/// them. `out_freed` (may be NULL) receives how many were freed, in either case.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_offset_allocator_free_batch(
    allocator: *const kvmem_offset_allocator,
    allocations: *const kvmem_allocation,
    count: u64,
    out_freed: *mut u64,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    on(&promise, allocator, |space| {
        // SAFETY: promise 1 of the C caller, for `allocations`.
        let all = unsafe { list(allocations, count, "allocations") }?;
        let (mut freed, mut first) = (0, Ok(()));
        for one in all {
            match either!(space, space => space.free_raw(one.handle())) {
                Ok(_) => freed += 1,
                Err(error) => first = first.and(Err(error)),
            }
        }
        // SAFETY: promise 1 of the C caller, for `out_freed`.
        if let Ok(count) = unsafe { out(out_freed, "") } {
            count.put(freed);
        }
        Ok(first?)
    })
}

/// Returns the offset and length of an allocation from the metadata, for programs that store only
/// its first three members.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_offset_allocator_resolve(
    allocator: *const kvmem_offset_allocator,
    allocation: *const kvmem_allocation,
    out_offset: *mut u64,
    out_bytes: *mut u64,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    on(&promise, allocator, |space| {
        // SAFETY: promise 1 of the C caller, for `allocation`.
        let allocation = unsafe { read(allocation, "allocation") }?;
        // SAFETY: promise 1 of the C caller, for `out_offset` and `out_bytes`.
        let (offset, bytes) =
            unsafe { (out(out_offset, "out_offset")?, out(out_bytes, "out_bytes")?) };
        let range = either!(space, space => space.resolve_raw(allocation.handle()))?;
        offset.put(range.start);
        bytes.put(range.end - range.start);
        Ok(())
    })
}

/// Returns the live allocation at a slot of the metadata; `slot` is that member of
/// kvmem_allocation. For programs that store only the slot, or that free what another part of the
/// program has lost. O(1). KVMEM_ERR_NOT_FOUND if the slot has none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_offset_allocator_allocation_at(
    allocator: *const kvmem_offset_allocator,
    slot: u32,
    out_allocation: *mut kvmem_allocation,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    on(&promise, allocator, |space| {
        // SAFETY: promise 1 of the C caller, for `out_allocation`.
        let found = unsafe { out(out_allocation, "out_allocation") }?;
        let none = || {
            CallError::new(KVMEM_ERR_NOT_FOUND, format_args!("slot {slot} has no live allocation"))
        };
        found.put(either!(space, space => space.raw_at(slot)).ok_or_else(none)?.into());
        Ok(())
    })
}

/// Lists all live allocations in offset order. O(n log n), where n is the largest number that was
/// ever live. Lists are written as by kvmem_registration_chunks. While other threads allocate, the
/// next call may find more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_offset_allocator_allocations(
    allocator: *const kvmem_offset_allocator,
    out_allocations: *mut kvmem_allocation,
    capacity: u64,
    out_count: *mut u64,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    on(&promise, allocator, |space| {
        let all = either!(space, space => space.raw_allocations());
        let all: Vec<kvmem_allocation> = all.into_iter().map(kvmem_allocation::from).collect();
        // SAFETY: promise 1 of the C caller, for `out_allocations` and `out_count`.
        unsafe { write_list(&all, out_allocations, capacity, out_count) }
    })
}

/// Frees the tail of an allocation, which then has `new_bytes` bytes at the same offset. Writes the
/// new length to `allocation`. O(1).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_offset_allocator_shrink(
    allocator: *const kvmem_offset_allocator,
    allocation: *mut kvmem_allocation,
    new_bytes: u64,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    on(&promise, allocator, |space| {
        // SAFETY: promise 1 of the C caller, for `allocation`.
        let mut resized = *unsafe { read(allocation, "allocation") }?;
        either!(space, space => space.shrink_raw(resized.handle(), new_bytes))?;
        resized.bytes = new_bytes;
        // SAFETY: promise 1 of the C caller, for `allocation`.
        let place = unsafe { out(allocation, "allocation") }?;
        place.put(resized);
        Ok(())
    })
}

/// Extends an allocation in place with the free bytes behind it. It then has `new_bytes` bytes at
/// the same offset. Writes the new length to `allocation`. O(1). KVMEM_ERR_CANNOT_EXTEND if those
/// bytes are not free.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_offset_allocator_extend(
    allocator: *const kvmem_offset_allocator,
    allocation: *mut kvmem_allocation,
    new_bytes: u64,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    on(&promise, allocator, |space| {
        // SAFETY: promise 1 of the C caller, for `allocation`.
        let mut resized = *unsafe { read(allocation, "allocation") }?;
        either!(space, space => space.extend_raw(resized.handle(), new_bytes))?;
        resized.bytes = new_bytes;
        // SAFETY: promise 1 of the C caller, for `allocation`.
        let place = unsafe { out(allocation, "allocation") }?;
        place.put(resized);
        Ok(())
    })
}

/// Raises the capacity of the space to `capacity_bytes`. O(1).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_offset_allocator_grow_to(
    allocator: *const kvmem_offset_allocator,
    capacity_bytes: u64,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    on(&promise, allocator, |space| Ok(either!(space, space => space.grow_to(capacity_bytes))?))
}

/// Lowers the capacity of the space to `capacity_bytes`. KVMEM_ERR_IN_USE if an allocation lies
/// behind the new end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_offset_allocator_shrink_to(
    allocator: *const kvmem_offset_allocator,
    capacity_bytes: u64,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    on(&promise, allocator, |space| Ok(either!(space, space => space.shrink_to(capacity_bytes))?))
}

/// Metrics of a space. Ranges in magazines count as free.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvmem_metrics {
    /// Length of the space.
    pub capacity_bytes: u64,
    /// Bytes in use, exactly as requested.
    pub allocated_bytes: u64,
    /// Free bytes.
    pub free_bytes: u64,
    /// The longest range that can be allocated now.
    pub largest_free_bytes: u64,
    /// Live allocations.
    pub live: u64,
    /// Free ranges, as many as in the map. Neighbours are coalesced, except at boundaries: there,
    /// only parts between two boundaries that are wholly free are. A range in a magazine counts.
    pub free_ranges: u64,
    /// Heap memory of the metadata, in bytes.
    pub metadata_bytes: u64,
    /// The boundary that no allocation crosses; 0: none.
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

/// Reads the metrics. O(1); with magazines O(threads).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_offset_allocator_get_metrics(
    allocator: *const kvmem_offset_allocator,
    out_metrics: *mut kvmem_metrics,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    on(&promise, allocator, |space| {
        // SAFETY: promise 1 of the C caller, for `out_metrics`.
        let figures = unsafe { out(out_metrics, "out_metrics") }?;
        figures
            .put(either!(space, space => kvmem_metrics::new(&space.metrics(), space.boundary())));
        Ok(())
    })
}

/// Returns an upper bound of the longest range that can be allocated now. Takes no lock.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_offset_allocator_largest_free_hint(
    allocator: *const kvmem_offset_allocator,
    out_bytes: *mut u64,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    on(&promise, allocator, |space| {
        // SAFETY: promise 1 of the C caller, for `out_bytes`.
        let place = unsafe { out(out_bytes, "out_bytes") }?;
        place.put(either!(space, space => space.largest_free_hint()));
        Ok(())
    })
}

/// Returns the addresses of two numbers that tell without a call that a request must fail: if the
/// first is less than the requested bytes, and the second has the same even value before and after.
/// The first is an upper bound of the longest free range, and the second is even while no magazine
/// keeps a range; load with acquire. The addresses are valid as long as the allocator; other
/// threads write the numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_offset_allocator_largest_free_address(
    allocator: *const kvmem_offset_allocator,
    out_largest_free: *mut *const u64,
    out_epoch: *mut *const u32,
) -> kvmem_status {
    /// Of spaces without magazines.
    static EVEN: u32 = 0;
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    on(&promise, allocator, |space| {
        // SAFETY: promise 1 of the C caller, for `out_largest_free` and `out_epoch`.
        let (largest_free, epoch) =
            unsafe { (out(out_largest_free, "out_largest_free")?, out(out_epoch, "out_epoch")?) };
        let (longest, changes) = match space {
            Space::Plain(space) => (space.largest_free_address(), ptr::from_ref(&EVEN)),
            Space::Cached(space) => space.early_failure_addresses(),
        };
        largest_free.put(longest);
        epoch.put(changes);
        Ok(())
    })
}

/// A space by number, for allocations that may outlive it. The kvmem_space_* functions take any
/// bits, and kvmem_space_free may be called after the allocator was destroyed, and while another
/// thread destroys it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct kvmem_space {
    /// Number of its allocator, as in kvmem_allocation.
    pub allocator: u64,
    /// Number of the space. Another space may have it when this one is gone.
    pub number: u32,
    /// 0.
    pub reserved: u32,
}

/// The bit of [`kvmem_space::number`] for spaces with magazines. Numbers of spaces are less.
const WITH_MAGAZINES: u32 = 1 << 31;

/// Returns the number of a space with magazines, if it is one.
#[inline(always)]
fn with_magazines(number: u32) -> Option<u32> {
    (number & WITH_MAGAZINES != 0).then_some(number & !WITH_MAGAZINES)
}

/// Returns the numbers of a space.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_offset_allocator_space(
    allocator: *const kvmem_offset_allocator,
    out_space: *mut kvmem_space,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    on(&promise, allocator, |space| {
        // SAFETY: promise 1 of the C caller, for `out_space`.
        let place = unsafe { out(out_space, "out_space") }?;
        let (allocator, number) = match space {
            Space::Plain(space) => {
                let SpaceRef { number, id } = space.space_ref();
                (id, number)
            }
            Space::Cached(space) => {
                let ExtentSpaceRef { number, id } = space.space_ref();
                (id, number | WITH_MAGAZINES)
            }
        };
        place.put(kvmem_space { allocator, number, reserved: 0 });
        Ok(())
    })
}

/// An allocation of a space by number, in two registers.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct kvmem_space_range {
    /// Its slot, times 2^32, plus the generation of the slot: the members of kvmem_allocation. 0:
    /// the call failed.
    pub handle: u64,
    /// First offset. If the call failed: its kvmem_status.
    pub offset: u64,
}

/// Allocates `bytes` bytes as kvmem_offset_allocator_allocate does, if fewer than `max_live`
/// allocations are live; otherwise fails with KVMEM_ERR_TOO_MANY_RANGES. All calls for a space with
/// magazines pass the same limit, and it is not destroyed during the call.
/// KVMEM_ERR_FOREIGN_ALLOCATION if the allocator was destroyed.
#[unsafe(no_mangle)]
pub extern "C" fn kvmem_space_allocate(
    space: kvmem_space,
    bytes: u64,
    max_live: u64,
) -> kvmem_space_range {
    let allocate = || {
        let kvmem_space { allocator: id, number, .. } = space;
        let raw = match with_magazines(number) {
            Some(number) => ExtentSpaceRef { number, id }.allocate_raw(bytes, max_live),
            None => SpaceRef { number, id }.allocate_raw(bytes, max_live),
        }?;
        // A generation is never 0.
        Ok(kvmem_space_range { handle: raw.handle.to_bits() as u64, offset: raw.offset })
    };
    guard_or(allocate, |status| kvmem_space_range { handle: 0, offset: status as u64 })
}

/// Frees an allocation of a space by its handle, as kvmem_offset_allocator_free does.
/// KVMEM_ERR_FOREIGN_ALLOCATION if the allocator was destroyed.
#[unsafe(no_mangle)]
pub extern "C" fn kvmem_space_free(space: kvmem_space, handle: u64) -> kvmem_status {
    guard(|| {
        let handle = RawHandle::from_bits(u128::from(space.allocator) << 64 | u128::from(handle));
        match with_magazines(space.number) {
            Some(number) => ExtentSpaceRef::free_raw(number, handle)?,
            None => {
                SpaceRef::free_raw(space.number, handle)?;
            }
        }
        Ok(())
    })
}

/// Returns KVMEM_OK if the allocator of a space exists, and KVMEM_ERR_NOT_FOUND if it was
/// destroyed.
#[unsafe(no_mangle)]
pub extern "C" fn kvmem_space_exists(space: kvmem_space) -> kvmem_status {
    guard(|| {
        let kvmem_space { allocator: id, number, .. } = space;
        let exists = match with_magazines(number) {
            Some(number) => ExtentSpaceRef { number, id }.is_open(),
            None => SpaceRef { number, id }.is_open(),
        };
        if exists { Ok(()) } else { Err(CallError::NotFound) }
    })
}

/// The free ranges of similar sizes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvmem_bin {
    /// Smallest size in bytes.
    pub min_bytes: u64,
    /// Largest size in bytes.
    pub max_bytes: u64,
    /// Number of free ranges.
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

/// Lists the free ranges by size, ascending: all bins that are not empty. Lists are written as by
/// kvmem_registration_chunks; there are fewer than about 2000 bins.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_offset_allocator_bins(
    allocator: *const kvmem_offset_allocator,
    out_bins: *mut kvmem_bin,
    capacity: u64,
    out_count: *mut u64,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    on(&promise, allocator, |space| {
        let bins = either!(space, space => space.bins());
        let bins: Vec<kvmem_bin> = bins.iter().map(kvmem_bin::from).collect();
        // SAFETY: promise 1 of the C caller, for `out_bins` and `out_count`.
        unsafe { write_list(&bins, out_bins, capacity, out_count) }
    })
}

/// A free range.
pub const KVMEM_RANGE_FREE: u32 = 0;
/// A range in use.
pub const KVMEM_RANGE_USED: u32 = 1;
/// A range that a magazine caches for the next request of its size.
pub const KVMEM_RANGE_CACHED: u32 = 2;

/// One range of a map.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvmem_map_range {
    /// First offset.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// KVMEM_RANGE_FREE, KVMEM_RANGE_USED or KVMEM_RANGE_CACHED.
    pub state: u32,
    /// Always 0.
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

/// Lists the whole space in offset order: every allocation, and every free range that the metrics
/// and the bins count. O(ranges). Lists are written as by kvmem_registration_chunks. While other
/// threads allocate, the next call may find more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_offset_allocator_map(
    allocator: *const kvmem_offset_allocator,
    out_ranges: *mut kvmem_map_range,
    capacity: u64,
    out_count: *mut u64,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    on(&promise, allocator, |space| {
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
        // SAFETY: promise 1 of the C caller, for `out_ranges` and `out_count`.
        unsafe { write_list(&map, out_ranges, capacity, out_count) }
    })
}

/// Returns all ranges in magazines to the space, where they coalesce. Does nothing without
/// magazines.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_offset_allocator_trim(
    allocator: *const kvmem_offset_allocator,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    on(&promise, allocator, |space| {
        if let Space::Cached(space) = space {
            space.trim();
        }
        Ok(())
    })
}

/// Checks the numbered invariants of the metadata. O(ranges). KVMEM_ERR_CHECK_FAILED is a defect of
/// this library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_offset_allocator_check(
    allocator: *const kvmem_offset_allocator,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    on(&promise, allocator, |space| Ok(either!(space, space => space.check())?))
}

/// Writes the metrics as text, for logs. `buffer` as for kvmem_region_report.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_offset_allocator_report(
    allocator: *const kvmem_offset_allocator,
    buffer: *mut c_char,
    capacity: u64,
    out_needed: *mut u64,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    on(&promise, allocator, |space| {
        let m = either!(space, space => space.metrics());
        let text = format!(
            "{} of {} bytes in use by {} allocations; {} bytes free in {} ranges, the longest {}; \
             metadata of {} bytes\n",
            m.allocated,
            m.capacity,
            m.live,
            m.free,
            m.free_ranges,
            m.largest_free,
            m.metadata_bytes
        );
        // SAFETY: promise 1 of the C caller, for `buffer` and `out_needed`.
        unsafe { write_text(&text, buffer, capacity, out_needed) }
    })
}

/// Destroys an allocator. Its allocations need not be freed first. Freeing one later returns
/// KVMEM_ERR_BAD_HANDLE and is harmless.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_offset_allocator_destroy(
    allocator: *mut kvmem_offset_allocator,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let mut promise = unsafe { ObjectPromise::of_caller() };
    destroy(&mut promise, allocator)
}
