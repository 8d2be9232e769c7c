//! *Slice allocator* (L4): blocks of any size, for those who still know the size when they free.

use std::ffi::{CString, c_char, c_void};
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use kvmem::arena::ExclusiveRegion;
use kvmem::slab::{SlabAllocator, SlabAllocatorBuilder, SlabFault, SlabSettings};

use crate::call::{destroy, elements, guard, list, on, out, size, value_bytes};
use crate::fail::Fail;
use crate::fork::Home;
use crate::options::{self, Options};
use crate::region::kvmem_region;
use crate::status::*;
use crate::table::{Object, object};

/// Allocates blocks of any size, small ones from each thread's own magazines (layer 4). All blocks
/// are at multiples of 16. Owned by the caller: kvmem_slice_destroy. Any thread, several at once;
/// any thread may free what another has allocated.
pub struct kvmem_slice_allocator {
    _opaque: [u8; 0],
}

object!(kvmem_slice_allocator, Slices, Slice, |slices| slices.home);

/// An allocator of slices in its table.
pub struct Slices {
    slices: SlabAllocator,
    home: Home,
}

impl Deref for Slices {
    type Target = SlabAllocator;

    #[inline(always)]
    fn deref(&self) -> &SlabAllocator {
        &self.slices
    }
}

/// Settings: as the variable KVMEM_SLICE of the environment says; the default.
pub const KVMEM_SLICE_FROM_ENVIRONMENT: u32 = 0;
/// Settings: no debugging, whatever the environment says.
pub const KVMEM_SLICE_PLAIN: u32 = 1;
/// Settings, to be combined: all blocks are the system's.
pub const KVMEM_SLICE_ALWAYS_MALLOC: u32 = 2;
/// Settings, to be combined: misuse of blocks is found: double free, wrong size, foreign pointer,
/// write after free, leaks.
pub const KVMEM_SLICE_DEBUG_BLOCKS: u32 = 4;

/// A block was freed that is free already.
pub const KVMEM_FAULT_DOUBLE_FREE: u32 = 1;
/// A block was freed with another size than it was allocated with.
pub const KVMEM_FAULT_WRONG_SIZE: u32 = 2;
/// What was freed is no block of this allocator.
pub const KVMEM_FAULT_FOREIGN: u32 = 3;
/// A block was written to after it had been freed.
pub const KVMEM_FAULT_WRITE_AFTER_FREE: u32 = 4;
/// The allocator went while a block was in use.
pub const KVMEM_FAULT_LEAK: u32 = 5;

/// A misuse that was found.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvmem_slice_fault {
    /// KVMEM_FAULT_DOUBLE_FREE and so on; more kinds may come.
    pub kind: u32,
    /// 0.
    pub reserved: u32,
    /// The address that it is about.
    pub block: *mut c_void,
    /// The block's size in bytes, as it was allocated; of a foreign pointer, as it was freed.
    pub bytes: u64,
    /// All of it in words, good for the call only.
    pub text: *const c_char,
}

/// Is told of misuse, by the thread that did it. When it returns (no longjmp, no C++ exception),
/// the operation is left out. It must not use the allocator.
pub type kvmem_slice_fault_fn =
    Option<unsafe extern "C" fn(user: *mut c_void, fault: *const kvmem_slice_fault)>;

/// How an allocator of blocks is to be. Fill it with kvmem_slice_options_init first.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvmem_slice_options {
    /// Bytes of this structure, as the program knows it.
    pub struct_size: u64,
    /// Pages come from this region and from nowhere else; NULL (the default): from the system. It
    /// must be private and in nobody else's use (KVMEM_IN_USE), and belongs to the allocator
    /// afterwards: the handle is good no more. If the call fails it stays the caller's.
    pub region: *mut kvmem_region,
    /// Blocks of more bytes than this are the system's: at most 8192, which UINT64_MAX (the
    /// default) stands for.
    pub limit_bytes: u64,
    /// How long full magazines are kept that nobody needs, in nanoseconds; 0 (the default): 15
    /// seconds.
    pub working_set_ns: u64,
    /// The most bytes that all magazines together may keep; UINT64_MAX (the default): no bound.
    pub stranded_bytes: u64,
    /// KVMEM_SLICE_FROM_ENVIRONMENT, KVMEM_SLICE_PLAIN, or the others combined by `|`.
    pub settings: u32,
    /// 0: anything else is KVMEM_INVALID_ARGUMENT.
    pub reserved: u32,
    /// Is told of misuse. NULL (the default): it is written to the standard error stream, and the
    /// process is aborted.
    pub on_fault: kvmem_slice_fault_fn,
    /// Given to `on_fault`.
    pub on_fault_user: *mut c_void,
}

