//! *Release*: deregistering keys, as many as possible; memory of the rest stays mapped.

use std::ops::Range;
use std::sync::Arc;

use super::lanes::Lanes;
use super::team::run_on_team;
use crate::arena::Region;
use crate::register::registrar::DEREGISTER_ATTEMPTS;
use crate::register::{ChunkError, Deregistered, Key, Platform, Registrar};
use crate::threads::{TeamRun, WorkUnit};

/// The number of keys deregistered in one call. More would save little time, and progress is
/// reported after each call.
const KEYS_PER_CALL: usize = 8;

/// The keys of one registrar for one region.
#[derive(Debug)]
pub(in crate::register) struct IssuedKeys {
    pub(in crate::register) registrar: Arc<dyn Registrar>,
    /// The index of each chunk, its range, and its key.
    pub(in crate::register) keys: Vec<(usize, Range<usize>, Key)>,
}

/// Deregisters all keys on `threads` threads. The failure of one key does not stop the others.
/// Returns the failed keys, each with the index of its registrar. Calls `report` after each call to
/// a registrar, with its piece of work by the clock of the platform, and its bytes.
pub(in crate::register) fn release(
    host: &dyn Platform,
    lanes: &[IssuedKeys],
    threads: usize,
    report: &(dyn Fn(WorkUnit, u64) + Sync),
) -> (Deregistered, Vec<(usize, ChunkError)>) {
    let keys: usize = lanes.iter().map(|lane| lane.keys.len()).sum();
    if keys == 0 {
        return (Deregistered::default(), Vec::new());
    }
    let turns: Lanes<Vec<ChunkError>> = Lanes::new(lanes.len());
    turns.open(lanes.iter().map(|lane| lane.keys.len().div_ceil(KEYS_PER_CALL)));
    let TeamRun { threads, seconds, .. } = run_on_team(host, threads.min(lanes.len()), || {
        while let Some(turn) = turns.take() {
            let lane = &lanes[turn.lane];
            let began = host.now();
            let from = turn.index * KEYS_PER_CALL;
            let keys = &lane.keys[from..lane.keys.len().min(from + KEYS_PER_CALL)];
            let failed = deregister_some(&*lane.registrar, keys);
            let piece = WorkUnit::new(turn.lane, began, host.now());
            turns.finish(turn, Some(failed));
            report(piece, keys.iter().map(|(_, range, _)| range.len() as u64).sum());
        }
    });
    let results = turns.drain().into_iter().enumerate();
    let kept: Vec<_> = results
        .flat_map(|(lane, errors)| errors.into_iter().flatten().map(move |error| (lane, error)))
        .collect();
    (Deregistered { keys: keys - kept.len(), seconds, threads }, kept)
}

/// Deregisters some keys; returns those that fail.
fn deregister_some(
    registrar: &dyn Registrar,
    keys: &[(usize, Range<usize>, Key)],
) -> Vec<ChunkError> {
    let all: Vec<Key> = keys.iter().map(|(_, _, key)| *key).collect();
    let results = registrar.deregister_all(&all).into_iter().zip(keys);
    let kept = results.filter_map(|(result, (chunk, range, key))| {
        let retry = |cause| {
            let mut retries = (1..DEREGISTER_ATTEMPTS).map(|_| registrar.deregister(*key));
            retries.try_fold(cause, |_, result| result.err()).map(|cause| (chunk, range, cause))
        };
        result.err().and_then(retry)
    });
    kept.map(|(chunk, range, cause)| ChunkError {
        device: registrar.name().to_owned(),
        chunk: *chunk,
        range: range.clone(),
        cause,
    })
    .collect()
}

/// Keeps a region mapped, and its pages held, for the life of the process, because a device can
/// still reach them.
pub(in crate::register) fn leak(region: &Arc<Region>) {
    std::mem::forget(region.pin_pages());
    std::mem::forget(Arc::clone(region));
}
