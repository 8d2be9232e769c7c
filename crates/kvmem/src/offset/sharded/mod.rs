//! *Shards*: one space, cut into parts with a lock each.
//!
//! A space has one lock, and all threads together make about as many calls as one. A *sharded*
//! space is [cut](cuts) into consecutive parts, the *shards*. Each is an allocator of its own, with
//! its metadata, its lock and its hint, whose offsets begin where the shard does. So an
//! [`Allocation`](super::Allocation) of a shard is one of the space: no offset is translated, and
//! an allocation frees itself in its shard by the number of its core, as in any space. A space
//! without shards takes the same path and the same instructions as before.
//!
//! **Home.** A thread requests from its *home shard* first. Its number selects it, [round
//! robin](homes) in the order in which threads make their first call. A number needs no system call
//! and stays with the thread, so a program with one thread behaves the same every time. The number
//! of the processor, which jemalloc can use, would give the threads of one processor one lock: a
//! preempted holder would make the others wait.
//!
//! **Stealing.** A request that the home shard cannot serve goes to the other shards, in a ring
//! from the home on. Each reads its hint first, so a shard that cannot serve it costs one load and
//! no lock. A request fails after every shard has failed it. No two locks are held at a time, so
//! locks have no order.
//!
//! **Price.** No allocation lies in two shards. Each shard therefore ends in a remainder that fits
//! nothing, none is longer than its shard, and placement sees one shard at a time.

mod batch;
mod builder;
mod cuts;
mod homes;
mod raw;
mod sharded_allocator;

pub use builder::ShardedAllocatorBuilder;
pub use sharded_allocator::ShardedAllocator;
