//! The stages of a fetch, its handles, and the queue of the background, of one thread after the
//! other. `models` has the same under loom.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Wake, Waker};
use std::thread;

use super::*;

type Fetches = PendingFetches<u32, char>;

/// Joins the fetches of these keys. Leases with even numbers are not broken.
fn joined(fetches: &Fetches, keys: &[u32]) -> Vec<FetchId> {
    fetches.join(keys.iter(), |_, lease| lease % 2 == 0)
}

/// Returns the number of fetches, and of those that threads may join.
fn len(fetches: &Fetches) -> (usize, usize) {
    let state = fetches.state();
    (state.fetches.len(), state.by_key.len())
}

/// Waits until this number of threads in the background have nothing to do.
fn wait_for_idle(fetches: &Fetches, threads: usize) {
    while fetches.state().idle != threads {
        thread::yield_now();
    }
}

#[test]
fn a_fetch_that_no_thread_has_started_ends_with_its_last_handle() {
    let fetches = Fetches::new(0);
    let ids = joined(&fetches, &[1, 2]);
    assert_eq!(joined(&fetches, &[2, 1]), [ids[1], ids[0]]);
    assert_eq!((fetches.leave(&ids, false), len(&fetches)), (vec![None; 2], (2, 2)));
    assert_eq!((fetches.leave(&ids[1..], false), len(&fetches)), (vec![None], (1, 1)));
    // The other one has a handle left, and stays without one if it is kept.
    fetches.leave(&ids[..1], true);
    assert_eq!((joined(&fetches, &[1]), len(&fetches)), (vec![ids[0]], (1, 1)));
    assert_ne!(joined(&fetches, &[2])[0], ids[1]);
    fetches.leave(&ids, false);
    assert_eq!(len(&fetches), (1, 1), "a fetch that has ended has no handles");
    assert!(fetches.are_done(&ids), "nobody waits for what has ended");
}

#[test]
fn a_fetch_is_started_once_and_each_handle_gets_its_value() {
    let fetches = Fetches::new(0);
    let id = joined(&fetches, &[1, 1, 2])[0];
    assert_eq!(fetches.start(&[id, id]), [(id, 1)]);
    assert!(fetches.start(&[id]).is_empty());
    // Threads join a read whose lease is not taken, or not broken.
    assert_eq!(joined(&fetches, &[1]), [id]);
    fetches.leased(id, 6);
    assert_eq!(joined(&fetches, &[1]), [id]);
    fetches.leased(id, 7);
    let later = joined(&fetches, &[1])[0];
    assert!(later != id && joined(&fetches, &[1]) == [later]);
    assert_eq!(len(&fetches), (3, 2));
    assert!(!fetches.are_done(&[later, id]));
    fetches.finish(id, Some('a'));
    assert!(fetches.are_done(&[id]) && !fetches.are_done(&[id, later]));
    assert_eq!(joined(&fetches, &[1]), [later], "the end of a fetch unlists no other one");
    for (left, there) in [(3, 3), (2, 3), (1, 3), (0, 2)] {
        assert_eq!(fetches.leave(&[id], false), [Some('a')], "{left} handles are left");
        assert_eq!(len(&fetches), (there, 2));
    }
    // A read that all handles have left goes on, and its end is the end of the fetch.
    fetches.start(&[later]);
    fetches.leave(&[later, later, later], false);
    assert_eq!(len(&fetches), (2, 2));
    fetches.finish(later, Some('b'));
    fetches.finish(later, Some('c'));
    assert_eq!((len(&fetches), fetches.leave(&[later], false)), ((1, 1), vec![None]));
    // Without a value, and never joined once it is done.
    let id = joined(&fetches, &[3])[0];
    fetches.start(&[id]);
    fetches.finish(id, None);
    let next = joined(&fetches, &[3])[0];
    assert!(next != id && fetches.leave(&[id, next], false) == [None, None]);
    assert_eq!(len(&fetches), (1, 1));
}

/// Counts its calls.
struct Counting(AtomicUsize);

