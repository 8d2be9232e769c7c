//! Lanes: no chunk twice, none left out, order within a lane, all that was done is found after a
//! failure.

use kvmem::register::{ChunkTurn, Lanes};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;

/// Two threads work through these lanes; `fails` says which turn does. Returns what each lane has
/// done.
fn work(lens: &'static [usize], fails: Option<ChunkTurn>) -> Vec<Vec<usize>> {
    let lanes = Arc::new(Lanes::new(lens.len()));
    lanes.open(lens.iter().copied());
    // How many threads are in a lane; more than one never are.
    let inside: Arc<Vec<AtomicUsize>> =
        Arc::new(lens.iter().map(|_| AtomicUsize::new(0)).collect());
    let run = move |lanes: Arc<Lanes<usize>>, inside: Arc<Vec<AtomicUsize>>| {
        while let Some(turn) = lanes.take() {
            // Relaxed: the lanes' own lock is what orders two visits.
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
fn a_failure_stops_the_others_and_loses_nothing() {
    loom::model(|| {
        let done = work(&[2, 2], Some(ChunkTurn { lane: 0, index: 1 }));
        // What was done stays known, so that it can be undone; the chunk that failed is not among
        // it.
        assert_eq!(done[0], [0]);
        assert!(done[1].len() <= 2);
    });
}

#[test]
fn lanes_that_are_opened_further_go_on() {
    loom::model(|| {
        let lanes = Arc::new(Lanes::new(1));
        lanes.open([1]);
        let other = {
            let lanes = lanes.clone();
            thread::spawn(move || {
                while let Some(turn) = lanes.take() {
                    lanes.finish(turn, Some(turn.index));
                }
            })
        };
        // What is seen while others work is a prefix of what will have been done.
        let seen = lanes.count(0);
        assert!(lanes.get(0, 0).is_none() || lanes.count(0) == 1);
        other.join().expect("no thread fails");
        assert!(seen <= 1 && lanes.all() == [[0]]);
        lanes.open([2]);
        assert_eq!(lanes.take(), Some(ChunkTurn { lane: 0, index: 1 }));
    });
}
