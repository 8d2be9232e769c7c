//! *Side by side*: work on several devices at once.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

/// Runs `work` for each of `parts`, on a thread each; returns the results in the same order. The
/// caller's thread is one of them. It does the work for which the system creates no thread.
pub(crate) fn side_by_side<T: Send, R: Send>(
    parts: Vec<T>,
    work: impl Fn(T) -> R + Sync,
) -> Vec<R> {
    if parts.len() <= 1 {
        return parts.into_iter().map(work).collect();
    }
    // Each slot is locked by the thread that took its number, alone.
    let slots: Vec<Mutex<(Option<T>, Option<R>)>> =
        parts.into_iter().map(|part| Mutex::new((Some(part), None))).collect();
    let next = AtomicUsize::new(0);
    let run = || {
        // Relaxed: only the number itself is passed on; the locks and the end of the scope order
        // the rest.
        while let Some(slot) = slots.get(next.fetch_add(1, Ordering::Relaxed)) {
            let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
            slot.1 = slot.0.take().map(&work);
        }
    };
    thread::scope(|scope| {
        for _ in 1..slots.len() {
            if thread::Builder::new().spawn_scoped(scope, run).is_err() {
                break;
            }
        }
        run();
    });
    let result = |slot: Mutex<(_, Option<R>)>| slot.into_inner().ok()?.1;
    let results: Option<Vec<R>> = slots.into_iter().map(result).collect();
    results.expect("a panic of the work has been passed on by the scope")
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn parts_run_at_once_and_results_keep_their_order() {
        let barrier = Barrier::new(4);
        let results = side_by_side(vec![1, 2, 3, 4], |part| {
            barrier.wait();
            part * 10
        });
        assert_eq!(results, [10, 20, 30, 40]);
        assert_eq!(side_by_side(vec![7], |part| part), [7]);
        assert!(side_by_side(Vec::<u8>::new(), |part| part).is_empty());
    }
}
