//! *Tier*: values that memory has no room for, on a disk or in a cluster.
//!
//! The server's thread never waits for a disk, except when an operator removes all values. Two
//! threads of the server do: one stores and removes, in the order in which the node says so, and
//! one fetches. Two more do the same for a network.
//!
//! - *Storing.* While the memory is fuller than `TierOptions::store_above`, one half, the node
//!   stores the values that it would evict next. They stay in memory, marked as *clean*; evicting a
//!   clean value takes no time. A value that must go before it was stored is in neither of them
//!   then.
//! - *Fetching.* An acquisition of keys that only the tier has waits, without holding up other
//!   calls, until they are in memory. Several that want one key share one read. Values are verified
//!   by the tier.
//! - *Removing.* A value that is removed or replaced must not come back from the tier. Its entry
//!   stays detached, and says so in the index file, until the tier has removed it: a server that
//!   recovers the file does it then.
//!
//! - *Looking up.* A tier over a network does not know what it has. A thread asks it for the keys
//!   of an acquisition or a look-up that memory and the disk lack, in one call. What it found is
//!   known for two seconds: an acquisition often follows a look-up.

mod jobs;
mod threads;

pub(crate) use jobs::{Fetching, LookingUp, Offered, Removing, Storing, TierDone, TierJob};
pub(crate) use jobs::{TierOptions, tier_key};
pub(crate) use threads::TierThreads;
#[cfg(all(test, not(loom)))]
pub(crate) use threads::TierWorker;
