//! *Pool*: all four layers in one: memory that is mapped, populated, registered and divided into
//! blocks.

use std::ffi::{c_char, c_int, c_void};
use std::ops::Deref;
use std::os::fd::IntoRawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use kvmem::arena::ProgressOptions;
use kvmem::offset::{RawAllocation, RawHandle};
use kvmem::pool::{InitOn, Pool, PoolBuilder, PoolSize};

use crate::argument::{Handle, In, Out, Owned};
use crate::call::{guard, ranges, report, size};
use crate::cancel::{kvmem_cancel, token};
use crate::error::CallError;
use crate::fork_lock::ForkLock;
use crate::offset::{kvmem_bin, kvmem_map_range, numbers};
use crate::options::{
    self, KVMEM_INIT_ON_ALLOC, KVMEM_INIT_ON_FREE, KVMEM_INIT_ON_NEVER, backing, choice, flag,
    hot_sizes, ladder, numa, numa_nodes, options, policy, populate,
};
use crate::progress::{ProgressCallback, kvmem_progress_fn};
use crate::promise::ObjectPromise;
use crate::registrars::kvmem_registrars;
use crate::stats::kvmem_metrics;
use crate::status::*;
use crate::table::{Object, object};

/// Memory that is mapped, populated, registered and divided into blocks. Owned by the caller:
/// kvmem_pool_destroy. Blocks in use stay valid after that, with their memory and keys, until they
/// are freed. Any thread, several at once.
pub struct kvmem_pool {
    _opaque: [u8; 0],
}

/// Bytes of a pool, as plain data: it may be copied and stored anywhere. Any bits are safe to pass
/// back. If the block was freed before, the call returns an error and changes nothing. The bytes
/// belong to the caller until kvmem_block_free.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvmem_block {
    /// Its pool; NULL: no block.
    pub pool: *mut kvmem_pool,
    /// Number of the pool's metadata, never reused in this process.
    pub allocator: u64,
    /// Its slot in the metadata.
    pub slot: u32,
    /// Generation of the slot.
    pub generation: u32,
    /// The first address.
    pub data: *mut c_void,
    /// Offset in the pool.
    pub offset: u64,
    /// Length in bytes, exactly as requested.
    pub bytes: u64,
}

object!(kvmem_pool, PoolEntry);

