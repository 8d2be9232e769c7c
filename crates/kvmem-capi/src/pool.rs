//! *Pool*: all four layers in one: memory that is mapped, populated, registered and handed out in
//! blocks.

use std::ffi::{c_char, c_int, c_void};
use std::ops::Deref;
use std::os::fd::IntoRawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use kvmem::arena::ProgressOptions;
use kvmem::offset::{RawAllocation, RawHandle};
use kvmem::pool::{Pool, PoolBuilder, PoolSize};

use crate::block::kvmem_block;
use crate::call::{guard, on, out, ranges, report, size, some_text, write_list, write_text};
use crate::cancel::{kvmem_cancel, token};
use crate::fail::Fail;
use crate::generation::Generations;
use crate::offset::{kvmem_bin, kvmem_map_range, kvmem_metrics, numbers};
use crate::options::{self, Options, backing, flag, hot_sizes, ladder, numa, policy, populate};
use crate::progress::{Listener, kvmem_progress_fn};
use crate::registrars::kvmem_registrars;
use crate::status::*;
use crate::table::{Object, object};

/// Memory that is mapped, populated and registered, and handed out in blocks. Owned by the caller:
/// kvmem_pool_destroy. Blocks that are in use then stay good, with their memory and keys, until
/// they are freed. Any thread, several at once.
pub struct kvmem_pool {
    _opaque: [u8; 0],
}

object!(kvmem_pool, Tabled, Pool);

/// How a pool is to be. Fill it with kvmem_pool_options_init first.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvmem_pool_options {
    /// Bytes of this structure, as the program knows it.
    pub struct_size: u64,
    /// The most bytes that the pool can grow to; 0 (the default): its size.
    pub max_bytes: u64,
    /// Kinds of pages to try, first choice first, of "1G", "2M", "thp", "4k" with commas between.
    /// NULL: "2M,thp,4k".
    pub pages: *const c_char,
    /// 1: fail if the first kind cannot take everything. Default 0.
    pub strict: u32,
    /// KVMEM_BACKING_PRIVATE (the default) or KVMEM_BACKING_SHARED, which other processes can
    /// attach.
    pub backing: u32,
    /// KVMEM_NUMA_ANY (the default), KVMEM_NUMA_BIND or KVMEM_NUMA_INTERLEAVE.
    pub numa_policy: u32,
    /// KVMEM_POPULATE_AUTO (the default), KVMEM_POPULATE_NONE (a first touch can then end the
    /// process), or a number of threads.
    pub populate: u32,
    /// NUMA nodes, `numa_node_count` of them.
    pub numa_nodes: *const u32,
    /// How many nodes are named.
    pub numa_node_count: u64,
    /// 1: a page without access before and behind. Default 0.
    pub guard_pages: u32,
    /// 1: kvmem_pool_create returns when the memory is mapped, and a thread makes it ready part by
    /// part. Default 0.
    pub in_background: u32,
    /// 1: parts that cannot be populated or registered are kept from use and reported. Default 0:
    /// then there is no pool.
    pub quarantine: u32,
    /// 1 (the default): sizes become hot that are asked for again and again, and are served
    /// without a lock.
    pub learn: u32,
    /// With whom all of the pool is registered; NULL (the default): with nobody. The handle stays
    /// the caller's.
    pub registrars: *const kvmem_registrars,
    /// "auto", "sequential", "parallel" or "parallel:N". NULL: "auto".
    pub policy: *const c_char,
    /// Parts of at most so many bytes, whose edges no block straddles; 0 (the default): as the
    /// registrars take it best.
    pub boundary_bytes: u64,
    /// Sizes in bytes that are hot from the beginning, `hot_size_count` of them, at most 32.
    pub hot_sizes: *const u64,
    /// How many sizes are named.
    pub hot_size_count: u64,
    /// All magazines together keep at most so many bytes; UINT64_MAX (the default): a 32nd part of
    /// the pool.
    pub stranded_bytes: u64,
    /// Ends building early. Default NULL.
    pub cancel: *const kvmem_cancel,
    /// Is told how far populating and registering have come; with `in_background` as long as the
    /// pool is. Default NULL.
    pub progress: kvmem_progress_fn,
    /// Given to `progress`.
    pub progress_user: *mut c_void,
}

