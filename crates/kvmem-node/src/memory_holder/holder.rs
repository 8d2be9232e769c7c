//! [`MemoryHolder`]: the loop.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, accept_with, bind, listen};

use super::messages::{HolderAnswer, HolderCall, MAX_HOLDER_MESSAGE, decode, encode};
use super::retained::{Claimant, RetainedTable};
use super::{MemoryHolderCallError, MemoryHolderError};
use crate::socket::{self, MAX_DESCRIPTORS, Peer};

/// The most connections at one time.
const MAX_HOLDER_CONNECTIONS: usize = 32;

/// The longest time between two looks whether the socket's file still leads to a memory holder
/// without connections.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// How a memory holder runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryHolderOptions {
    /// A memory holder without memory and connections ends after this time.
    pub idle: Duration,
    /// Whether it ends at once when the last process that claimed a name has left nothing. A server
    /// that starts a memory holder for itself sets this.
    pub ends_after_use: bool,
}

impl Default for MemoryHolderOptions {
    fn default() -> MemoryHolderOptions {
        MemoryHolderOptions { idle: Duration::from_secs(60), ends_after_use: false }
    }
}

/// Holds descriptors for processes of the same user, in the thread that [runs](Self::run) it.
#[derive(Debug)]
pub struct MemoryHolder {
    listener: OwnedFd,
    options: MemoryHolderOptions,
    path: PathBuf,
    /// The device and the inode number of the socket's file.
    file: (u64, u64),
    retained: RetainedTable,
    connections: Vec<HolderConnection>,
    next_connection: u64,
    /// Whether a connection that had claimed a name has ended.
    was_used: bool,
}

#[derive(Debug)]
struct HolderConnection {
    socket: OwnedFd,
    claimant: Claimant,
}

/// What comes after a message.
enum After {
    Next,
    Close,
    Stop,
}

