//! *Measure*: one scenario with one contender on so many threads, once for the rate and once for
//! single calls.

use std::time::Instant;

use super::contender::{Shared, Visitor, visit};
use super::scenario::{Scene, Timed};
use super::{ContenderId, MeasureError, Scenario};
use crate::crew::{self, Place};
use crate::crowd::shift::{Shift, mops};
use crate::crowd::suite;

/// Steps between two looks whether the time has run out.
const STEPS: u32 = 32;
/// Steps before the clock starts.
const WARM_STEPS: u32 = 1000;
/// Times that a thread keeps, the latest ones.
const KEPT: usize = 1 << 15;

/// One measurement: `time` is for the rate; half as long again is for single calls.
pub(super) type Task = suite::Task<Scenario, ContenderId>;

/// What one measurement saw.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Seen {
    /// Million calls a second, of all threads.
    pub(super) mops: f64,
    /// Half of the calls took no longer.
    pub(super) p50_ns: f64,
    /// 99 % of the calls took no longer.
    pub(super) p99_ns: f64,
}

/// Runs `task` once.
pub(super) fn measure(task: &Task) -> Result<Seen, MeasureError> {
    struct Run<'a>(&'a Task);
    impl Visitor for Run<'_> {
        type Output = Result<Seen, MeasureError>;
        fn visit<C: Shared>(self) -> Self::Output {
            with::<C>(self.0)
        }
    }
    visit(task.contender, Run(task))
}

fn with<C: Shared>(task: &Task) -> Result<Seen, MeasureError> {
    let Task { scenario, threads, time, .. } = *task;
    let scene = Scene::<C>::new(scenario, threads)?;
    let rate = crew::run(threads, time, |place| work(&scene, place, &mut ()), || ());
    let rate = all(rate?.threads)?;
    let mops = mops(&rate).ok_or(MeasureError::Nothing)?;
    drop(scene);

    let scene = Scene::<C>::new(scenario, threads)?;
    let timed = crew::run(
        threads,
        time / 2,
        |place| {
            let mut watch = Watch::new();
            work(&scene, place, &mut watch).map(|_| watch.times)
        },
        || (),
    );
    let times = all(timed?.threads)?;
    let mut times: Vec<u32> = times.into_iter().flatten().collect();
    times.sort_unstable();
    let at = |percent: usize| {
        times.get((times.len() * percent / 100).min(times.len().saturating_sub(1)))
    };
    let (Some(&p50), Some(&p99)) = (at(50), at(99)) else { return Err(MeasureError::Nothing) };
    Ok(Seen { mops, p50_ns: f64::from(p50), p99_ns: f64::from(p99) })
}

fn all<T>(threads: Vec<Result<T, MeasureError>>) -> Result<Vec<T>, MeasureError> {
    threads.into_iter().collect()
}

fn work<C: Shared>(
    scene: &Scene<C>,
    place: &Place<'_>,
    timed: &mut impl Timed,
) -> Result<Shift, MeasureError> {
    let mut worker = scene.worker(place.index);
    Shift::work(place, WARM_STEPS / STEPS, |clock_runs| {
        let step = |_| if clock_runs { worker.step(timed) } else { worker.step(&mut ()) };
        let calls = (0..STEPS).map(step).sum();
        worker.error.take().map_or(Ok(calls), Err)
    })
}

/// Takes the time of each call.
struct Watch {
    /// The latest times, in nanoseconds.
    times: Vec<u32>,
    next: usize,
    /// What reading the clock twice takes.
    clock: u64,
}

impl Watch {
    fn new() -> Self {
        let mut empty: Vec<u64> =
            (0..101).map(|_| Instant::now().elapsed().as_nanos() as u64).collect();
        empty.sort_unstable();
        Self { times: Vec::with_capacity(KEPT), next: 0, clock: empty[empty.len() / 2] }
    }
}

impl Timed for Watch {
    #[inline(always)]
    fn call<R>(&mut self, call: impl FnOnce() -> R) -> R {
        let start = Instant::now();
        let result = call();
        let took = (start.elapsed().as_nanos() as u64).saturating_sub(self.clock);
        let took = u32::try_from(took).unwrap_or(u32::MAX);
        match self.times.get_mut(self.next) {
            Some(kept) => *kept = took,
            None => self.times.push(took),
        }
        self.next = (self.next + 1) % KEPT;
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn every_scenario_is_measured() {
        for scenario in Scenario::ALL {
            for contender in ContenderId::ALL {
                let task = Task { scenario, contender, threads: 2, time: Duration::from_millis(2) };
                let seen = measure(&task).unwrap();
                assert!(
                    seen.mops > 0.0 && seen.p50_ns <= seen.p99_ns,
                    "{scenario} {contender}: {seen:?}"
                );
            }
        }
    }

    #[test]
    fn a_watch_keeps_the_latest_times() {
        let mut watch = Watch::new();
        for _ in 0..KEPT + 5 {
            watch.call(|| ());
        }
        assert_eq!((watch.times.len(), watch.next), (KEPT, 5));
        watch.call(|| std::thread::sleep(Duration::from_millis(1)));
        assert!(watch.times[5] >= 900_000, "{}", watch.times[5]);
    }
}
