//! *Sockets*: packets with descriptors.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::{Errno, retry_on_intr};
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, recv, sendmsg};

/// Sends a packet without waiting, with a descriptor that is duplicated for the receiver. Never
/// raises SIGPIPE.
pub(super) fn send(
    socket: impl AsFd,
    bytes: &[u8],
    descriptor: Option<BorrowedFd<'_>>,
) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptors = descriptor.map(|descriptor| [descriptor]);
    if let Some(descriptors) = &descriptors {
        let fits = ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
        assert!(fits, "there is space for one");
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    retry_on_intr(|| sendmsg(&socket, &[IoSlice::new(bytes)], &mut ancillary, flags))?;
    Ok(())
}

/// Receives a packet without waiting, and returns its length; 0 if the peer has closed the
/// connection. One that is longer than `buffer` fails with `EMSGSIZE`. Descriptors are not
/// received.
pub(super) fn receive(socket: impl AsFd, buffer: &mut [u8]) -> Result<usize, Errno> {
    let flags = RecvFlags::DONTWAIT | RecvFlags::TRUNC;
    let (received, len) = retry_on_intr(|| recv(&socket, &mut *buffer, flags))?;
    if len > received { Err(Errno::MSGSIZE) } else { Ok(len) }
}
