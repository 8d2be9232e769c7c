//! *Region* (L1): bytes that are mapped, placed and resident.

use std::ffi::{c_char, c_int, c_void};
use std::os::fd::{BorrowedFd, IntoRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use kvmem::arena::preflight::{Machine, Requirements};
use kvmem::arena::{ArenaError, Backing, PageSize, ProgressOptions, Region, RegionBuilder};

use crate::call::{MAX_BYTES, destroy, guard, on, out, report, size, write_text};
use crate::cancel::{kvmem_cancel, token};
use crate::fail::Fail;
use crate::fork::Home;
use crate::options::{self, Options, backing, flag, ladder, numa, numa_nodes, populate};
use crate::progress::{Listener, kvmem_progress_fn};
use crate::status::*;
use crate::table::{Object, object};

/// One contiguous range of memory (layer 1). Owned by the caller: kvmem_region_destroy. What was
/// made on it (a bump arena, a registration) keeps the memory as long as it lives. Any thread,
/// several at once.
pub struct kvmem_region {
    _opaque: [u8; 0],
}

object!(kvmem_region, Arc<Region>, Region, |region| Home::Page(region.base().addr().get()));

/// How a region is to be mapped. Fill it with kvmem_region_options_init first.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvmem_region_options {
    /// Bytes of this structure, as the program knows it.
    pub struct_size: u64,
    /// Kinds of pages to try, first choice first, of "1G", "2M", "thp", "4k" with commas between.
    /// NULL: "2M,thp,4k".
    pub pages: *const c_char,
    /// 1: fail if the first kind cannot take everything. Default 0.
    pub strict: u32,
    /// KVMEM_BACKING_PRIVATE (the default) or KVMEM_BACKING_SHARED.
    pub backing: u32,
    /// KVMEM_NUMA_ANY (the default), KVMEM_NUMA_BIND or KVMEM_NUMA_INTERLEAVE.
    pub numa_policy: u32,
    /// KVMEM_POPULATE_NONE (the default), KVMEM_POPULATE_AUTO, or a number of threads.
    pub populate: u32,
    /// NUMA nodes, `numa_node_count` of them.
    pub numa_nodes: *const u32,
    /// How many nodes are named.
    pub numa_node_count: u64,
    /// 1: a page without access before and behind. Default 0.
    pub guard_pages: u32,
    /// 1 (the default): a forked child has nothing at these addresses.
    pub dont_fork: u32,
    /// 1 (the default): core dumps leave the region out.
    pub dont_dump: u32,
    /// 0: anything else is KVMEM_INVALID_ARGUMENT.
    pub reserved: u32,
    /// Is told how far populating has come. Default NULL.
    pub progress: kvmem_progress_fn,
    /// Given to `progress`.
    pub progress_user: *mut c_void,
    /// Ends populating early. Default NULL.
    pub cancel: *const kvmem_cancel,
    /// How long populating may take, in nanoseconds; 0 (the default): as long as it takes.
    pub time_budget_ns: u64,
}

// SAFETY: numbers and pointers only, of 8 bytes or in pairs of 4; the first is the size.
unsafe impl Options for kvmem_region_options {
    fn defaults() -> Self {
        kvmem_region_options {
            struct_size: size_of::<Self>() as u64,
            pages: std::ptr::null(),
            strict: 0,
            backing: options::KVMEM_BACKING_PRIVATE,
            numa_policy: options::KVMEM_NUMA_ANY,
            populate: options::KVMEM_POPULATE_NONE,
            numa_nodes: std::ptr::null(),
            numa_node_count: 0,
            guard_pages: 0,
            dont_fork: 1,
            dont_dump: 1,
            reserved: 0,
            progress: None,
            progress_user: std::ptr::null_mut(),
            cancel: std::ptr::null(),
            time_budget_ns: 0,
        }
    }
}

/// Fills in the defaults. `struct_size` is `sizeof *options`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_region_options_init(
    options: *mut kvmem_region_options,
    struct_size: u64,
) -> kvmem_status {
    // SAFETY: the caller's promise (see the head of the crate).
    guard(|| unsafe { options::init(options, struct_size) })
}

