//! Populating: threads, progress, cancellation, budget.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::{MIB, base, ordinary, page};
use kvmem::arena::{ArenaError, CancelToken, Populate, Progress, ProgressOptions};

#[test]
fn any_number_of_threads_makes_everything_resident() {
    for threads in [1, 2, 3, 64, usize::MAX] {
        for size in [1, page(), 7 * page(), 5 * MIB + 1, 65 * MIB + 1] {
            let region =
                base(size).populate(Populate::threads(threads)).map().expect("little memory");
            assert!(region.is_resident(..).expect("asked"), "{size} bytes by {threads}");
            let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
            assert!((1..=threads.min(cores.max(1))).contains(&region.receipt().threads));
        }
    }
}

#[test]
fn auto_measures_and_leaves_nothing_out() {
    for size in [1, 16 * MIB - 1, 16 * MIB, 100 * MIB + 1] {
        let region = ordinary(size).populate(Populate::Auto).map().expect("little memory");
        assert!(region.is_resident(..).expect("asked"), "{size}");
        assert_eq!(region.receipt().resident_bytes(), region.len() as u64);
    }
}

#[test]
fn later_and_in_parts_without_changing_a_byte() {
    let mut region = base(8 * MIB).map().expect("little memory");
    assert_eq!(region.residency(..).expect("asked").resident_bytes, 0);
    let done = region
        .populate(MIB..3 * MIB, Populate::threads(2), &ProgressOptions::new())
        .expect("little memory");
    assert_eq!(done.bytes, 2 << 20);
    assert!(done.seconds > 0.0 && done.gib_per_s() > 0.0);
    assert!(region.is_resident(MIB..3 * MIB).expect("asked"));
    assert_eq!(region.residency(..).expect("asked").resident_bytes, 2 << 20);

    for (n, byte) in region.as_mut_bytes().expect("private memory").iter_mut().enumerate() {
        *byte = (n / 4096) as u8 ^ n as u8;
    }
    // Not on page boundaries: the pages that have a part in the range.
    region
        .populate(5..8 * MIB - 5, Populate::Auto, &ProgressOptions::new())
        .expect("little memory");
    let bytes = region.as_mut_bytes().expect("private memory");
    assert!(bytes.iter().enumerate().all(|(n, byte)| *byte == (n / 4096) as u8 ^ n as u8));
    // Nothing, and nothing of nothing.
    assert_eq!(
        region.populate(.., Populate::None, &ProgressOptions::new()).expect("nothing").bytes,
        0
    );
    region.populate(7..7, Populate::Auto, &ProgressOptions::new()).expect("nothing");
}

#[test]
fn progress_never_falls_and_ends_at_the_total() {
    let seen = Arc::new(Mutex::new(Vec::<Progress>::new()));
    let all = Arc::clone(&seen);
    let region = base(200 * MIB)
        .populate(Populate::threads(2))
        .progress(move |progress| all.lock().unwrap().push(progress))
        .map()
        .expect("little memory");
    let seen = seen.lock().unwrap();
    assert!(seen.len() >= 6, "{} reports", seen.len());
    assert!(seen.windows(2).all(|two| two[0].done_bytes < two[1].done_bytes));
    let last = seen.last().unwrap();
    assert_eq!((last.done_bytes, last.total_bytes), (region.len() as u64, region.len() as u64));
    assert_eq!(last.left(), Some(Duration::ZERO));
    // The pieces of one thread follow each other.
    for worker in 0..2 {
        let own: Vec<_> = seen.iter().filter(|progress| progress.piece.worker == worker).collect();
        assert_eq!(own.is_empty(), worker >= region.receipt().threads, "thread {worker}");
        assert!(own.iter().all(|progress| progress.piece.ended <= progress.elapsed));
        assert!(own.iter().all(|progress| progress.piece.began <= progress.piece.ended));
        assert!(own.windows(2).all(|two| two[0].piece.ended <= two[1].piece.began));
    }
}

#[test]
fn cancelled_in_the_middle() {
    let cancel = CancelToken::new();
    let token = cancel.clone();
    let mapped = base(200 * MIB)
        .populate(Populate::threads(1))
        .cancel(cancel)
        .progress(move |progress| {
            if progress.done_bytes >= 64 << 20 {
                token.cancel();
            }
        })
        .map()
        .map(drop);
    let Err(ArenaError::Cancelled { done, total }) = mapped else { panic!("{mapped:?}") };
    assert_eq!(total, 200 << 20);
    assert!((64 << 20..200 << 20).contains(&done), "{done}");
}

#[test]
fn cancelled_before_it_began() {
    let cancel = CancelToken::new();
    cancel.cancel();
    let builder = base(MIB).cancel(cancel);
    let error = builder.clone().populate(Populate::Auto).map().expect_err("cancelled");
    assert_eq!(error, ArenaError::Cancelled { done: 0, total: 1 << 20 });
    // Mapping alone is not what a token ends.
    assert_eq!(builder.map().expect("little memory").len(), MIB);
}

#[test]
fn a_budget_ends_the_work_and_keeps_what_is_done() {
    let error =
        base(MIB).populate(Populate::Auto).time_budget(Duration::ZERO).map().expect_err("no time");
    assert!(
        matches!(error, ArenaError::OverBudget { done: 0, total, .. } if total == 1 << 20),
        "{error}"
    );

    let region = base(200 * MIB).map().expect("addresses");
    let done = Arc::new(AtomicU64::new(0));
    let seen = Arc::clone(&done);
    let watch =
        ProgressOptions::new().time_budget(Duration::from_millis(5)).progress(move |progress| {
            // Relaxed: read after the threads have been joined.
            seen.store(progress.done_bytes, Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(5));
        });
    let error = region.populate(.., Populate::threads(1), &watch).expect_err("too little time");
    let ArenaError::OverBudget { done: told, .. } = error else { panic!("{error}") };
    // Relaxed: see above.
    assert_eq!(told, done.load(Ordering::Relaxed));
    assert!(told < 200 << 20);
    assert!(region.residency(..).expect("asked").resident_bytes >= told);
}

#[test]
fn a_listener_that_panics_ends_the_work_and_nothing_hangs() {
    for threads in [1, 2] {
        let map = || {
            base(100 * MIB)
                .populate(Populate::threads(threads))
                .progress(|_| std::panic::resume_unwind(Box::new("enough")))
                .map()
        };
        assert!(std::panic::catch_unwind(map).is_err());
    }
}
