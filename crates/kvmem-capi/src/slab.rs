//! *Slab allocator* (L4): blocks of any size, for programs that know the size when they free.

use std::ffi::{CString, c_char, c_void};
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use kvmem::arena::ExclusiveRegion;
use kvmem::slab::{SlabAllocator, SlabAllocatorBuilder, SlabFault, SlabSettings};

use crate::argument::{Handle, In, Out, Owned};
use crate::call::{elements, guard, size};
use crate::error::CallError;
use crate::fork::ForkScope;
use crate::options::{self, options};
use crate::promise::ObjectPromise;
use crate::region::kvmem_region;
use crate::status::*;
use crate::table::{Object, object};

/// Allocates blocks of any size, small ones from each thread's own magazines (layer 4). All blocks
/// are aligned to 16 bytes. Owned by the caller: kvmem_slab_allocator_destroy. Any thread, several
/// at once. Any thread may free blocks of another thread.
pub struct kvmem_slab_allocator {
    _opaque: [u8; 0],
}

object!(kvmem_slab_allocator, SlabEntry, |slab| slab.home);

/// A slab allocator in its table.
pub struct SlabEntry {
    slab: SlabAllocator,
    home: ForkScope,
}

impl Deref for SlabEntry {
    type Target = SlabAllocator;

    #[inline(always)]
    fn deref(&self) -> &SlabAllocator {
        &self.slab
    }
}

/// Settings: taken from the environment variable KVMEM_SLAB. The default.
pub const KVMEM_SLAB_FROM_ENVIRONMENT: u32 = 0;
/// Settings: no debugging, regardless of the environment.
pub const KVMEM_SLAB_PLAIN: u32 = 1;
/// Settings, a flag: all blocks come from the system's malloc.
pub const KVMEM_SLAB_ALWAYS_MALLOC: u32 = 2;
/// Settings, a flag: detects misuse of blocks: double free, wrong size, foreign pointer, write
/// after free, leaks.
pub const KVMEM_SLAB_DEBUG_BLOCKS: u32 = 4;

/// A block was freed twice.
pub const KVMEM_FAULT_DOUBLE_FREE: u32 = 1;
/// A block was freed with a size that differs from its allocation.
pub const KVMEM_FAULT_WRONG_SIZE: u32 = 2;
/// A freed address is not a block of this allocator.
pub const KVMEM_FAULT_FOREIGN: u32 = 3;
/// A block was written to after it was freed.
pub const KVMEM_FAULT_WRITE_AFTER_FREE: u32 = 4;
/// The allocator was destroyed while a block was in use.
pub const KVMEM_FAULT_LEAK: u32 = 5;

/// A detected misuse.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvmem_slab_fault {
    /// KVMEM_FAULT_DOUBLE_FREE and so on; more kinds may be added.
    pub kind: u32,
    /// Always 0.
    pub reserved: u32,
    /// The address of the block.
    pub block: *mut c_void,
    /// The block's size in bytes as allocated; for a foreign pointer, as freed.
    pub bytes: u64,
    /// A description, valid only during the call.
    pub text: *const c_char,
}

/// Receives a detected misuse, in the thread that caused it. When the function returns (no longjmp,
/// no C++ exception), the operation is skipped. It must not use the allocator.
pub type kvmem_slab_fault_fn =
    Option<unsafe extern "C" fn(user: *mut c_void, fault: *const kvmem_slab_fault)>;

options! {
    /// Options of a slab allocator. Fill them in with kvmem_slab_allocator_options_init first.
    kvmem_slab_allocator_options: kvmem_slab_allocator_options_init;

    /// Pages come only from this region; NULL (the default): from the system. The region must be
    /// private and have no other user (KVMEM_ERR_IN_USE). The allocator takes it over, and its
    /// handle becomes invalid. If the call fails, the region stays the caller's.
    region: *mut kvmem_region = std::ptr::null_mut(),
    /// Blocks of more bytes than this come from the system's malloc. At most 8192, which
    /// UINT64_MAX (the default) stands for.
    limit_bytes: u64 = u64::MAX,
    /// How long unused full magazines are kept, in nanoseconds; 0 (the default): 15 seconds.
    working_set_ns: u64 = 0,
    /// Limits the bytes that all magazines together cache. UINT64_MAX (the default): no limit.
    max_cached_bytes: u64 = u64::MAX,
    /// KVMEM_SLAB_FROM_ENVIRONMENT, KVMEM_SLAB_PLAIN, or a combination of the flags.
    settings: u32 = KVMEM_SLAB_FROM_ENVIRONMENT,
    /// Reserved: any value but 0 is KVMEM_ERR_INVALID_ARGUMENT.
    reserved: u32 = 0,
    /// Receives detected misuse. NULL (the default): the description is written to the standard
    /// error stream, and the process aborts.
    on_fault: kvmem_slab_fault_fn = None,
    /// Passed to `on_fault`.
    on_fault_user: *mut c_void = std::ptr::null_mut(),
}