// SAFETY: numbers and pointers only, of 8 bytes or in pairs of 4; the first is the size.
unsafe impl Options for kvmem_slice_options {
    fn defaults() -> Self {
        kvmem_slice_options {
            struct_size: size_of::<Self>() as u64,
            region: std::ptr::null_mut(),
            limit_bytes: u64::MAX,
            working_set_ns: 0,
            stranded_bytes: u64::MAX,
            settings: KVMEM_SLICE_FROM_ENVIRONMENT,
            reserved: 0,
            on_fault: None,
            on_fault_user: std::ptr::null_mut(),
        }
    }
}

/// Fills in the defaults. `struct_size` is `sizeof *options`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_slice_options_init(
    options: *mut kvmem_slice_options,
    struct_size: u64,
) -> kvmem_status {
    // SAFETY: the caller's promise.
    guard(|| unsafe { options::init(options, struct_size) })
}

/// A function of C that is told of misuse.
struct Hook {
    tell: unsafe extern "C" fn(*mut c_void, *const kvmem_slice_fault),
    user: *mut c_void,
}

// SAFETY: the header says that any thread calls it.
unsafe impl Send for Hook {}
// SAFETY: and several at once.
unsafe impl Sync for Hook {}

impl Hook {
    fn tell(&self, fault: &SlabFault) {
        let (kind, bytes) = match *fault {
            SlabFault::DoubleFree { size, .. } => (KVMEM_FAULT_DOUBLE_FREE, size),
            SlabFault::WrongSize { allocated, .. } => (KVMEM_FAULT_WRONG_SIZE, allocated),
            SlabFault::Foreign { size, .. } => (KVMEM_FAULT_FOREIGN, size),
            SlabFault::WriteAfterFree { size, .. } => (KVMEM_FAULT_WRITE_AFTER_FREE, size),
            SlabFault::Leak { size, .. } => (KVMEM_FAULT_LEAK, size),
            _ => (0, 0),
        };
        let text = CString::new(fault.to_string()).unwrap_or_default();
        let said = kvmem_slice_fault {
            kind,
            reserved: 0,
            block: std::ptr::with_exposed_provenance_mut(fault.address()),
            bytes: bytes as u64,
            text: text.as_ptr(),
        };
        // SAFETY: the caller of C has promised that it can be called.
        unsafe { (self.tell)(self.user, &said) }
    }
}

fn builder(wanted: &kvmem_slice_options) -> Result<SlabAllocatorBuilder, Fail> {
    let mut builder = SlabAllocator::builder();
    match wanted.settings {
        KVMEM_SLICE_FROM_ENVIRONMENT => {}
        bits if bits
            & !(KVMEM_SLICE_PLAIN | KVMEM_SLICE_ALWAYS_MALLOC | KVMEM_SLICE_DEBUG_BLOCKS)
            == 0 =>
        {
            let settings = SlabSettings {
                always_malloc: bits & KVMEM_SLICE_ALWAYS_MALLOC != 0,
                debug_blocks: bits & KVMEM_SLICE_DEBUG_BLOCKS != 0,
            };
            builder = builder.settings(settings);
        }
        other => {
            return Err(Fail::invalid(format_args!(
                "settings {other:#x}: say KVMEM_SLICE_PLAIN or the others"
            )));
        }
    }
    if wanted.limit_bytes != u64::MAX {
        builder = builder.limit(size(wanted.limit_bytes));
    }
    if wanted.working_set_ns != 0 {
        builder = builder.working_set(Duration::from_nanos(wanted.working_set_ns));
    }
    if wanted.stranded_bytes != u64::MAX {
        builder = builder.max_cached_bytes(wanted.stranded_bytes);
    }
    if let Some(tell) = wanted.on_fault {
        let hook = Hook { tell, user: wanted.on_fault_user };
        builder = builder.on_fault(move |fault| hook.tell(fault));
    }
    Ok(builder)
}

