//! *Region* (L1): memory that is mapped, placed and populated.

use std::ffi::{c_char, c_int, c_void};
use std::os::fd::{BorrowedFd, IntoRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use kvmem::arena::preflight::{Machine, Requirements};
use kvmem::arena::{ArenaError, Backing, PageSize, ProgressOptions, Region, RegionBuilder};

use crate::argument::{Handle, In, Out, Owned};
use crate::call::{MAX_BYTES, guard, report, size};
use crate::cancel::{kvmem_cancel, token};
use crate::error::CallError;
use crate::fork::ForkScope;
use crate::options::{self, backing, flag, ladder, numa, numa_nodes, options, populate};
use crate::progress::{ProgressCallback, kvmem_progress_fn};
use crate::promise::ObjectPromise;
use crate::status::*;
use crate::table::object;
use crate::user_data::UserData;

/// One contiguous range of memory (layer 1). Owned by the caller: kvmem_region_destroy. Objects
/// made on it (a bump arena, a registration) keep the memory mapped as long as they live. Any
/// thread, several at once.
pub struct kvmem_region {
    _opaque: [u8; 0],
}

object!(kvmem_region, Arc<Region>, |region| ForkScope::IfMapped(region.base().addr().get()));

options! {
    /// Options of a region. Fill them in with kvmem_region_options_init first.
    kvmem_region_options: kvmem_region_options_init;

    /// Kinds of pages to try, in order: "1G", "2M", "thp", "4k", separated by commas. NULL:
    /// "2M,thp,4k".
    pages: In<c_char> = In::NULL,
    /// 1: fail if the first kind cannot provide all pages. Default 0.
    strict: u32 = 0,
    /// KVMEM_BACKING_PRIVATE (the default) or KVMEM_BACKING_SHARED.
    backing: u32 = options::KVMEM_BACKING_PRIVATE,
    /// KVMEM_NUMA_ANY (the default), KVMEM_NUMA_BIND or KVMEM_NUMA_INTERLEAVE.
    numa_policy: u32 = options::KVMEM_NUMA_ANY,
    /// KVMEM_POPULATE_NONE (the default), KVMEM_POPULATE_AUTO, or a number of threads.
    populate: u32 = options::KVMEM_POPULATE_NONE,
    /// NUMA nodes, `numa_node_count` of them.
    numa_nodes: In<u32> = In::NULL,
    /// Number of NUMA nodes.
    numa_node_count: u64 = 0,
    /// 1: a page without access before and behind the region. Default 0.
    guard_pages: u32 = 0,
    /// 1 (the default): the region is not mapped in a forked child.
    dont_fork: u32 = 1,
    /// 1 (the default): core dumps do not contain the region.
    dont_dump: u32 = 1,
    /// 1, with KVMEM_BACKING_SHARED: seals the memory file with F_SEAL_FUTURE_WRITE (Linux 5.1),
    /// so only this region can write to it. No other mapping can be made for writing, by any
    /// process or user, this process included. kvmem_region_attach and
    /// kvmem_region_discard fail. Default 0.
    readers_only: u32 = 0,
    /// Receives the progress of populating. Default NULL.
    progress: kvmem_progress_fn = None,
    /// Passed to `progress`.
    progress_user: *mut c_void = std::ptr::null_mut(),
    /// Ends populating early. Default NULL.
    cancel: Handle<kvmem_cancel> = Handle::NULL,
    /// Time budget for populating in nanoseconds; 0 (the default): no limit.
    time_budget_ns: u64 = 0,
}

fn builder(
    promise: &ObjectPromise,
    bytes: u64,
    wanted: &kvmem_region_options,
) -> Result<RegionBuilder, CallError> {
    let nodes = numa_nodes(&wanted.numa_nodes, wanted.numa_node_count)?;
    let mut builder = Region::builder(size(bytes))
        .ladder(ladder(&wanted.pages, wanted.strict)?)
        .numa(numa(wanted.numa_policy, nodes)?)
        .backing(backing(wanted.backing)?)
        .populate(populate(wanted.populate))
        .readers_only(flag(wanted.readers_only, "readers_only")?)
        .guard_pages(flag(wanted.guard_pages, "guard_pages")?)
        .dont_fork(flag(wanted.dont_fork, "dont_fork")?)
        .dont_dump(flag(wanted.dont_dump, "dont_dump")?);
    if let Some(listener) = ProgressCallback::new(wanted.progress, wanted.progress_user) {
        builder = builder.progress(move |progress| listener.populated(progress));
    }
    if let Some(cancel) = token(promise, &wanted.cancel)? {
        builder = builder.cancel(cancel);
    }
    if wanted.time_budget_ns != 0 {
        builder = builder.time_budget(Duration::from_nanos(wanted.time_budget_ns));
    }
    Ok(builder)
}

/// Checks every limit of this machine that applies to a region of `bytes` bytes with these options,
/// before anything is mapped. The report says which limits prevent mapping or registering it, and
/// what to do. `options` may be NULL. `out_fits` (may be NULL) is 1 if no limit prevents it,
/// otherwise 0. The other arguments as for kvmem_region_report.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_preflight_report(
    bytes: u64,
    options: In<kvmem_region_options>,
    out_fits: Out<u32>,
    format: u32,
    buffer: Out<c_char>,
    capacity: u64,
    out_needed: Out<u64>,
) -> kvmem_status {
    guard(|| {
        let wanted = options::read(&options)?;
        let nodes = numa_nodes(&wanted.numa_nodes, wanted.numa_node_count)?;
        let ladder = ladder(&wanted.pages, wanted.strict)?;
        let requirements = Requirements::new(bytes, ladder).map_err(CallError::invalid)?;
        let requirements = requirements
            .shared(backing(wanted.backing)? == Backing::Shared)
            .nodes(nodes.iter().copied());
        let found = Machine::here().preflight(&requirements);
        out_fits.put_if_wanted(u32::from(found.passes()));
        let text = report(format, &found, ToString::to_string)?;
        buffer.write_text(&text, capacity, &out_needed)
    })
}