// SAFETY: numbers and pointers only, of 8 bytes or in pairs of 4; the first is the size.
unsafe impl Options for kvmem_pool_options {
    fn defaults() -> Self {
        kvmem_pool_options {
            struct_size: size_of::<Self>() as u64,
            max_bytes: 0,
            pages: std::ptr::null(),
            strict: 0,
            backing: options::KVMEM_BACKING_PRIVATE,
            numa_policy: options::KVMEM_NUMA_ANY,
            populate: options::KVMEM_POPULATE_AUTO,
            numa_nodes: std::ptr::null(),
            numa_node_count: 0,
            guard_pages: 0,
            in_background: 0,
            quarantine: 0,
            learn: 1,
            registrars: std::ptr::null(),
            policy: std::ptr::null(),
            boundary_bytes: 0,
            hot_sizes: std::ptr::null(),
            hot_size_count: 0,
            stranded_bytes: u64::MAX,
            cancel: std::ptr::null(),
            progress: None,
            progress_user: std::ptr::null_mut(),
        }
    }
}

/// Fills in the defaults. `struct_size` is `sizeof *options`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_pool_options_init(
    options: *mut kvmem_pool_options,
    struct_size: u64,
) -> kvmem_status {
    // SAFETY: the caller's promise.
    guard(|| unsafe { options::init(options, struct_size) })
}

/// Reads a size such as "64GiB" or "512M" (powers of 1024), "64GB" (a power of 1000) or "4096".
/// KVMEM_INVALID_ARGUMENT where the text is no size from 1 byte to INT64_MAX; the message says what
/// is wrong with it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_parse_size(
    text: *const c_char,
    out_bytes: *mut u64,
) -> kvmem_status {
    guard(|| {
        let bytes = out(out_bytes, "out_bytes")?;
        // SAFETY: the caller's promise.
        bytes.put(PoolSize::from(unsafe { some_text(text, "text") }?).bytes()? as u64);
        Ok(())
    })
}

/// # Safety
/// The caller's promise, as to what the options point to.
unsafe fn builder(bytes: u64, wanted: &kvmem_pool_options) -> Result<PoolBuilder, Fail> {
    // SAFETY: the caller's promise.
    let (ladder, numa, policy, hot) = unsafe {
        (
            ladder(wanted.pages, wanted.strict)?,
            numa(wanted.numa_policy, wanted.numa_nodes, wanted.numa_node_count)?,
            policy(wanted.policy)?,
            hot_sizes(wanted.hot_sizes, wanted.hot_size_count)?,
        )
    };
    let mut builder = Pool::builder(size(bytes))
        .ladder(ladder)
        .numa(numa)
        .policy(policy)
        .hot_sizes(hot.iter().copied())
        .backing(backing(wanted.backing)?)
        .populate(populate(wanted.populate))
        .guard_pages(flag(wanted.guard_pages, "guard_pages")?)
        .in_background(flag(wanted.in_background, "in_background")?)
        .quarantine(flag(wanted.quarantine, "quarantine")?)
        .auto_hot_sizes(flag(wanted.learn, "learn")?);
    if wanted.max_bytes != 0 {
        builder = builder.max_size(size(wanted.max_bytes));
    }
    if !wanted.registrars.is_null() {
        builder = builder.registrars(kvmem_registrars::table().get(wanted.registrars)?.all());
    }
    if wanted.boundary_bytes != 0 {
        builder = builder.boundary(wanted.boundary_bytes);
    }
    if wanted.stranded_bytes != u64::MAX {
        builder = builder.max_cached_bytes(wanted.stranded_bytes);
    }
    if let Some(cancel) = token(wanted.cancel)? {
        builder = builder.cancel(cancel);
    }
    if let Some(listener) = Listener::new(wanted.progress, wanted.progress_user) {
        builder = builder
            .on_populate(move |progress| listener.populated(progress))
            .on_register(move |progress| listener.registered(progress));
    }
    Ok(builder)
}

/// Builds a pool of at least `bytes` bytes: maps, populates, registers. `options` may be NULL.
/// Takes as long as the kernel needs to clear and pin that much memory. If it fails nothing is left
/// behind.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_pool_create(
    bytes: u64,
    options: *const kvmem_pool_options,
    out_pool: *mut *mut kvmem_pool,
) -> kvmem_status {
    guard(|| {
        let made = out(out_pool, "out_pool")?;
        // SAFETY: the caller's promise.
        let (pool, _) = unsafe { builder(bytes, &options::read(options)?) }?.build()?;
        made.put(kvmem_pool::table().insert(Tabled { pool, left: AtomicU64::new(0) })?);
        Ok(())
    })
}

