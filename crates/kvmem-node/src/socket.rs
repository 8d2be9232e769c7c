//! *Sockets*: packets with descriptors, and the process at the other end.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, recvmsg, sendmsg,
    socket_with,
};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// The most descriptors that one packet carries.
pub(crate) const MAX_DESCRIPTORS: usize = 4;

/// A packet that came.
pub(crate) struct Packet {
    /// Bytes of the packet, in the receiver's buffer. 0: the peer has closed the connection.
    pub(crate) len: usize,
    /// The descriptors that came with it.
    pub(crate) descriptors: Vec<OwnedFd>,
}

/// Makes a socket for packets.
pub(crate) fn packet_socket(flags: SocketFlags) -> Result<OwnedFd, Errno> {
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags | SocketFlags::CLOEXEC, None)
}

/// Connects to the socket at `path`. Waits for at most `limit` if the server has as many
/// connections that it has not accepted as its socket takes; then, the error is `EAGAIN`. Later
/// calls that send and receive wait for at most `limit`, too.
pub(crate) fn connect_within(path: &Path, limit: Duration) -> Result<OwnedFd, Errno> {
    use rustix::net::sockopt::{Timeout, set_socket_timeout};
    let socket = packet_socket(SocketFlags::empty())?;
    for of in [Timeout::Send, Timeout::Recv] {
        set_socket_timeout(&socket, of, Some(limit))?;
    }
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// Connects to the socket at `path`.
#[cfg(all(test, not(loom)))]
pub(crate) fn connect(path: &Path) -> Result<OwnedFd, Errno> {
    let socket = packet_socket(SocketFlags::empty())?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// Returns whether a process listens on the socket at `path`. Never waits: one that is stopped, and
/// has as many connections as its socket takes, listens too. The error says that there is no such
/// socket.
pub(crate) fn is_listening(path: &Path) -> Result<bool, Errno> {
    let socket = packet_socket(SocketFlags::NONBLOCK)?;
    match rustix::net::connect(&socket, &SocketAddrUnix::new(path)?) {
        Ok(()) | Err(Errno::AGAIN) => Ok(true),
        Err(Errno::CONNREFUSED) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// How long a program waits for another one that makes a socket in the same folder.
pub(crate) const LOCK_PATIENCE: Duration = Duration::from_secs(2);

/// Locks the folder of a socket until the result is dropped: two programs that start at once must
/// not both replace the socket. The error is `TimedOut` if another program holds the lock.
pub(crate) fn lock_folder(path: &Path) -> std::io::Result<std::fs::File> {
    use rustix::fs::{FlockOperation, flock};
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = std::fs::File::open(folder.unwrap_or(Path::new(".")))?;
    let started = Instant::now();
    loop {
        match flock(&folder, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(folder),
            Err(Errno::INTR) => {}
            Err(Errno::WOULDBLOCK) if started.elapsed() < LOCK_PATIENCE => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(Errno::WOULDBLOCK) => {
                let what = "another program holds the lock of the socket's folder: use a folder \
                            that only this user can read";
                return Err(std::io::Error::new(std::io::ErrorKind::TimedOut, what));
            }
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Removes the file of a socket that nobody answers. Another file is not touched: connecting to
/// it fails as connecting to such a socket does.
pub(crate) fn remove_dead(path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::FileTypeExt;
    if !std::fs::symlink_metadata(path)?.file_type().is_socket() {
        let what = format!("{} is there, and is no socket", path.display());
        return Err(std::io::Error::new(std::io::ErrorKind::AlreadyExists, what));
    }
    std::fs::remove_file(path)
}

/// Sends a packet, with descriptors that are duplicated for the receiver. Never raises SIGPIPE.
pub(crate) fn send(
    socket: impl AsFd,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        let fits = ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
        assert!(fits, "at most {MAX_DESCRIPTORS} descriptors");
    }
    let flags = flags | SendFlags::NOSIGNAL;
    retry(|| sendmsg(&socket, &[IoSlice::new(bytes)], &mut ancillary, flags))?;
    Ok(())
}

/// The most descriptors that the kernel passes with one packet.
const MAX_PASSED: usize = 253;

/// Receives a packet. One that is longer than `buffer` fails with `EMSGSIZE`.
pub(crate) fn receive(
    socket: impl AsFd,
    buffer: &mut [u8],
    flags: RecvFlags,
) -> Result<Packet, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    match receive_with(socket, buffer, flags, &mut space)? {
        (_, true) => Err(Errno::MSGSIZE),
        (packet, false) => Ok(packet),
    }
}

/// [Receives](receive) from a peer that may send any descriptors: the kernel closes none of them,
/// which the peer could make it wait for. Returns also whether the packet is longer than `buffer`.
pub(crate) fn receive_whole(
    socket: impl AsFd,
    buffer: &mut [u8],
    flags: RecvFlags,
) -> Result<(Packet, bool), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_PASSED))];
    receive_with(socket, buffer, flags, &mut space)
}

fn receive_with(
    socket: impl AsFd,
    buffer: &mut [u8],
    flags: RecvFlags,
    space: &mut [MaybeUninit<u8>],
) -> Result<(Packet, bool), Errno> {
    let mut ancillary = RecvAncillaryBuffer::new(space);
    let flags = flags | RecvFlags::CMSG_CLOEXEC;
    let received =
        retry(|| recvmsg(&socket, &mut [IoSliceMut::new(buffer)], &mut ancillary, flags))?;
    let mut descriptors = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    let truncated = received.flags.contains(rustix::net::ReturnFlags::TRUNC);
    Ok((Packet { len: received.bytes, descriptors }, truncated))
}

/// Repeats a call that a signal has interrupted.
fn retry<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            outcome => return outcome,
        }
    }
}