/// Makes an allocator. No page is mapped before the first block. `options` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_slice_create(
    options: *const kvmem_slice_options,
    out_allocator: *mut *mut kvmem_slice_allocator,
) -> kvmem_status {
    guard(|| {
        let made = out(out_allocator, "out_allocator")?;
        // SAFETY: the caller's promise.
        let wanted = unsafe { options::read(options) }?;
        options::is_zero(wanted.reserved, "reserved")?;
        // Without the region first: if something is wrong with the rest, the region stays the
        // caller's.
        let (mut slices, mut home) = (builder(&wanted)?.build()?, Home::Heap);
        if !wanted.region.is_null() {
            let in_use = || {
                Fail::said(
                    KVMEM_IN_USE,
                    "the region has other users: give one that nothing was made on",
                )
            };
            let region = kvmem_region::table().take_if(wanted.region, |region| {
                Arc::get_mut(region).ok_or_else(in_use)?.as_mut_bytes()?;
                Ok(())
            })?;
            let region = Arc::try_unwrap(region).map_err(|_| in_use())?;
            home = Home::Page(region.base().addr().get());
            slices = builder(&wanted)?.region(ExclusiveRegion::new(region)?).build()?;
        }
        made.put(kvmem_slice_allocator::table().insert(Slices { slices, home })?);
        Ok(())
    })
}

/// A block of `bytes` bytes, not initialized. O(1) but for pages that are new. It may be used until
/// it is freed or the allocator is destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_slice_alloc(
    allocator: *const kvmem_slice_allocator,
    bytes: u64,
    out_block: *mut *mut c_void,
) -> kvmem_status {
    on(allocator, |slices| {
        out(out_block, "out_block")?.put(slices.alloc(size(bytes))?.as_ptr().cast());
        Ok(())
    })
}

/// A block of `bytes` bytes, all zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_slice_alloc_zeroed(
    allocator: *const kvmem_slice_allocator,
    bytes: u64,
    out_block: *mut *mut c_void,
) -> kvmem_status {
    on(allocator, |slices| {
        out(out_block, "out_block")?.put(slices.alloc_zeroed(size(bytes))?.as_ptr().cast());
        Ok(())
    })
}

/// A block with a copy of the `bytes` bytes at `data`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_slice_copy(
    allocator: *const kvmem_slice_allocator,
    data: *const c_void,
    bytes: u64,
    out_block: *mut *mut c_void,
) -> kvmem_status {
    on(allocator, |slices| {
        let copy = out(out_block, "out_block")?;
        // SAFETY: the caller's promise.
        copy.put(slices.copy(unsafe { value_bytes(data, bytes) }?)?.as_ptr().cast());
        Ok(())
    })
}

/// Frees a block; NULL is none. `bytes` is what it was allocated with. It is of this allocator, has
/// not been freed, and nobody uses it any more: that is found out only with
/// KVMEM_SLICE_DEBUG_BLOCKS, and is else undefined behaviour, as with free(3). O(1).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_slice_free(
    allocator: *const kvmem_slice_allocator,
    block: *mut c_void,
    bytes: u64,
) -> kvmem_status {
    on(allocator, |slices| {
        if let Some(block) = NonNull::new(block.cast::<u8>()) {
            // SAFETY: the caller's promise.
            unsafe { slices.free(block, size(bytes)) };
        }
        Ok(())
    })
}

/// Frees a chain of blocks of one size: each has, `next_offset` bytes from its beginning, the
/// address of the next one, and the last one NULL there. `first` may be NULL. Otherwise as
/// kvmem_slice_free. O(blocks).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_slice_free_chain(
    allocator: *const kvmem_slice_allocator,
    first: *mut c_void,
    bytes: u64,
    next_offset: u64,
) -> kvmem_status {
    on(allocator, |slices| {
        check_link(bytes, next_offset)?;
        // SAFETY: the caller's promise.
        unsafe { slices.free_chain(NonNull::new(first.cast()), size(bytes), size(next_offset)) };
        Ok(())
    })
}

/// Whether a link of that offset lies within a block of that size.
pub(crate) fn check_link(bytes: u64, next_offset: u64) -> Result<(), Fail> {
    match next_offset.checked_add(size_of::<*mut c_void>() as u64) {
        Some(end) if end <= bytes => Ok(()),
        _ => Err(Fail::said(
            KVMEM_OUT_OF_BOUNDS,
            format_args!(
                "a link at offset {next_offset} does not lie within a block of {bytes} bytes"
            ),
        )),
    }
}

