//! Fetches in all orders of a few steps.

use loom::sync::Arc;
use loom::thread;

use super::tier_model::TierModel;
use crate::sync::models::preemptions::check;

type Run = fn(&TierModel);

/// Runs these threads in every order of up to three preemptions, with one in the background if
/// `background` is set. At most `reads` values are read.
fn side_by_side(background: bool, runs: &'static [Run], reads: u64) {
    check(3, move || {
        let model = Arc::new(TierModel::new());
        let spawn = |run: Run| {
            let model = model.clone();
            thread::spawn(move || run(&model))
        };
        let thread = background.then(|| {
            // It counts as started.
            let ids = model.join(&[0]);
            assert!(model.fetches.submit(&ids));
            model.fetches.leave(&ids, false);
            spawn(TierModel::run)
        });
        let others: Vec<_> = runs[1..].iter().map(|&run| spawn(run)).collect();
        runs[0](&model);
        for other in others {
            other.join().unwrap();
        }
        model.fetches.close();
        if let Some(thread) = thread {
            thread.join().unwrap();
        }
        model.end(reads);
    });
}

#[test]
fn threads_that_want_the_same_values_share_one_read() {
    side_by_side(false, &[|model| model.get(&[1, 2]), |model| model.get(&[2, 1])], 2);
}

#[test]
fn a_look_up_takes_over_what_waits_for_the_background() {
    side_by_side(true, &[|model| model.get_in_background(&[1]), |model| model.get(&[1])], 1);
}

#[test]
fn a_fetch_that_others_want_is_not_cancelled() {
    side_by_side(true, &[|model| model.get_in_background(&[1]), |model| model.cancel(1)], 1);
}

#[test]
fn cancelled_fetches_leave_nothing() {
    side_by_side(true, &[|model| model.cancel(1), |model| model.cancel(1)], 1);
}
