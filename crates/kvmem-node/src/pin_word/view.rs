//! *View*: the word of one session, in its client.

use std::os::fd::OwnedFd;

use kvmem::arena::{ArenaError, ReadOnlyRegion};

use super::{FILE_BYTES, order};
use crate::format::MAX_SESSIONS;
use crate::sync::AtomicU64;

/// The word of the client's session.
#[derive(Debug)]
pub(crate) struct PinWordView {
    memory: ReadOnlyRegion,
    session: usize,
}

impl PinWordView {
    /// Maps the words of a server. The size of the file is sealed, and is checked. `None`: there is
    /// no such session.
    pub(crate) fn attach(file: OwnedFd, session: u16) -> Result<Option<PinWordView>, ArenaError> {
        let memory = ReadOnlyRegion::attach(file, Some(FILE_BYTES))?;
        let session = usize::from(session);
        Ok((session < MAX_SESSIONS).then_some(PinWordView { memory, session }))
    }

    /// Returns whether the word has a value, after all loads that this thread has made before.
    pub(crate) fn is(&self, value: u64) -> bool {
        // SAFETY: nothing is read through the slice; only its address is taken.
        let Ok(bytes) = (unsafe { self.memory.bytes(..FILE_BYTES) }) else { return false };
        // SAFETY: the word lies in the mapping, which begins at a page and lives as long as `self`.
        // All processes use the memory as atomic words.
        let word = unsafe { &*bytes.as_ptr().cast::<AtomicU64>().add(self.session) };
        order::is(word, value)
    }
}