/// A granted block, as C sees it.
#[inline(always)]
pub(crate) fn block(pool: *mut kvmem_pool, of: &Pool, raw: RawAllocation) -> kvmem_block {
    let (allocator, slot, generation) = numbers(raw.handle);
    // SAFETY: an allocation of the pool lies within its memory.
    let data = unsafe { of.base().add(raw.offset as usize) };
    kvmem_block {
        pool,
        allocator,
        slot,
        generation,
        data: data.as_ptr().cast(),
        offset: raw.offset,
        bytes: raw.size,
    }
}

/// A block of `bytes` bytes. O(1), some nanoseconds for a hot size. KVMEM_NO_ROOM, KVMEM_TOO_LARGE,
/// KVMEM_NOT_READY and so on if it cannot be.
///
/// It begins at any byte, since sizes are not rounded: see kvmem_pool_allocate_aligned. What stands
/// in a fresh block is what the last one left there, or zeros.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_pool_allocate(
    pool: *mut kvmem_pool,
    bytes: u64,
    out_block: *mut kvmem_block,
) -> kvmem_status {
    on(pool, |of| {
        let granted = out(out_block, "out_block")?;
        granted.put(block(pool, of, of.allocate_raw(size(bytes))?));
        Ok(())
    })
}

/// Blocks that were granted together, as C sees them.
fn sealed(
    pool: *mut kvmem_pool,
    of: &Pool,
    blocks: Vec<kvmem::pool::Block>,
) -> Result<Vec<kvmem_block>, Fail> {
    let seal = |one| match of.seal_raw(one) {
        Ok(raw) => Ok(block(pool, of, raw)),
        Err(_) => Err(Fail::said(KVMEM_CHECK_FAILED, "a block is not of the pool that granted it")),
    };
    blocks.into_iter().map(seal).collect()
}

/// A block of `bytes` bytes whose first address is a multiple of `align`, a power of two. O(1).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_pool_allocate_aligned(
    pool: *mut kvmem_pool,
    bytes: u64,
    align: u64,
    out_block: *mut kvmem_block,
) -> kvmem_status {
    on(pool, |of| {
        let granted = out(out_block, "out_block")?;
        let mut sealed = sealed(pool, of, vec![of.allocate_aligned(size(bytes), size(align))?])?;
        if let Some(block) = sealed.pop() {
            granted.put(block);
        }
        Ok(())
    })
}

/// `count` blocks of `bytes` bytes each, all of them or none. `out_blocks` has room for `count`.
/// O(count).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_pool_allocate_batch(
    pool: *mut kvmem_pool,
    bytes: u64,
    count: u64,
    out_blocks: *mut kvmem_block,
) -> kvmem_status {
    on(pool, |of| {
        if out_blocks.is_null() {
            return Err(Fail::Null("out_blocks"));
        }
        let count = ranges(count)?;
        let all = sealed(pool, of, of.allocate_batch(size(bytes), count)?)?;
        // SAFETY: the caller's promise: there is room for as many as were asked for.
        unsafe { out_blocks.copy_from_nonoverlapping(all.as_ptr(), all.len()) };
        Ok(())
    })
}

/// `total_bytes` bytes in at most `max_blocks` blocks, as few and as long as can be had.
/// `out_blocks` has room for `max_blocks`; `out_count` is set to how many there are.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_pool_allocate_scattered(
    pool: *mut kvmem_pool,
    total_bytes: u64,
    max_blocks: u64,
    out_blocks: *mut kvmem_block,
    out_count: *mut u64,
) -> kvmem_status {
    on(pool, |of| {
        let count = out(out_count, "out_count")?;
        if out_blocks.is_null() {
            return Err(Fail::Null("out_blocks"));
        }
        let all = sealed(pool, of, of.allocate_scattered(size(total_bytes), size(max_blocks))?)?;
        // SAFETY: the caller's promise: there is room for `max_blocks`, and no more were granted.
        unsafe { out_blocks.copy_from_nonoverlapping(all.as_ptr(), all.len()) };
        count.put(all.len() as u64);
        Ok(())
    })
}

/// What a pool is, and where.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvmem_pool_info {
    /// The first address, to which blocks' offsets are added.
    pub data: *mut c_void,
    /// Bytes that blocks can have, when all of it is ready.
    pub capacity_bytes: u64,
    /// Bytes up to which it can grow.
    pub max_bytes: u64,
    /// Bytes that can be used now: populated, registered, not in quarantine.
    pub ready_bytes: u64,
    /// Bytes in quarantine.
    pub quarantined_bytes: u64,
    /// What no block straddles; 0: there is no such edge.
    pub boundary_bytes: u64,
    /// By what references name it; 0: its memory is private.
    pub number: u64,
    /// Registrars.
    pub devices: u64,
    /// Whether parts are still being made ready: 1 or 0.
    pub under_way: u32,
    /// 0.
    pub reserved: u32,
}

