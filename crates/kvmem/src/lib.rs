//! # kvmem: vmem for KV caches
//!
//! The host-memory stack under an LLM inference server. Four layers, after Bonwick's slabs and his
//! *Magazines and Vmem*; a layer uses only what stands below it, and [`offset`] stands on nothing.
//!
//! | layer | hands out | Bonwick's word | today |
//! |---|---|---|---|
//! | [`pool`] | blocks: all four assembled | | **stands** |
//! | L4 [`slab`] | objects: fixed-size, cached per thread | slab, magazine, depot | **stands** |
//! | L3 [`offset`] | offsets: ranges of an abstract space | vmem | **stands** |
//! | L2 [`register`] | keys: the right to DMA into bytes | | **stands** |
//! | L1 [`arena`] | bytes: mapped, resident, placed | page allocator | **stands** |
//!
//! [`arena::Region`] is memory: mapped on the best pages there are, placed, populated, with a
//! receipt that says what was got. [`register::RegistrationSet`] is such memory pinned with rings,
//! NICs or GPUs, all of it or nothing, with keys that cannot outlive it.
//! [`offset::OffsetAllocator`] hands out byte ranges of a space of up to 2^63 bytes in constant
//! time, and never touches the bytes; so it serves memory that was mapped or registered by other
//! means too. [`slab::SlabAllocator`] serves the small objects around them, from magazines that
//! each thread has to itself. [`pool::Pool`] is all of them in one builder: blocks with bytes,
//! offsets and keys.
//!
//! ```
//! use kvmem::offset::{AllocError, OffsetAllocator};
//!
//! // 1 TiB of memory that was registered in chunks of 1 GiB: nothing is handed out across two of them.
//! let space = OffsetAllocator::builder(1 << 40).boundary(1 << 30).build()?;
//!
//! // One page of KV cache and its index. Sizes are exact: nothing is rounded up.
//! let kv = space.allocate(3_274_752)?;
//! let index = space.allocate_aligned(658_432, 4096)?;
//! println!("KV cache at {:?}, index at {:?}", kv.range(), index.range());
//! assert_eq!(space.metrics().allocated, 3_274_752 + 658_432);
//!
//! // What cannot be is a small value that says why.
//! let refused = space.allocate(2 << 30).map(drop);
//! assert_eq!(refused, Err(AllocError::TooLarge { requested: 2 << 30, limit: 1 << 30 }));
//!
//! // Dropping frees. Free neighbours are one range.
//! drop((kv, index));
//! assert_eq!(space.metrics().free, space.capacity());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

// Without these features there is less to link to.
#![cfg_attr(
    not(all(feature = "metrics", feature = "tracing")),
    allow(rustdoc::broken_intra_doc_links)
)]
// The model check uses a part of what is there.
#![cfg_attr(loom, allow(dead_code, unused_imports))]

pub mod arena;
pub mod offset;
#[cfg(not(loom))]
pub mod pool;
/// What the model check sees of it.
#[cfg(loom)]
#[path = "pool/loom_face.rs"]
pub mod pool;
#[cfg(not(loom))]
pub mod register;
/// What the model check sees of it.
#[cfg(loom)]
#[path = "register/loom_face.rs"]
pub mod register;
pub mod slab;
mod sync;
mod sys;
mod trace;

#[cfg(feature = "fault-injection")]
#[doc(hidden)]
pub use sys::fault;

/// For the C ABI, whose handles are looked up in such tables.
#[cfg(not(loom))]
#[doc(hidden)]
pub use sync::{FIRST, Stable};

#[cfg(loom)]
#[doc(hidden)]
pub use sync::loom_face as sync_loom_face;
