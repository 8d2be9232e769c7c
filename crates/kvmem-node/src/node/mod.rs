//! *Node*: the state of the server, without sockets: keys, blocks, sessions, namespaces.
//!
//! One thread calls it, so it needs no lock. What must survive the server is in the index file
//! ([`memory`]), stored in the order that the [format](crate::format) demands. Everything else is
//! made again by a [recovery](recover): the table from keys to entries, the free ranges of the
//! memory, the order in which values are evicted, and the sums.
//!
//! | file | what it does |
//! |---|---|
//! | `node.rs` | the state, and steps that several calls share |
//! | `reserve.rs`, `commit.rs` | a value comes: an extent for its bytes, then its key |
//! | `acquire.rs` | a value is found, pinned and released |
//! | `remove.rs`, `evict.rs` | a value goes |
//! | `misses.rs`, `miss_reason.rs`, `ghosts.rs` | a key has no value: why |
//! | `curve.rs`, `evicted_stack.rs` | the hits that more or less memory would bring |
//! | `tier/` | values go to the tier and come back |
//! | `resize.rs` | the memory becomes smaller or larger |
//! | `slice.rs` | the time that a step of long work has |
//! | `drain.rs` | values go to the tier before the server ends |
//! | `sessions.rs` | clients come, return after the server's restart, fall silent, and end |
//! | `ending.rs` | what clients had is released, some at a time |
//! | `holders.rs` | what users and readers may pin |
//! | `namespaces.rs`, `lists.rs` | limits, shares, and the order of eviction |
//! | `chains.rs` | the values of a prefix: ends are evicted before starts |
//! | `memory.rs` | the three files |
//! | `recover.rs` | the state of an index file that an earlier server left |

mod acquire;
mod chains;
mod check;
mod commit;
mod curve;
mod drain;
mod ending;
mod events;
mod evict;
mod evicted_stack;
mod ghosts;
mod handles;
mod holders;
mod lists;
mod local;
mod memory;
mod miss_reason;
mod misses;
mod namespaces;
#[expect(clippy::module_inception, reason = "one noun a file")]
mod node;
mod options;
mod recover;
mod remove;
mod reserve;
mod resize;
mod scrub;
mod sessions;
#[cfg(all(test, not(loom)))]
mod simulated;
mod slice;
mod stats;
#[cfg(all(test, not(loom)))]
mod tests;
mod tier;

pub use acquire::Located;
pub(crate) use commit::CommitItem;
pub(crate) use events::{Change, Place};
pub use events::{Event, EventKind, Events, NO_NAMESPACE};
pub(crate) use evict::Evicted;
pub use handles::BlockHandle;
pub(crate) use handles::Granted;
pub(crate) use memory::NodeMemory;
pub use miss_reason::MissReason;
pub use misses::Miss;
pub use node::Node;
pub(crate) use options::PIECE_BYTES;
pub use options::{Eviction, MAX_BATCH, NO_BOUNDARY, NamespaceLimits, NodeOptions};
pub use recover::RecoveryReport;
pub(crate) use remove::Clearing;
pub(crate) use resize::ResizeStep;
pub use resize::Resized;
pub(crate) use scrub::Scrubbing;
pub(crate) use sessions::{NewSession, SessionIndex};
#[cfg(all(test, not(loom)))]
pub(crate) use simulated::{FoundValue, FoundValues, Granting};
pub(crate) use slice::Slice;
pub use stats::{Listed, NamespaceStats, NodeStats};
pub(crate) use tier::Waiting;