/// Blocks of one size at once: up to `count` are written to `out_blocks`, and how many to
/// `out_count`. Fewer only if there is no memory for more; it fails if there is not even one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_slice_alloc_batch(
    allocator: *const kvmem_slice_allocator,
    bytes: u64,
    count: u64,
    out_blocks: *mut *mut c_void,
    out_count: *mut u64,
) -> kvmem_status {
    on(allocator, |slices| {
        let done = out(out_count, "out_count")?;
        if out_blocks.is_null() {
            return Err(Fail::Null("out_blocks"));
        }
        let (count, mut blocks) = (elements::<*mut c_void>(count, "out_blocks")?, Vec::new());
        slices.alloc_batch(size(bytes), count, &mut blocks)?;
        // SAFETY: the caller's promise, and no more than `count`; a `NonNull<u8>` is an address.
        unsafe {
            out_blocks.cast::<NonNull<u8>>().copy_from_nonoverlapping(blocks.as_ptr(), blocks.len())
        };
        done.put(blocks.len() as u64);
        Ok(())
    })
}

/// Frees `count` blocks of one size, as kvmem_slice_free does one by one, in less time. None of
/// them is NULL: then none is freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_slice_free_batch(
    allocator: *const kvmem_slice_allocator,
    blocks: *const *mut c_void,
    count: u64,
    bytes: u64,
) -> kvmem_status {
    on(allocator, |slices| {
        // SAFETY: the caller's promise; NULL is `None`.
        let blocks = unsafe { list(blocks.cast::<Option<NonNull<u8>>>(), count, "blocks") }?;
        let blocks: Option<Vec<NonNull<u8>>> = blocks.iter().copied().collect();
        let blocks = blocks.ok_or(Fail::Null("one of the blocks"))?;
        // SAFETY: the caller's promise.
        unsafe { slices.free_batch(&blocks, size(bytes)) };
        Ok(())
    })
}

/// Bytes that a request for `bytes` bytes really takes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_slice_usable(
    allocator: *const kvmem_slice_allocator,
    bytes: u64,
    out_usable_bytes: *mut u64,
) -> kvmem_status {
    on(allocator, |slices| {
        out(out_usable_bytes, "out_usable_bytes")?.put(slices.usable(size(bytes)) as u64);
        Ok(())
    })
}

/// Gives back what is cached: magazines of all threads to the slabs, empty slabs to the pages,
/// pages to the kernel.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_slice_trim(allocator: *const kvmem_slice_allocator) -> kvmem_status {
    on(allocator, |slices| {
        slices.trim();
        Ok(())
    })
}

/// Gives back what nobody came for in the working set's time: for programs that have fallen silent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_slice_tick(allocator: *const kvmem_slice_allocator) -> kvmem_status {
    on(allocator, |slices| {
        slices.tick();
        Ok(())
    })
}

/// Figures of an allocator of blocks.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvmem_slice_stats {
    /// Bytes mapped.
    pub mapped_bytes: u64,
    /// Bytes of them in slabs.
    pub slab_bytes: u64,
    /// Bytes of pages that are in no slab.
    pub unused_bytes: u64,
    /// Bytes of blocks that magazines keep.
    pub cached_bytes: u64,
    /// Blocks in use that came from slabs.
    pub in_use: u64,
    /// Blocks in use that are the system's.
    pub system_blocks: u64,
    /// Their bytes.
    pub system_bytes: u64,
}

/// Figures of an allocator. O(classes).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_slice_get_stats(
    allocator: *const kvmem_slice_allocator,
    out_stats: *mut kvmem_slice_stats,
) -> kvmem_status {
    on(allocator, |slices| {
        let figures = out(out_stats, "out_stats")?;
        let stats = slices.stats();
        figures.put(kvmem_slice_stats {
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

/// With debugging on, tells `on_fault` of every block that is in use now; `out_leaks` is how many
/// there are. Else 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_slice_report_leaks(
    allocator: *const kvmem_slice_allocator,
    out_leaks: *mut u64,
) -> kvmem_status {
    on(allocator, |slices| {
        out(out_leaks, "out_leaks")?.put(slices.report_leaks() as u64);
        Ok(())
    })
}

/// Destroys an allocator. Blocks from slabs go with it, freed or not; those that are the system's
/// (above the limit) have to be freed before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_slice_destroy(
    allocator: *mut kvmem_slice_allocator,
) -> kvmem_status {
    destroy(allocator)
}
