//! *Scrubber*: a thread that calculates checksums, at a limited rate.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;

use kvmem::arena::Region;

use super::server::NodeServer;
use crate::crc;
use crate::node::Scrubbing;

/// Entries that are looked at for one value.
const LOOKED_AT: u32 = 4096;

/// The time, in nanoseconds, whose values may be verified at once after a pause. The clock of the
/// loop has milliseconds, and a small value takes less.
const BURST_NS: u64 = 10_000_000;

/// The thread, and what it works at.
#[derive(Debug)]
pub(super) struct Scrubber {
    bytes_per_s: u64,
    /// `None` when the thread is to end.
    values: Option<Sender<Scrubbing>>,
    results: Receiver<(Scrubbing, bool)>,
    thread: Option<JoinHandle<()>>,
    /// The entry to go on with.
    next: u32,
    /// Whether a value is being verified.
    busy: bool,
    /// When the rate allows the next value, in nanoseconds since the machine started.
    due_ns: u64,
}

impl Scrubber {
    /// Starts the thread. It writes to the eventfd `wake` after each value.
    pub(super) fn start(
        bytes_per_s: u64,
        memory: &Arc<Region>,
        wake: &Arc<OwnedFd>,
    ) -> std::io::Result<Scrubber> {
        let (values, jobs) = channel::<Scrubbing>();
        let (done, results) = channel();
        let (memory, wake) = (Arc::clone(memory), Arc::clone(wake));
        let work = move || {
            while let Ok(value) = jobs.recv() {
                let whole = sum(&memory, value.offset, value.len) == value.checksum;
                if done.send((value, whole)).is_err() {
                    break;
                }
                // The counter of an eventfd cannot overflow here, so the write does not block.
                let _ = rustix::io::write(&*wake, &1_u64.to_ne_bytes());
            }
        };
        let thread = std::thread::Builder::new().name("kvmem-scrubber".to_owned()).spawn(work)?;
        let (values, thread) = (Some(values), Some(thread));
        Ok(Scrubber { bytes_per_s, values, results, thread, next: 0, busy: false, due_ns: 0 })
    }

    /// Returns when there is something to do without an event, in milliseconds since the machine
    /// started; `None`: after an event.
    pub(super) fn due_at(&self) -> Option<u64> {
        (!self.busy).then_some(self.due_ns.div_ceil(1_000_000))
    }

    /// Takes the time of `len` bytes off what the rate allows.
    fn spend(&mut self, len: u64, now_ns: u64) {
        let takes = u128::from(len) * 1_000_000_000 / u128::from(self.bytes_per_s.max(1));
        let takes = u64::try_from(takes).unwrap_or(u64::MAX);
        self.due_ns = self.due_ns.max(now_ns.saturating_sub(BURST_NS)).saturating_add(takes);
    }
}

impl Drop for Scrubber {
    fn drop(&mut self) {
        self.values = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Returns the checksum of a block.
fn sum(memory: &Region, offset: u64, len: u64) -> u32 {
    let all = memory.len() as u64;
    assert!(offset.checked_add(len).is_some_and(|end| end <= all), "the node said so");
    // SAFETY: the block lies in the region, as was just checked. The value was
    // committed, and its bytes stay until it is verified, so no client that follows the protocol
    // writes to it.
    let bytes = unsafe {
        let first = memory.base().as_ptr().add(offset as usize);
        std::slice::from_raw_parts(first, len as usize)
    };
    crc::of(bytes)
}

impl NodeServer {
    /// Takes the result of the scrubber, and gives it the next value when the rate allows it.
    pub(super) fn scrub(&mut self, now: u64) {
        let Some(scrubber) = &mut self.scrubber else { return };
        match scrubber.results.try_recv() {
            Ok((value, whole)) => {
                scrubber.busy = false;
                self.node.scrubbed(&value, whole);
            }
            Err(TryRecvError::Empty | TryRecvError::Disconnected) => {}
        }
        let now_ns = now.saturating_mul(1_000_000);
        if scrubber.busy || now_ns < scrubber.due_ns {
            return;
        }
        let (value, next) = self.node.next_to_scrub(scrubber.next, LOOKED_AT);
        scrubber.next = next;
        let Some(value) = value else {
            // A round is over, or a stretch without checksums.
            scrubber.due_ns = now_ns + 100_000_000;
            return;
        };
        scrubber.spend(value.len, now_ns);
        scrubber.busy = true;
        if let Some(values) = &scrubber.values {
            // The thread ends only with the sender.
            let _ = values.send(value);
        }
    }
}
