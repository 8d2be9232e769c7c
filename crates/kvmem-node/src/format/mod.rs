//! *Format*: the index of a node's memory, as it lies in the index file.
//!
//! The index file has a header, a table of sessions, a table of namespaces, and entries
//! of 192 bytes, one for each block. `docs/format/node.md` describes every byte. Only the server
//! maps the file. Its bytes are little-endian machine words that the server changes in place, and
//! the file survives the server: a memory holder process, or systemd, holds its descriptor.
//!
//! # Every prefix of the stores is a valid state
//!
//! The server can end between any two of its stores. All stores before that instant are in the
//! file, and none after it. Three rules make each such prefix a valid state:
//!
//! 1. An entry's first word has its *state* and its *generation*. All other words of a state are
//!    stored before the word that announces the state.
//! 2. The word of a state that no longer needs the entry's extent is stored before the extent is
//!    allocated again.
//! 3. A batch becomes visible by one store: its entries are [`Prepared`](State::Prepared), then the
//!    header names the batch, then the entries become [`Committed`](State::Committed) one by one.
//!    A recovery that finds a batch named completes it; otherwise it undoes it.
//!
//! The compiler does not reorder the stores because the announcing ones are `Release`. The
//! processor completes the stores of a process that is killed in their order.

mod cells;
mod entry;
mod header;

pub(crate) use cells::{NamespaceCell, SessionCell, SessionRecord, WORDS_OF_BITMAP};
pub use entry::State;
pub(crate) use entry::{Committing, EntryCell, Word, data_type};
pub(crate) use header::{Header, HeaderCell, TierRemovals};

/// The most bytes of a key.
pub const MAX_KEY: usize = 64;

/// The most sessions at one time.
pub const MAX_SESSIONS: usize = 256;

/// The most namespaces of one node.
pub const MAX_NAMESPACES: usize = 256;

/// The most bytes of the name of a namespace.
pub const MAX_NAMESPACE_NAME: usize = 56;

/// The version of the format.
pub const VERSION: u32 = 3;

/// Where the table of sessions begins, in bytes of the file.
pub(crate) const SESSIONS_AT: usize = 4096;

/// Where the table of namespaces begins.
pub(crate) const NAMESPACES_AT: usize = 24 << 10;

/// Where the entries begin.
pub(crate) const ENTRIES_AT: usize = 64 << 10;

/// Bytes of an entry.
pub const ENTRY_BYTES: usize = 192;

/// Returns the bytes of an index file with `entries` entries.
pub(crate) fn file_len(entries: u32) -> usize {
    ENTRIES_AT + entries as usize * ENTRY_BYTES
}

const _: () = assert!(SESSIONS_AT + MAX_SESSIONS * size_of::<SessionCell>() <= NAMESPACES_AT);
const _: () = assert!(NAMESPACES_AT + MAX_NAMESPACES * size_of::<NamespaceCell>() <= ENTRIES_AT);
const _: () = assert!(size_of::<EntryCell>() == ENTRY_BYTES);
const _: () = assert!(size_of::<HeaderCell>() <= SESSIONS_AT);

/// Stores a word of the index file. Every store to the file goes through this function or through
/// [`announce`], so a test can replay any prefix of them.
pub(crate) fn put(cell: &std::sync::atomic::AtomicU64, value: u64) {
    #[cfg(all(test, not(loom)))]
    crate::test_stores::note(cell, value);
    // Relaxed: the word is announced by a later store, of `announce`.
    cell.store(value, std::sync::atomic::Ordering::Relaxed);
}

/// Stores a word that announces those stored before.
pub(crate) fn announce(cell: &std::sync::atomic::AtomicU64, value: u64) {
    #[cfg(all(test, not(loom)))]
    crate::test_stores::note(cell, value);
    // Release: pairs with the Acquire of the recovery that reads the word in a later process.
    cell.store(value, std::sync::atomic::Ordering::Release);
}
