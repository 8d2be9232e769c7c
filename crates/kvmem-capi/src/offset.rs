//! *Offset allocator* (L3): ranges of an abstract space.

use std::ffi::c_char;
use std::ptr;

use kvmem::offset::{
    OffsetAllocator, OffsetAllocatorBuilder, Placement, RawAllocation, RawHandle, SpaceRef,
};
use kvmem::slab::{ExtentCache, ExtentSpaceRef, ExtentState};

use crate::argument::{Handle, In, Out, Owned};
use crate::call::{guard, guard_for, guard_or, ranges, size};
use crate::error::CallError;
use crate::fork::ForkScope;
use crate::last_error;
use crate::options::{self, choice, flag, hot_sizes, options};
use crate::promise::ObjectPromise;
use crate::stats::kvmem_metrics;
use crate::status::*;
use crate::table::{Object, object};

/// Allocates ranges `[offset, offset + bytes)` of a space (layer 3). It never touches the bytes,
/// which may be memory, a file, or a GPU's memory. Owned by the caller:
/// kvmem_offset_allocator_destroy. Any thread, several at once.
pub struct kvmem_offset_allocator {
    _opaque: [u8; 0],
}

object!(kvmem_offset_allocator, Space, |_| ForkScope::Copied);

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
/// Placement in the first hole that fits, of the tightest bins. Fewest instructions.
pub const KVMEM_PLACEMENT_BEST_FIT: u32 = 1;

/// No size becomes hot by itself.
pub const KVMEM_AUTO_HOT_SIZES_OFF: u32 = 0;
/// Sizes that are requested frequently become hot. The default.
pub const KVMEM_AUTO_HOT_SIZES_ON: u32 = 1;
/// Sizes that are requested frequently become hot, but none before the first free. Until then,
/// ranges follow each other from offset 0 up, as without magazines. Without named hot sizes.
pub const KVMEM_AUTO_HOT_SIZES_AFTER_FIRST_FREE: u32 = 2;

options! {
    /// Options of a space. Fill them in with kvmem_offset_allocator_options_init first.
    kvmem_offset_allocator_options: kvmem_offset_allocator_options_init;

    /// No allocation crosses a multiple of this many bytes, or is longer. 0 (the default): no
    /// boundary.
    boundary_bytes: u64 = 0,
    /// Limits the number of ranges, used and free. 0 (the default): about 2^32.
    max_ranges: u32 = 0,
    /// KVMEM_PLACEMENT_RENEWAL (the default) or KVMEM_PLACEMENT_BEST_FIT.
    placement: u32 = KVMEM_PLACEMENT_RENEWAL,
    /// 1: hot sizes are served from each thread's own magazines, without a lock (layer 4). Default
    /// 0.
    magazines: u32 = 0,
    /// With magazines: KVMEM_AUTO_HOT_SIZES_ON (the default), KVMEM_AUTO_HOT_SIZES_OFF or
    /// KVMEM_AUTO_HOT_SIZES_AFTER_FIRST_FREE.
    auto_hot_sizes: u32 = KVMEM_AUTO_HOT_SIZES_ON,
    /// With magazines: sizes in bytes that are hot from the start, `hot_size_count` of them, at
    /// most 32.
    hot_sizes: In<u64> = In::NULL,
    /// Number of hot sizes.
    hot_size_count: u64 = 0,
    /// With magazines: limits the bytes that all of them cache. UINT64_MAX (the default): 1/32 of
    /// the space.
    max_cached_bytes: u64 = u64::MAX,
}