/// What a pool is, as it is now.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_pool_get_info(
    pool: *const kvmem_pool,
    out_info: *mut kvmem_pool_info,
) -> kvmem_status {
    on(pool, |pool| {
        let info = out(out_info, "out_info")?;
        let report = pool.report();
        info.put(kvmem_pool_info {
            data: pool.base().as_ptr().cast(),
            capacity_bytes: report.capacity_bytes,
            max_bytes: report.max_bytes,
            ready_bytes: report.ready_bytes,
            quarantined_bytes: report.quarantined_bytes(),
            boundary_bytes: pool.boundary().unwrap_or(0),
            number: pool.number().unwrap_or(0),
            devices: report.devices.len() as u64,
            under_way: u32::from(pool.is_under_way()),
            reserved: 0,
        });
        Ok(())
    })
}

/// What a pool is made of, how it came to be, and on what grounds, as a text or JSON; see
/// kvmem_region_report.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_pool_report(
    pool: *const kvmem_pool,
    format: u32,
    buffer: *mut c_char,
    capacity: u64,
    out_needed: *mut u64,
) -> kvmem_status {
    on(pool, |pool| {
        let text = report(format, &pool.report(), ToString::to_string)?;
        // SAFETY: the caller's promise.
        unsafe { write_text(&text, buffer, capacity, out_needed) }
    })
}

/// Figures of what is ready. What magazines keep counts as free.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_pool_get_metrics(
    pool: *const kvmem_pool,
    out_metrics: *mut kvmem_metrics,
) -> kvmem_status {
    on(pool, |pool| {
        out(out_metrics, "out_metrics")?.put(kvmem_metrics::new(&pool.metrics(), pool.boundary()));
        Ok(())
    })
}

/// The free ranges by size; see kvmem_offset_bins.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_pool_bins(
    pool: *const kvmem_pool,
    out_bins: *mut kvmem_bin,
    capacity: u64,
    out_count: *mut u64,
) -> kvmem_status {
    on(pool, |pool| {
        let bins: Vec<kvmem_bin> = pool.bins().iter().map(kvmem_bin::from).collect();
        // SAFETY: the caller's promise.
        unsafe { write_list(&bins, out_bins, capacity, out_count) }
    })
}

/// All of the pool in order of addresses; see kvmem_offset_map. What is not ready, or is in
/// quarantine, is shown as used.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_pool_map(
    pool: *const kvmem_pool,
    out_ranges: *mut kvmem_map_range,
    capacity: u64,
    out_count: *mut u64,
) -> kvmem_status {
    on(pool, |pool| {
        let map = kvmem_map_range::of_extents(&pool.map());
        // SAFETY: the caller's promise.
        unsafe { write_list(&map, out_ranges, capacity, out_count) }
    })
}

/// Waits until so many bytes are ready, no more will be, or the time is over; `out_ready_bytes` is
/// how many are ready then. A timeout of 0 only asks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_pool_wait_ready(
    pool: *const kvmem_pool,
    bytes: u64,
    timeout_ns: u64,
    out_ready_bytes: *mut u64,
) -> kvmem_status {
    on(pool, |pool| {
        let ready = out(out_ready_bytes, "out_ready_bytes")?;
        ready.put(pool.wait_ready(bytes, Duration::from_nanos(timeout_ns)));
        Ok(())
    })
}

/// The pool is at least `bytes` long afterwards, in whole parts, up to `max_bytes` of its options.
/// Blocks are handed out meanwhile as ever.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_pool_grow_to(pool: *const kvmem_pool, bytes: u64) -> kvmem_status {
    on(pool, |pool| Ok(pool.grow_to(bytes)?))
}

/// The pool is as short as whole parts allow, but not shorter than `bytes`. What lies behind is
/// deregistered, and its pages are given back. KVMEM_IN_USE if a block lies there.
/// `out_capacity_bytes` (may be NULL) is how long it is then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_pool_shrink_to(
    pool: *const kvmem_pool,
    bytes: u64,
    out_capacity_bytes: *mut u64,
) -> kvmem_status {
    on(pool, |pool| {
        pool.shrink_to(bytes)?;
        if let Ok(capacity) = out(out_capacity_bytes, "") {
            capacity.put(pool.capacity());
        }
        Ok(())
    })
}

/// Takes back what magazines keep, so that neighbours join.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_pool_trim(pool: *const kvmem_pool) -> kvmem_status {
    on(pool, |pool| {
        pool.trim();
        Ok(())
    })
}

