//! *Options*: structures that may be older or newer than the library.
//!
//! A program says how long its structure is. What an older one lacks has its default; what a newer
//! one has more must be zero, or it asks for something that this library does not know. So members
//! are only ever added at the end.

use std::mem::MaybeUninit;

use kvmem::arena::{Backing, Ladder, Numa, Populate};
use kvmem::register::Policy;

use crate::call;
use crate::fail::Fail;

/// Any bits are a value, there is no padding, and the first member is `struct_size`, a `u64`.
///
/// # Safety
/// Whoever implements it vouches for that.
pub(crate) unsafe trait Options: Copy {
    /// The defaults, with its own size.
    fn defaults() -> Self;
}

/// The least that can be an options structure.
const LEAST: u64 = size_of::<u64>() as u64;

/// What a program asks for; NULL is the defaults.
///
/// # Safety
/// If it is not NULL, there are as many bytes as its first member says.
pub(crate) unsafe fn read<T: Options>(options: *const T) -> Result<T, Fail> {
    let mut wanted = T::defaults();
    if options.is_null() {
        return Ok(wanted);
    }
    // SAFETY: the caller's promise.
    let said = unsafe { options.cast::<u64>().read() };
    let known = size_of::<T>() as u64;
    if !(LEAST..=1 << 16).contains(&said) {
        return Err(Fail::invalid(format_args!(
            "struct_size is {said}, and {known} here: fill the options with their _init function first"
        )));
    }
    let bytes = options.cast::<u8>();
    for at in known..said {
        // SAFETY: the caller's promise.
        if unsafe { bytes.add(at as usize).read() } != 0 {
            return Err(Fail::invalid(format_args!(
                "the options are of a newer kvmem: byte {at} is set, and only {known} are known here"
            )));
        }
    }
    // SAFETY: the caller's promise; any bits are a value.
    unsafe {
        std::ptr::copy_nonoverlapping(
            bytes,
            (&raw mut wanted).cast::<u8>(),
            said.min(known) as usize,
        );
    }
    Ok(wanted)
}

/// Fills in the defaults, as far as the program's structure goes.
///
/// # Safety
/// If it is not NULL, there are `struct_size` bytes.
pub(crate) unsafe fn init<T: Options>(options: *mut T, struct_size: u64) -> Result<(), Fail> {
    if options.is_null() {
        return Err(Fail::Null("options"));
    }
    if !(LEAST..=1 << 16).contains(&struct_size) {
        return Err(Fail::invalid(format_args!(
            "struct_size is {struct_size}: say sizeof *options"
        )));
    }
    let mut defaults = MaybeUninit::new(T::defaults());
    let known = size_of::<T>();
    // SAFETY: the caller's promise; the first member is a `u64`.
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

/// Populate: nothing.
pub const KVMEM_POPULATE_NONE: u32 = 0;
/// Populate: by as many threads as pay. Any other number is a number of threads.
pub const KVMEM_POPULATE_AUTO: u32 = u32::MAX;

/// Pages lie wherever the kernel puts them.
pub const KVMEM_NUMA_ANY: u32 = 0;
/// Pages lie on the nodes named, and on no other.
pub const KVMEM_NUMA_BIND: u32 = 1;
/// Pages lie on the nodes named in turn, on others when those are full.
pub const KVMEM_NUMA_INTERLEAVE: u32 = 2;

/// Memory of this process alone.
pub const KVMEM_BACKING_PRIVATE: u32 = 0;
/// A sealed memory file that other processes can attach.
pub const KVMEM_BACKING_SHARED: u32 = 1;

pub(crate) fn populate(how: u32) -> Populate {
    match how {
        KVMEM_POPULATE_NONE => Populate::None,
        KVMEM_POPULATE_AUTO => Populate::Auto,
        threads => Populate::threads(threads as usize),
    }
}

/// A switch.
pub(crate) fn flag(value: u32, name: &str) -> Result<bool, Fail> {
    match value {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(Fail::invalid(format_args!("{name} is {other}: say 0 or 1"))),
    }
}

pub(crate) fn backing(value: u32) -> Result<Backing, Fail> {
    match value {
        KVMEM_BACKING_PRIVATE => Ok(Backing::Private),
        KVMEM_BACKING_SHARED => Ok(Backing::Shared),
        other => Err(Fail::invalid(format_args!(
            "backing {other}: say KVMEM_BACKING_PRIVATE or KVMEM_BACKING_SHARED"
        ))),
    }
}

/// A member that has no meaning yet, so that a later version can give it one.
pub(crate) fn is_zero(value: u32, name: &str) -> Result<(), Fail> {
    match value {
        0 => Ok(()),
        other => Err(Fail::invalid(format_args!(
            "{name} is {other}: it has no meaning in this version; leave it 0, as the _init function does"
        ))),
    }
}

/// As many nodes as Linux can be built for.
const MAX_NODES: u64 = 1024;

/// # Safety
/// As for [`call::list`].
pub(crate) unsafe fn numa_nodes<'a>(nodes: *const u32, count: u64) -> Result<&'a [u32], Fail> {
    // SAFETY: the caller's promise.
    unsafe { call::short_list(nodes, count, MAX_NODES, "numa_nodes") }
}

/// As many hot sizes as a space can be told of.
const MAX_HOT_SIZES: u64 = 32;

/// # Safety
/// As for [`call::list`].
pub(crate) unsafe fn hot_sizes<'a>(sizes: *const u64, count: u64) -> Result<&'a [u64], Fail> {
    // SAFETY: the caller's promise.
    unsafe { call::short_list(sizes, count, MAX_HOT_SIZES, "hot_sizes") }
}

/// # Safety
/// As for [`call::list`].
pub(crate) unsafe fn numa(policy: u32, nodes: *const u32, count: u64) -> Result<Numa, Fail> {
    // SAFETY: the caller's promise.
    let nodes = unsafe { numa_nodes(nodes, count) }?.to_vec();
    match policy {
        KVMEM_NUMA_ANY => Ok(Numa::None),
        KVMEM_NUMA_BIND => Ok(Numa::Bind(nodes)),
        KVMEM_NUMA_INTERLEAVE => Ok(Numa::Interleave(nodes)),
        other => Err(Fail::invalid(format_args!(
            "NUMA policy {other}: say KVMEM_NUMA_ANY, KVMEM_NUMA_BIND or KVMEM_NUMA_INTERLEAVE"
        ))),
    }
}

/// Kinds of pages in words; NULL is the usual ladder.
///
/// # Safety
/// As for [`call::text`].
pub(crate) unsafe fn ladder(pages: *const std::ffi::c_char, strict: u32) -> Result<Ladder, Fail> {
    // SAFETY: the caller's promise.
    let ladder = match unsafe { call::text(pages, "pages") }? {
        None => Ladder::default(),
        Some(words) => words.parse().map_err(Fail::invalid)?,
    };
    Ok(ladder.strict(flag(strict, "strict")?))
}

/// A registering policy in words; NULL is "auto".
///
/// # Safety
/// As for [`call::text`].
pub(crate) unsafe fn policy(policy: *const std::ffi::c_char) -> Result<Policy, Fail> {
    // SAFETY: the caller's promise.
    match unsafe { call::text(policy, "policy") }? {
        None => Ok(Policy::Auto),
        Some(words) => words.parse().map_err(|_| {
            Fail::invalid(format_args!(
                "{words:?} is no policy: say auto, sequential, parallel or parallel:N"
            ))
        }),
    }
}