/// Maps a region of at least `bytes` bytes, or nothing. `options` may be NULL.
///
/// Mapping takes about ten system calls. Populating takes as long as the kernel needs to clear that
/// much memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_region_map(
    bytes: u64,
    options: In<kvmem_region_options>,
    out_region: Out<*mut kvmem_region>,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    guard(|| {
        let made = out_region.get("out_region")?;
        let region = builder(&promise, bytes, &options::read(&options)?)?.map()?;
        made.insert(Arc::new(region))
    })
}

/// Maps the memory that another process shares. `fd` comes from that process's kvmem_region_share.
/// The descriptor stays the caller's; the region keeps a duplicate. If `expected_bytes` is not 0,
/// the memory must have that length.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_region_attach(
    fd: c_int,
    expected_bytes: u64,
    out_region: Out<*mut kvmem_region>,
) -> kvmem_status {
    guard(|| {
        let made = out_region.get("out_region")?;
        let expected = Some(size(expected_bytes)).filter(|bytes| *bytes != 0);
        let region = Region::attach(duplicate(fd)?, expected)?;
        made.insert(Arc::new(region))
    })
}

/// Duplicates a descriptor of the caller.
pub(crate) fn duplicate(fd: c_int) -> Result<OwnedFd, CallError> {
    let invalid = |why: &dyn std::fmt::Display| {
        CallError::invalid(format_args!(
            "descriptor {fd} cannot be duplicated: {why}; pass an open descriptor"
        ))
    };
    if fd < 0 {
        return Err(invalid(&"it is negative"));
    }
    // SAFETY: a borrowed descriptor must not be -1, which is checked above, and must be open while
    // it is borrowed: only for the call below, which passes it to the kernel. If the number names
    // no open descriptor, the kernel returns an error, and nothing else is done with it.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    fd.try_clone_to_owned().map_err(|error| invalid(&error))
}

