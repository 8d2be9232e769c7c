//! *The tier of a node*: which values go to it, come back from it, and must not come back.
//!
//! [`TierQueue`] has the tier and what is under way. The methods of [`Node`](super::Node) are in
//! files by what they do: [`storing`], [`fetching`], [`looking_up`], [`removing`], [`touching`] the
//! values that leave the memory, and [`done`] for what the threads of the tier report.

mod done;
mod fetching;
mod looking_up;
mod names;
mod parents;
mod queue;
mod removing;
mod storing;
mod touching;

/// A call that waits for the tier.
pub(crate) type Waiting = u64;

pub(super) use queue::TierQueue;
