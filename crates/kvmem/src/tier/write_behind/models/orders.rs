//! The queue in all orders of a few steps.

use loom::sync::Arc;

use super::queue_model::QueueModel;
use crate::sync::models::preemptions::check;
use crate::sync::models::spawn;
use crate::tier::write_behind::queue::WhenFull;

type Run = fn(&QueueModel);

/// Runs a writer and these threads in every order of up to three preemptions; then ends the queue,
/// and verifies what is left with `end`.
fn beside_a_writer(make: fn() -> QueueModel, runs: &'static [Run], end: Run) {
    check(3, move || {
        let model = Arc::new(make());
        let spawn = |run: Run| spawn(&model, move |model| run(&model));
        let writer = spawn(QueueModel::write);
        let others: Vec<_> = runs[1..].iter().map(|&run| spawn(run)).collect();
        runs[0](&model);
        for thread in others {
            thread.join().unwrap();
        }
        model.close(false);
        writer.join().unwrap();
        model.end();
        end(&model);
    });
}

fn waiting() -> QueueModel {
    QueueModel::new(1, WhenFull::Wait)
}

fn dropping() -> QueueModel {
    QueueModel::new(1, WhenFull::Drop)
}

fn failing() -> QueueModel {
    let mut model = QueueModel::new(2, WhenFull::Wait);
    model.failing = true;
    model
}

fn put_and_look(model: &QueueModel) {
    model.put(1, 2).unwrap();
    assert_eq!(model.get(1), Some(2));
    model.put(1, 3).unwrap();
    assert_eq!(model.get(1), Some(3));
}

fn put_another(model: &QueueModel) {
    model.put(2, 2).unwrap();
    model.put_superseded(2, 1);
}

#[test]
fn a_value_is_found_from_the_moment_it_is_put() {
    beside_a_writer(waiting, &[put_and_look], |model| assert_eq!(model.in_tier(1), Some(3)));
}

#[test]
fn threads_wait_for_room_and_nothing_is_lost() {
    beside_a_writer(waiting, &[put_and_look, put_another], |model| {
        assert_eq!((model.in_tier(1), model.in_tier(2)), (Some(3), Some(2)));
    });
}

#[test]
fn a_value_that_is_dropped_takes_older_ones_with_it() {
    beside_a_writer(
        dropping,
        &[
            |model| {
                model.put(1, 2).unwrap();
                assert!(model.get(1).is_none_or(|version| version == 2));
            },
            |model| {
                model.put(2, 2).unwrap();
                assert!(model.get(2).is_none_or(|version| version == 2));
            },
        ],
        |model| {
            let versions = [model.in_tier(1), model.in_tier(2)];
            assert!(versions.iter().all(|version| version.is_none_or(|version| version == 2)));
            assert!(versions.iter().any(Option::is_some), "the first one has room");
        },
    );
}

#[test]
fn an_invalidation_ends_what_came_before_it() {
    beside_a_writer(
        waiting,
        &[|model| {
            model.put(1, 2).unwrap();
            model.invalidate(1);
            assert_eq!(model.get(1), None);
        }],
        |model| assert_eq!(model.in_tier(1), None),
    );
}

#[test]
fn a_value_put_beside_an_invalidation_is_the_latest_or_lost() {
    beside_a_writer(
        waiting,
        &[
            |model| {
                model.put(1, 2).unwrap();
                assert!(model.get(1).is_none_or(|version| version == 2));
            },
            |model| model.invalidate(1),
        ],
        |model| assert!(model.in_tier(1).is_none_or(|version| version == 2)),
    );
}

#[test]
fn a_clear_ends_what_came_before_it() {
    beside_a_writer(
        waiting,
        &[|model| {
            model.put(1, 2).unwrap();
            model.clear();
            assert_eq!((model.get(1), model.get(2)), (None, None));
            model.put(2, 3).unwrap();
        }],
        |model| assert_eq!((model.in_tier(1), model.in_tier(2)), (None, Some(3))),
    );
}

#[test]
fn a_flush_waits_for_what_came_before_it() {
    beside_a_writer(
        waiting,
        &[
            |model| {
                model.put(1, 2).unwrap();
                model.flush();
                assert_eq!(model.in_tier(1), Some(2));
            },
            put_another,
        ],
        |_| {},
    );
}

#[test]
fn a_tier_that_fails_has_no_older_value() {
    beside_a_writer(failing, &[|model| model.put(1, 2).unwrap(), put_another], |model| {
        assert_eq!((model.get(1), model.get(2)), (None, None));
    });
}

/// The end wakes a thread that waits for room, and values that were taken are made or removed.
#[test]
fn the_end_beside_threads_that_wait_for_room() {
    for discard in [false, true] {
        check(3, move || {
            let model = Arc::new(waiting());
            let spawn = |run: Run| spawn(&model, move |model| run(&model));
            let writer = spawn(QueueModel::write);
            let putter = spawn(|model| {
                let taken = model.put(1, 2).is_ok();
                assert!(taken || model.put(2, 2).is_err());
                let _ = model.put(2, 2);
            });
            model.close(discard);
            putter.join().unwrap();
            writer.join().unwrap();
            model.end();
        });
    }
}

/// Two writers never make two changes of one key at once.
#[test]
fn two_writers_keep_the_order_of_a_key() {
    beside_a_writer(
        || QueueModel::new(8, WhenFull::Wait),
        &[
            |model| {
                model.put(1, 2).unwrap();
                model.put(1, 3).unwrap();
                model.close(false);
            },
            QueueModel::write,
        ],
        |model| assert_eq!(model.in_tier(1), Some(3)),
    );
}

#[test]
fn after_a_flush_no_value_is_held() {
    beside_a_writer(
        waiting,
        &[|model| {
            model.put(1, 2).unwrap();
            model.flush();
            assert_eq!(model.held(), 0);
        }],
        |_| {},
    );
}
