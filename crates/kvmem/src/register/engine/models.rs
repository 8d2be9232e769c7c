//! Lanes: every chunk is done once, in order within its lane, and all finished chunks are known
//! after a failure.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;

use super::lanes::{ChunkTurn, Lanes};
use crate::sync::models::spawn;

/// Runs two threads on these lanes; the turn `fails` fails. Returns the finished chunks of each
/// lane.
fn work(lens: &'static [usize], fails: Option<ChunkTurn>) -> Vec<Vec<usize>> {
    let lanes = Arc::new(Lanes::new(lens.len()));
    lanes.open(lens.iter().copied());
    // The number of threads in each lane, at most one.
    let inside: Arc<Vec<AtomicUsize>> =
        Arc::new(lens.iter().map(|_| AtomicUsize::new(0)).collect());
    let run = move |lanes: Arc<Lanes<usize>>, inside: Arc<Vec<AtomicUsize>>| {
        while let Some(turn) = lanes.take() {
            // Relaxed: the lock of the lanes orders two visits.
            assert_eq!(
                inside[turn.lane].fetch_add(1, Ordering::Relaxed),
                0,
                "alone in lane {}",
                turn.lane
            );
            let done = (Some(turn) != fails).then_some(turn.index);
            inside[turn.lane].fetch_sub(1, Ordering::Relaxed);
            lanes.finish(turn, done);
        }
    };
    let other = {
        let (lanes, inside) = (lanes.clone(), inside.clone());
        thread::spawn(move || run(lanes, inside))
    };
    run(lanes.clone(), inside);
    other.join().expect("no thread fails");
    let counts: Vec<usize> = (0..lens.len()).map(|lane| lanes.count(lane)).collect();
    let done = lanes.drain();
    assert_eq!(counts, done.iter().map(Vec::len).collect::<Vec<_>>());
    assert_eq!(lanes.take(), None, "nothing is handed out after the end");
    for lane in &done {
        assert!(lane.iter().copied().eq(0..lane.len()), "in order, without gaps: {lane:?}");
    }
    done
}

#[test]
fn every_chunk_is_done_once() {
    loom::model(|| {
        let done = work(&[2, 1], None);
        assert_eq!(done.iter().map(Vec::len).collect::<Vec<_>>(), [2, 1]);
    });
}

#[test]
fn a_failure_stops_the_others_and_keeps_finished_chunks() {
    loom::model(|| {
        let done = work(&[2, 2], Some(ChunkTurn { lane: 0, index: 1 }));
        // Finished chunks stay known, for the rollback; the failed chunk is not among them.
        assert_eq!(done[0], [0]);
        assert!(done[1].len() <= 2);
    });
}

#[test]
fn lanes_can_be_opened_further() {
    loom::model(|| {
        let lanes = Arc::new(Lanes::new(1));
        lanes.open([1]);
        let other = spawn(&lanes, move |lanes| {
            while let Some(turn) = lanes.take() {
                lanes.finish(turn, Some(turn.index));
            }
        });
        // The chunks seen while others work are a prefix of the finished ones.
        let seen = lanes.count(0);
        assert!(lanes.get(0, 0).is_none() || lanes.count(0) == 1);
        other.join().expect("no thread fails");
        assert!(seen <= 1 && lanes.all() == [[0]]);
        lanes.open([2]);
        assert_eq!(lanes.take(), Some(ChunkTurn { lane: 0, index: 1 }));
    });
}
