//! *Ring*: messages from one process to another through memory that both map.
//!
//! A call through the socket costs four system calls and two wake-ups. A client that calls often
//! asks for two rings instead, one for its requests and one for the answers. While both sides run,
//! a message then costs no system call: the sender stores it, and the receiver finds it.
//!
//! # Words and positions
//!
//! A ring is a header and an area of 2^k words of eight bytes. A message is a word with its length
//! in bytes, and the words of its bytes. It may go on at the start of the area. *Positions* count
//! words from the beginning of the ring, and never wrap: position `p` is word `p mod 2^k`.
//!
//! ```text
//!                 head                 tail
//!                  │                    │
//!  area   … free … │ len │ bytes … │ len│… free …
//!                  └ the receiver's     └ the sender's next word
//! ```
//!
//! The sender stores the tail, the receiver the head, each on a cache line of its own. Both keep
//! their own position in private memory, too, and store it only for the other side.
//!
//! # No side trusts the other
//!
//! Another process may store anything anywhere in the memory, at any time. Therefore:
//!
//! 1. All of it is atomic words, so a racing store yields some value and is no data race.
//! 2. Each word is loaded once and copied before it is checked. A message is decoded from the copy.
//! 3. A position of the other side must lie between the last one known and the bound that the own
//!    position gives: `old tail ≤ tail ≤ head + 2^k`, and `old head ≤ head ≤ tail`.
//! 4. A length must not exceed the limit of messages, nor the words before the tail.
//!
//! A failed check is a [`BadRing`], and ends the connection. Both processes map a file whose
//! size is sealed, so no access can fail.
//!
//! # Sleeping
//!
//! A side that has nothing to do polls for a while. Before it sleeps it says so in the header, and
//! looks once more. The other side looks at the flag after each message, and rings the *doorbell*
//! if the flag is set. Of the two stores and the two loads
//!
//! ```text
//!  sleeper:  flag ← 1;  fence;  load tail        sender:  tail ← t;  fence;  load flag
//! ```
//!
//! at least one load sees the other side's store, because both fences are `SeqCst`. So either the
//! sleeper sees the message, or the sender sees the flag. Both may happen: a doorbell says that a
//! look is worthwhile, and nothing else. A sender that waits for space sleeps in the same way, with
//! a flag of its own and the head in the place of the tail.
//!
//! # Time complexity
//!
//! All operations take O(length of the message).

mod consumer;
mod error;
mod heap;
mod lines;
mod memory;
#[cfg(all(test, loom))]
mod models;
mod producer;
#[cfg(all(test, not(loom)))]
mod tests;

pub use consumer::Consumer;
pub use error::BadRing;
pub use heap::{HeapRing, RingField};
pub(crate) use memory::{ClientEnds, ServerEnds, attach, create};
pub use producer::Producer;
