//! *Combining*: under contention, work travels to the data, and not the data to the work.
//!
//! A lock moves the data that it guards: each new holder fetches every cache line that the last one
//! wrote, which takes far longer than the change itself. With *flat combining* (Hendler, Incze,
//! Shavit, Tzafrir 2010) a thread that meets a holder publishes its request instead, and the holder
//! runs it. One line travels there and back; the data stay where they are.
//!
//! ```text
//!                            16 waits
//!            ┌───────────────────────────────────────▶┐
//!  closed: take the lock, or wait for it         open: the processor that used the lock last
//!            ◀───────────────────────────────────────┘ goes on, and serves what others publish
//!             64 operations with nothing to serve,
//!             or more than 256 µs for them
//! ```
//!
//! *Closed*, this is a lock: one load more than [`RawLock`](super::lock::RawLock). *Open*, threads
//! of the *owner*, the processor that runs the holders, still take the lock, because the data are
//! in its cache. A thread of another processor publishes in a [slot](slots):
//!
//! - a *request*, whose answer it waits for;
//! - a *note*, a request without an answer, after which it goes on at once.
//!
//! **Serving.** Each holder serves the slots after every second operation; after the first of the
//! two it only fetches the lines in use, which takes as long as an operation. No thread is made for
//! it, and nothing has to be scheduled: a thread whose request is not answered looks at the lock
//! after a while, and takes it when its last holder is not using it. It then serves all others, and
//! its processor becomes the owner. So a waiting thread waits for at most two operations and the
//! service of the slots, or until the holder runs again, as with the lock.
//!
//! **Order.** A note that *happened before* an operation has been run when that operation reads the
//! data, if the operation [serves](CombiningGuard::serve) first: publishing marks the slot before
//! the entry can be seen. Notes of one thread may be run in any order.
//!
//! **Closing.** Only a holder opens and closes entries, and it closes an entry only while the entry
//! is free. A thread that has claimed an entry knows that the slots stay open until a holder has
//! served it: nothing is overlooked.

mod mutex;
mod slots;
#[cfg(all(test, not(loom)))]
mod tests;

pub(crate) use self::mutex::{CombiningGuard, CombiningMutex};
pub(crate) use self::slots::{Combined, Words};
