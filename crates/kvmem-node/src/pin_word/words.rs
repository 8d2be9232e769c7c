//! *Words* of all sessions, in the server.

use std::os::fd::OwnedFd;

use kvmem::arena::{ArenaError, Backing, PageSize, Populate, Region};

use super::{FILE_BYTES, order};
use crate::format::MAX_SESSIONS;
use crate::sync::{AtomicU64, Ordering};

/// The words of all sessions. A word is 0 while there is no session.
#[derive(Debug)]
pub(crate) struct PinWords(Region);

impl PinWords {
    /// Makes the memory file.
    pub(crate) fn create() -> Result<PinWords, ArenaError> {
        let builder = Region::builder(FILE_BYTES)
            .backing(Backing::Shared)
            .ladder(PageSize::Base)
            .populate(Populate::None)
            .readers_only(true);
        builder.map().map(PinWords)
    }

    /// Returns a descriptor for a client, which cannot be mapped for writing.
    pub(crate) fn share(&self) -> Result<Option<OwnedFd>, ArenaError> {
        self.0.share_read_only()
    }

    /// Returns the value of a session's word.
    pub(crate) fn get(&self, session: usize) -> u64 {
        // Relaxed: this thread alone stores to the words.
        self.word(session).load(Ordering::Relaxed)
    }

    /// Changes the word of a session. The caller frees the blocks of its pins afterwards.
    pub(crate) fn set(&self, session: usize, value: u64) {
        order::announce(self.word(session), value);
    }

    fn word(&self, session: usize) -> &AtomicU64 {
        assert!(session < MAX_SESSIONS, "{session} is no session");
        // SAFETY: the word lies in the mapping, which begins at a page and lives as long as `self`.
        // All processes use the memory as atomic words.
        unsafe { self.0.base().cast::<AtomicU64>().add(session).as_ref() }
    }
}