fn builder(
    capacity: u64,
    wanted: &kvmem_offset_allocator_options,
) -> Result<OffsetAllocatorBuilder, CallError> {
    let placement = choice!(wanted.placement:
        KVMEM_PLACEMENT_RENEWAL => Placement::Renewal,
        KVMEM_PLACEMENT_BEST_FIT => Placement::BestFit,
    )?;
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
    options: In<kvmem_offset_allocator_options>,
    out_allocator: Out<*mut kvmem_offset_allocator>,
) -> kvmem_status {
    guard(|| {
        let made = out_allocator.get("out_allocator")?;
        let wanted = options::read(&options)?;
        let builder = builder(capacity_bytes, &wanted)?;
        let space = if flag(wanted.magazines, "magazines")? {
            let hot = hot_sizes(&wanted.hot_sizes, wanted.hot_size_count)?;
            let mut builder = ExtentCache::builder(builder).hot_sizes(hot.iter().copied());
            builder = choice!(wanted.auto_hot_sizes:
                KVMEM_AUTO_HOT_SIZES_OFF => builder.auto_hot_sizes(false),
                KVMEM_AUTO_HOT_SIZES_ON => builder.auto_hot_sizes(true),
                KVMEM_AUTO_HOT_SIZES_AFTER_FIRST_FREE => builder.hot_sizes_after_first_free(),
            )?;
            if wanted.max_cached_bytes != u64::MAX {
                builder = builder.max_cached_bytes(wanted.max_cached_bytes);
            }
            Space::Cached(builder.build()?)
        } else {
            Space::Plain(builder.build()?)
        };
        made.insert(space)
    })
}

/// Allocates `bytes` bytes. O(1), also on failure. Fails with KVMEM_ERR_OUT_OF_SPACE,
/// KVMEM_ERR_TOO_LARGE, KVMEM_ERR_ZERO_SIZE or KVMEM_ERR_TOO_MANY_RANGES.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_offset_allocator_allocate(
    allocator: Handle<kvmem_offset_allocator>,
    bytes: u64,
    out_allocation: Out<kvmem_allocation>,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    let Some(space) = kvmem_offset_allocator::table().find(&promise, allocator.pointer()) else {
        return no_allocator(&allocator);
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
    allocate(space, allocator, bytes, out_allocation)
}

#[cold]
#[inline(never)]
fn no_allocator(allocator: &Handle<kvmem_offset_allocator>) -> kvmem_status {
    allocator.on(|_| Ok(()))
}

/// Not inlined, so requests that succeed save no registers for it.
#[inline(never)]
fn fail_allocation(space: &Space, bytes: u64, longest: u64) -> kvmem_status {
    last_error::record_alloc(either!(space, space => space.fails_early(bytes, longest)))
}

/// Not inlined, so requests that fail early save no registers for it.
#[inline(never)]
fn allocate(
    space: &Space,
    allocator: Handle<kvmem_offset_allocator>,
    bytes: u64,
    out_allocation: Out<kvmem_allocation>,
) -> kvmem_status {
    guard_for(allocator.pointer(), || {
        let place = out_allocation.get("out_allocation")?;
        place.put(either!(space, space => space.allocate_raw(bytes))?.into());
        Ok(())
    })
}

/// Allocates `bytes` bytes at a multiple of `align`, a power of two.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_offset_allocator_allocate_aligned(
    allocator: Handle<kvmem_offset_allocator>,
    bytes: u64,
    align: u64,
    out_allocation: Out<kvmem_allocation>,
) -> kvmem_status {
    allocator.on(|space| {
        let place = out_allocation.get("out_allocation")?;
        place.put(either!(space, space => space.allocate_aligned_raw(bytes, align))?.into());
        Ok(())
    })
}

/// Allocates `count` ranges of `bytes` bytes each, or none. `out_allocations` has room for `count`.
/// O(count).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_offset_allocator_allocate_batch(
    allocator: Handle<kvmem_offset_allocator>,
    bytes: u64,
    count: u64,
    out_allocations: Out<kvmem_allocation>,
) -> kvmem_status {
    allocator.on(|space| {
        out_allocations.get("out_allocations")?;
        let count = ranges(count)?;
        let all = raw_all(space, |space| match space {
            Space::Plain(space) => Ok(AllocatedRanges::Plain(space.allocate_batch(bytes, count)?)),
            Space::Cached(space) => {
                Ok(AllocatedRanges::Cached(space.allocate_batch(bytes, count)?))
            }
        })?;
        // SAFETY: `out_allocations` has room for `count` elements, and `all` has `count`.
        unsafe { out_allocations.put_all("out_allocations", &all) }
    })
}

