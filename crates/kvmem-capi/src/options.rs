//! *Options*: structures that may be older or newer than the library.
//!
//! The program states the size of its structure. Members that an older structure lacks get their
//! defaults. Additional members of a newer structure must be zero; otherwise the program requests
//! something that this library does not support. New members are therefore only added at the end.

use std::mem::MaybeUninit;

use kvmem::arena::{Backing, Ladder, Numa, Populate};
use kvmem::pool::InitOn;
use kvmem::register::Policy;

use crate::call;
use crate::error::CallError;

/// An options structure. All bit patterns are valid, there is no padding, and the first member is
/// `struct_size`, a `u64`.
///
/// # Safety
/// The implementation guarantees these properties.
pub(crate) unsafe trait Options: Copy {
    /// Returns the defaults, with its own size.
    fn defaults() -> Self;
}

/// The smallest size of an options structure.
const MIN_STRUCT_SIZE: u64 = size_of::<u64>() as u64;

/// Reads the program's options; NULL selects the defaults.
///
/// # Safety
/// If the pointer is not NULL, it is aligned for a `u64`, as many bytes are initialized as the
/// first member says, and no thread writes to them during the call.
pub(crate) unsafe fn read<T: Options>(options: *const T) -> Result<T, CallError> {
    let mut wanted = T::defaults();
    if options.is_null() {
        return Ok(wanted);
    }
    // SAFETY: the pointer is not NULL, and the caller promises an aligned, initialized structure,
    // which begins with a `u64`.
    let said = unsafe { options.cast::<u64>().read() };
    let known = size_of::<T>() as u64;
    if !(MIN_STRUCT_SIZE..=1 << 16).contains(&said) {
        return Err(CallError::invalid(format_args!(
            "struct_size is {said}, and this library's structure has {known} bytes: fill in the \
             options with their _init function first"
        )));
    }
    let bytes = options.cast::<u8>();
    for at in known..said {
        // SAFETY: `at` is less than `said`, and the caller promises that many initialized bytes.
        if unsafe { bytes.add(at as usize).read() } != 0 {
            return Err(CallError::invalid(format_args!(
                "the options are for a newer kvmem: byte {at} is set, and this library knows \
                 {known} bytes; use a newer library, or leave new members 0"
            )));
        }
    }
    // SAFETY: the number of bytes is at most `said`, which the caller promises to be initialized,
    // and at most the size of `wanted`, a local that overlaps nothing. All bit patterns of a `T`
    // are valid, as `Options` requires.
    unsafe {
        std::ptr::copy_nonoverlapping(
            bytes,
            (&raw mut wanted).cast::<u8>(),
            said.min(known) as usize,
        );
    }
    Ok(wanted)
}

/// Fills in the defaults, up to the size of the program's structure.
///
/// # Safety
/// If the pointer is not NULL, `struct_size` bytes are writable, and no other thread accesses them
/// during the call.
pub(crate) unsafe fn init<T: Options>(options: *mut T, struct_size: u64) -> Result<(), CallError> {
    if options.is_null() {
        return Err(CallError::Null("options"));
    }
    if !(MIN_STRUCT_SIZE..=1 << 16).contains(&struct_size) {
        return Err(CallError::invalid(format_args!(
            "struct_size is {struct_size}: pass sizeof *options"
        )));
    }
    let mut defaults = MaybeUninit::new(T::defaults());
    let known = size_of::<T>();
    // SAFETY: the first member of a `T` is a `u64`, as `Options` requires, so the first write lies
    // within the local. The pointer is not NULL, and the caller promises `struct_size` writable
    // bytes. The copy is no longer than those, and no longer than the local, which has no padding
    // and overlaps nothing.
    unsafe {
        defaults.as_mut_ptr().cast::<u64>().write(struct_size);
        let to = options.cast::<u8>();
        to.write_bytes(0, struct_size as usize);
        std::ptr::copy_nonoverlapping(
            defaults.as_ptr().cast::<u8>(),
            to,
            known.min(struct_size as usize),
        );
    }
    Ok(())
}

/// Populate: no pages.
pub const KVMEM_POPULATE_NONE: u32 = 0;
/// Populate: with as many threads as improve the speed. Every other number is a number of threads.
pub const KVMEM_POPULATE_AUTO: u32 = u32::MAX;

/// The kernel chooses the NUMA node of each page.
pub const KVMEM_NUMA_ANY: u32 = 0;
/// Pages are allocated on the given nodes only.
pub const KVMEM_NUMA_BIND: u32 = 1;
/// Pages are interleaved over the given nodes; other nodes are used when those are full.
pub const KVMEM_NUMA_INTERLEAVE: u32 = 2;

/// Memory of this process only.
pub const KVMEM_BACKING_PRIVATE: u32 = 0;
/// A sealed memory file that other processes can attach.
pub const KVMEM_BACKING_SHARED: u32 = 1;

/// The bytes of blocks are never set to zero: a new block has those of an earlier one, or zeros.
pub const KVMEM_INIT_ON_NEVER: u32 = 0;
/// The bytes of a block are set to zero before it is handed out.
pub const KVMEM_INIT_ON_ALLOC: u32 = 1;
/// The bytes of a block are set to zero before they become free.
pub const KVMEM_INIT_ON_FREE: u32 = 2;