options! {
    /// Options of a pool. Fill them in with kvmem_pool_options_init first.
    kvmem_pool_options: kvmem_pool_options_init;

    /// Bytes that the pool can grow to; 0 (the default): its initial size.
    max_bytes: u64 = 0,
    /// Kinds of pages to try, in order: "1G", "2M", "thp", "4k", separated by commas. NULL:
    /// "2M,thp,4k".
    pages: In<c_char> = In::NULL,
    /// 1: fail if the first kind cannot provide all pages. Default 0.
    strict: u32 = 0,
    /// KVMEM_BACKING_PRIVATE (the default) or KVMEM_BACKING_SHARED, which other processes can
    /// attach.
    backing: u32 = options::KVMEM_BACKING_PRIVATE,
    /// KVMEM_NUMA_ANY (the default), KVMEM_NUMA_BIND or KVMEM_NUMA_INTERLEAVE.
    numa_policy: u32 = options::KVMEM_NUMA_ANY,
    /// KVMEM_POPULATE_AUTO (the default), KVMEM_POPULATE_NONE (a first touch can then kill the
    /// process), or a number of threads.
    populate: u32 = options::KVMEM_POPULATE_AUTO,
    /// NUMA nodes, `numa_node_count` of them.
    numa_nodes: In<u32> = In::NULL,
    /// Number of NUMA nodes.
    numa_node_count: u64 = 0,
    /// 1: a page without access before and behind the pool. Default 0.
    guard_pages: u32 = 0,
    /// 1: kvmem_pool_create returns as soon as the memory is mapped, and a thread populates and
    /// registers it part by part. Default 0.
    in_background: u32 = 0,
    /// 1: parts that cannot be populated or registered are quarantined and reported. Default 0:
    /// the call fails instead.
    quarantine: u32 = 0,
    /// 1 (the default): sizes that are requested frequently become hot, and are served without a
    /// lock.
    auto_hot_sizes: u32 = 1,
    /// Registrars for the whole pool; NULL (the default): none. The handle stays the caller's.
    registrars: Handle<kvmem_registrars> = Handle::NULL,
    /// "auto", "sequential", "parallel" or "parallel:N". NULL: "auto".
    policy: In<c_char> = In::NULL,
    /// Size limit of the parts. No block crosses the edge of a part. 0 (the default): the
    /// registrars' preferred size.
    boundary_bytes: u64 = 0,
    /// Sizes in bytes that are hot from the start, `hot_size_count` of them, at most 32.
    hot_sizes: In<u64> = In::NULL,
    /// Number of hot sizes.
    hot_size_count: u64 = 0,
    /// Limits the bytes that all magazines together cache. UINT64_MAX (the default): 1/32 of the
    /// pool.
    max_cached_bytes: u64 = u64::MAX,
    /// Ends building early. Default NULL.
    cancel: Handle<kvmem_cancel> = Handle::NULL,
    /// Receives the progress of populating and registering. With `in_background`, called as long
    /// as the pool lives. Default NULL.
    progress: kvmem_progress_fn = None,
    /// Passed to `progress`.
    progress_user: *mut c_void = std::ptr::null_mut(),
    /// 1, with KVMEM_BACKING_SHARED: seals the memory file with F_SEAL_FUTURE_WRITE (Linux 5.1),
    /// so only this pool can write to it. No other mapping can be made for writing, by any
    /// process or user, this process included. kvmem_pool_shrink_to fails. Default 0.
    readers_only: u32 = 0,
    /// KVMEM_INIT_ON_NEVER (the default), KVMEM_INIT_ON_ALLOC or KVMEM_INIT_ON_FREE: when the bytes
    /// of blocks are set to zero.
    init_on: u32 = options::KVMEM_INIT_ON_NEVER,
}

/// Parses a size such as "64GiB" or "512M" (powers of 1024), "64GB" (a power of 1000) or "4096".
/// Fails with KVMEM_ERR_INVALID_ARGUMENT if the text is not a size from 1 byte to INT64_MAX; the
/// error text says what is wrong.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_parse_size(text: In<c_char>, out_bytes: Out<u64>) -> kvmem_status {
    guard(|| {
        let bytes = out_bytes.get("out_bytes")?;
        bytes.put(PoolSize::from(text.some_text("text")?).bytes()? as u64);
        Ok(())
    })
}

fn builder(
    promise: &ObjectPromise,
    bytes: u64,
    wanted: &kvmem_pool_options,
) -> Result<PoolBuilder, CallError> {
    let nodes = numa_nodes(&wanted.numa_nodes, wanted.numa_node_count)?;
    let init_on = choice!(wanted.init_on:
        KVMEM_INIT_ON_NEVER => InitOn::Never,
        KVMEM_INIT_ON_ALLOC => InitOn::Alloc,
        KVMEM_INIT_ON_FREE => InitOn::Free,
    )?;
    let mut builder = Pool::builder(size(bytes))
        .ladder(ladder(&wanted.pages, wanted.strict)?)
        .numa(numa(wanted.numa_policy, nodes)?)
        .policy(policy(&wanted.policy)?)
        .hot_sizes(hot_sizes(&wanted.hot_sizes, wanted.hot_size_count)?.iter().copied())
        .backing(backing(wanted.backing)?)
        .populate(populate(wanted.populate))
        .init_on(init_on)
        .readers_only(flag(wanted.readers_only, "readers_only")?)
        .guard_pages(flag(wanted.guard_pages, "guard_pages")?)
        .in_background(flag(wanted.in_background, "in_background")?)
        .quarantine(flag(wanted.quarantine, "quarantine")?)
        .auto_hot_sizes(flag(wanted.auto_hot_sizes, "auto_hot_sizes")?);
    if wanted.max_bytes != 0 {
        builder = builder.max_size(size(wanted.max_bytes));
    }
    if !wanted.registrars.is_null() {
        builder = builder.registrars(wanted.registrars.get(promise)?.all());
    }
    if wanted.boundary_bytes != 0 {
        builder = builder.boundary(wanted.boundary_bytes);
    }
    if wanted.max_cached_bytes != u64::MAX {
        builder = builder.max_cached_bytes(wanted.max_cached_bytes);
    }
    if let Some(cancel) = token(promise, &wanted.cancel)? {
        builder = builder.cancel(cancel);
    }
    if let Some(listener) = ProgressCallback::new(wanted.progress, wanted.progress_user) {
        builder = builder
            .on_populate(move |progress| listener.populated(progress))
            .on_register(move |progress| listener.registered(progress));
    }
    Ok(builder)
}