/// # Safety
/// The caller's promise, as to what the options point to.
unsafe fn builder(bytes: u64, wanted: &kvmem_region_options) -> Result<RegionBuilder, Fail> {
    options::is_zero(wanted.reserved, "reserved")?;
    // SAFETY: the caller's promise.
    let (ladder, numa) = unsafe {
        (
            ladder(wanted.pages, wanted.strict)?,
            numa(wanted.numa_policy, wanted.numa_nodes, wanted.numa_node_count)?,
        )
    };
    let mut builder = Region::builder(size(bytes))
        .ladder(ladder)
        .numa(numa)
        .backing(backing(wanted.backing)?)
        .populate(populate(wanted.populate))
        .guard_pages(flag(wanted.guard_pages, "guard_pages")?)
        .dont_fork(flag(wanted.dont_fork, "dont_fork")?)
        .dont_dump(flag(wanted.dont_dump, "dont_dump")?);
    if let Some(listener) = Listener::new(wanted.progress, wanted.progress_user) {
        builder = builder.progress(move |progress| listener.populated(progress));
    }
    if let Some(cancel) = token(wanted.cancel)? {
        builder = builder.cancel(cancel);
    }
    if wanted.time_budget_ns != 0 {
        builder = builder.time_budget(Duration::from_nanos(wanted.time_budget_ns));
    }
    Ok(builder)
}

/// Says of every limit of this machine that will bite whether it lets a region of `bytes` bytes
/// with these options be mapped and registered, and what to do about those that do not, before
/// anything is mapped. `options` may be NULL. `out_fits` (may be NULL) is 1 if nothing stands in
/// the way, else 0. The rest as for kvmem_region_report.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_preflight_report(
    bytes: u64,
    options: *const kvmem_region_options,
    out_fits: *mut u32,
    format: u32,
    buffer: *mut c_char,
    capacity: u64,
    out_needed: *mut u64,
) -> kvmem_status {
    guard(|| {
        // SAFETY: the caller's promise.
        let wanted = unsafe { options::read(options) }?;
        options::is_zero(wanted.reserved, "reserved")?;
        // SAFETY: the caller's promise.
        let (ladder, nodes) = unsafe {
            (
                ladder(wanted.pages, wanted.strict)?,
                numa_nodes(wanted.numa_nodes, wanted.numa_node_count)?,
            )
        };
        let wish = Requirements::new(bytes, ladder).map_err(Fail::invalid)?;
        let wish =
            wish.shared(backing(wanted.backing)? == Backing::Shared).nodes(nodes.iter().copied());
        let found = Machine::here().preflight(&wish);
        if let Ok(fits) = out(out_fits, "") {
            fits.put(u32::from(found.passes()));
        }
        let text = report(format, &found, ToString::to_string)?;
        // SAFETY: the caller's promise.
        unsafe { write_text(&text, buffer, capacity, out_needed) }
    })
}

/// Maps a region of at least `bytes` bytes, whole or not at all. `options` may be NULL.
///
/// Without populating it takes some ten system calls; populating takes as long as the kernel needs
/// to clear that much memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_region_map(
    bytes: u64,
    options: *const kvmem_region_options,
    out_region: *mut *mut kvmem_region,
) -> kvmem_status {
    guard(|| {
        let made = out(out_region, "out_region")?;
        // SAFETY: the caller's promise.
        let region = unsafe { builder(bytes, &options::read(options)?) }?.map()?;
        made.put(kvmem_region::table().insert(Arc::new(region))?);
        Ok(())
    })
}

/// Maps the memory that another process shares: `fd` is what kvmem_region_share gave there. The
/// descriptor stays the caller's; the region has a duplicate. `expected_bytes`, if not 0, is how
/// long it has to be.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_region_attach(
    fd: c_int,
    expected_bytes: u64,
    out_region: *mut *mut kvmem_region,
) -> kvmem_status {
    guard(|| {
        let made = out(out_region, "out_region")?;
        let expected = Some(size(expected_bytes)).filter(|bytes| *bytes != 0);
        let region = Region::attach(duplicate(fd)?, expected)?;
        made.put(kvmem_region::table().insert(Arc::new(region))?);
        Ok(())
    })
}

/// A duplicate of a caller's descriptor.
pub(crate) fn duplicate(fd: c_int) -> Result<OwnedFd, Fail> {
    let refused = |why: &dyn std::fmt::Display| {
        Fail::invalid(format_args!("descriptor {fd} cannot be duplicated: {why}"))
    };
    if fd < 0 {
        return Err(refused(&"it is negative"));
    }
    // SAFETY: not -1, and used for this call only; one that is not open is refused by the kernel.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    fd.try_clone_to_owned().map_err(|error| refused(&error))
}