/// Checks the books against their numbered invariants. KVMEM_CHECK_FAILED is a defect of this
/// library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_pool_check(pool: *const kvmem_pool) -> kvmem_status {
    on(pool, |pool| Ok(pool.check()?))
}

/// A descriptor of the pool's memory, by which another process attaches it. Owned by the caller:
/// close(2). With `read_only` 1 it can be read by it and not written; a process of the same user,
/// or of root, can still open it for writing by /proc. Who gets the other kind writes only to
/// blocks that it was lent. KVMEM_WRONG_BACKING if the memory is private.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_pool_share(
    pool: *const kvmem_pool,
    read_only: u32,
    out_fd: *mut c_int,
) -> kvmem_status {
    on(pool, |pool| {
        let made = out(out_fd, "out_fd")?;
        let fd = if flag(read_only, "read_only")? {
            pool.share_read_only()?
        } else {
            // SAFETY: the caller's promise, as the header says.
            unsafe { pool.share() }?
        };
        made.put(fd.into_raw_fd());
        Ok(())
    })
}

/// Makes a pool's pages resident in all other shared, writable mappings that this process has of
/// its memory, such as those of an engine that was given the descriptor: else each page is a fault
/// when it is first touched there. `how` is KVMEM_POPULATE_AUTO or a number of threads. `out_bytes`
/// (may be NULL): how many bytes those mappings have.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_pool_populate_elsewhere(
    pool: *const kvmem_pool,
    how: u32,
    out_bytes: *mut u64,
) -> kvmem_status {
    on(pool, |pool| {
        let bytes = pool.populate_aliases(populate(how), &ProgressOptions::new())?;
        if let Ok(made) = out(out_bytes, "") {
            made.put(bytes);
        }
        Ok(())
    })
}

/// A pool in its table.
pub(crate) struct Tabled {
    pool: Pool,
    /// Once it was destroyed: how many blocks of the caller's there still are. The pool stays
    /// until the last of them is freed, for they are freed through it. Everything else, such
    /// as what a cache holds, keeps the memory by itself. Changed under [`CLOSED`].
    left: AtomicU64,
}

impl Deref for Tabled {
    type Target = Pool;

    fn deref(&self) -> &Pool {
        &self.pool
    }
}

/// Whoever destroys a pool, or uses a block of one that is destroyed, has this lock, so that nobody
/// looks at a pool that another lets go.
static CLOSED: Generations = Generations::new();

/// Destroys a pool. Blocks that are in use stay good, with their memory and keys, and so does what
/// caches hold; all goes with the last of it. No other call on the pool or its blocks goes on
/// meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_pool_destroy(pool: *mut kvmem_pool) -> kvmem_status {
    guard(|| {
        let table = kvmem_pool::table();
        if let Err(Fail::Forked(_)) = table.get(pool) {
            return table.forget(pool);
        }
        let gone = {
            let _closed = CLOSED.lock();
            // A poisoned one goes at once.
            match table.get(pool).map_or(0, |of| of.raw_blocks()) {
                0 => Some(table.take(pool)?),
                blocks => {
                    // Relaxed, here and below: under the lock.
                    table.get(pool)?.left.store(blocks, Ordering::Relaxed);
                    table.close(pool)?;
                    None
                }
            }
        };
        drop(gone);
        Ok(())
    })
}

/// Runs a call on a block of a pool that may have been destroyed.
#[inline(always)]
pub(crate) fn of_block(
    pool: *mut kvmem_pool,
    block: RawHandle,
    run: impl FnOnce(&Pool) -> Result<(), Fail>,
) -> Result<(), Fail> {
    match kvmem_pool::table().get(pool) {
        Ok(of) => run(of),
        Err(_) => of_block_of_closed(pool, block, run),
    }
}

#[cold]
fn of_block_of_closed(
    pool: *mut kvmem_pool,
    block: RawHandle,
    run: impl FnOnce(&Pool) -> Result<(), Fail>,
) -> Result<(), Fail> {
    let table = kvmem_pool::table();
    let (done, gone) = {
        let _closed = CLOSED.lock();
        let of = table.get_even_closed(pool)?;
        let is_good = || of.resolve_raw(block).is_ok();
        let was_good = is_good();
        let done = run(of);
        let freed = was_good && !is_good();
        let last = freed && of.left.fetch_sub(1, Ordering::Relaxed) == 1;
        (done, if last { table.take_closed(pool) } else { None })
    };
    drop(gone);
    done
}
