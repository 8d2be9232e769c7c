//! *Counts*: how many bytes the kernel has transferred, and what that means for the rest.
//!
//! A transfer may end early: a signal, a limit of the file system, the end of a file that was cut
//! off. It goes on behind what was transferred, at a multiple of the file's alignment. If not even
//! one such unit was transferred, it fails: otherwise it would go on forever.

use std::io;

use super::transfer::Transfer;

/// Answers of the kernel, or of a test in its place.
#[derive(Default)]
pub(super) struct Counts {
    /// Gets the number of the answer and the kernel's own, and returns another one.
    #[cfg(test)]
    pub(super) change: Option<Box<dyn Fn(usize, i64) -> i64 + Send + Sync>>,
    #[cfg(test)]
    answers: std::sync::atomic::AtomicUsize,
}

/// The rest of a transfer after an answer of the kernel.
#[derive(Debug)]
pub(super) enum Next {
    /// The transfer is complete, or has failed.
    Done(io::Result<()>),
    /// The rest is to be transferred.
    Again,
}

impl Counts {
    /// Returns the answer of the kernel: bytes, or the negative number of an error.
    #[cfg(not(test))]
    fn answer(&self, answer: i64) -> i64 {
        answer
    }

    #[cfg(test)]
    fn answer(&self, answer: i64) -> i64 {
        // Relaxed: a count, which orders nothing.
        let number = self.answers.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        self.change.as_ref().map_or(answer, |change| change(number, answer))
    }

    /// Notes what the kernel has answered about the rest of a transfer: bytes, or the negative
    /// number of an error. `align` is the alignment of offsets.
    pub(super) fn note(&self, transfer: &mut Transfer, answer: i64, align: usize) -> Next {
        let answer = self.answer(answer);
        let Ok(done) = usize::try_from(answer) else {
            let number = i32::try_from(-answer).unwrap_or(libc::EIO);
            return match number {
                libc::EINTR | libc::EAGAIN => Next::Again,
                _ => Next::Done(Err(io::Error::from_raw_os_error(number))),
            };
        };
        let len = transfer.len();
        if done >= len {
            transfer.advance(len);
            return Next::Done(Ok(()));
        }
        match done - done % align.max(1) {
            0 if transfer.write => Next::Done(Err(io::ErrorKind::WriteZero.into())),
            0 => Next::Done(Err(io::ErrorKind::UnexpectedEof.into())),
            whole => {
                transfer.advance(whole);
                Next::Again
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Write;

    #[test]
    fn a_short_transfer_goes_on_at_a_multiple_of_the_alignment_or_fails() {
        let bytes = [0; 4096];
        for (answer, align, left) in [
            (4096, 512, Some(0)),
            (5000, 512, Some(0)),
            (1024, 512, Some(3072)),
            (1535, 512, Some(3072)),
            (511, 512, None),
            (511, 1, Some(3585)),
            (0, 1, None),
            (-i64::from(libc::EINTR), 512, Some(4096)),
            (-i64::from(libc::EAGAIN), 512, Some(4096)),
            (-i64::from(libc::EIO), 512, None),
        ] {
            let mut transfer = Transfer::write(&Write { at: 8192, parts: [&bytes, &[]] });
            let next = Counts::default().note(&mut transfer, answer, align);
            match (left, next) {
                (Some(0), Next::Done(Ok(()))) | (None, Next::Done(Err(_))) => {}
                (Some(left), Next::Again) => {
                    let done = (4096 - left) as u64;
                    assert_eq!((transfer.len(), transfer.at), (left, 8192 + done), "{answer}");
                }
                (_, next) => panic!("{answer}: {next:?}"),
            }
        }
    }
}