/// Gives memory back to its owner, who is called once when nobody uses it any more.
struct Lent {
    release: Option<unsafe extern "C" fn(user: *mut c_void)>,
    user: *mut c_void,
}

// SAFETY: the header says that any thread calls it.
unsafe impl Send for Lent {}
// SAFETY: it is called once, by whoever drops it.
unsafe impl Sync for Lent {}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(release) = self.release {
            // SAFETY: the caller of C has promised that it can be called.
            unsafe { release(self.user) }
        }
    }
}

/// A region over memory that was made elsewhere: a tensor's bytes, another library's buffer.
/// `release` (may be NULL) is called with `user` when nobody uses the memory any more, once, by any
/// thread; until then the bytes stay mapped for reading and writing. If the call fails `release` is
/// not called.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_region_wrap(
    data: *mut c_void,
    bytes: u64,
    release: Option<unsafe extern "C" fn(user: *mut c_void)>,
    user: *mut c_void,
    out_region: *mut *mut kvmem_region,
) -> kvmem_status {
    guard(|| {
        let made = out(out_region, "out_region")?;
        let at = NonNull::new(data.cast::<u8>()).ok_or(Fail::Null("data"))?;
        let most =
            size(MAX_BYTES).min(isize::MAX as usize - at.addr().get().min(isize::MAX as usize));
        if bytes == 0 {
            return Err(ArenaError::ZeroSize.into());
        }
        if bytes > most as u64 {
            return Err(ArenaError::TooLarge { requested: size(bytes), most }.into());
        }
        // SAFETY: the caller's promise.
        let region = unsafe { Region::from_raw(at, size(bytes), Lent { release, user }) }?;
        made.put(kvmem_region::table().insert(Arc::new(region))?);
        Ok(())
    })
}

/// Destroys a region. The memory goes when nothing that was made on it is left.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_region_destroy(region: *mut kvmem_region) -> kvmem_status {
    destroy(region)
}

/// What a region is made of, as it was found when it was mapped.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvmem_region_info {
    /// The first address.
    pub data: *mut c_void,
    /// Bytes that may be used: what was asked for, in whole pages.
    pub bytes: u64,
    /// Bytes that were asked for.
    pub requested_bytes: u64,
    /// Bytes of addresses held, guard pages included.
    pub mapped_bytes: u64,
    /// Bytes that were resident.
    pub resident_bytes: u64,
    /// Bytes in pages of 1 GiB.
    pub bytes_1g: u64,
    /// Bytes in pages of 2 MiB.
    pub bytes_2m: u64,
    /// Bytes in which the kernel uses transparent hugepages where it can.
    pub bytes_thp: u64,
    /// Bytes in base pages.
    pub bytes_base: u64,
    /// Seconds that populating took.
    pub populate_seconds: f64,
    /// Threads that populated.
    pub threads: u64,
}

/// What a region is, and where.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_region_get_info(
    region: *const kvmem_region,
    out_info: *mut kvmem_region_info,
) -> kvmem_status {
    on(region, |region| {
        let receipt = region.receipt();
        out(out_info, "out_info")?.put(kvmem_region_info {
            data: region.base().as_ptr().cast(),
            bytes: region.len() as u64,
            requested_bytes: receipt.requested_bytes as u64,
            mapped_bytes: receipt.mapped_bytes as u64,
            resident_bytes: receipt.resident_bytes(),
            bytes_1g: receipt.bytes_on(PageSize::Huge1G) as u64,
            bytes_2m: receipt.bytes_on(PageSize::Huge2M) as u64,
            bytes_thp: receipt.bytes_on(PageSize::Thp) as u64,
            bytes_base: receipt.bytes_on(PageSize::Base) as u64,
            populate_seconds: receipt.seconds(),
            threads: receipt.threads as u64,
        });
        Ok(())
    })
}

