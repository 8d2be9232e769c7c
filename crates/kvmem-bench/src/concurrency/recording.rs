//! *Recording*: the calls of a scenario with the time that each takes alone.
//!
//! One thread takes the steps of all logical threads in turns, in the library's own allocator. Each
//! logical thread keeps its share of the space, so placement meets what it meets beside as many
//! real threads.
//!
//! A recording has the shape from one measurement and the scale from another:
//!
//! - *Shape.* The sequence is replayed several times. Placement is deterministic, so a call does
//!   the same work in each replay, and the median of its times leaves out interrupts.
//! - *Scale.* Reading the clock keeps the processor from overlapping a call with the next, and
//!   takes as long as a short call. The times are scaled to the mean of a replay without a clock
//!   around each call, less that of the loop with an allocator that places nothing. Of several
//!   replays the fastest counts, because other work on the machine only adds time.

use std::time::Instant;

use kvmem::offset::OffsetAllocator;

use super::contender::{NoAllocator, SharedAllocator, Unchanged};
use super::measure::clock_cost;
use super::scenario::{CallKind, ScenarioState, Timed, Worker};
use super::{ConcurrencyMeasureError, ConcurrencyScenario};
use crate::clock::Stopwatch;
use crate::stats::median;

/// Steps of each logical thread before the recording begins.
const WARM_STEPS: usize = 50;
/// The shortest time of a call, in picoseconds: the clock's resolution is coarser than some calls.
const SHORTEST_PS: f64 = 2_000.0;

/// A recorded call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordedCall {
    pub(crate) kind: CallKind,
    pub(crate) bytes: u64,
    /// The time of the call on a thread of its own, in picoseconds.
    pub(crate) ps: u64,
}

/// The calls of each logical thread.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Recording {
    pub(crate) threads: Vec<Vec<RecordedCall>>,
    /// The time of the loop from one call to the next, in picoseconds.
    pub(crate) loop_ps: u64,
}

impl Recording {
    /// Returns the mean time of a call that takes the lock, in nanoseconds.
    pub(crate) fn call_ns(&self) -> f64 {
        let calls = || self.threads.iter().flatten().filter(|call| call.kind != CallKind::Fail);
        calls().map(|call| call.ps as f64).sum::<f64>() / calls().count().max(1) as f64 / 1e3
    }
}

impl Recording {
    /// Scales the times of calls that take the lock to a mean of `call_ns` nanoseconds.
    pub(crate) fn scale_to(&mut self, call_ns: f64) {
        let scale = call_ns / self.call_ns().max(1.0);
        let calls = self.threads.iter_mut().flatten().filter(|call| call.kind != CallKind::Fail);
        calls.for_each(|call| call.ps = (call.ps as f64 * scale).round().max(1.0) as u64);
    }
}

/// Records `steps` steps of each of `threads` logical threads of `scenario`, by `count` replays
/// with and `count` without a clock around each call.
///
/// # Errors
/// [`ConcurrencyMeasureError`] if the space cannot be made or a call has an unexpected result.
pub(crate) fn record(
    scenario: ConcurrencyScenario,
    threads: u32,
    steps: usize,
    count: u32,
) -> Result<Recording, ConcurrencyMeasureError> {
    let mut replays = Vec::new();
    for _ in 0..count {
        let mut timer = Recorder { calls: Vec::new(), clock: clock_cost() };
        replay::<Unchanged<OffsetAllocator>>(scenario, threads, steps, &mut timer)?;
        replays.push(timer.calls);
    }
    let own = fastest::<Unchanged<OffsetAllocator>>(scenario, threads, steps, count)?;
    let alone = fastest::<NoAllocator>(scenario, threads, steps, count)?;
    Ok(combine(&replays, threads as usize, own - alone, alone))
}

/// Returns the medians of `replays`, scaled to a mean of `call_ns`.
fn combine(replays: &[Vec<RecordedCall>], threads: usize, call_ns: f64, loop_ns: f64) -> Recording {
    let calls = replays.iter().map(Vec::len).min().unwrap_or(0);
    let middle = |at: usize| {
        let times = replays.iter().map(|calls| calls[at].ps as f64);
        median(times.collect()).unwrap_or(SHORTEST_PS).max(SHORTEST_PS)
    };
    let shape: Vec<f64> = (0..calls).map(middle).collect();
    let mean = shape.iter().sum::<f64>() / calls.max(1) as f64;
    let scale = (call_ns * 1e3).max(SHORTEST_PS) / mean.max(1.0);
    let mut recording =
        Recording { threads: vec![Vec::new(); threads], loop_ps: (loop_ns.max(0.0) * 1e3) as u64 };
    if let Some(first) = replays.first() {
        for (at, (call, time)) in first.iter().zip(&shape).enumerate() {
            let ps = (time * scale).round().max(1.0) as u64;
            recording.threads[at % threads].push(RecordedCall { ps, ..*call });
        }
    }
    recording
}

