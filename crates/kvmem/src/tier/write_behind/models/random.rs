//! The queue with more threads and steps than loom can check.

use shuttle::sync::Arc;
use shuttle::thread;

use super::queue_model::QueueModel;
use crate::sync::models::random::check;
use crate::tier::write_behind::queue::QueueError;
use crate::tier::write_behind::queue::WhenFull;

/// Each of two threads changes one key and knows its latest version. A found value is that one, or
/// none if the key was removed or a value may have been dropped.
fn changes(model: &QueueModel, key: u8, when_full: WhenFull) {
    for version in [2, 4, 6] {
        if model.put(key, version) == Err(QueueError::TooManyRemovals) {
            assert_eq!(when_full, WhenFull::Drop);
            // A cache would not fetch the key any more.
            model.invalidate(key);
            continue;
        }
        let found = model.get(key);
        let kept = when_full == WhenFull::Wait;
        assert!(found == Some(version) || found.is_none() && !kept, "{found:?} of {version}");
        if version == 4 {
            model.invalidate(key);
            assert_eq!(model.get(key), None);
        }
    }
}

fn run(when_full: WhenFull, writers: usize) {
    check(move || {
        let model = Arc::new(QueueModel::new(2, when_full));
        let threads: Vec<_> = [1, 2, 3]
            .into_iter()
            .map(|key| {
                let model = model.clone();
                thread::spawn(move || changes(&model, key, when_full))
            })
            .collect();
        let writers: Vec<_> = (0..writers)
            .map(|_| {
                let model = model.clone();
                thread::spawn(move || model.write())
            })
            .collect();
        model.flush();
        for thread in threads {
            thread.join().unwrap();
        }
        let latest = [1, 2, 3].map(|key| model.get(key));
        model.close(false);
        for writer in writers {
            writer.join().unwrap();
        }
        model.end();
        assert_eq!([1, 2, 3].map(|key| model.in_tier(key)), latest);
        if when_full == WhenFull::Wait {
            assert_eq!(latest, [Some(6); 3]);
        }
    });
}

#[test]
fn one_writer_and_threads_that_wait() {
    run(WhenFull::Wait, 1);
}

#[test]
fn two_writers_and_threads_that_wait() {
    run(WhenFull::Wait, 2);
}

#[test]
fn two_writers_and_values_that_are_dropped() {
    run(WhenFull::Drop, 2);
}
