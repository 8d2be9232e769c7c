//! *Release*: giving keys back, all that can be.

use std::ops::Range;
use std::sync::Arc;

use super::crew::together;
use super::lanes::Lanes;
use super::{ChunkError, Deregistered, Host, Key, Registrar};

/// How often a key that is not taken back is offered.
const TRIES: usize = 3;

/// Keys of one registrar for one region, to be given back.
#[derive(Debug)]
pub(super) struct Given {
    pub(super) registrar: Arc<dyn Registrar>,
    /// The number of each chunk, its range, and its key.
    pub(super) keys: Vec<(usize, Range<usize>, Key)>,
}

/// Gives all keys back, by so many threads. A key that is not taken back keeps no other from being so. Returns those that were
/// not, with the lane they are of; `report` is told the bytes of each chunk.
pub(super) fn release(
    host: &dyn Host,
    lanes: &[Given],
    threads: usize,
    report: &(dyn Fn(u64) + Sync),
) -> (Deregistered, Vec<(usize, ChunkError)>) {
    let keys: usize = lanes.iter().map(|lane| lane.keys.len()).sum();
    if keys == 0 {
        return (Deregistered::default(), Vec::new());
    }
    let turns: Lanes<Option<ChunkError>> = Lanes::new(lanes.len());
    turns.open(lanes.iter().map(|lane| lane.keys.len()));
    let (threads, seconds) = together(host, threads.min(lanes.len()), || {
        while let Some(turn) = turns.take() {
            let lane = &lanes[turn.lane];
            let (chunk, range, key) = &lane.keys[turn.index];
            turns.finish(turn, Some(offer(&*lane.registrar, *chunk, range, *key)));
            report(range.len() as u64);
        }
    });
    let failed = turns.drain().into_iter().enumerate();
    let kept: Vec<_> = failed
        .flat_map(|(lane, errors)| errors.into_iter().flatten().map(move |error| (lane, error)))
        .collect();
    (Deregistered { keys: keys - kept.len(), seconds, threads }, kept)
}

fn offer(registrar: &dyn Registrar, chunk: usize, range: &Range<usize>, key: Key) -> Option<ChunkError> {
    let mut tries = (0..TRIES).map(|_| registrar.deregister(key));
    let refusal = tries.try_fold(None, |_, answer| answer.err().map(Some))??;
    Some(ChunkError { device: registrar.name().to_owned(), chunk, range: range.clone(), refusal })
}