/// The process at the other end of a connection.
#[derive(Debug)]
pub(crate) struct Peer {
    /// 0: the process is in a PID namespace that this process cannot see.
    pub(crate) pid: u32,
    pub(crate) uid: u32,
    /// The effective group, then the supplementary ones.
    pub(crate) groups: Vec<u32>,
    /// The inode number of `descriptor`, which no other process ever has; 0: the kernel is older
    /// than Linux 6.9, and does not number processes so.
    pub(crate) process_id: u64,
    /// Becomes readable when the kernel has torn the process down.
    pub(crate) descriptor: Option<OwnedFd>,
}

/// `SO_PEERGROUPS`, since Linux 4.13.
const SO_PEERGROUPS: libc::c_int = 59;

/// `SO_PEERPIDFD`, since Linux 6.5.
const SO_PEERPIDFD: libc::c_int = 77;

impl Peer {
    /// Asks the kernel for the peer of a connected socket.
    pub(crate) fn of(socket: impl AsFd) -> Result<Peer, Errno> {
        let socket = socket.as_fd();
        let libc::ucred { pid, uid, gid } = credentials(socket)?;
        let pid = pid as u32;
        let groups = std::iter::once(gid).chain(supplementary_groups(socket)).collect();
        let descriptor = peer_descriptor(socket)?;
        let descriptor = descriptor.map_or_else(|| process_descriptor(pid), |it| Ok(Some(it)))?;
        let process_id = descriptor.as_ref().map_or(0, process_id);
        Ok(Peer { pid, uid, groups, process_id, descriptor })
    }
}

/// Returns the user of the process at the other end: of a client, or of the process that listens.
pub(crate) fn peer_uid(socket: impl AsFd) -> Result<u32, Errno> {
    credentials(socket.as_fd()).map(|found| found.uid)
}

/// Returns the number, the user and the group of the process that has connected. The number is 0,
/// which the types of `rustix` exclude, if the process is in a PID namespace that is no descendant
/// of this one's.
fn credentials(socket: BorrowedFd<'_>) -> Result<libc::ucred, Errno> {
    let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the two pointers are to a structure of the type that the option has, and to its
    // length, which live during the call.
    let failed = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut found).cast(),
            &raw mut len,
        )
    };
    if failed != 0 {
        return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL));
    }
    Ok(found)
}

/// The most supplementary groups that a process has.
const MAX_GROUPS: usize = 65_536;

/// Returns the supplementary groups of the process that has connected, as they were then. None if
/// the kernel does not report it: it does since Linux 4.13.
fn supplementary_groups(socket: BorrowedFd<'_>) -> Vec<u32> {
    let mut groups = vec![0_u32; 32];
    loop {
        let mut len = (groups.len() * size_of::<u32>()) as libc::socklen_t;
        // SAFETY: the two pointers are to the numbers and to their length in bytes, which live
        // during the call. The kernel writes at most this many bytes.
        let failed = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut len,
            )
        };
        let found = len as usize / size_of::<u32>();
        if failed == 0 {
            groups.truncate(found);
            return groups;
        }
        // The kernel has said how many there are.
        let error = Errno::from_io_error(&std::io::Error::last_os_error());
        if error != Some(Errno::RANGE) || found <= groups.len() || found > MAX_GROUPS {
            return Vec::new();
        }
        groups.resize(found, 0);
    }
}

/// Returns the descriptor of the process that has connected, without a race for its number. `None`
/// if the kernel has none to give; the error says that this process cannot take it.
fn peer_descriptor(socket: BorrowedFd<'_>) -> Result<Option<OwnedFd>, Errno> {
    let mut raw: libc::c_int = -1;
    let mut len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the two pointers are to an integer and to its length, which live during the call.
    let failed = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PEERPIDFD,
            (&raw mut raw).cast(),
            &raw mut len,
        )
    };
    if failed == 0 {
        // SAFETY: the kernel has made the descriptor for this call, and nothing else owns it.
        return Ok((raw >= 0).then(|| unsafe { OwnedFd::from_raw_fd(raw) }));
    }
    let error = std::io::Error::last_os_error();
    unless_exhausted(Errno::from_io_error(&error).unwrap_or(Errno::INVAL))
}