/// Builds a pool of at least `bytes` bytes: maps it, populates it, and registers the beginning
/// while the rest is populated. `options` may be NULL. Takes as long as the kernel needs to clear
/// and pin that much memory. If the call fails, nothing is left behind.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_pool_create(
    bytes: u64,
    options: In<kvmem_pool_options>,
    out_pool: Out<*mut kvmem_pool>,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    guard(|| {
        let made = out_pool.get("out_pool")?;
        let pool = builder(&promise, bytes, &options::read(&options)?)?.build()?;
        made.insert(PoolEntry { pool, remaining_blocks: AtomicU64::new(0) })
    })
}

/// Converts a block for C.
#[inline(always)]
pub(crate) fn block(pool: *mut kvmem_pool, of: &Pool, raw: RawAllocation) -> kvmem_block {
    let (allocator, slot, generation) = numbers(raw.handle);
    // SAFETY: the allocator's offsets are below the length of the pool's memory, which is one
    // allocation, so the sum stays within it.
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

/// Allocates a block of `bytes` bytes. O(1), some nanoseconds for a hot size. Fails with
/// KVMEM_ERR_OUT_OF_SPACE, KVMEM_ERR_TOO_LARGE, KVMEM_ERR_NOT_READY and so on.
///
/// A block may start at any address, since sizes are not rounded: see kvmem_pool_allocate_aligned.
/// A new block contains the bytes of an earlier block, or zeros: see `init_on` of the options.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_pool_allocate(
    pool: Owned<kvmem_pool>,
    bytes: u64,
    out_block: Out<kvmem_block>,
) -> kvmem_status {
    pool.on(|of| {
        let place = out_block.get("out_block")?;
        place.put(block(pool.pointer(), of, of.allocate_raw(size(bytes))?));
        Ok(())
    })
}

/// Converts blocks for C.
fn to_c_blocks(
    pool: *mut kvmem_pool,
    of: &Pool,
    blocks: Vec<kvmem::pool::Block>,
) -> Result<Vec<kvmem_block>, CallError> {
    let convert = |one| match of.make_raw(one) {
        Ok(raw) => Ok(block(pool, of, raw)),
        Err(_) => Err(CallError::new(
            KVMEM_ERR_CHECK_FAILED,
            "a block does not belong to the pool that allocated it",
        )),
    };
    blocks.into_iter().map(convert).collect()
}

/// Allocates a block of `bytes` bytes whose first address is a multiple of `align`, a power of two.
/// O(1).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_pool_allocate_aligned(
    pool: Owned<kvmem_pool>,
    bytes: u64,
    align: u64,
    out_block: Out<kvmem_block>,
) -> kvmem_status {
    pool.on(|of| {
        let place = out_block.get("out_block")?;
        let mut blocks =
            to_c_blocks(pool.pointer(), of, vec![of.allocate_aligned(size(bytes), size(align))?])?;
        if let Some(block) = blocks.pop() {
            place.put(block);
        }
        Ok(())
    })
}

