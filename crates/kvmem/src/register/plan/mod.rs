//! *Plan*: the work of registering as data, computed before any of it is done.
//!
//! A plan is a pure function of the memory's pages, the registrars' limits, and the user's options.
//! Its rules:
//!
//! - **Chunks are as large as possible.** One key for everything is the simplest to use. A chunk is
//!   smaller if the device cannot take more, if many keys cost nothing and smaller chunks register
//!   faster, or if the user sets a length.
//! - **Chunks cover the whole region**: the chunks of each registrar follow each other without a
//!   gap or overlap, from the first byte to the last.
//! - **Edges are page boundaries** of the actual pages, and the edges of each registrar are among
//!   those of the registrar with the smallest chunks. One boundary therefore suffices for an
//!   allocator.
//! - **Missing pages are populated first**, by threads that each have their own share. Untouched
//!   memory is never registered by several registrars at once.
//! - **Chunk by chunk, not registrar by registrar**: the kernel's metadata of a chunk's pages is
//!   still in the cache when the next registrar needs it.

mod admission;
mod chunks;
mod display;
mod layout;
#[allow(clippy::module_inception)]
mod plan;
mod planner;
mod policy;
mod strategy;

pub(crate) use admission::admit;
pub(super) use admission::{check_keys, check_memlock};
pub(super) use layout::MemoryLayout;
pub(super) use strategy::CallStrategy;

pub use plan::{CalibrationPlan, DevicePlan, Estimate, Plan};
pub use planner::plan;
pub use policy::PlanOptions;
pub use policy::{ParsePolicyError, Policy, PolicyError};