/// A C function that receives detected misuse.
struct FaultCallback {
    function: unsafe extern "C" fn(*mut c_void, *const kvmem_slab_fault),
    user: *mut c_void,
}

// SAFETY: promise 3 of the C caller: the function may run, with its user data, on any thread.
unsafe impl Send for FaultCallback {}
// SAFETY: promise 3 of the C caller: several threads may call it at once.
unsafe impl Sync for FaultCallback {}

impl FaultCallback {
    fn call(&self, fault: &SlabFault) {
        let (kind, bytes) = match *fault {
            SlabFault::DoubleFree { size, .. } => (KVMEM_FAULT_DOUBLE_FREE, size),
            SlabFault::WrongSize { allocated, .. } => (KVMEM_FAULT_WRONG_SIZE, allocated),
            SlabFault::Foreign { size, .. } => (KVMEM_FAULT_FOREIGN, size),
            SlabFault::WriteAfterFree { size, .. } => (KVMEM_FAULT_WRITE_AFTER_FREE, size),
            SlabFault::Leak { size, .. } => (KVMEM_FAULT_LEAK, size),
            _ => (0, 0),
        };
        let text = CString::new(fault.to_string()).unwrap_or_default();
        let said = kvmem_slab_fault {
            kind,
            reserved: 0,
            block: std::ptr::with_exposed_provenance_mut(fault.address()),
            bytes: bytes as u64,
            text: text.as_ptr(),
        };
        // SAFETY: promise 3 of the C caller: the function has this type, and may be called with its
        // user data while the allocator exists. `said` lives until it returns.
        unsafe { (self.function)(self.user, &said) }
    }
}

fn builder(wanted: &kvmem_slab_allocator_options) -> Result<SlabAllocatorBuilder, CallError> {
    let mut builder = SlabAllocator::builder();
    match wanted.settings {
        KVMEM_SLAB_FROM_ENVIRONMENT => {}
        bits if bits & !(KVMEM_SLAB_PLAIN | KVMEM_SLAB_ALWAYS_MALLOC | KVMEM_SLAB_DEBUG_BLOCKS)
            == 0 =>
        {
            let settings = SlabSettings {
                always_malloc: bits & KVMEM_SLAB_ALWAYS_MALLOC != 0,
                debug_blocks: bits & KVMEM_SLAB_DEBUG_BLOCKS != 0,
            };
            builder = builder.settings(settings);
        }
        other => {
            return Err(CallError::invalid(format_args!(
                "settings is {other:#x}: use KVMEM_SLAB_FROM_ENVIRONMENT, KVMEM_SLAB_PLAIN, or a \
                 combination of the flags"
            )));
        }
    }
    if wanted.limit_bytes != u64::MAX {
        builder = builder.limit(size(wanted.limit_bytes));
    }
    if wanted.working_set_ns != 0 {
        builder = builder.working_set(Duration::from_nanos(wanted.working_set_ns));
    }
    if wanted.max_cached_bytes != u64::MAX {
        builder = builder.max_cached_bytes(wanted.max_cached_bytes);
    }
    if let Some(function) = wanted.on_fault {
        let callback = FaultCallback { function, user: wanted.on_fault_user };
        builder = builder.on_fault(move |fault| callback.call(fault));
    }
    Ok(builder)
}

/// Makes an allocator. No page is mapped before the first block. `options` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_slab_allocator_create(
    options: In<kvmem_slab_allocator_options>,
    out_allocator: Out<*mut kvmem_slab_allocator>,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let mut promise = unsafe { ObjectPromise::of_caller() };
    guard(|| {
        let made = out_allocator.get("out_allocator")?;
        let wanted = options::read(&options)?;
        options::check_reserved(wanted.reserved, "reserved")?;
        // Built without the region first: if another option is not valid, the region stays the
        // caller's.
        let (mut slab, mut home) = (builder(&wanted)?.build()?, ForkScope::Copied);
        if !wanted.region.is_null() {
            let in_use = || {
                CallError::new(
                    KVMEM_ERR_IN_USE,
                    "the region has other users: pass a region that no object was made on",
                )
            };
            let region = kvmem_region::table().take_if(&mut promise, wanted.region, |region| {
                Arc::get_mut(region).ok_or_else(in_use)?.as_mut_bytes()?;
                Ok(())
            })?;
            let region = Arc::try_unwrap(region).map_err(|_| in_use())?;
            home = ForkScope::IfMapped(region.base().addr().get());
            slab = builder(&wanted)?.region(ExclusiveRegion::new(region)?).build()?;
        }
        made.insert(SlabEntry { slab, home })
    })
}

