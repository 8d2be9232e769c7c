//! *Ops*: recorded allocator calls of a replay, to be sent to other allocators in the same order.
//!
//! - [`format`](mod@format) defines a file of calls, and reads one,
//! - [`recorder`] writes one while threads are at work,
//! - [`run`](mod@run) sends one through a contender,
//! - [`report`] is the result.
//!
//! A recording is *open loop*: it frees what the recorded run freed, however well another allocator
//! does. An allocator that wastes space therefore fails calls that were served; it does not evict
//! more.

pub mod format;
pub mod recorder;
pub mod report;
pub mod run;
