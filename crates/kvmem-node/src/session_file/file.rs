//! [`SessionFile`]: the words of all sessions and the locks of their clients, in the server.

use std::os::fd::{AsFd, OwnedFd};

use kvmem::arena::{ArenaError, Backing, PageSize, Populate, Region};
use rustix::fs::{Mode, fchmod, fstat};
use rustix::io::Errno;

use super::{FILE_BYTES, lock, order, pin_word_at, session_word_at};
use crate::error::{BadIndex, NodeError};
use crate::format::MAX_SESSIONS;
use crate::sync::{AtomicU64, Ordering};

/// The session file, mapped by the server. The words of a session are 0 while there is none.
#[derive(Debug)]
pub(crate) struct SessionFile(Region);

impl SessionFile {
    /// Makes a file without a name. Its size is sealed.
    pub(crate) fn create() -> Result<SessionFile, NodeError> {
        let builder = Region::builder(FILE_BYTES)
            .backing(Backing::Shared)
            .ladder(PageSize::Base)
            .populate(Populate::None);
        SessionFile::created(builder.map()?)
    }

    /// Maps the file of an earlier server.
    pub(crate) fn attach(file: OwnedFd) -> Result<SessionFile, NodeError> {
        SessionFile::of_server(Region::attach(file, None)?)
    }

    /// Keeps other users from opening a new file for writing. One of the server's own user can open
    /// it, and can also trace the server.
    fn created(region: Region) -> Result<SessionFile, NodeError> {
        let file = region.fd().expect("the session file is shared");
        fchmod(file, Mode::RUSR | Mode::WUSR)
            .map_err(NodeError::system("fchmod of the session file"))?;
        SessionFile::of_server(region)
    }

    fn of_server(region: Region) -> Result<SessionFile, NodeError> {
        if region.len() < FILE_BYTES {
            let (got, expected) = (region.len() as u64, FILE_BYTES as u64);
            return Err(BadIndex::SessionFileLength { got, expected }.into());
        }
        Ok(SessionFile(region))
    }

    /// Returns the inode number of the file.
    pub(crate) fn id(&self) -> Result<u64, NodeError> {
        let file = self.0.fd().expect("the session file is shared");
        let found = fstat(file).map_err(NodeError::system("fstat of the session file"))?;
        Ok(found.st_ino)
    }

    /// Duplicates the descriptor of the file, for the process that retains it.
    pub(crate) fn share(&self) -> Result<OwnedFd, ArenaError> {
        self.0.share().map(|file| file.expect("the session file is shared"))
    }

    /// Opens the file once more for the client of a session. The new open file holds the lock at
    /// the session's position, cannot be mapped for writing, and is the only one of its lock.
    ///
    /// # Errors
    /// [`ArenaError`] if the process has no free descriptor or `/proc` is not mounted;
    /// [`NodeError::System`] if the kernel has no memory for the lock.
    pub(crate) fn open_locked(&self, position: u64) -> Result<OwnedFd, NodeError> {
        let opened = self.0.share_read_only()?.expect("the session file is shared");
        lock::lock(&opened, position).map_err(NodeError::system("F_OFD_SETLK"))?;
        Ok(opened)
    }

    /// Returns whether a process still has what [`open_locked`](Self::open_locked) has returned for
    /// a position.
    ///
    /// # Errors
    /// The kernel does not know. The process may live.
    pub(crate) fn is_locked(&self, position: u64) -> Result<bool, Errno> {
        let file = self.0.fd().expect("the session file is shared");
        lock::is_locked_by_others(file.as_fd(), position)
    }

    /// Returns whether the words of a session have begun and have not ended.
    pub(crate) fn has_begun(&self, session: usize) -> bool {
        // Relaxed: as below, and what an earlier server stored is there when this one starts.
        self.word(session_word_at(session)).load(Ordering::Relaxed) != 0
    }

    /// Returns the value of a session's pin word.
    pub(crate) fn pin_word(&self, session: usize) -> u64 {
        // Relaxed: this thread alone stores to the words.
        self.word(pin_word_at(session)).load(Ordering::Relaxed)
    }

    /// Changes the pin word of a session. The caller frees the blocks of its pins afterwards.
    pub(crate) fn set_pin_word(&self, session: usize, value: u64) {
        order::announce(self.word(pin_word_at(session)), value);
    }

    /// Begins the words of a session. `identity` is not 0 and differs from those of earlier
    /// sessions at this place.
    pub(crate) fn begin(&self, session: usize, identity: u64) {
        order::announce(self.word(pin_word_at(session)), identity);
        order::announce(self.word(session_word_at(session)), identity);
    }

    /// Ends the words of a session. The caller frees its blocks afterwards.
    pub(crate) fn end(&self, session: usize) {
        order::announce(self.word(session_word_at(session)), 0);
        order::announce(self.word(pin_word_at(session)), 0);
    }

    /// Returns the address of the first word.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn base(&self) -> usize {
        self.0.base().as_ptr().addr()
    }

    /// Copies the words of another file.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn copy_from(&self, other: &SessionFile) {
        for at in 0..2 * MAX_SESSIONS {
            self.word(at).store(other.word(at).load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// Stores to a word.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn store(&self, at: usize, value: u64) {
        self.word(at).store(value, Ordering::Relaxed);
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at < 2 * MAX_SESSIONS, "there is no word {at}");
        // SAFETY: the word lies in the mapping, which has `FILE_BYTES`, begins at a page and lives
        // as long as `self`. All processes use the memory as atomic words.
        unsafe { self.0.base().cast::<AtomicU64>().add(at).as_ref() }
    }
}
