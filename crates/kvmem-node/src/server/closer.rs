//! *Closing* in other threads.
//!
//! The last close of a descriptor may take as long as its owner likes: that of a TCP socket with
//! `SO_LINGER` waits until its bytes are sent. A client could send such a descriptor with a
//! message, close its own duplicate, and so stop the thread that closes the packet's. Since Linux
//! 6.16 the kernel refuses such packets if a socket says so: [`pass_descriptors`]. On earlier
//! kernels [`ClosingThreads`] close the descriptors of packets, and the sockets of clients, whose
//! unread packets may have some.

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;

/// `SO_PASSRIGHTS`, since Linux 6.16.
const SO_PASSRIGHTS: libc::c_int = 83;

/// Threads that close at a time. A descriptor that takes long occupies one of them.
const MAX_THREADS: usize = 16;

/// The stack of such a thread, which makes two system calls.
const STACK_BYTES: usize = 64 << 10;

/// Says whether peers of a socket, and of those that it accepts, may send descriptors.
pub(super) fn pass_descriptors(socket: impl AsFd, may: bool) -> Result<(), Errno> {
    let may = libc::c_int::from(may);
    // SAFETY: the pointer is to an integer of the passed size, which lives during the call.
    let failed = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PASSRIGHTS,
            (&raw const may).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if failed == 0 {
        return Ok(());
    }
    Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL))
}

/// The queue of the threads.
#[derive(Debug, Default)]
struct Closing {
    left: VecDeque<OwnedFd>,
    threads: usize,
    /// Threads that wait for something to close.
    idle: usize,
    ended: bool,
}

/// Threads that close descriptors. They are started when they are needed, and end with the value.
#[derive(Debug, Default)]
pub(super) struct ClosingThreads(Arc<(Mutex<Closing>, Condvar)>);

fn lock(closing: &Mutex<Closing>) -> MutexGuard<'_, Closing> {
    closing.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ClosingThreads {
    /// Closes a descriptor some time. Never waits, unless the process cannot start a thread.
    pub(super) fn close(&self, descriptor: OwnedFd) {
        let (closing, changed) = &*self.0;
        let mut state = lock(closing);
        state.left.push_back(descriptor);
        if state.idle >= state.left.len() || state.threads == MAX_THREADS {
            changed.notify_one();
            return;
        }
        let shared = Arc::clone(&self.0);
        let thread = std::thread::Builder::new().name("kvmem-close".into());
        if thread.stack_size(STACK_BYTES).spawn(move || run(&shared)).is_ok() {
            state.threads += 1;
        } else if state.threads == 0 {
            close(state.left.pop_back());
        }
    }
}

impl Drop for ClosingThreads {
    fn drop(&mut self) {
        lock(&self.0.0).ended = true;
        self.0.1.notify_all();
    }
}

fn run((closing, changed): &(Mutex<Closing>, Condvar)) {
    let mut state = lock(closing);
    loop {
        if let Some(descriptor) = state.left.pop_front() {
            drop(state);
            close(Some(descriptor));
            state = lock(closing);
        } else if state.ended {
            return;
        } else {
            state.idle += 1;
            state = changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.idle -= 1;
        }
    }
}

/// Closes a descriptor, which no longer lingers if it is a socket of this process alone.
fn close(descriptor: Option<OwnedFd>) {
    if let Some(descriptor) = descriptor {
        // Another descriptor than a socket's has no such option.
        let _ = rustix::net::sockopt::set_socket_linger(&descriptor, None);
    }
}

/// The socket of a client, which is closed in another thread where that may take long.
#[derive(Debug)]
pub(super) struct ClosingSocket {
    /// `None` when it is being dropped.
    socket: Option<OwnedFd>,
    /// `None`: the kernel refuses descriptors, so the close does not wait.
    threads: Option<Arc<ClosingThreads>>,
}

impl ClosingSocket {
    pub(super) fn new(socket: OwnedFd, threads: Option<Arc<ClosingThreads>>) -> ClosingSocket {
        ClosingSocket { socket: Some(socket), threads }
    }

    /// Closes descriptors that have come with a packet.
    pub(super) fn discard(&self, descriptors: Vec<OwnedFd>) {
        if let Some(threads) = &self.threads {
            descriptors.into_iter().for_each(|descriptor| threads.close(descriptor));
        }
    }
}

impl AsFd for ClosingSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_ref().expect("it is not being dropped").as_fd()
    }
}

impl Drop for ClosingSocket {
    fn drop(&mut self) {
        if let (Some(socket), Some(threads)) = (self.socket.take(), &self.threads) {
            threads.close(socket);
        }
    }
}
