//! *Pin words*: tell a client at once, without a call, that its pins have ended.
//!
//! A client reads the values that it has pinned in memory that it maps, so the server cannot stop a
//! read when it takes the blocks back. It has one word for each session in a memory file that
//! clients map for reading only. The server changes the word of a session *before* it takes back
//! the blocks of the session's pins. A client reads bytes, and then its word: if the word is the
//! one that belongs to its pins, the bytes are those of the value.
//!
//! The words are those of one server process. A connection gets them with the greeting, so a client
//! that connects to the next server gets the words of that one.
//!
//! # Ordering
//!
//! ```text
//!  server               another client            the client with the pins
//!  word ← lost
//!  … frees the block
//!  … gives it away  ──→ gets the block
//!                       fence(Release)
//!                       block ← other bytes ──→   load bytes of the block
//!                                                 fence(Acquire)
//!                                                 load word
//! ```
//!
//! The block reaches the other client by a ring or by a socket, which order the server's store of
//! the word before all that this client does next. If the reader has loaded one of the other bytes,
//! the two fences order that client's past before the load of the word, which therefore returns the
//! new value. The models fail without either fence.
//!
//! Devices, and the tier's calls of the kernel, write bytes with no fence of this library. The
//! kernel and the driver order what they transfer after what the thread did before it started the
//! transfer.

mod order;
mod view;
mod words;

#[cfg(all(test, loom, not(shuttle)))]
mod models;

pub(crate) use order::before_writing;
pub(crate) use view::PinWordView;
pub(crate) use words::PinWords;

use crate::format::MAX_SESSIONS;

/// Bytes of the memory file of the words: one page.
const FILE_BYTES: usize = 4096;

const _: () = assert!(MAX_SESSIONS * size_of::<u64>() <= FILE_BYTES);
#[cfg(not(loom))]
const _: () = assert!(size_of::<crate::sync::AtomicU64>() == 8);