/// Allocates `count` blocks of `bytes` bytes each, or none. `out_blocks` has room for `count`.
/// O(count).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_pool_allocate_batch(
    pool: Owned<kvmem_pool>,
    bytes: u64,
    count: u64,
    out_blocks: Out<kvmem_block>,
) -> kvmem_status {
    pool.on(|of| {
        out_blocks.get("out_blocks")?;
        let count = ranges(count)?;
        let all = to_c_blocks(pool.pointer(), of, of.allocate_batch(size(bytes), count)?)?;
        // SAFETY: `out_blocks` has room for `count` elements, and `all` has `count`.
        unsafe { out_blocks.put_all("out_blocks", &all) }
    })
}

/// Allocates `total_bytes` bytes in at most `max_blocks` blocks, as few and as long as possible.
/// `out_blocks` has room for `max_blocks`; `out_count` receives the number of blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_pool_allocate_scattered(
    pool: Owned<kvmem_pool>,
    total_bytes: u64,
    max_blocks: u64,
    out_blocks: Out<kvmem_block>,
    out_count: Out<u64>,
) -> kvmem_status {
    pool.on(|of| {
        let count = out_count.get("out_count")?;
        out_blocks.get("out_blocks")?;
        let all = to_c_blocks(
            pool.pointer(),
            of,
            of.allocate_scattered(size(total_bytes), size(max_blocks))?,
        )?;
        // SAFETY: `out_blocks` has room for `max_blocks` elements, and `all` has no more.
        unsafe { out_blocks.put_all("out_blocks", &all) }?;
        count.put(all.len() as u64);
        Ok(())
    })
}

/// Properties of a pool.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvmem_pool_info {
    /// The first address. Block offsets are relative to it.
    pub data: *mut c_void,
    /// Bytes of the pool when all parts are ready.
    pub capacity_bytes: u64,
    /// Bytes that the pool can grow to.
    pub max_bytes: u64,
    /// Bytes that are ready: populated, registered, not quarantined.
    pub ready_bytes: u64,
    /// Quarantined bytes.
    pub quarantined_bytes: u64,
    /// The boundary that no block crosses; 0: none.
    pub boundary_bytes: u64,
    /// The number that references name the pool by; 0 for private memory.
    pub share_id: u64,
    /// Number of registrars.
    pub devices: u64,
    /// Whether parts are still being populated or registered: 1 or 0.
    pub initializing: u32,
    /// Always 0.
    pub reserved: u32,
}

/// Returns the current properties of a pool.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_pool_get_info(
    pool: Handle<kvmem_pool>,
    out_info: Out<kvmem_pool_info>,
) -> kvmem_status {
    pool.on(|pool| {
        let info = out_info.get("out_info")?;
        let report = pool.report();
        info.put(kvmem_pool_info {
            data: pool.base().as_ptr().cast(),
            capacity_bytes: report.capacity_bytes,
            max_bytes: report.max_bytes,
            ready_bytes: report.ready_bytes,
            quarantined_bytes: report.quarantined_bytes(),
            boundary_bytes: pool.boundary().unwrap_or(0),
            share_id: pool.share_id().unwrap_or(0),
            devices: report.devices.len() as u64,
            initializing: u32::from(pool.is_initializing()),
            reserved: 0,
        });
        Ok(())
    })
}

/// Reports the pages, timings and decisions of a pool as text or JSON. `buffer` as for
/// kvmem_region_report.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_pool_report(
    pool: Handle<kvmem_pool>,
    format: u32,
    buffer: Out<c_char>,
    capacity: u64,
    out_needed: Out<u64>,
) -> kvmem_status {
    pool.on(|pool| {
        let text = report(format, &pool.report(), ToString::to_string)?;
        buffer.write_text(&text, capacity, &out_needed)
    })
}

/// Reads the metrics of the ready part. Ranges in magazines count as free.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_pool_get_metrics(
    pool: Handle<kvmem_pool>,
    out_metrics: Out<kvmem_metrics>,
) -> kvmem_status {
    pool.on(|pool| {
        out_metrics
            .put("out_metrics", kvmem_metrics::new(&pool.metrics(), pool.boundary().unwrap_or(0)))
    })
}

