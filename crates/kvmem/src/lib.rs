//! # kvmem: vmem for KV caches
//!
//! kvmem manages the host memory of LLM inference servers: it maps, pins, divides and caches it. It
//! has four layers, after Bonwick's slabs and his *Magazines and Vmem*, and a keyed cache on them.
//! A layer uses only the layers below it, and [`offset`] uses none.
//!
//! | layer | hands out | Bonwick's word |
//! |---|---|---|
//! | [`cache`] | values under keys, in blocks of a pool | |
//! | [`tier`] | the contract with a disk or a cluster below a cache | |
//! | [`pool`] | blocks: all four layers assembled | |
//! | L4 [`slab`] | objects: fixed-size, cached per thread | slab, magazine, depot |
//! | L3 [`offset`] | offsets: ranges of an abstract space | vmem |
//! | L2 [`register`] | keys: the right to DMA into bytes | |
//! | L1 [`arena`] | bytes: mapped, resident, placed | page allocator |
//!
//! [`arena::Region`] maps memory on the best available pages, places and populates it, and returns
//! a receipt that says what the kernel granted. [`register::RegistrationSet`] pins such memory with
//! io_uring rings, NICs or GPUs, all of it or nothing, and its keys cannot outlive the memory.
//! [`offset::OffsetAllocator`] allocates byte ranges of a space of up to 2^63 bytes in constant
//! time. It never touches the bytes, so it also serves memory that other code mapped or registered.
//! [`slab::SlabAllocator`] serves small objects from magazines that each thread has to itself.
//! [`pool::Pool`] combines all of them in one builder: its blocks have bytes, offsets and keys.
//!
//! ```
//! use kvmem::offset::{AllocError, OffsetAllocator};
//!
//! // 1 TiB of memory, registered in chunks of 1 GiB: no range crosses a chunk's end.
//! let space = OffsetAllocator::builder(1 << 40).boundary(1 << 30).build()?;
//!
//! // One page of KV cache and its index. Sizes are exact: none is rounded up.
//! let kv = space.allocate(3_274_752)?;
//! let index = space.allocate_aligned(658_432, 4096)?;
//! println!("KV cache at {:?}, index at {:?}", kv.range(), index.range());
//! assert_eq!(space.metrics().allocated, 3_274_752 + 658_432);
//!
//! // A request that cannot succeed returns a small error value with the reason.
//! let failed = space.allocate(2 << 30).map(drop);
//! assert_eq!(failed, Err(AllocError::TooLarge { requested: 2 << 30, limit: 1 << 30 }));
//!
//! // Dropping frees a range, and adjacent free ranges are joined.
//! drop((kv, index));
//! assert_eq!(space.metrics().free, space.capacity());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

// On docs.rs an item says which feature it takes.
#![cfg_attr(docsrs, feature(doc_cfg))]
// Without these features some linked items do not exist.
#![cfg_attr(
    not(all(feature = "metrics", feature = "tracing")),
    allow(rustdoc::broken_intra_doc_links)
)]

pub mod arena;
pub mod cache;
pub mod offset;
pub mod pool;
pub mod register;
pub mod slab;
#[doc(hidden)]
pub mod stats;
mod sync;
mod sys;
mod threads;
pub mod tier;
mod trace;

#[cfg(feature = "fault-injection")]
#[doc(hidden)]
pub use sys::fault;

/// For the C ABI, which looks up its handles in such tables.
#[doc(hidden)]
pub use sync::{AppendOnlyTable, FIRST};

/// The example on the page of the package, which must compile like any other.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct PackagePage;
