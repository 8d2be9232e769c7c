//! [`MemoryHolderClient`]: the calls of a memory holder's clients.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use super::MemoryHolderError;
use super::messages::{
    HolderAnswer, HolderCall, HolderOutcome, MAX_HOLDER_MESSAGE, MESSAGES_VERSION, RetainedListed,
    decode, encode,
};
use crate::socket::{self, MAX_DESCRIPTORS, Peer};

/// A memory holder answers from its memory, within microseconds.
const PATIENCE: Duration = Duration::from_secs(10);

/// A connection to a memory holder. Names that it has claimed are free when it is dropped.
#[derive(Debug)]
pub struct MemoryHolderClient {
    path: PathBuf,
    socket: OwnedFd,
    pid: u32,
}

/// An answer of another kind than the call's.
const UNEXPECTED: MemoryHolderError =
    MemoryHolderError::BadAnswer { what: "an answer to another call" };

/// The time that a memory holder has to accept connections, of which it has many.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);

impl MemoryHolderClient {
    /// Connects to the memory holder at the socket `path`.
    ///
    /// # Errors
    /// [`MemoryHolderError::NoHolder`]; [`MemoryHolderError::ForeignHolder`] if it is neither of
    /// this user nor of root.
    pub fn connect(path: impl AsRef<Path>) -> Result<MemoryHolderClient, MemoryHolderError> {
        let path = path.as_ref();
        let socket = socket::connect_within(path, CONNECT_WITHIN);
        let socket = socket.map_err(|errno| no_holder(path, errno))?;
        let peer = Peer::of(&socket).map_err(|errno| no_holder(path, errno))?;
        let own = rustix::process::geteuid().as_raw();
        if peer.uid != own && peer.uid != 0 {
            let path = path.display().to_string();
            return Err(MemoryHolderError::ForeignHolder { path, uid: peer.uid });
        }
        Ok(MemoryHolderClient { path: path.to_path_buf(), socket, pid: peer.pid })
    }

    /// Returns the number of the memory holder's process; 0 if it is not visible to this process.
    #[must_use]
    pub fn holder_pid(&self) -> u32 {
        self.pid
    }