/// Lists the free ranges by size; see kvmem_offset_allocator_bins.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_pool_bins(
    pool: Handle<kvmem_pool>,
    out_bins: Out<kvmem_bin>,
    capacity: u64,
    out_count: Out<u64>,
) -> kvmem_status {
    pool.on(|pool| {
        let bins: Vec<kvmem_bin> = pool.bins().iter().map(kvmem_bin::from).collect();
        out_bins.write_list(&bins, capacity, &out_count)
    })
}

/// Lists the whole pool in address order; see kvmem_offset_allocator_map. Parts that are not ready
/// or are quarantined appear as used.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_pool_map(
    pool: Handle<kvmem_pool>,
    out_ranges: Out<kvmem_map_range>,
    capacity: u64,
    out_count: Out<u64>,
) -> kvmem_status {
    pool.on(|pool| {
        let map = kvmem_map_range::of_extents(&pool.map());
        out_ranges.write_list(&map, capacity, &out_count)
    })
}

/// Waits until `bytes` bytes are ready, no more will become ready, or the time is over.
/// `out_ready_bytes` receives how many bytes are ready then. A timeout of 0 only asks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_pool_wait_ready(
    pool: Handle<kvmem_pool>,
    bytes: u64,
    timeout_ns: u64,
    out_ready_bytes: Out<u64>,
) -> kvmem_status {
    pool.on(|pool| {
        out_ready_bytes
            .put("out_ready_bytes", pool.wait_ready(bytes, Duration::from_nanos(timeout_ns)))
    })
}

/// Grows the pool to at least `bytes` bytes, in whole parts, up to `max_bytes` of its options.
/// Threads can allocate and free blocks meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_pool_grow_to(pool: Handle<kvmem_pool>, bytes: u64) -> kvmem_status {
    pool.on(|pool| Ok(pool.grow_to(bytes)?))
}

/// Shrinks the pool to the fewest whole parts with at least `bytes` bytes. The parts behind the new
/// end are deregistered and their pages given back. KVMEM_ERR_IN_USE if a block lies there.
/// `out_capacity_bytes` (may be NULL) receives the new length.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_pool_shrink_to(
    pool: Handle<kvmem_pool>,
    bytes: u64,
    out_capacity_bytes: Out<u64>,
) -> kvmem_status {
    pool.on(|pool| {
        pool.shrink_to(bytes)?;
        out_capacity_bytes.put_if_wanted(pool.capacity());
        Ok(())
    })
}

/// Returns all ranges in magazines to the pool, where they coalesce.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_pool_trim(pool: Handle<kvmem_pool>) -> kvmem_status {
    pool.on(|pool| {
        pool.trim();
        Ok(())
    })
}

/// Checks the numbered invariants of the metadata. KVMEM_ERR_CHECK_FAILED is a defect of this
/// library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_pool_check(pool: Handle<kvmem_pool>) -> kvmem_status {
    pool.on(|pool| Ok(pool.check()?))
}

/// Returns a descriptor of the pool's memory. Another process attaches the pool with it. Owned by
/// the caller: close(2). With `read_only` 1, the memory can be mapped for reading only; but a
/// process of the same user, or of root, can still reopen the descriptor for writing through /proc,
/// unless the pool was made with `readers_only`. With `read_only` 0, the other process must write
/// only to blocks that it was lent. KVMEM_ERR_WRONG_BACKING if the memory is private.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_pool_share(
    pool: Handle<kvmem_pool>,
    read_only: u32,
    out_fd: Out<c_int>,
) -> kvmem_status {
    pool.on(|pool| {
        let made = out_fd.get("out_fd")?;
        let fd = if flag(read_only, "read_only")? {
            pool.share_read_only()?
        } else {
            // SAFETY: promise 4 of the C caller, as the header states it: a program that gets a
            // writable descriptor does not write to bytes that this process uses as its own.
            unsafe { pool.share() }?
        };
        made.put(fd.into_raw_fd());
        Ok(())
    })
}