/// Allocates a block of `bytes` bytes, not initialized. O(1), except for new pages. Valid until it
/// is freed or the allocator is destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_slab_allocator_allocate(
    allocator: Handle<kvmem_slab_allocator>,
    bytes: u64,
    out_block: Out<*mut c_void>,
) -> kvmem_status {
    allocator.on(|slab| {
        let place = out_block.get("out_block")?;
        place.put(slab.allocate(size(bytes))?.as_ptr().cast());
        Ok(())
    })
}

/// Allocates a block of `bytes` bytes, all zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_slab_allocator_allocate_zeroed(
    allocator: Handle<kvmem_slab_allocator>,
    bytes: u64,
    out_block: Out<*mut c_void>,
) -> kvmem_status {
    allocator.on(|slab| {
        let place = out_block.get("out_block")?;
        place.put(slab.allocate_zeroed(size(bytes))?.as_ptr().cast());
        Ok(())
    })
}

/// Allocates a block with a copy of the `bytes` bytes at `data`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_slab_allocator_copy(
    allocator: Handle<kvmem_slab_allocator>,
    data: In<c_void>,
    bytes: u64,
    out_block: Out<*mut c_void>,
) -> kvmem_status {
    allocator.on(|slab| {
        let copy = out_block.get("out_block")?;
        copy.put(slab.copy(data.value(bytes)?)?.as_ptr().cast());
        Ok(())
    })
}

/// Frees a block; NULL does nothing. `bytes` is the size of its allocation. The block must be a
/// live block of this allocator that the program does not use any more. Violations are detected
/// only with KVMEM_SLAB_DEBUG_BLOCKS; otherwise they are undefined behaviour, as with free(3).
/// O(1).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_slab_allocator_free(
    allocator: Handle<kvmem_slab_allocator>,
    block: *mut c_void,
    bytes: u64,
) -> kvmem_status {
    allocator.on(|slab| {
        if let Some(block) = NonNull::new(block.cast::<u8>()) {
            // SAFETY: promise 4 of the C caller: a live block of this allocator and size, no longer
            // used.
            unsafe { slab.free(block, size(bytes)) };
        }
        Ok(())
    })
}

/// Frees a chain of blocks of one size, under the conditions of kvmem_slab_allocator_free. Each
/// block stores the address of the next one at `next_offset`, the last one NULL. `first` may be
/// NULL. O(blocks).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_slab_allocator_free_chain(
    allocator: Handle<kvmem_slab_allocator>,
    first: *mut c_void,
    bytes: u64,
    next_offset: u64,
) -> kvmem_status {
    allocator.on(|slab| {
        check_link(bytes, next_offset)?;
        // SAFETY: promise 4 of the C caller: live blocks of this allocator and size, no longer
        // used, each with the next one's address at `next_offset`. The link lies within the block.
        unsafe { slab.free_chain(NonNull::new(first.cast()), size(bytes), size(next_offset)) };
        Ok(())
    })
}

/// Checks that a link at that offset lies within a block of that size.
pub(crate) fn check_link(bytes: u64, next_offset: u64) -> Result<(), CallError> {
    match next_offset.checked_add(size_of::<*mut c_void>() as u64) {
        Some(end) if end <= bytes => Ok(()),
        _ => Err(CallError::new(
            KVMEM_ERR_OUT_OF_BOUNDS,
            format_args!(
                "the link at offset {next_offset} does not lie within a block of {bytes} bytes: \
                 pass the offset of the link in the block"
            ),
        )),
    }
}

/// Allocates up to `count` blocks of one size. Writes them to `out_blocks`, and their number to
/// `out_count`. Allocates fewer only if no memory is left, and fails if there is none for the first
/// block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_slab_allocator_allocate_batch(
    allocator: Handle<kvmem_slab_allocator>,
    bytes: u64,
    count: u64,
    out_blocks: Out<*mut c_void>,
    out_count: Out<u64>,
) -> kvmem_status {
    allocator.on(|slab| {
        let done = out_count.get("out_count")?;
        out_blocks.get("out_blocks")?;
        let (count, mut blocks) = (elements::<*mut c_void>(count, "out_blocks")?, Vec::new());
        slab.allocate_batch(size(bytes), count, &mut blocks)?;
        let blocks: Vec<*mut c_void> = blocks.iter().map(|block| block.as_ptr().cast()).collect();
        // SAFETY: `out_blocks` has room for `count` elements, and `blocks` has no more.
        unsafe { out_blocks.put_all("out_blocks", &blocks) }?;
        done.put(blocks.len() as u64);
        Ok(())
    })
}

