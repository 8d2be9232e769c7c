//! [`SessionView`]: the words of one session, in its client.

use std::os::fd::OwnedFd;

use kvmem::arena::{ArenaError, ReadOnlyRegion};

use super::{FILE_BYTES, order, pin_word_at, session_word_at};
use crate::format::MAX_SESSIONS;
use crate::sync::{AtomicU64, Ordering};

/// The words of the client's session. While the value lives, the server takes the client for
/// living.
#[derive(Debug)]
pub(crate) struct SessionView {
    memory: ReadOnlyRegion,
    session: usize,
    /// The session word when the session was begun or resumed.
    identity: u64,
}

impl SessionView {
    /// Maps the words of a session. `None`: there is no such session.
    pub(crate) fn attach(file: OwnedFd, session: u16) -> Result<Option<SessionView>, ArenaError> {
        let mut memory = ReadOnlyRegion::attach(file, None)?;
        let session = usize::from(session);
        if session >= MAX_SESSIONS || memory.len() < FILE_BYTES {
            return Ok(None);
        }
        // A forked child would inherit the descriptor, and with it the lock.
        memory.close_descriptor();
        let mut view = SessionView { memory, session, identity: 0 };
        // Relaxed: the server has begun the word before it sent the descriptor.
        view.identity = view.word(session_word_at(session)).load(Ordering::Relaxed);
        Ok((view.identity != 0).then_some(view))
    }

    /// Returns whether the pin word has a value, after all loads that this thread has made before.
    pub(crate) fn has_pin_word(&self, value: u64) -> bool {
        order::is(self.word(pin_word_at(self.session)), value)
    }

    /// Returns whether the server still has the session: it has granted no block of it to others
    /// before the loads that this thread has made before.
    pub(crate) fn has_session(&self) -> bool {
        order::is(self.word(session_word_at(self.session)), self.identity)
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        // SAFETY: nothing is read through the slice; only its address is taken.
        let bytes = unsafe { self.memory.bytes(..FILE_BYTES) }.expect("the length was checked");
        // SAFETY: the word lies in the mapping, which begins at a page and lives as long as `self`.
        // All processes use the memory as atomic words.
        unsafe { &*bytes.as_ptr().cast::<AtomicU64>().add(at) }
    }
}