/// Makes the pages of a shared pool resident in its aliases: all other shared, writable mappings of
/// the same memory file in this process, for example those of an engine that received the
/// descriptor. Otherwise the first touch of each page there is a page fault. `how` is
/// KVMEM_POPULATE_AUTO or a number of threads. `out_bytes` (may be NULL) receives the length of
/// those mappings in bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_pool_populate_aliases(
    pool: Handle<kvmem_pool>,
    how: u32,
    out_bytes: Out<u64>,
) -> kvmem_status {
    pool.on(|pool| {
        let bytes = pool.populate_aliases(populate(how), &ProgressOptions::new())?;
        out_bytes.put_if_wanted(bytes);
        Ok(())
    })
}

/// A pool in its table.
pub(crate) struct PoolEntry {
    pool: Pool,
    /// The number of the caller's blocks that are still in use, once the pool was destroyed. The
    /// entry stays until the last of them is freed, because they are freed through it. All other
    /// users, such as caches, keep the memory by themselves. Changed under [`CLOSED`].
    remaining_blocks: AtomicU64,
}

impl Deref for PoolEntry {
    type Target = Pool;

    fn deref(&self) -> &Pool {
        &self.pool
    }
}

/// Held while a pool is destroyed, and while a block of a destroyed pool is used. No thread can
/// therefore use a pool that another thread is dropping.
static CLOSED: ForkLock = ForkLock::new();

/// Destroys a pool. Blocks in use stay valid, with their memory and keys, and so do the values of
/// caches. The memory is released with the last of them. No other call on the pool or its blocks
/// may run meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_pool_destroy(pool: Owned<kvmem_pool>) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let mut promise = unsafe { ObjectPromise::of_caller() };
    guard(|| {
        let (table, pool) = (kvmem_pool::table(), pool.pointer());
        if let Err(CallError::Forked(_)) = table.get(&promise, pool) {
            return table.drop_handle(&mut promise, pool);
        }
        let gone = {
            let _closed = CLOSED.lock();
            // A poisoned pool is dropped at once.
            match table.get(&promise, pool).map_or(0, |of| of.raw_blocks()) {
                0 => Some(table.take(&mut promise, pool)?),
                blocks => {
                    // Relaxed, here and below: only accessed under the lock.
                    table.get(&promise, pool)?.remaining_blocks.store(blocks, Ordering::Relaxed);
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
pub(crate) fn with_block(
    promise: &ObjectPromise,
    pool: *mut kvmem_pool,
    block: RawHandle,
    run: impl FnOnce(&Pool) -> Result<(), CallError>,
) -> Result<(), CallError> {
    match kvmem_pool::table().get(promise, pool) {
        Ok(of) => run(of),
        // SAFETY: `promise` proves promise 2 of the C caller.
        Err(_) => unsafe { with_block_of_closed_pool(pool, block, run) },
    }
}

/// # Safety
/// Promise 2 of the C caller.
#[cold]
unsafe fn with_block_of_closed_pool(
    pool: *mut kvmem_pool,
    block: RawHandle,
    run: impl FnOnce(&Pool) -> Result<(), CallError>,
) -> Result<(), CallError> {
    // SAFETY: promise 2 of the C caller, which this function's caller has.
    let mut promise = unsafe { ObjectPromise::of_caller() };
    let table = kvmem_pool::table();
    let (done, gone) = {
        let _closed = CLOSED.lock();
        // SAFETY: no function uses a pool exclusively, so a closed one was closed by `close`.
        // Closed pools are taken under `CLOSED`, which this thread holds until after the last use
        // of `of`.
        let of = unsafe { table.get_even_closed(&promise, pool) }?;
        let is_live = || of.resolve_raw(block).is_ok();
        let was_live = is_live();
        let done = run(of);
        let freed = was_live && !is_live();
        let last = freed && of.remaining_blocks.fetch_sub(1, Ordering::Relaxed) == 1;
        // SAFETY: no function uses a pool exclusively, so a closed one was closed by `close`. Calls
        // on closed pools hold `CLOSED`, so no other call has a reference to this one.
        (done, if last { unsafe { table.take_closed(&mut promise, pool) } } else { None })
    };
    drop(gone);
    done
}