pub(crate) fn populate(how: u32) -> Populate {
    match how {
        KVMEM_POPULATE_NONE => Populate::None,
        KVMEM_POPULATE_AUTO => Populate::Auto,
        threads => Populate::threads(threads as usize),
    }
}

/// Reads a boolean member.
pub(crate) fn flag(value: u32, name: &str) -> Result<bool, CallError> {
    match value {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(CallError::invalid(format_args!("{name} is {other}: use 0 or 1"))),
    }
}

pub(crate) fn backing(value: u32) -> Result<Backing, CallError> {
    match value {
        KVMEM_BACKING_PRIVATE => Ok(Backing::Private),
        KVMEM_BACKING_SHARED => Ok(Backing::Shared),
        other => Err(CallError::invalid(format_args!(
            "backing is {other}: use KVMEM_BACKING_PRIVATE or KVMEM_BACKING_SHARED"
        ))),
    }
}

pub(crate) fn init_on(value: u32) -> Result<InitOn, CallError> {
    match value {
        KVMEM_INIT_ON_NEVER => Ok(InitOn::Never),
        KVMEM_INIT_ON_ALLOC => Ok(InitOn::Alloc),
        KVMEM_INIT_ON_FREE => Ok(InitOn::Free),
        other => Err(CallError::invalid(format_args!(
            "init_on is {other}: use KVMEM_INIT_ON_NEVER, KVMEM_INIT_ON_ALLOC or KVMEM_INIT_ON_FREE"
        ))),
    }
}

/// Checks a reserved member: it must be 0, so that a later version can give it a meaning.
pub(crate) fn check_reserved(value: u32, name: &str) -> Result<(), CallError> {
    match value {
        0 => Ok(()),
        other => Err(CallError::invalid(format_args!(
            "{name} is {other}: this version does not use it; leave it 0, as the _init function \
             does"
        ))),
    }
}

/// The largest number of NUMA nodes that Linux can be built for.
const MAX_NODES: u64 = 1024;

/// Borrows a list of NUMA nodes.
///
/// # Safety
/// That of [`call::list`].
pub(crate) unsafe fn numa_nodes<'a>(nodes: *const u32, count: u64) -> Result<&'a [u32], CallError> {
    // SAFETY: the caller promises what `list` requires, of the same pointer and count.
    unsafe { call::short_list(nodes, count, MAX_NODES, "numa_nodes") }
}

/// The largest number of hot sizes of a space.
const MAX_HOT_SIZES: u64 = 32;

/// Borrows a list of hot sizes.
///
/// # Safety
/// That of [`call::list`].
pub(crate) unsafe fn hot_sizes<'a>(sizes: *const u64, count: u64) -> Result<&'a [u64], CallError> {
    // SAFETY: the caller promises what `list` requires, of the same pointer and count.
    unsafe { call::short_list(sizes, count, MAX_HOT_SIZES, "hot_sizes") }
}

/// Reads a NUMA policy.
///
/// # Safety
/// That of [`call::list`].
pub(crate) unsafe fn numa(policy: u32, nodes: *const u32, count: u64) -> Result<Numa, CallError> {
    // SAFETY: the caller promises what `numa_nodes` requires, of the same pointer and count.
    let nodes = unsafe { numa_nodes(nodes, count) }?.to_vec();
    match policy {
        KVMEM_NUMA_ANY => Ok(Numa::None),
        KVMEM_NUMA_BIND => Ok(Numa::Bind(nodes)),
        KVMEM_NUMA_INTERLEAVE => Ok(Numa::Interleave(nodes)),
        other => Err(CallError::invalid(format_args!(
            "numa_policy is {other}: use KVMEM_NUMA_ANY, KVMEM_NUMA_BIND or KVMEM_NUMA_INTERLEAVE"
        ))),
    }
}

/// Parses kinds of pages; NULL is the default ladder.
///
/// # Safety
/// That of [`call::text`].
pub(crate) unsafe fn ladder(
    pages: *const std::ffi::c_char,
    strict: u32,
) -> Result<Ladder, CallError> {
    // SAFETY: the caller promises what `text` requires, of the same pointer.
    let ladder = match unsafe { call::text(pages, "pages") }? {
        None => Ladder::default(),
        Some(words) => words.parse().map_err(CallError::invalid)?,
    };
    Ok(ladder.strict(flag(strict, "strict")?))
}

/// Parses a registration policy; NULL is "auto".
///
/// # Safety
/// That of [`call::text`].
pub(crate) unsafe fn policy(policy: *const std::ffi::c_char) -> Result<Policy, CallError> {
    // SAFETY: the caller promises what `text` requires, of the same pointer.
    match unsafe { call::text(policy, "policy") }? {
        None => Ok(Policy::Auto),
        Some(words) => words.parse().map_err(|_| {
            CallError::invalid(format_args!(
                "policy is {words:?}: use auto, sequential, parallel or parallel:N"
            ))
        }),
    }
}