/// Allocates `total_bytes` bytes in at most `max_ranges` ranges, or nothing. Uses a single range if
/// one is long enough. `out_allocations` has room for `max_ranges`; `out_count` receives the number
/// of ranges.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_offset_allocator_allocate_scattered(
    allocator: Handle<kvmem_offset_allocator>,
    total_bytes: u64,
    max_ranges: u64,
    out_allocations: Out<kvmem_allocation>,
    out_count: Out<u64>,
) -> kvmem_status {
    allocator.on(|space| {
        let count = out_count.get("out_count")?;
        out_allocations.get("out_allocations")?;
        let max_ranges = size(max_ranges);
        let all = raw_all(space, |space| match space {
            Space::Plain(space) => {
                Ok(AllocatedRanges::Plain(space.allocate_scattered(total_bytes, max_ranges)?))
            }
            Space::Cached(space) => {
                Ok(AllocatedRanges::Cached(space.allocate_scattered(total_bytes, max_ranges)?))
            }
        })?;
        // SAFETY: `out_allocations` has room for `max_ranges` elements, and `all` has no more.
        unsafe { out_allocations.put_all("out_allocations", &all) }?;
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
    allocator: Handle<kvmem_offset_allocator>,
    allocation: In<kvmem_allocation>,
) -> kvmem_status {
    allocator.on(|space| {
        let allocation = allocation.get("allocation")?;
        either!(space, space => space.free_raw(allocation.handle()))?;
        Ok(())
    })
}

/// Frees `count` allocations. Skips those that cannot be freed; the status is that of the first of
/// them. `out_freed` (may be NULL) receives how many were freed, in either case.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_offset_allocator_free_batch(
    allocator: Handle<kvmem_offset_allocator>,
    allocations: In<kvmem_allocation>,
    count: u64,
    out_freed: Out<u64>,
) -> kvmem_status {
    allocator.on(|space| {
        let all = allocations.list(count, "allocations")?;
        let (mut freed, mut first) = (0, Ok(()));
        for one in all {
            match either!(space, space => space.free_raw(one.handle())) {
                Ok(_) => freed += 1,
                Err(error) => first = first.and(Err(error)),
            }
        }
        out_freed.put_if_wanted(freed);
        Ok(first?)
    })
}

/// Returns the offset and length of an allocation from the metadata, for programs that store only
/// its first three members.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_offset_allocator_resolve(
    allocator: Handle<kvmem_offset_allocator>,
    allocation: In<kvmem_allocation>,
    out_offset: Out<u64>,
    out_bytes: Out<u64>,
) -> kvmem_status {
    allocator.on(|space| {
        let allocation = allocation.get("allocation")?;
        let (offset, bytes) = (out_offset.get("out_offset")?, out_bytes.get("out_bytes")?);
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
    allocator: Handle<kvmem_offset_allocator>,
    slot: u32,
    out_allocation: Out<kvmem_allocation>,
) -> kvmem_status {
    allocator.on(|space| {
        let found = out_allocation.get("out_allocation")?;
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
    allocator: Handle<kvmem_offset_allocator>,
    out_allocations: Out<kvmem_allocation>,
    capacity: u64,
    out_count: Out<u64>,
) -> kvmem_status {
    allocator.on(|space| {
        let all = either!(space, space => space.raw_allocations());
        let all: Vec<kvmem_allocation> = all.into_iter().map(kvmem_allocation::from).collect();
        out_allocations.write_list(&all, capacity, &out_count)
    })
}

/// Frees the tail of an allocation, which then has `new_bytes` bytes at the same offset. Writes the
/// new length to `allocation`. O(1).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_offset_allocator_shrink(
    allocator: Handle<kvmem_offset_allocator>,
    allocation: Out<kvmem_allocation>,
    new_bytes: u64,
) -> kvmem_status {
    allocator.on(|space| {
        let mut resized = allocation.read("allocation")?;
        either!(space, space => space.shrink_raw(resized.handle(), new_bytes))?;
        resized.bytes = new_bytes;
        allocation.put("allocation", resized)
    })
}

/// Extends an allocation in place with the free bytes behind it. It then has `new_bytes` bytes at
/// the same offset. Writes the new length to `allocation`. O(1). KVMEM_ERR_CANNOT_EXTEND if those
/// bytes are not free.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_offset_allocator_extend(
    allocator: Handle<kvmem_offset_allocator>,
    allocation: Out<kvmem_allocation>,
    new_bytes: u64,
) -> kvmem_status {
    allocator.on(|space| {
        let mut resized = allocation.read("allocation")?;
        either!(space, space => space.extend_raw(resized.handle(), new_bytes))?;
        resized.bytes = new_bytes;
        allocation.put("allocation", resized)
    })
}

/// Raises the capacity of the space to `capacity_bytes`. O(1).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_offset_allocator_grow_to(
    allocator: Handle<kvmem_offset_allocator>,
    capacity_bytes: u64,
) -> kvmem_status {
    allocator.on(|space| Ok(either!(space, space => space.grow_to(capacity_bytes))?))
}

/// Lowers the capacity of the space to `capacity_bytes`. KVMEM_ERR_IN_USE if an allocation lies
/// behind the new end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_offset_allocator_shrink_to(
    allocator: Handle<kvmem_offset_allocator>,
    capacity_bytes: u64,
) -> kvmem_status {
    allocator.on(|space| Ok(either!(space, space => space.shrink_to(capacity_bytes))?))
}

