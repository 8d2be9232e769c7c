//! *Release*: giving keys back, all that can be.

use std::ops::Range;
use std::sync::Arc;

use super::crew::together;
use super::lanes::Lanes;
use super::{ChunkError, Deregistered, Key, Platform, Registrar};
use crate::arena::WorkUnit;

/// How often a key that is not taken back is offered.
const TRIES: usize = 3;
/// How many keys are offered at once. More would cost little less, and progress is told after each
/// lot.
const AT_ONCE: usize = 8;

/// Keys of one registrar for one region, to be given back.
#[derive(Debug)]
pub(super) struct Given {
    pub(super) registrar: Arc<dyn Registrar>,
    /// The number of each chunk, its range, and its key.
    pub(super) keys: Vec<(usize, Range<usize>, Key)>,
}

/// Gives all keys back, by so many threads. A key that is not taken back keeps no other from being
/// so. Returns those that were not, with the lane they are of; `report` is told of each lot as a
/// piece of work, by the clock of the host, and its bytes.
pub(super) fn release(
    host: &dyn Platform,
    lanes: &[Given],
    threads: usize,
    report: &(dyn Fn(WorkUnit, u64) + Sync),
) -> (Deregistered, Vec<(usize, ChunkError)>) {
    let keys: usize = lanes.iter().map(|lane| lane.keys.len()).sum();
    if keys == 0 {
        return (Deregistered::default(), Vec::new());
    }
    let turns: Lanes<Vec<ChunkError>> = Lanes::new(lanes.len());
    turns.open(lanes.iter().map(|lane| lane.keys.len().div_ceil(AT_ONCE)));
    let (threads, seconds) = together(host, threads.min(lanes.len()), || {
        while let Some(turn) = turns.take() {
            let lane = &lanes[turn.lane];
            let began = host.now();
            let from = turn.index * AT_ONCE;
            let keys = &lane.keys[from..lane.keys.len().min(from + AT_ONCE)];
            let refused = offer(&*lane.registrar, keys);
            let piece = WorkUnit::new(turn.lane, began, host.now());
            turns.finish(turn, Some(refused));
            report(piece, keys.iter().map(|(_, range, _)| range.len() as u64).sum());
        }
    });
    let failed = turns.drain().into_iter().enumerate();
    let kept: Vec<_> = failed
        .flat_map(|(lane, errors)| errors.into_iter().flatten().map(move |error| (lane, error)))
        .collect();
    (Deregistered { keys: keys - kept.len(), seconds, threads }, kept)
}

/// Offers some keys; returns those that are not taken.
fn offer(registrar: &dyn Registrar, keys: &[(usize, Range<usize>, Key)]) -> Vec<ChunkError> {
    let all: Vec<Key> = keys.iter().map(|(_, _, key)| *key).collect();
    let answers = registrar.deregister_all(&all).into_iter().zip(keys);
    let kept = answers.filter_map(|(answer, (chunk, range, key))| {
        let again = |refusal| {
            let mut tries = (1..TRIES).map(|_| registrar.deregister(*key));
            tries.try_fold(refusal, |_, answer| answer.err()).map(|refusal| (chunk, range, refusal))
        };
        answer.err().and_then(again)
    });
    kept.map(|(chunk, range, refusal)| ChunkError {
        device: registrar.name().to_owned(),
        chunk: *chunk,
        range: range.clone(),
        refusal,
    })
    .collect()
}