impl Wake for Counting {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn wakers_are_called_once_for_the_first_fetch_that_is_not_done() {
    let fetches = Fetches::new(0);
    let counts: [_; 2] = std::array::from_fn(|_| Arc::new(Counting(AtomicUsize::new(0))));
    let wakers = counts.clone().map(Waker::from);
    let woken = || counts.each_ref().map(|count| count.0.load(Ordering::Relaxed));
    let ids = joined(&fetches, &[1, 2]);
    fetches.start(&ids);
    for waker in [&wakers[0], &wakers[0], &wakers[1]] {
        assert!(!fetches.poll(&ids, waker));
    }
    fetches.finish(ids[1], Some('b'));
    assert_eq!(woken(), [0, 0], "they wait for the first one");
    assert!(fetches.poll(&ids[1..], &wakers[0]));
    fetches.finish(ids[0], Some('a'));
    assert_eq!(woken(), [1, 1]);
    assert!(fetches.poll(&ids, &wakers[0]) && fetches.poll(&[], &wakers[0]));
    assert_eq!(fetches.leave(&ids, false), [Some('a'), Some('b')]);
    assert_eq!(woken(), [1, 1]);
}

#[test]
fn a_thread_starts_for_work_that_no_idle_one_takes_up_to_the_limit() {
    let fetches = Fetches::new(2);
    let ids = joined(&fetches, &[1, 2, 3, 4]);
    assert!(!fetches.submit(&[]), "there is no work");
    assert!(fetches.submit(&ids[..1]) && fetches.submit(&ids[1..2]));
    assert!(!fetches.submit(&ids[2..]), "two threads are there");
    assert!(!fetches.thread_ended() && fetches.thread_ended());
    assert!(fetches.submit(&[]), "the queue is not empty");
    let batch = fetches.next_batch().unwrap();
    assert_eq!(batch, ids.iter().copied().zip([1, 2, 3, 4]).collect::<Vec<_>>());
    assert!(!fetches.submit(&ids), "what was started is no work");
    // An idle thread takes the next one.
    let next = joined(&fetches, &[5]);
    thread::scope(|scope| {
        let idle = scope.spawn(|| fetches.next_batch());
        wait_for_idle(&fetches, 1);
        assert!(!fetches.submit(&next));
        assert_eq!(idle.join().unwrap(), Some(vec![(next[0], 5)]));
    });
    assert!(fetches.submit(&joined(&fetches, &[6])), "that thread is not idle any more");
    assert_eq!(fetches.next_batch().map(|batch| batch.len()), Some(1));
    // A cache that ends starts no threads, and they end when they have read what was queued.
    assert!(!fetches.thread_ended());
    fetches.close();
    assert!(!fetches.submit(&joined(&fetches, &[7])));
    assert_eq!(fetches.next_batch().map(|batch| batch.len()), Some(1));
    assert_eq!(fetches.next_batch(), None);
}

#[test]
fn the_queue_is_read_in_batches_without_what_others_have_started() {
    let fetches = Fetches::new(1);
    let keys: Vec<u32> = (0..3 * BATCH as u32 + 2).collect();
    let ids = joined(&fetches, &keys);
    fetches.submit(&ids);
    // The threads that want the values have started a batch and a half.
    fetches.start(&ids[..BATCH + BATCH / 2]);
    fetches.leave(&ids[2 * BATCH..2 * BATCH + 1], false);
    let batches: [_; 3] = std::array::from_fn(|_| fetches.next_batch().unwrap());
    let keys = batches.map(|batch| batch.into_iter().map(|(_, key)| key).collect::<Vec<_>>());
    let expected = |from: usize, to: usize| (from as u32..to as u32).collect::<Vec<_>>();
    let (half, second) = (BATCH + BATCH / 2, 2 * BATCH);
    assert_eq!(keys[0], expected(half, second));
    assert_eq!(keys[1], expected(second + 1, second + BATCH));
    assert_eq!(keys[2], expected(3 * BATCH, 3 * BATCH + 2));
}

/// One submission wakes one thread, and that one wakes the next.
#[test]
fn threads_wake_each_other_while_there_is_work() {
    let fetches = Fetches::new(2);
    thread::scope(|scope| {
        let idle: [_; 2] = std::array::from_fn(|_| scope.spawn(|| fetches.next_batch().unwrap()));
        wait_for_idle(&fetches, 2);
        let keys: Vec<u32> = (0..BATCH as u32 + 1).collect();
        fetches.submit(&joined(&fetches, &keys));
        let mut read = idle.map(|thread| thread.join().unwrap().len());
        read.sort_unstable();
        assert_eq!(read, [1, BATCH]);
    });
}
