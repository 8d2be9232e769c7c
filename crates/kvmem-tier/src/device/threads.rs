//! *Threads*: work for each element of a batch, on several threads.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

/// Runs `work` for each of `batch` on up to `threads` threads; returns the results in the same
/// order.
pub(super) fn each<T: Send>(
    batch: &mut [T],
    threads: usize,
    work: impl Fn(&mut T) -> io::Result<()> + Sync,
) -> Vec<io::Result<()>> {
    let threads = threads.min(batch.len());
    if threads <= 1 {
        return batch.iter_mut().map(work).collect();
    }
    // Each element is locked once, by the thread that took its number.
    let elements: Vec<_> = batch.iter_mut().map(|one| Mutex::new((one, Ok(())))).collect();
    let next = AtomicUsize::new(0);
    let run = || {
        // Relaxed: only the number itself is passed on; the locks and the end of the scope order
        // the rest.
        while let Some(element) = elements.get(next.fetch_add(1, Ordering::Relaxed)) {
            let mut element = element.lock().unwrap_or_else(PoisonError::into_inner);
            element.1 = work(element.0);
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads {
            // Without another thread this one does the work.
            let _ = thread::Builder::new().spawn_scoped(scope, run);
        }
        run();
    });
    let result = |one: Mutex<(_, _)>| one.into_inner().unwrap_or_else(PoisonError::into_inner).1;
    elements.into_iter().map(result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_element_is_done_once_and_has_its_result() {
        for threads in [1, 2, 8, 100] {
            let mut batch: Vec<u32> = (0..50).collect();
            let results = each(&mut batch, threads, |one| {
                *one += 100;
                if *one % 7 == 0 { Err(io::ErrorKind::Other.into()) } else { Ok(()) }
            });
            assert_eq!(batch, (100..150).collect::<Vec<_>>());
            for (number, result) in (100..150).zip(results) {
                assert_eq!(result.is_err(), number % 7 == 0, "{number}");
            }
        }
    }
}