/// Returns no descriptor for an error, unless this process or the machine has too many.
fn unless_exhausted(errno: Errno) -> Result<Option<OwnedFd>, Errno> {
    match errno {
        Errno::MFILE | Errno::NFILE | Errno::NOMEM => Err(errno),
        _ => Ok(None),
    }
}

/// Returns a descriptor of a process; `None` if it is gone.
fn process_descriptor(pid: u32) -> Result<Option<OwnedFd>, Errno> {
    let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return Ok(None) };
    pidfd_open(pid, PidfdFlags::empty()).map(Some).or_else(unless_exhausted)
}

/// Returns a descriptor of a process; `None` if it is gone, or cannot be watched.
pub(crate) fn open_process(pid: u32) -> Option<OwnedFd> {
    #[cfg(all(test, not(loom)))]
    if let Some(found) = crate::simulator::open_process(pid) {
        return found;
    }
    process_descriptor(pid).ok().flatten()
}

/// The type of the file system of processes, since Linux 6.9.
const PID_FS_MAGIC: u64 = 0x5049_4446;

/// Returns the inode number of the descriptor of a process: the same for all descriptors of the
/// process, and never that of another one. 0: the kernel does not number processes.
pub(crate) fn process_id(descriptor: &OwnedFd) -> u64 {
    #[cfg(all(test, not(loom)))]
    if let Some(number) = crate::simulator::process_id(descriptor) {
        return number;
    }
    let system = rustix::fs::fstatfs(descriptor).map(|found| u64::from(found.f_type as u32));
    let found = rustix::fs::fstat(descriptor).map(|found| found.st_ino);
    match (system, found) {
        (Ok(PID_FS_MAGIC), Ok(number)) => number,
        _ => 0,
    }
}

/// Returns whether the kernel has torn a process down.
pub(crate) fn has_ended(descriptor: &OwnedFd) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut process = [PollFd::new(descriptor, PollFlags::IN)];
    poll(&mut process, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
}

/// Returns the time for intervals that are short.
pub(crate) fn instant() -> Instant {
    #[cfg(all(test, not(loom)))]
    if let Some(now) = crate::simulator::instant() {
        return now;
    }
    Instant::now()
}

/// Fills bytes with random ones.
pub(crate) fn fill_random(bytes: &mut [u8]) -> Result<(), Errno> {
    #[cfg(all(test, not(loom)))]
    if crate::simulator::fill_random(bytes) {
        return Ok(());
    }
    rustix::rand::getrandom(bytes, rustix::rand::GetRandomFlags::empty()).map(drop)
}

/// Milliseconds since the machine started, suspended time included. A server in a time namespace
/// reads the times that another one has left in the memory, so the clock is that of the machine.
pub(crate) fn now_ms() -> u64 {
    #[cfg(all(test, not(loom)))]
    if let Some(now) = crate::simulator::now_ms() {
        return now;
    }
    static AHEAD: OnceLock<i64> = OnceLock::new();
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let now = now.tv_sec * 1000 + now.tv_nsec / 1_000_000;
    (now - AHEAD.get_or_init(|| boottime_ahead_ms().unwrap_or(0))) as u64
}

/// Returns by how many milliseconds the clock of this time namespace is ahead of the machine's.
fn boottime_ahead_ms() -> Option<i64> {
    let text = std::fs::read_to_string("/proc/self/timens_offsets").ok()?;
    let mut words = text.lines().find_map(|line| line.strip_prefix("boottime"))?.split_whitespace();
    let (seconds, nanoseconds) = (words.next()?, words.next()?);
    Some(seconds.parse::<i64>().ok()? * 1000 + nanoseconds.parse::<i64>().ok()? / 1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_a_number_of_its_own() {
        let own = open_process(std::process::id()).expect("this process lives");
        let again = open_process(std::process::id()).expect("this process lives");
        assert_eq!(process_id(&own), process_id(&again));
        let mut child = std::process::Command::new("cat")
            .stdin(std::process::Stdio::piped())
            .spawn()
            .expect("`cat` exists");
        let other = open_process(child.id()).expect("it waits for input");
        assert!(process_id(&own) == 0 || process_id(&own) != process_id(&other));
        assert!(!has_ended(&other));
        drop(child.stdin.take());
        child.wait().expect("it ends");
        assert!(has_ended(&other) && !has_ended(&own));
    }
}