/// Returns the nanoseconds of a step in the fastest replay.
fn fastest<C: SharedAllocator>(
    scenario: ConcurrencyScenario,
    threads: u32,
    steps: usize,
    count: u32,
) -> Result<f64, ConcurrencyMeasureError> {
    let mut fastest = f64::INFINITY;
    for _ in 0..count {
        fastest = fastest.min(replay::<C>(scenario, threads, steps, &mut ())?);
    }
    Ok(fastest)
}

/// Takes the steps in turns; returns the nanoseconds of a step.
fn replay<C: SharedAllocator>(
    scenario: ConcurrencyScenario,
    threads: u32,
    steps: usize,
    timed: &mut impl Timed,
) -> Result<f64, ConcurrencyMeasureError> {
    let scene = ScenarioState::<C>::new(scenario, threads)?;
    let mut workers: Vec<Worker<'_, C>> =
        (0..threads as usize).map(|index| scene.worker(index)).collect();
    for worker in &mut workers {
        (0..WARM_STEPS).for_each(|_| _ = worker.step(&mut ()));
    }
    let watch = Stopwatch::start();
    for _ in 0..steps {
        workers.iter_mut().for_each(|worker| _ = worker.step(timed));
    }
    let ns = watch.ns_per_op(steps as u64 * u64::from(threads));
    workers.iter_mut().find_map(|worker| worker.error.take()).map_or(Ok(ns), Err)
}

/// Writes down each call.
struct Recorder {
    calls: Vec<RecordedCall>,
    /// The cost of reading the clock twice, in nanoseconds.
    clock: u64,
}

impl Timed for Recorder {
    fn call<R>(&mut self, kind: CallKind, bytes: u64, call: impl FnOnce() -> R) -> R {
        let start = Instant::now();
        let result = call();
        let took = (start.elapsed().as_nanos() as u64).saturating_sub(self.clock);
        self.calls.push(RecordedCall { kind, bytes, ps: took.saturating_mul(1000) });
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replays_have_the_same_calls() {
        let calls = |recording: Recording| -> Vec<Vec<_>> {
            let of = |calls: Vec<RecordedCall>| {
                calls.into_iter().map(|call| (call.kind, call.bytes)).collect()
            };
            recording.threads.into_iter().map(of).collect()
        };
        for scenario in [ConcurrencyScenario::Fragmented, ConcurrencyScenario::HighWater] {
            let [one, other] = [(); 2].map(|()| calls(record(scenario, 8, 60, 2).unwrap()));
            assert_eq!(one, other, "{scenario}");
            assert!(one.len() == 8 && one.iter().all(|calls| calls.len() == 60), "{scenario}");
            let kinds = |kind| one.iter().flatten().filter(|call| call.0 == kind).count();
            assert!(kinds(CallKind::Allocate) > 100 && kinds(CallKind::Free) > 100, "{scenario}");
            let fails = kinds(CallKind::Fail);
            assert_eq!(fails > 0, scenario == ConcurrencyScenario::HighWater, "{scenario}");
        }
    }

    #[test]
    fn times_are_medians_with_the_mean_of_the_loop_without_a_clock() {
        let call = |ps| RecordedCall { kind: CallKind::Free, bytes: 1, ps };
        let replay = |times: [u64; 4]| times.map(call).to_vec();
        let replays = [
            replay([10_000, 30_000, 20_000, 20_000]),
            replay([10_000, 900_000, 20_000, 20_000]),
            replay([10_000, 30_000, 20_000, 0]),
        ];
        let recording = combine(&replays, 2, 40.0, 3.0);
        let times: Vec<Vec<u64>> = recording
            .threads
            .iter()
            .map(|calls| calls.iter().map(|call| call.ps).collect())
            .collect();
        assert_eq!(times, [[20_000, 40_000], [60_000, 40_000]]);
        assert_eq!((recording.loop_ps, recording.call_ns()), (3_000, 40.0));
        let mut scaled = recording.clone();
        scaled.scale_to(20.0);
        assert_eq!((scaled.call_ns(), scaled.threads[1][0].ps), (20.0, 30_000));
    }
}