/// Makes a region over existing memory: a tensor's bytes, another library's buffer. `release` (may
/// be NULL) is called once with `user`, by any thread, when no object uses the memory any more.
/// Until then the bytes must stay mapped for reading and writing. If the call fails, `release` is
/// not called.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_region_wrap(
    data: *mut c_void,
    bytes: u64,
    release: Option<unsafe extern "C" fn(user: *mut c_void)>,
    user: *mut c_void,
    out_region: Out<*mut kvmem_region>,
) -> kvmem_status {
    guard(|| {
        let made = out_region.get("out_region")?;
        let at = NonNull::new(data.cast::<u8>()).ok_or(CallError::Null("data"))?;
        let max =
            size(MAX_BYTES).min(isize::MAX as usize - at.addr().get().min(isize::MAX as usize));
        if bytes == 0 {
            return Err(ArenaError::ZeroSize.into());
        }
        if bytes > max as u64 {
            return Err(ArenaError::TooLarge { requested: size(bytes), max }.into());
        }
        let owner = Arc::new(UserData::new(user, release));
        // SAFETY: promise 4 of the C caller: the bytes are one allocation, mapped for reading and
        // writing, and any thread may use them, until `release` runs; the last owner of the region
        // drops the user data, which runs it. Rust code outside of the region has no reference to
        // them. They do not wrap around: `bytes` was compared with the addresses above `at`.
        let region = unsafe { Region::from_raw(at, size(bytes), Arc::clone(&owner)) }?;
        made.insert(Arc::new(region))?;
        owner.own();
        Ok(())
    })
}

/// Destroys a region. The memory is unmapped when no object that was made on it is left.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_region_destroy(region: Owned<kvmem_region>) -> kvmem_status {
    region.destroy()
}

/// Properties of a region, as measured when it was mapped.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvmem_region_info {
    /// The first address.
    pub data: *mut c_void,
    /// Usable bytes: the requested bytes, rounded up to whole pages.
    pub bytes: u64,
    /// Requested bytes.
    pub requested_bytes: u64,
    /// Bytes of address space, including guard pages.
    pub mapped_bytes: u64,
    /// Bytes that were resident.
    pub resident_bytes: u64,
    /// Bytes in pages of 1 GiB.
    pub bytes_1g: u64,
    /// Bytes in pages of 2 MiB.
    pub bytes_2m: u64,
    /// Bytes in which the kernel may use transparent hugepages.
    pub bytes_thp: u64,
    /// Bytes in base pages.
    pub bytes_base: u64,
    /// Seconds spent on populating.
    pub populate_seconds: f64,
    /// Number of threads that populated.
    pub threads: u64,
}

/// Returns the properties of a region.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_region_get_info(
    region: Handle<kvmem_region>,
    out_info: Out<kvmem_region_info>,
) -> kvmem_status {
    region.on(|region| {
        let receipt = region.receipt();
        out_info.put(
            "out_info",
            kvmem_region_info {
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
            },
        )
    })
}

/// Writes the receipt of a region as text (KVMEM_TEXT) or as JSON (KVMEM_JSON): what was requested,
/// what was mapped on which nodes, and what prevented better pages.
///
/// Writes at most `capacity` bytes to `buffer`, including the NUL. `out_needed` (may be NULL,
/// unless `buffer` is NULL) receives the required size, also with KVMEM_ERR_BUFFER_TOO_SMALL. With
/// `buffer` NULL and `capacity` 0 the call only asks for the size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_region_report(
    region: Handle<kvmem_region>,
    format: u32,
    buffer: Out<c_char>,
    capacity: u64,
    out_needed: Out<u64>,
) -> kvmem_status {
    region.on(|region| {
        let text = report(format, region.receipt(), ToString::to_string)?;
        buffer.write_text(&text, capacity, &out_needed)
    })
}

