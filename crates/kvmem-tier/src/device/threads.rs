//! *Threads*: the transfers of a batch, made by several threads.
//!
//! The thread that has begun the batch works on its events; the other threads only transfer.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;

use super::batch::BatchEvents;

/// Runs `transfer` for each of `batch` on up to `threads` other threads. A batch of one, and one
/// for which there is no thread, is transferred by this one.
pub(super) fn each<T: Send>(
    batch: &mut [T],
    threads: usize,
    transfer: impl Fn(&mut T) -> io::Result<()> + Sync,
    events: &mut impl BatchEvents,
) {
    let len = batch.len();
    // Each transfer is locked once, by the thread that took its number.
    let batch: Vec<_> = batch.iter_mut().map(Mutex::new).collect();
    let next = AtomicUsize::new(0);
    // Relaxed: only the number itself is passed on; the locks and the channel order the rest.
    let take = || Some(next.fetch_add(1, Ordering::Relaxed)).filter(|&index| index < len);
    let run =
        |index: usize| transfer(&mut batch[index].lock().unwrap_or_else(PoisonError::into_inner));
    let (sender, results) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..if len > 1 { threads.min(len) } else { 0 } {
            let sender = sender.clone();
            let work = || {
                let sender = sender;
                while let Some(index) = take() {
                    // The receiver is dropped only after a panic of the events.
                    if sender.send((index, run(index))).is_err() {
                        return;
                    }
                }
            };
            if thread::Builder::new().spawn_scoped(scope, work).is_err() {
                break;
            }
        }
        drop(sender);
        (0..len).for_each(|index| events.in_flight(index));
        for (index, result) in &results {
            events.done(index, result);
        }
        // Without threads the whole batch is left.
        while let Some(index) = take() {
            events.done(index, run(index));
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts the events of each index.
    struct Seen(Vec<(u32, Vec<bool>)>);

    impl BatchEvents for Seen {
        const HAS_WORK: bool = true;

        fn in_flight(&mut self, index: usize) {
            self.0[index].0 += 1;
        }

        fn done(&mut self, index: usize, result: io::Result<()>) {
            self.0[index].1.push(result.is_ok());
        }
    }

    #[test]
    fn each_transfer_is_made_once_and_has_its_result() {
        for (threads, len) in [(0, 3), (1, 50), (2, 50), (8, 50), (100, 50), (8, 1), (8, 0)] {
            let mut batch: Vec<u32> = (0..len).collect();
            let mut seen = Seen(vec![(0, Vec::new()); len as usize]);
            let transfer = |one: &mut u32| {
                *one += 100;
                if one.is_multiple_of(7) { Err(io::ErrorKind::Other.into()) } else { Ok(()) }
            };
            each(&mut batch, threads, transfer, &mut seen);
            assert_eq!(batch, (100..100 + len).collect::<Vec<_>>());
            for (number, seen) in (100_u32..).zip(seen.0) {
                assert_eq!(
                    seen,
                    (1, vec![!number.is_multiple_of(7)]),
                    "{threads} threads, {number}"
                );
            }
        }
    }

    #[test]
    fn a_panic_of_the_events_waits_for_the_transfers() {
        struct Panics;
        impl BatchEvents for Panics {
            const HAS_WORK: bool = true;
            fn in_flight(&mut self, _: usize) {
                panic!("by an event");
            }
            fn done(&mut self, _: usize, _: io::Result<()>) {}
        }
        let mut batch = [0_u32; 8];
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let transfer = |one: &mut u32| {
                *one = 1;
                Ok(())
            };
            each(&mut batch, 4, transfer, &mut Panics);
        }));
        assert!(caught.is_err());
    }
}