/// The receipt of a region as a text (KVMEM_TEXT) or as JSON (KVMEM_JSON): what was asked, what was
/// got, on which nodes, and why not better.
///
/// At most `capacity` bytes are written to `buffer`, a NUL at the end included; `out_needed` (may
/// be NULL, unless `buffer` is) is set to how many are needed, also when the call ends with
/// KVMEM_BUFFER_TOO_SMALL. With `buffer` NULL and `capacity` 0 it is only asked.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_region_report(
    region: *const kvmem_region,
    format: u32,
    buffer: *mut c_char,
    capacity: u64,
    out_needed: *mut u64,
) -> kvmem_status {
    on(region, |region| {
        let text = report(format, region.receipt(), ToString::to_string)?;
        // SAFETY: the caller's promise.
        unsafe { write_text(&text, buffer, capacity, out_needed) }
    })
}

/// Makes `[offset, offset + bytes)` resident and writable, without changing a byte of it. `how` is
/// KVMEM_POPULATE_AUTO or a number of threads; `progress` (may be NULL) is told with `user`, and is
/// not called any more after the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_region_populate(
    region: *const kvmem_region,
    offset: u64,
    bytes: u64,
    how: u32,
    progress: kvmem_progress_fn,
    user: *mut c_void,
    cancel: *const kvmem_cancel,
) -> kvmem_status {
    on(region, |region| {
        let mut watch = ProgressOptions::new();
        if let Some(listener) = Listener::new(progress, user) {
            watch = watch.progress(move |progress| listener.populated(progress));
        }
        if let Some(cancel) = token(cancel)? {
            watch = watch.cancel(cancel);
        }
        region.populate(span(offset, bytes), populate(how), &watch)?;
        Ok(())
    })
}

/// Makes the pages of a region's memory file resident in all other shared, writable mappings that
/// this process has of it, such as those of an engine that was given the descriptor: else each page
/// is a fault when it is first touched there. `how` as above. `out_bytes` (may be NULL):
/// how many bytes those mappings have; 0 for private memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_region_populate_elsewhere(
    region: *const kvmem_region,
    how: u32,
    out_bytes: *mut u64,
) -> kvmem_status {
    on(region, |region| {
        let bytes = region.populate_aliases(populate(how), &ProgressOptions::new())?;
        if let Ok(made) = out(out_bytes, "") {
            made.put(bytes);
        }
        Ok(())
    })
}

/// How much of `[offset, offset + bytes)` is resident now, in bytes, and the greatest error of
/// that.  `out_error_bytes` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_region_residency(
    region: *const kvmem_region,
    offset: u64,
    bytes: u64,
    out_resident_bytes: *mut u64,
    out_error_bytes: *mut u64,
) -> kvmem_status {
    on(region, |region| {
        let resident = out(out_resident_bytes, "out_resident_bytes")?;
        let found = region.residency(span(offset, bytes))?;
        resident.put(found.resident_bytes);
        if let Ok(error) = out(out_error_bytes, "") {
            error.put(found.error_bytes);
        }
        Ok(())
    })
}

/// Gives the pages of `[offset, offset + bytes)` back to the kernel: the bytes are zero afterwards.
/// Whole pages only.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_region_discard(
    region: *const kvmem_region,
    offset: u64,
    bytes: u64,
) -> kvmem_status {
    on(region, |region| Ok(region.discard(span(offset, bytes))?))
}

/// A descriptor of a shared region's memory, to be sent to another process, which attaches it.
/// Owned by the caller: close(2). With `read_only` 1 the memory can be read by it and not written;
/// a process of the same user, or of root, can still open it for writing by /proc.
/// KVMEM_WRONG_BACKING if the memory is private.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_region_share(
    region: *const kvmem_region,
    read_only: u32,
    out_fd: *mut c_int,
) -> kvmem_status {
    on(region, |region| {
        let made = out(out_fd, "out_fd")?;
        let fd = if flag(read_only, "read_only")? {
            region.share_read_only()?
        } else {
            region.share()?
        };
        let private = || {
            Fail::said(
                KVMEM_WRONG_BACKING,
                "the region is private: map it with KVMEM_BACKING_SHARED",
            )
        };
        made.put(fd.ok_or_else(private)?.into_raw_fd());
        Ok(())
    })
}

/// A range of offsets; one that has no end in 64 bits is out of any bounds.
pub(crate) fn span(offset: u64, bytes: u64) -> std::ops::Range<usize> {
    size(offset)..size(offset.saturating_add(bytes))
}