/// Makes `[offset, offset + bytes)` resident and writable without changing its contents. `how` is
/// KVMEM_POPULATE_AUTO or a number of threads. `progress` (may be NULL) is called with `user`, but
/// not after the call returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_region_populate(
    region: Handle<kvmem_region>,
    offset: u64,
    bytes: u64,
    how: u32,
    progress: kvmem_progress_fn,
    user: *mut c_void,
    cancel: Handle<kvmem_cancel>,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    region.on(|region| {
        let mut watch = ProgressOptions::new();
        if let Some(listener) = ProgressCallback::new(progress, user) {
            watch = watch.progress(move |progress| listener.populated(progress));
        }
        if let Some(cancel) = token(&promise, &cancel)? {
            watch = watch.cancel(cancel);
        }
        region.populate(span(offset, bytes), populate(how), &watch)?;
        Ok(())
    })
}

/// Makes the pages of a shared region resident in its aliases: all other shared, writable mappings
/// of the same memory file in this process, for example those of an engine that received the
/// descriptor. Otherwise the first touch of each page there is a page fault. `how` is
/// KVMEM_POPULATE_AUTO or a number of threads. `out_bytes` (may be NULL) receives the length of
/// those mappings in bytes; 0 for private memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_region_populate_aliases(
    region: Handle<kvmem_region>,
    how: u32,
    out_bytes: Out<u64>,
) -> kvmem_status {
    region.on(|region| {
        let bytes = region.populate_aliases(populate(how), &ProgressOptions::new())?;
        out_bytes.put_if_wanted(bytes);
        Ok(())
    })
}

/// Returns how many bytes of `[offset, offset + bytes)` are resident now, and the largest error of
/// that number. `out_error_bytes` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_region_residency(
    region: Handle<kvmem_region>,
    offset: u64,
    bytes: u64,
    out_resident_bytes: Out<u64>,
    out_error_bytes: Out<u64>,
) -> kvmem_status {
    region.on(|region| {
        let resident = out_resident_bytes.get("out_resident_bytes")?;
        let found = region.residency(span(offset, bytes))?;
        resident.put(found.resident_bytes);
        out_error_bytes.put_if_wanted(found.error_bytes);
        Ok(())
    })
}

/// Gives the pages of `[offset, offset + bytes)` back to the kernel; the bytes are then zero. Both
/// numbers must be multiples of the page size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_region_discard(
    region: Handle<kvmem_region>,
    offset: u64,
    bytes: u64,
) -> kvmem_status {
    region.on(|region| Ok(region.discard(span(offset, bytes))?))
}

/// Returns a descriptor of a shared region's memory. Another process attaches the memory with it.
/// Owned by the caller: close(2). With `read_only` 1, the memory can be mapped for reading only;
/// but a process of the same user, or of root, can still reopen the descriptor for writing through
/// /proc, unless the region was made with `readers_only`. KVMEM_ERR_WRONG_BACKING if the memory is
/// private.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_region_share(
    region: Handle<kvmem_region>,
    read_only: u32,
    out_fd: Out<c_int>,
) -> kvmem_status {
    region.on(|region| {
        let made = out_fd.get("out_fd")?;
        let fd = if flag(read_only, "read_only")? {
            region.share_read_only()?
        } else {
            region.share()?
        };
        let private = || {
            CallError::new(
                KVMEM_ERR_WRONG_BACKING,
                "the region is private and cannot be shared: map it with KVMEM_BACKING_SHARED",
            )
        };
        made.put(fd.ok_or_else(private)?.into_raw_fd());
        Ok(())
    })
}

/// Converts an offset and a length to a range. If the end exceeds 64 bits, the range is out of
/// bounds.
pub(crate) fn span(offset: u64, bytes: u64) -> std::ops::Range<usize> {
    size(offset)..size(offset.saturating_add(bytes))
}
