//! Recordings of allocator calls: what a replay asked of its allocator, in order, to be asked of
//! others.
//!
//! - [`format`](mod@format) says how a file of calls is laid out, and reads one,
//! - [`recorder`] writes one while threads are at work,
//! - [`run`](mod@run) sends one through a contender,
//! - [`report`] is what comes out.
//!
//! A recording is *open loop*: it frees what was freed when it was made, however well another
//! allocator does. So one that wastes room refuses calls that were served; it does not evict more.

pub mod format;
pub mod recorder;
pub mod report;
pub mod run;