impl MemoryHolder {
    /// Listens on a new socket at `path`, mode 0600. A socket there that nobody answers is
    /// replaced.
    ///
    /// # Errors
    /// [`MemoryHolderError::HolderInUse`], [`MemoryHolderError::Locked`] and
    /// [`MemoryHolderError::System`].
    pub fn bind(
        path: &Path,
        options: MemoryHolderOptions,
    ) -> Result<MemoryHolder, MemoryHolderError> {
        let at = MemoryHolderError::system;
        let io = |call| move |error| MemoryHolderError::System { call, error };
        let address =
            SocketAddrUnix::new(path).map_err(at("the path of the memory holder's socket"))?;
        // Two memory holders that start at once must not both replace the socket.
        let _lock = socket::lock_folder(path).map_err(|error| match error.kind() {
            std::io::ErrorKind::TimedOut => {
                let waited_ms = socket::LOCK_PATIENCE.as_millis() as u64;
                MemoryHolderError::Locked { path: path.display().to_string(), waited_ms }
            }
            _ => MemoryHolderError::System { call: "flock of the socket's folder", error },
        })?;
        match socket::is_listening(path) {
            Ok(true) => {
                return Err(MemoryHolderError::HolderInUse { path: path.display().to_string() });
            }
            Ok(false) => {
                socket::remove_dead(path).map_err(io("unlink of the memory holder's socket"))?;
            }
            Err(_) => {}
        }
        let listener = socket::packet_socket(SocketFlags::NONBLOCK);
        let listener = listener.map_err(at("socket(SOCK_SEQPACKET)"))?;
        // Nobody can connect before the mode is set: nobody is listened to yet.
        bind(&listener, &address).map_err(at("bind to the path of the memory holder's socket"))?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))
            .map_err(io("the mode of the memory holder's socket"))?;
        let file =
            std::fs::symlink_metadata(path).map_err(io("stat of the memory holder's socket"))?;
        listen(&listener, 16).map_err(at("listen"))?;
        Ok(MemoryHolder {
            listener,
            options,
            path: path.to_path_buf(),
            file: (file.dev(), file.ino()),
            retained: RetainedTable::default(),
            connections: Vec::new(),
            next_connection: 0,
            was_used: false,
        })
    }

    /// Holds descriptors until a client stops the memory holder, or until nothing needs it. Without
    /// connections it ends when it holds nothing, as the [options](MemoryHolderOptions) say, and
    /// when its socket's file is gone, because no process can reach the memory any more.
    ///
    /// # Errors
    /// [`MemoryHolderError::System`] if the kernel no longer reports events.
    pub fn run(mut self) -> Result<(), MemoryHolderError> {
        let mut idle_since = Instant::now();
        let mut buffer = vec![0; MAX_HOLDER_MESSAGE];
        loop {
            let holds_nothing = self.retained.holds_nothing();
            let is_alone = self.connections.is_empty();
            let is_used_up = holds_nothing && self.was_used && self.options.ends_after_use;
            if is_alone && (is_used_up || !self.is_reachable()) {
                return Ok(());
            }
            if !is_alone || !holds_nothing {
                idle_since = Instant::now();
            }
            let left = self.options.idle.saturating_sub(idle_since.elapsed());
            if left.is_zero() {
                return Ok(());
            }
            let left = if is_alone { left.min(LOOK_EVERY) } else { left };
            let ready = self.wait(left)?;
            // The listener is the last one: its connection has no place among the ready ones.
            for at in (0..self.connections.len()).rev().filter(|at| ready[*at]) {
                match self.message(at, &mut buffer) {
                    After::Next => {}
                    After::Close => self.close(at),
                    After::Stop => return Ok(()),
                }
            }
            if ready.last() == Some(&true) {
                self.accept();
            }
        }
    }

    /// Waits until a connection, or the listener, is readable. Returns which are, the listener
    /// last.
    fn wait(&self, left: Duration) -> Result<Vec<bool>, MemoryHolderError> {
        let sockets = self.connections.iter().map(|it| &it.socket).chain([&self.listener]);
        let mut fds: Vec<PollFd<'_>> =
            sockets.map(|socket| PollFd::new(socket, PollFlags::IN)).collect();
        let left =
            Timespec { tv_sec: left.as_secs().min(3600) as _, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut fds, Some(&left)) {
            Ok(_) => Ok(fds.iter().map(|fd| !fd.revents().is_empty()).collect()),
            Err(Errno::INTR) => Ok(vec![false; fds.len()]),
            Err(errno) => Err(MemoryHolderError::system("poll")(errno)),
        }
    }

    fn accept(&mut self) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let Ok(socket) = accept_with(&self.listener, flags) else {
            // Without free descriptors the listener stays readable: the loop must not spin.
            std::thread::sleep(Duration::from_millis(10));
            return;
        };
        let Ok(peer) = Peer::of(&socket) else { return };
        let own = rustix::process::geteuid().as_raw();
        // Root too: a process that is root in its container has its number.
        if peer.uid != own || self.connections.len() >= MAX_HOLDER_CONNECTIONS {
            return;
        }
        self.next_connection += 1;
        let claimant = Claimant { connection: self.next_connection, pid: peer.pid };
        self.connections.push(HolderConnection { socket, claimant });
    }

    fn close(&mut self, at: usize) {
        let closed = self.connections.swap_remove(at);
        self.was_used |= self.retained.disclaim(closed.claimant.connection);
    }

    /// Returns whether the socket's file is the one that this memory holder has made.
    fn is_reachable(&self) -> bool {
        let found = std::fs::symlink_metadata(&self.path);
        found.is_ok_and(|found| (found.dev(), found.ino()) == self.file)
    }

    /// Serves one message of a connection.
    fn message(&mut self, at: usize, buffer: &mut [u8]) -> After {
        let HolderConnection { socket, claimant } = &self.connections[at];
        let packet = match socket::receive(socket, buffer, RecvFlags::DONTWAIT) {
            Ok(packet) if packet.len > 0 => packet,
            Err(Errno::AGAIN) => return After::Next,
            // The end of the connection, or a message that is too long.
            _ => return After::Close,
        };
        let (message, by) = (&buffer[..packet.len], *claimant);
        let Some(call) = decode::<HolderCall<'_>>(message) else {
            let undecodable = MemoryHolderCallError::UndecodableMessage { len: message.len() };
            return answer(socket, &Err(undecodable), &[]);
        };
        let mut after = After::Next;
        let with_descriptors =
            |found: Result<Vec<BorrowedFd<'_>>, MemoryHolderCallError>| match found {
                Ok(found) => {
                    let count = found.len() as u8;
                    answer(socket, &Ok(HolderAnswer::Descriptors { count }), &found)
                }
                Err(error) => answer(socket, &Err(error), &[]),
            };
        let outcome = match call {
            HolderCall::Claim { name } => return with_descriptors(self.retained.claim(name, by)),
            HolderCall::Get { name } => return with_descriptors(self.retained.get(name, by)),
            HolderCall::Put { name, count } => {
                self.retained.put(name, by, count.into(), packet.descriptors)
            }
            HolderCall::Forget { name } => self.retained.forget(name, by),
            HolderCall::Rename { from, to } => self.retained.rename(from, to, by),
            HolderCall::List => {
                return answer(socket, &Ok(HolderAnswer::Listed(self.retained.list())), &[]);
            }
            HolderCall::Stop => {
                after = After::Stop;
                Ok(())
            }
        };
        match answer(socket, &outcome.map(|()| HolderAnswer::Done), &[]) {
            After::Next => after,
            // Whether or not the client hears of it.
            closed => {
                if matches!(after, After::Stop) {
                    After::Stop
                } else {
                    closed
                }
            }
        }
    }
}

impl Drop for MemoryHolder {
    fn drop(&mut self) {
        // Another memory holder may have replaced the file.
        if self.is_reachable() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Sends an answer. The connection of a client that does not read its answers ends.
fn answer(
    socket: &OwnedFd,
    outcome: &Result<HolderAnswer, MemoryHolderCallError>,
    descriptors: &[BorrowedFd<'_>],
) -> After {
    let mut buffer = Vec::new();
    encode(outcome, &mut buffer);
    match socket::send(socket.as_fd(), &buffer, descriptors, SendFlags::DONTWAIT) {
        Ok(()) => After::Next,
        Err(_) => After::Close,
    }
}

const _: () = assert!(MAX_DESCRIPTORS <= u8::MAX as usize);