/// Frees `count` blocks of one size, under the conditions of kvmem_slab_allocator_free, in less
/// time than one by one. If one of them is NULL, none is freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_slab_allocator_free_batch(
    allocator: Handle<kvmem_slab_allocator>,
    blocks: In<*mut c_void>,
    count: u64,
    bytes: u64,
) -> kvmem_status {
    allocator.on(|slab| {
        let blocks = blocks.list(count, "blocks")?;
        let blocks = blocks.iter().map(|block| NonNull::new(block.cast::<u8>()));
        let blocks: Option<Vec<NonNull<u8>>> = blocks.collect();
        let blocks = blocks.ok_or(CallError::Null("one of the blocks"))?;
        // SAFETY: promise 4 of the C caller: live blocks of this allocator and size, no longer
        // used, each of them once in the list.
        unsafe { slab.free_batch(&blocks, size(bytes)) };
        Ok(())
    })
}

/// Returns the number of bytes that a request for `bytes` bytes really takes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_slab_allocator_usable(
    allocator: Handle<kvmem_slab_allocator>,
    bytes: u64,
    out_usable_bytes: Out<u64>,
) -> kvmem_status {
    allocator.on(|slab| out_usable_bytes.put("out_usable_bytes", slab.usable(size(bytes)) as u64))
}

/// Returns all cached memory: magazines of all threads to the slabs, empty slabs to the page
/// allocator, pages to the kernel.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_slab_allocator_trim(
    allocator: Handle<kvmem_slab_allocator>,
) -> kvmem_status {
    allocator.on(|slab| {
        slab.trim();
        Ok(())
    })
}

/// Returns memory that was not used within the working set's time. For programs that allocate
/// nothing for a while.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_slab_allocator_tick(
    allocator: Handle<kvmem_slab_allocator>,
) -> kvmem_status {
    allocator.on(|slab| {
        slab.tick();
        Ok(())
    })
}

/// Statistics of a slab allocator.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvmem_slab_allocator_stats {
    /// Bytes mapped.
    pub mapped_bytes: u64,
    /// Mapped bytes in slabs.
    pub slab_bytes: u64,
    /// Mapped bytes outside of slabs.
    pub unused_bytes: u64,
    /// Bytes of blocks in magazines.
    pub cached_bytes: u64,
    /// Blocks in use that came from slabs.
    pub in_use: u64,
    /// Blocks in use that came from the system's malloc.
    pub system_blocks: u64,
    /// Bytes of those.
    pub system_bytes: u64,
}

/// Reads the statistics. O(classes).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_slab_allocator_get_stats(
    allocator: Handle<kvmem_slab_allocator>,
    out_stats: Out<kvmem_slab_allocator_stats>,
) -> kvmem_status {
    allocator.on(|slab| {
        let figures = out_stats.get("out_stats")?;
        let stats = slab.stats();
        figures.put(kvmem_slab_allocator_stats {
            mapped_bytes: stats.mapped_bytes as u64,
            slab_bytes: stats.slab_bytes as u64,
            unused_bytes: stats.unused_bytes as u64,
            cached_bytes: stats.cached_bytes,
            in_use: stats.classes.iter().map(|class| class.in_use as u64).sum(),
            system_blocks: stats.system_blocks as u64,
            system_bytes: stats.system_bytes as u64,
        });
        Ok(())
    })
}

/// With debugging enabled, passes every block in use to `on_fault`. `out_leaks` receives their
/// number; 0 without debugging.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_slab_allocator_report_leaks(
    allocator: Handle<kvmem_slab_allocator>,
    out_leaks: Out<u64>,
) -> kvmem_status {
    allocator.on(|slab| out_leaks.put("out_leaks", slab.report_leaks() as u64))
}

/// Destroys an allocator. Its slabs are unmapped, with all blocks in them. Blocks from the system's
/// malloc (above the limit) must be freed first.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_slab_allocator_destroy(
    allocator: Owned<kvmem_slab_allocator>,
) -> kvmem_status {
    allocator.destroy()
}