    /// Returns whether the memory holder still has the connection.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        let mut fds = [PollFd::new(&self.socket, PollFlags::RDHUP)];
        matches!(poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(0))
    }

    /// Takes the sole use of a name until the connection ends. Returns the descriptors that were
    /// put under it: none if there are none.
    ///
    /// # Errors
    /// [`MemoryHolderError::Call`] with [`Claimed`](super::MemoryHolderCallError::Claimed) if
    /// another connection has it.
    pub fn claim(&self, name: &str) -> Result<Vec<OwnedFd>, MemoryHolderError> {
        self.descriptors(&HolderCall::Claim { name })
    }

    /// Gives duplicates of descriptors to the memory holder, under a name that has none.
    ///
    /// # Errors
    /// [`MemoryHolderError::Call`].
    pub fn put(&self, name: &str, descriptors: &[BorrowedFd<'_>]) -> Result<(), MemoryHolderError> {
        let (got, limit) = (descriptors.len(), MAX_DESCRIPTORS);
        if got > limit {
            let expected = got;
            return Err(super::MemoryHolderCallError::Descriptors { got, expected, limit }.into());
        }
        self.done(&HolderCall::Put { name, count: got as u8 }, descriptors)
    }

    /// Returns duplicates of the descriptors under a name.
    ///
    /// # Errors
    /// [`MemoryHolderError::Call`] with [`Absent`](super::MemoryHolderCallError::Absent) or
    /// [`Claimed`](super::MemoryHolderCallError::Claimed).
    pub fn get(&self, name: &str) -> Result<Vec<OwnedFd>, MemoryHolderError> {
        self.descriptors(&HolderCall::Get { name })
    }

    /// Lists the names that have descriptors.
    ///
    /// # Errors
    /// [`MemoryHolderError`].
    pub fn list(&self) -> Result<Vec<RetainedListed>, MemoryHolderError> {
        match self.call(&HolderCall::List, &[])? {
            (HolderAnswer::Listed(names), _) => Ok(names),
            _ => Err(UNEXPECTED),
        }
    }

    /// Makes the memory holder close the descriptors under a name. Files that no other process has
    /// open are gone.
    ///
    /// # Errors
    /// [`MemoryHolderError::Call`], as of [`get`](Self::get).
    pub fn forget(&self, name: &str) -> Result<(), MemoryHolderError> {
        self.done(&HolderCall::Forget { name }, &[])
    }

    /// Moves the descriptors under `from` to the name `to`, which has none.
    ///
    /// # Errors
    /// [`MemoryHolderError::Call`].
    pub fn rename(&self, from: &str, to: &str) -> Result<(), MemoryHolderError> {
        self.done(&HolderCall::Rename { from, to }, &[])
    }

    /// Ends the memory holder, which closes everything that it has.
    ///
    /// # Errors
    /// [`MemoryHolderError`].
    pub fn stop(&self) -> Result<(), MemoryHolderError> {
        self.done(&HolderCall::Stop, &[])
    }

    fn done(
        &self,
        call: &HolderCall<'_>,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), MemoryHolderError> {
        match self.call(call, descriptors)? {
            (HolderAnswer::Done, _) => Ok(()),
            _ => Err(UNEXPECTED),
        }
    }

    fn descriptors(&self, call: &HolderCall<'_>) -> Result<Vec<OwnedFd>, MemoryHolderError> {
        match self.call(call, &[])? {
            (HolderAnswer::Descriptors { count }, descriptors) => {
                // The kernel drops descriptors if the process can open no more.
                let what = "fewer descriptors than it says: raise the limit on open files";
                let whole = descriptors.len() == usize::from(count);
                if whole { Ok(descriptors) } else { Err(MemoryHolderError::BadAnswer { what }) }
            }
            _ => Err(UNEXPECTED),
        }
    }

    fn call(
        &self,
        call: &HolderCall<'_>,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(HolderAnswer, Vec<OwnedFd>), MemoryHolderError> {
        let mut buffer = Vec::new();
        encode(call, &mut buffer);
        let failed = |errno| no_holder(&self.path, errno);
        socket::send(&self.socket, &buffer, descriptors, SendFlags::empty()).map_err(failed)?;
        wait(self.socket.as_fd()).map_err(failed)?;
        buffer.resize(MAX_HOLDER_MESSAGE, 0);
        let packet = socket::receive(&self.socket, &mut buffer, RecvFlags::DONTWAIT);
        let packet = packet.map_err(failed)?;
        if packet.len == 0 {
            return Err(failed(Errno::CONNRESET));
        }
        let outcome: Option<HolderOutcome> = decode(&buffer[..packet.len]);
        let undecodable = || match buffer[0] {
            MESSAGES_VERSION => MemoryHolderError::BadAnswer { what: "it cannot be decoded" },
            version => {
                let (path, pid) = (self.path.display().to_string(), self.pid);
                MemoryHolderError::HolderVersion { path, pid, version, known: MESSAGES_VERSION }
            }
        };
        Ok((outcome.ok_or_else(undecodable)??, packet.descriptors))
    }
}

/// Waits until an answer is there.
fn wait(socket: BorrowedFd<'_>) -> Result<(), Errno> {
    let patience = Timespec { tv_sec: PATIENCE.as_secs() as _, tv_nsec: 0 };
    loop {
        match poll(&mut [PollFd::new(&socket, PollFlags::IN)], Some(&patience)) {
            Err(Errno::INTR) => {}
            Ok(0) => return Err(Errno::TIMEDOUT),
            other => return other.map(drop),
        }
    }
}

fn no_holder(path: &Path, errno: Errno) -> MemoryHolderError {
    MemoryHolderError::NoHolder { path: path.display().to_string(), error: errno.into() }
}
