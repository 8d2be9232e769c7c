//! *Cluster*: a store of several machines below a node, reached through a process of its own.
//!
//! The client library of such a store has threads, may hang and may crash. It therefore runs in a
//! *helper*: a child process that a thread of the server starts, watches, kills when it hangs, and
//! starts again after a pause that doubles. While there is none that works, the tier is *away*:
//! look-ups find nothing, and values are dropped.
//!
//! - *Staging.* The helper maps one memory file of its own, not the memory of the node. The server
//!   copies a value into it before it is stored, and out of it after it was fetched. A helper that
//!   writes anywhere damages no value of the node. Each helper gets a new file, so one that was
//!   killed and still writes has memory that nobody uses.
//! - *Verifying.* Each value is followed by a trailer with its length and the checksums of its
//!   bytes and its key. The server makes it, and compares it with the bytes after it has copied
//!   them. Nothing that the helper says is believed beyond that.
//! - *Bounds.* Values that wait for the store are those that have space in the staging file.
//!   Further ones are dropped, and counted.
//! - *Removing.* A key that was removed is not looked up any more until the store has removed it.
//!   If the server ends before, the store keeps the value: keys of a cluster name their contents,
//!   as the hashes of engines do.

mod helper;
mod messages;
mod options;
mod program;
mod stats;
mod tier;
mod trailer;

pub use options::ClusterOptions;
pub use stats::ClusterStats;
pub use tier::ClusterTier;
