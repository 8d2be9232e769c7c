//! [`KeeperClient`]: the calls of a keeper's clients.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use super::KeeperError;
use super::messages::{
    KeeperAnswer, KeeperCall, KeeperOutcome, KeptListed, MAX_KEEPER_MESSAGE, decode, encode,
};
use crate::socket::{self, MAX_DESCRIPTORS, Peer};

/// A keeper answers from its memory, within microseconds.
const PATIENCE: Duration = Duration::from_secs(10);

/// A connection to a keeper. Names that it has claimed are free when it is dropped.
#[derive(Debug)]
pub struct KeeperClient {
    path: PathBuf,
    socket: OwnedFd,
    pid: u32,
}

/// An answer of another kind than the call's.
const UNEXPECTED: KeeperError = KeeperError::BadAnswer { what: "an answer to another call" };

/// The time that a keeper has to accept connections, of which it has many.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);

impl KeeperClient {
    /// Connects to the keeper at the socket `path`.
    ///
    /// # Errors
    /// [`KeeperError::NoKeeper`]; [`KeeperError::ForeignKeeper`] if it is neither of this user nor
    /// of root.
    pub fn connect(path: impl AsRef<Path>) -> Result<KeeperClient, KeeperError> {
        let path = path.as_ref();
        let socket = socket::connect_within(path, CONNECT_WITHIN);
        let socket = socket.map_err(|errno| no_keeper(path, errno))?;
        let peer = Peer::of(&socket).map_err(|errno| no_keeper(path, errno))?;
        let own = rustix::process::geteuid().as_raw();
        if peer.uid != own && peer.uid != 0 {
            let path = path.display().to_string();
            return Err(KeeperError::ForeignKeeper { path, uid: peer.uid });
        }
        Ok(KeeperClient { path: path.to_path_buf(), socket, pid: peer.pid })
    }

    /// Returns the number of the keeper's process; 0 if it is not visible to this process.
    #[must_use]
    pub fn keeper_pid(&self) -> u32 {
        self.pid
    }

    /// Returns whether the keeper still has the connection.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        let mut fds = [PollFd::new(&self.socket, PollFlags::RDHUP)];
        matches!(poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(0))
    }

    /// Takes the sole use of a name until the connection ends. Returns the descriptors that were
    /// put under it: none if there are none.
    ///
    /// # Errors
    /// [`KeeperError::Call`] with [`Claimed`](super::KeeperCallError::Claimed) if another
    /// connection has it.
    pub fn claim(&self, name: &str) -> Result<Vec<OwnedFd>, KeeperError> {
        self.descriptors(&KeeperCall::Claim { name })
    }

    /// Gives duplicates of descriptors to the keeper, under a name that has none.
    ///
    /// # Errors
    /// [`KeeperError::Call`].
    pub fn put(&self, name: &str, descriptors: &[BorrowedFd<'_>]) -> Result<(), KeeperError> {
        let (got, limit) = (descriptors.len(), MAX_DESCRIPTORS);
        if got > limit {
            let expected = got;
            return Err(super::KeeperCallError::Descriptors { got, expected, limit }.into());
        }
        self.done(&KeeperCall::Put { name, count: got as u8 }, descriptors)
    }

    /// Returns duplicates of the descriptors under a name.
    ///
    /// # Errors
    /// [`KeeperError::Call`] with [`Absent`](super::KeeperCallError::Absent) or
    /// [`Claimed`](super::KeeperCallError::Claimed).
    pub fn get(&self, name: &str) -> Result<Vec<OwnedFd>, KeeperError> {
        self.descriptors(&KeeperCall::Get { name })
    }

    /// Lists the names that have descriptors.
    ///
    /// # Errors
    /// [`KeeperError`].
    pub fn list(&self) -> Result<Vec<KeptListed>, KeeperError> {
        match self.call(&KeeperCall::List, &[])? {
            (KeeperAnswer::Listed(names), _) => Ok(names),
            _ => Err(UNEXPECTED),
        }
    }

    /// Makes the keeper close the descriptors under a name. Files that no other process has open
    /// are gone.
    ///
    /// # Errors
    /// [`KeeperError::Call`], as of [`get`](Self::get).
    pub fn forget(&self, name: &str) -> Result<(), KeeperError> {
        self.done(&KeeperCall::Forget { name }, &[])
    }

    /// Moves the descriptors under `from` to the name `to`, which has none.
    ///
    /// # Errors
    /// [`KeeperError::Call`].
    pub fn rename(&self, from: &str, to: &str) -> Result<(), KeeperError> {
        self.done(&KeeperCall::Rename { from, to }, &[])
    }

    /// Ends the keeper, which closes everything that it has.
    ///
    /// # Errors
    /// [`KeeperError`].
    pub fn stop(&self) -> Result<(), KeeperError> {
        self.done(&KeeperCall::Stop, &[])
    }

    fn done(
        &self,
        call: &KeeperCall<'_>,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), KeeperError> {
        match self.call(call, descriptors)? {
            (KeeperAnswer::Done, _) => Ok(()),
            _ => Err(UNEXPECTED),
        }
    }

    fn descriptors(&self, call: &KeeperCall<'_>) -> Result<Vec<OwnedFd>, KeeperError> {
        match self.call(call, &[])? {
            (KeeperAnswer::Descriptors { count }, descriptors) => {
                // The kernel drops descriptors if the process can open no more.
                let what = "fewer descriptors than it says: raise the limit on open files";
                let whole = descriptors.len() == usize::from(count);
                if whole { Ok(descriptors) } else { Err(KeeperError::BadAnswer { what }) }
            }
            _ => Err(UNEXPECTED),
        }
    }

    fn call(
        &self,
        call: &KeeperCall<'_>,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(KeeperAnswer, Vec<OwnedFd>), KeeperError> {
        let mut buffer = Vec::new();
        encode(call, &mut buffer);
        let failed = |errno| no_keeper(&self.path, errno);
        socket::send(&self.socket, &buffer, descriptors, SendFlags::empty()).map_err(failed)?;
        wait(self.socket.as_fd()).map_err(failed)?;
        buffer.resize(MAX_KEEPER_MESSAGE, 0);
        let packet = socket::receive(&self.socket, &mut buffer, RecvFlags::DONTWAIT);
        let packet = packet.map_err(failed)?;
        if packet.len == 0 {
            return Err(failed(Errno::CONNRESET));
        }
        let outcome: Option<KeeperOutcome> = decode(&buffer[..packet.len]);
        let undecodable = KeeperError::BadAnswer { what: "a message of another release" };
        Ok((outcome.ok_or(undecodable)??, packet.descriptors))
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

fn no_keeper(path: &Path, errno: Errno) -> KeeperError {
    KeeperError::NoKeeper { path: path.display().to_string(), error: errno.into() }
}
