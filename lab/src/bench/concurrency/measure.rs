//! One scenario with one contender and one number of threads, measured once for the rate and once
//! for single calls.

use std::time::{Duration, Instant};

use super::contender::{SharedAllocator, SharedVisitor, visit};
use super::scenario::{ScenarioState, Timed};
use super::{ConcurrencyContenderId, ConcurrencyMeasureError, ConcurrencyScenario};
use crate::bench::suite::SMALLEST;
use crate::bench::team::{self, Member};
use crate::bench::thread_loop::{ThreadLoop, mops};

/// Steps between two checks of the time.
const STEPS: u32 = 32;
/// Steps before the clock starts.
const WARM_STEPS: u32 = if SMALLEST { 2 * STEPS } else { 1000 };
/// The number of latest times that a thread keeps.
const KEPT: usize = 1 << 15;

/// The result of one measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ConcurrencySample {
    /// Million calls per second, all threads together.
    pub(super) mops: f64,
    /// Half of the calls took at most this long.
    pub(super) p50_ns: f64,
    /// 99 % of the calls took at most this long.
    pub(super) p99_ns: f64,
}

/// Measures a scenario once: `time` for the rate, and half as long again for single calls.
pub(super) fn measure(
    scenario: ConcurrencyScenario,
    contender: ConcurrencyContenderId,
    threads: u32,
    time: Duration,
) -> Result<ConcurrencySample, ConcurrencyMeasureError> {
    struct ContenderRun(ConcurrencyScenario, u32, Duration);
    impl SharedVisitor for ContenderRun {
        type Output = Result<ConcurrencySample, ConcurrencyMeasureError>;
        fn visit<C: SharedAllocator>(self) -> Self::Output {
            with::<C>(self.0, self.1, self.2)
        }
    }
    visit(contender, ContenderRun(scenario, threads, time))
}

fn with<C: SharedAllocator>(
    scenario: ConcurrencyScenario,
    threads: u32,
    time: Duration,
) -> Result<ConcurrencySample, ConcurrencyMeasureError> {
    let mops = rate::<C>(scenario, threads, time)?;
    let scene = ScenarioState::<C>::new(scenario, threads)?;
    let timed = team::run(
        threads,
        time / 2,
        |member| {
            let mut watch = CallTimer::new();
            work(&scene, member, &mut watch).map(|_| watch.times)
        },
        || (),
    );
    let times = all(timed?.threads)?;
    let mut times: Vec<u32> = times.into_iter().flatten().collect();
    times.sort_unstable();
    let at = |percent: usize| {
        times.get((times.len() * percent / 100).min(times.len().saturating_sub(1)))
    };
    let (Some(&p50), Some(&p99)) = (at(50), at(99)) else {
        return Err(ConcurrencyMeasureError::NothingDone);
    };
    Ok(ConcurrencySample { mops, p50_ns: f64::from(p50), p99_ns: f64::from(p99) })
}

/// Returns the million calls per second of all threads together.
pub(super) fn rate<C: SharedAllocator>(
    scenario: ConcurrencyScenario,
    threads: u32,
    time: Duration,
) -> Result<f64, ConcurrencyMeasureError> {
    let scene = ScenarioState::<C>::new(scenario, threads)?;
    let rate = team::run(threads, time, |member| work(&scene, member, &mut ()), || ());
    mops(&all(rate?.threads)?).ok_or(ConcurrencyMeasureError::NothingDone)
}

fn all<T>(
    threads: Vec<Result<T, ConcurrencyMeasureError>>,
) -> Result<Vec<T>, ConcurrencyMeasureError> {
    threads.into_iter().collect()
}

fn work<C: SharedAllocator>(
    scene: &ScenarioState<C>,
    member: &Member<'_>,
    timed: &mut impl Timed,
) -> Result<ThreadLoop, ConcurrencyMeasureError> {
    let mut worker = scene.worker(member.index);
    ThreadLoop::run(member, WARM_STEPS / STEPS, |clock_runs| {
        let step = |_| if clock_runs { worker.step(timed) } else { worker.step(&mut ()) };
        let calls = (0..STEPS).map(step).sum();
        worker.error.take().map_or(Ok(calls), Err)
    })
}

/// Returns the nanoseconds that reading the clock twice takes.
fn clock_cost() -> u64 {
    let mut empty: Vec<u64> =
        (0..101).map(|_| Instant::now().elapsed().as_nanos() as u64).collect();
    empty.sort_unstable();
    empty[empty.len() / 2]
}

/// Measures the time of each call.
struct CallTimer {
    /// The latest times, in nanoseconds.
    times: Vec<u32>,
    next: usize,
    /// The cost of reading the clock twice.
    clock: u64,
}

impl CallTimer {
    fn new() -> Self {
        Self { times: Vec::with_capacity(KEPT), next: 0, clock: clock_cost() }
    }
}

impl Timed for CallTimer {
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
