//! A thread whose system calls fail now and then.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::mpsc::channel;
use std::thread;

use crate::seccomp::check;

/// A system call of which each `nth` fails with `errno`.
pub(crate) struct FailingCalls {
    call: i64,
    nth: u64,
    errno: i32,
}

impl FailingCalls {
    pub(crate) fn new(call: i64, nth: u64, errno: i32) -> FailingCalls {
        FailingCalls { call, nth, errno }
    }

    /// Runs `work` in a thread whose calls fail, and returns how many did. Another thread decides
    /// about each call.
    ///
    /// # Errors
    /// The system's error, if the kernel has no such filters.
    pub(crate) fn during(&self, work: impl FnOnce() + Send) -> io::Result<u64> {
        thread::scope(|scope| {
            let (sender, filter) = channel();
            let worker = scope.spawn(move || {
                sender.send(self.filter()).expect("the other thread waits");
                work();
            });
            let filter = filter.recv().expect("the thread sends it")?;
            let failed = self.decide(&filter);
            worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            Ok(failed)
        })
    }

    /// Gives this thread the filter. Returns the descriptor of its calls.
    fn filter(&self) -> io::Result<OwnedFd> {
        let statement = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
        let mut program = [
            statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
            statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, self.call as u32),
            statement(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_USER_NOTIF),
            statement(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
        ];
        let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
        let (mode, flags) = (libc::SECCOMP_SET_MODE_FILTER, libc::SECCOMP_FILTER_FLAG_NEW_LISTENER);
        // SAFETY: the calls read the program, which lives until they return. The descriptor is new.
        unsafe {
            check(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))?;
            let fd = libc::syscall(libc::SYS_seccomp, mode, flags, &raw const filter);
            if fd < 0 {
                Err(io::Error::last_os_error())
            } else {
                Ok(OwnedFd::from_raw_fd(fd as i32))
            }
        }
    }

    /// Answers for the kernel until the thread has ended. Returns how many calls failed.
    fn decide(&self, filter: &OwnedFd) -> u64 {
        /// `_IOWR('!', 0, struct seccomp_notif)` and `_IOWR('!', 1, struct seccomp_notif_resp)`.
        const RECEIVE: u64 = 0xC050_2100;
        const SEND: u64 = 0xC018_2101;
        let (mut calls, mut failed) = (0, 0);
        loop {
            let mut ready =
                libc::pollfd { fd: filter.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: the structure lives until the call returns.
            let polled = unsafe { libc::poll(&raw mut ready, 1, -1) };
            if polled < 0 {
                continue;
            }
            if ready.revents & libc::POLLIN == 0 {
                return failed;
            }
            // SAFETY: the structures are plain numbers, and live until the calls return.
            unsafe {
                let mut call: libc::seccomp_notif = std::mem::zeroed();
                if libc::ioctl(filter.as_raw_fd(), RECEIVE, &raw mut call) != 0 {
                    continue;
                }
                calls += 1;
                let mut answer: libc::seccomp_notif_resp = std::mem::zeroed();
                answer.id = call.id;
                if u64::is_multiple_of(calls, self.nth) {
                    answer.error = -self.errno;
                    failed += 1;
                } else {
                    answer.flags = libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32;
                }
                libc::ioctl(filter.as_raw_fd(), SEND, &raw mut answer);
            }
        }
    }
}
