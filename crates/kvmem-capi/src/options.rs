//! *Options*: structures that may be older or newer than the library.
//!
//! The program states the size of its structure. Members that an older structure lacks get their
//! defaults. Additional members of a newer structure must be zero; otherwise the program requests
//! something that this library does not support. New members are therefore only added at the end.

use std::ffi::c_char;
use std::mem::MaybeUninit;

use kvmem::arena::{Backing, Ladder, Numa, Populate};
use kvmem::register::Policy;

use crate::argument::{In, Out};
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

/// Makes an options structure of a table: the meaning, name, type and default of each member. Also
/// makes the function that fills in the defaults.
///
/// cbindgen does not see them: the test that writes `kvmem.h` reads the table as text.
macro_rules! options {
    (
        $(#[$about:meta])*
        $options:ident: $init:ident;
        $($(#[$doc:meta])* $member:ident: $type:ty = $default:expr,)*
    ) => {
        $(#[$about])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug)]
        pub struct $options {
            /// Size of this structure in bytes, as the program knows it.
            pub struct_size: u64,
            $($(#[$doc])* pub $member: $type,)*
        }

        // There is no padding.
        const _: () = assert!(size_of::<$options>() == size_of::<u64>() $(+ size_of::<$type>())*);

        // SAFETY: `Options` requires a `u64` size first, which is above, no padding, which the
        // assertion proves, and that all bits are valid: the tables name numbers, pointers and
        // optional functions alone.
        unsafe impl crate::options::Options for $options {
            fn defaults() -> Self {
                $options { struct_size: size_of::<Self>() as u64, $($member: $default,)* }
            }
        }

        /// Fills in the defaults. `struct_size` is `sizeof *options`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $init(
            options: crate::argument::Out<$options>,
            struct_size: u64,
        ) -> crate::status::kvmem_status {
            crate::call::guard(|| crate::options::init(&options, struct_size))
        }
    };
}
pub(crate) use options;

/// Converts the number of a choice, or returns an error that names the choices.
macro_rules! choice {
    ($of:ident $(.$member:ident)?: $($constant:ident => $value:expr),+ $(,)?) => {
        match $of $(.$member)? {
            $($constant => Ok($value),)+
            other => Err(crate::options::no_choice(
                other,
                stringify!($of $(.$member)?),
                &[$(stringify!($constant)),+],
            )),
        }
    };
}
pub(crate) use choice;

/// Makes the error for a member whose number is not among the choices.
#[cold]
pub(crate) fn no_choice(value: u32, member: &str, choices: &[&str]) -> CallError {
    let (last, others) = choices.split_last().expect("a choice has constants");
    let (others, member) =
        (others.join(", "), member.rsplit('.').next().unwrap_or_default().trim());
    CallError::invalid(format_args!("{member} is {value}: use {others} or {last}"))
}

/// The smallest size of an options structure.
const MIN_STRUCT_SIZE: u64 = size_of::<u64>() as u64;

/// Reads the program's options; NULL selects the defaults.
pub(crate) fn read<T: Options>(options: &In<T>) -> Result<T, CallError> {
    let (mut wanted, options) = (T::defaults(), options.pointer());
    if options.is_null() {
        return Ok(wanted);
    }
    // SAFETY: the pointer is not NULL, and promise 1 of the C caller, which `In` carries, is that
    // of an aligned, initialized structure, which begins with a `u64`.
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
        // SAFETY: `at` is less than `said`, and the C caller promises that many initialized bytes.
        if unsafe { bytes.add(at as usize).read() } != 0 {
            return Err(CallError::invalid(format_args!(
                "the options are for a newer kvmem: byte {at} is set, and this library knows \
                 {known} bytes; use a newer library, or leave new members 0"
            )));
        }
    }
    // SAFETY: the number of bytes is at most `said`, which the C caller promises to be initialized,
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

/// Fills in the defaults, up to the size of the program's structure: promise 1 of the C caller is
/// that of `struct_size` writable bytes.
pub(crate) fn init<T: Options>(options: &Out<T>, struct_size: u64) -> Result<(), CallError> {
    let options = options.pointer();
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
    // within the local. The pointer is not NULL, and the C caller promises `struct_size` writable
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

/// Checks the size of a structure of functions, which no version but this one has.
pub(crate) fn check_struct_size<T>(said: u64) -> Result<(), CallError> {
    let known = size_of::<T>() as u64;
    if said == known {
        return Ok(());
    }
    let name = std::any::type_name::<T>().rsplit("::").next().unwrap_or_default();
    Err(CallError::invalid(format_args!(
        "struct_size is {said}, and the structure has {known} bytes: set it to sizeof({name})"
    )))
}

/// The largest number of NUMA nodes that Linux can be built for.
const MAX_NODES: u64 = 1024;

/// Borrows a list of NUMA nodes.
pub(crate) fn numa_nodes(nodes: &In<u32>, count: u64) -> Result<&[u32], CallError> {
    nodes.short_list(count, MAX_NODES, "numa_nodes")
}

/// The largest number of hot sizes of a space.
const MAX_HOT_SIZES: u64 = 32;

/// Borrows a list of hot sizes.
pub(crate) fn hot_sizes(sizes: &In<u64>, count: u64) -> Result<&[u64], CallError> {
    sizes.short_list(count, MAX_HOT_SIZES, "hot_sizes")
}

/// Converts a NUMA policy and its nodes.
pub(crate) fn numa(numa_policy: u32, nodes: &[u32]) -> Result<Numa, CallError> {
    choice!(numa_policy:
        KVMEM_NUMA_ANY => Numa::None,
        KVMEM_NUMA_BIND => Numa::Bind(nodes.to_vec()),
        KVMEM_NUMA_INTERLEAVE => Numa::Interleave(nodes.to_vec()),
    )
}

/// Converts a backing.
pub(crate) fn backing(backing: u32) -> Result<Backing, CallError> {
    choice!(backing:
        KVMEM_BACKING_PRIVATE => Backing::Private,
        KVMEM_BACKING_SHARED => Backing::Shared,
    )
}

/// Parses kinds of pages; NULL is the default ladder.
pub(crate) fn ladder(pages: &In<c_char>, strict: u32) -> Result<Ladder, CallError> {
    let ladder = match pages.text("pages")? {
        None => Ladder::default(),
        Some(words) => words.parse().map_err(CallError::invalid)?,
    };
    Ok(ladder.strict(flag(strict, "strict")?))
}

/// Parses a registration policy; NULL is "auto".
pub(crate) fn policy(policy: &In<c_char>) -> Result<Policy, CallError> {
    policy.text("policy")?.map_or(Ok(Policy::Auto), |words| {
        words.parse().map_err(|_| {
            CallError::invalid(format_args!(
                "policy is {words:?}: use auto, sequential, parallel or parallel:N"
            ))
        })
    })
}
