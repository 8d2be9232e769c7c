//! *Helper*: the child process, its socket, and the memory through which values go.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Stdio};

use kvmem::arena::{Backing, PageSize, Populate, Region};
use kvmem::offset::{Allocation, OffsetAllocator};
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, socketpair};

use crate::messages::{CallItem, CallKind, MAGIC, MAX_ANSWER, answer, call};
use crate::options::ClusterOptions;
use crate::program;
use crate::socket;
use crate::trailer::TRAILER;

/// This side of a helper that runs. It is dropped when no thread copies from its memory any
/// more.
pub(super) struct Helper {
    socket: OwnedFd,
    memory: Region,
    /// The first half of the memory is for values that are stored, the second for those that are
    /// fetched: neither takes the room of the other.
    halves: [OffsetAllocator; 2],
    half: u64,
}

/// Room for a value and its trailer in the memory of a helper.
#[derive(Debug)]
pub(super) struct StagedRange {
    allocation: Allocation,
    base: u64,
    /// With the trailer.
    pub(super) len: u64,
}

impl StagedRange {
    pub(super) fn offset(&self) -> u64 {
        self.base + self.allocation.offset()
    }
}

/// A message of a helper.
pub(super) enum Received {
    Answer(u64, Vec<i64>),
    /// Nothing more, for now.
    Nothing,
    /// No answer of the protocol.
    Violation,
    /// The other end of the socket is closed.
    End,
}

impl Helper {
    /// Starts a helper, whose standard input is the socket.
    pub(super) fn start(options: &ClusterOptions) -> io::Result<(Helper, Child)> {
        let (program, arguments) = options
            .command
            .split_first()
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "no program is named"))?;
        let half = (options.staging_bytes / 2).next_multiple_of(4096);
        let memory = Region::builder((2 * half) as usize)
            .backing(Backing::Shared)
            .ladder(PageSize::Base)
            .populate(Populate::None)
            .map()
            .map_err(io::Error::other)?;
        let file = memory.share().map_err(io::Error::other)?.expect("shared memory has a file");
        let space = || OffsetAllocator::new(half).map_err(io::Error::other);
        let halves = [space()?, space()?];
        let (socket, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let child = program::command(program)?
            .args(arguments)
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .spawn()?;
        let hello = [&MAGIC[..], &(2 * half).to_le_bytes()].concat();
        // A helper that has ended already is noticed by its socket.
        let _ = socket::send(&socket, &hello, Some(file.as_fd()));
        Ok((Helper { socket, memory, halves, half }, child))
    }

    pub(super) fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// Returns the bytes of the longest value.
    pub(super) fn max_len(options: &ClusterOptions) -> u64 {
        (options.staging_bytes / 2).next_multiple_of(4096) - TRAILER as u64
    }

    /// Takes room for a value of `len` bytes. `None`: there is none now.
    pub(super) fn allocate(&self, kind: CallKind, len: u64) -> Option<StagedRange> {
        let which = usize::from(kind == CallKind::Fetch);
        let len = len.checked_add(TRAILER as u64)?;
        let allocation = self.halves[which].allocate(len).ok()?;
        Some(StagedRange { allocation, base: which as u64 * self.half, len })
    }

    fn place(&self, range: &StagedRange) -> *mut u8 {
        let (offset, all) = (range.offset(), self.memory.len() as u64);
        assert!(offset.checked_add(range.len).is_some_and(|end| end <= all), "it was allocated");
        // SAFETY: the range lies in the region, as was just checked.
        unsafe { self.memory.base().as_ptr().add(offset as usize) }
    }

    /// Copies a value and its trailer into its room.
    pub(super) fn write(&self, range: &StagedRange, value: &[u8], trailer: &[u8; TRAILER]) {
        let to = self.place(range);
        assert_eq!(value.len() + TRAILER, range.len as usize, "its room has its length");
        // SAFETY: the range is as long as both together, and no other thread of this process has
        // it. The helper may read or write it at the same time; nobody relies on what it reads.
        unsafe {
            to.copy_from_nonoverlapping(value.as_ptr(), value.len());
            to.add(value.len()).copy_from_nonoverlapping(trailer.as_ptr(), TRAILER);
        }
    }

    /// Copies a value out of its room; returns the trailer. The caller verifies the copy: the
    /// helper may write meanwhile.
    pub(super) fn read(&self, range: &StagedRange, into: &mut [u8]) -> [u8; TRAILER] {
        let from = self.place(range);
        assert_eq!(into.len() + TRAILER, range.len as usize, "its room has its length");
        let mut trailer = [0; TRAILER];
        // SAFETY: the range is as long as both together, and no other thread of this process writes
        // to it. The helper may; any bytes are bytes, and the caller verifies them.
        unsafe {
            into.as_mut_ptr().copy_from_nonoverlapping(from, into.len());
            trailer.as_mut_ptr().copy_from_nonoverlapping(from.add(into.len()), TRAILER);
        }
        trailer
    }

    /// Sends a call, without waiting. Returns whether the helper takes calls.
    pub(super) fn send(&self, id: u64, kind: CallKind, items: &[CallItem]) -> bool {
        let packet = call(id, kind, items);
        socket::send(&self.socket, &packet, None).is_ok()
    }

    /// Receives an answer, without waiting.
    pub(super) fn receive(&self) -> Received {
        use rustix::io::Errno;
        let mut buffer = [0; MAX_ANSWER];
        match socket::receive(&self.socket, &mut buffer) {
            Ok(0) => Received::End,
            Ok(len) => match answer(&buffer[..len]) {
                Some((id, results)) => Received::Answer(id, results),
                None => Received::Violation,
            },
            Err(Errno::AGAIN) => Received::Nothing,
            Err(Errno::MSGSIZE) => Received::Violation,
            Err(_) => Received::End,
        }
    }

    /// Closes the connection: a helper that works ends.
    pub(super) fn hang_up(&self) {
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
    }
}
