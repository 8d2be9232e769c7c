//! *Session file*: shows the server which clients live, and clients whether their pins were
//! revoked.
//!
//! A client reads and writes blocks in memory that it maps, so the server may give a block to
//! another client only when the first one can no longer reach it. Two questions follow, and both
//! must have their answers also after the server was killed. One file answers them. It has one page
//! of words, no client can open it for writing, and it is retained with the memory file and the
//! index file, so it outlives every server.
//!
//! # Does the client live? The lock
//!
//! Each session has a *position*, a random number that the index file has, and the server opens the
//! session file once more for each session. It takes a lock of that open file (`F_OFD_SETLK`) at
//! the position, sends the descriptor to the client, and closes its own. The client maps the words
//! and closes the descriptor, too: from then on the mapping alone holds the open file, and the open
//! file the lock. The kernel releases the lock when it has torn down the address space of the
//! client, by whatever end, and no sooner: nothing that reads or writes the blocks of the session
//! is left then. Any server, also a later one, asks the kernel whether the lock is held
//! (`F_OFD_GETLK`).
//!
//! The answer needs no `/proc`, no number of a process and no clock, and is the same in every PID
//! and time namespace, for every user, and for a process whose first thread has ended. A forked
//! child has neither the mapping nor the memory (`MADV_DONTFORK`); a child of `vfork`, which has
//! both, holds the lock as well. A client cannot give up the lock of another one. It can hold it
//! longer than that one lives, and so retain blocks of a client that is gone: see *Security* in
//! [the crate's page](crate#security).
//!
//! # Were pins revoked? The words
//!
//! A session has two words. The *pin word* changes before the server takes back the blocks of the
//! session's pins, and the *session word* becomes 0 before it takes back all that the session has.
//! A client reads bytes, and then the pin word: if the word is the one that belongs to its pins,
//! the bytes are those of the value. It writes to a reservation only while the session word is its
//! own. The next server goes on with the words of the one before, so it can revoke what clients
//! map that have not connected to it yet.
//!
//! # Ordering
//!
//! ```text
//!  server               another client            the client with the pins
//!  word ← revoked
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

mod file;
mod lock;
mod order;
mod view;

#[cfg(all(test, loom, not(shuttle)))]
mod models;
#[cfg(all(test, not(loom)))]
mod tests;

pub(crate) use file::SessionFile;
pub(crate) use lock::{is_locked_by_others, lock};
pub(crate) use order::before_writing;
pub(crate) use view::SessionView;

use crate::format::MAX_SESSIONS;

/// Bytes of the words: the pin words of all sessions, and then their session words.
pub(crate) const FILE_BYTES: usize = 4096;

/// The place of a session's pin word among the words of the file.
fn pin_word_at(session: usize) -> usize {
    session
}

/// The place of a session's session word.
fn session_word_at(session: usize) -> usize {
    MAX_SESSIONS + session
}

const _: () = assert!(2 * MAX_SESSIONS * size_of::<u64>() <= FILE_BYTES);
#[cfg(not(loom))]
const _: () = assert!(size_of::<crate::sync::AtomicU64>() == 8);