/// Reads the metrics. O(1); with magazines O(threads).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_offset_allocator_get_metrics(
    allocator: Handle<kvmem_offset_allocator>,
    out_metrics: Out<kvmem_metrics>,
) -> kvmem_status {
    allocator.on(|space| {
        let boundary = either!(space, space => space.boundary()).unwrap_or(0);
        let metrics = either!(space, space => space.metrics());
        out_metrics.put("out_metrics", kvmem_metrics::new(&metrics, boundary))
    })
}

/// Returns an upper bound of the longest range that can be allocated now. Takes no lock.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_offset_allocator_largest_free_hint(
    allocator: Handle<kvmem_offset_allocator>,
    out_bytes: Out<u64>,
) -> kvmem_status {
    allocator
        .on(|space| out_bytes.put("out_bytes", either!(space, space => space.largest_free_hint())))
}

/// Returns the addresses of two numbers that tell without a call that a request must fail: if the
/// first is less than the requested bytes, and the second has the same even value before and after.
/// The first is an upper bound of the longest free range, and the second is even while no magazine
/// keeps a range; load with acquire. The addresses are valid as long as the allocator; other
/// threads write the numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_offset_allocator_largest_free_address(
    allocator: Handle<kvmem_offset_allocator>,
    out_largest_free: Out<*const u64>,
    out_epoch: Out<*const u32>,
) -> kvmem_status {
    /// Of spaces without magazines.
    static EVEN: u32 = 0;
    allocator.on(|space| {
        let largest_free = out_largest_free.get("out_largest_free")?;
        let epoch = out_epoch.get("out_epoch")?;
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
    allocator: Handle<kvmem_offset_allocator>,
    out_space: Out<kvmem_space>,
) -> kvmem_status {
    allocator.on(|space| {
        let place = out_space.get("out_space")?;
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
    allocator: Handle<kvmem_offset_allocator>,
    out_bins: Out<kvmem_bin>,
    capacity: u64,
    out_count: Out<u64>,
) -> kvmem_status {
    allocator.on(|space| {
        let bins = either!(space, space => space.bins());
        let bins: Vec<kvmem_bin> = bins.iter().map(kvmem_bin::from).collect();
        out_bins.write_list(&bins, capacity, &out_count)
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
    allocator: Handle<kvmem_offset_allocator>,
    out_ranges: Out<kvmem_map_range>,
    capacity: u64,
    out_count: Out<u64>,
) -> kvmem_status {
    allocator.on(|space| {
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
        out_ranges.write_list(&map, capacity, &out_count)
    })
}

/// Returns all ranges in magazines to the space, where they coalesce. Does nothing without
/// magazines.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_offset_allocator_trim(
    allocator: Handle<kvmem_offset_allocator>,
) -> kvmem_status {
    allocator.on(|space| {
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
    allocator: Handle<kvmem_offset_allocator>,
) -> kvmem_status {
    allocator.on(|space| Ok(either!(space, space => space.check())?))
}

/// Writes the metrics as text, for logs. `buffer` as for kvmem_region_report.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_offset_allocator_report(
    allocator: Handle<kvmem_offset_allocator>,
    buffer: Out<c_char>,
    capacity: u64,
    out_needed: Out<u64>,
) -> kvmem_status {
    allocator.on(|space| {
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
        buffer.write_text(&text, capacity, &out_needed)
    })
}

/// Destroys an allocator. Its allocations need not be freed first. Freeing one later returns
/// KVMEM_ERR_BAD_HANDLE and is harmless.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_offset_allocator_destroy(
    allocator: Owned<kvmem_offset_allocator>,
) -> kvmem_status {
    allocator.destroy()
}
