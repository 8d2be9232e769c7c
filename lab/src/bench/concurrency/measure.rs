//! One scenario with one contender and one number of threads, measured once for the rate and once
//! for single calls.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use kvmem::offset::OffsetAllocator;
use kvmem::slab::ExtentCache;

use super::contender::{MutexAllocator, NoAllocator};
use super::scenario::{ScenarioState, Timed};
use super::{ConcurrencyContenderId, ConcurrencyScenario};
use crate::bench::contender::Contender;
use crate::bench::contender::binned::Binned;
use crate::bench::contender::kvmem::Sharded;
use crate::bench::suite::{Figures, SMALLEST};
use crate::bench::team::{self, Member, ThreadLoop, mops};

/// Steps between two checks of the time.
const STEPS: u32 = 32;
/// Steps before the clock starts.
const WARM_STEPS: u32 = if SMALLEST { 2 * STEPS } else { 1000 };
/// The number of latest times that a thread keeps.
const KEPT: usize = 1 << 15;

/// Measures a scenario once: `time` for the rate, and half as long again for single calls.
pub(super) fn measure(
    scenario: ConcurrencyScenario,
    contender: ConcurrencyContenderId,
    threads: u32,
    time: Duration,
) -> Result<Figures> {
    use ConcurrencyContenderId::{Binned as Model, Kvmem, KvmemCached, KvmemShards, Mutex, Null};
    let with = match contender {
        Kvmem => with::<OffsetAllocator>,
        KvmemCached => with::<ExtentCache>,
        Model => with::<Binned>,
        Mutex => with::<MutexAllocator>,
        Null => with::<NoAllocator>,
        KvmemShards => with::<Sharded<8>>,
    };
    with(scenario, threads, time)
}

fn with<C: Contender<Handle: Send> + Sync>(
    scenario: ConcurrencyScenario,
    threads: u32,
    time: Duration,
) -> Result<Figures> {
    let mops = rate::<C>(scenario, threads, time)?;
    let scene = ScenarioState::<C>::new(scenario, threads)?;
    let timed = |member: &Member<'_>| {
        let mut watch = CallTimer::new();
        work(&scene, member, &mut watch).map(|_| watch.times)
    };
    let timed = team::run(threads, time / 2, timed, || ())?.threads;
    let mut times = timed.into_iter().collect::<Result<Vec<_>>>()?.concat();
    times.sort_unstable();
    let at = |percent: usize| {
        let at = (times.len() * percent / 100).min(times.len().saturating_sub(1));
        times.get(at).copied().map(f64::from).context("no call returned in the given time")
    };
    Ok(Figures::of("M/s", mops).with("p50", at(50)?).with("p99", at(99)?))
}

/// Returns the rate of an allocator in a scenario: million calls per second of all threads
/// together, measured for `time`.
pub fn rate<C: Contender<Handle: Send> + Sync>(
    scenario: ConcurrencyScenario,
    threads: u32,
    time: Duration,
) -> Result<f64> {
    let scene = ScenarioState::<C>::new(scenario, threads)?;
    let rate = team::run(threads, time, |member| work(&scene, member, &mut ()), || ())?;
    mops(&rate.threads.into_iter().collect::<Result<Vec<_>>>()?)
}

fn work<C: Contender>(
    scene: &ScenarioState<C>,
    member: &Member<'_>,
    timed: &mut impl Timed,
) -> Result<ThreadLoop> {
    let mut worker = scene.worker(member.index);
    ThreadLoop::run(member, WARM_STEPS / STEPS, |clock_runs| {
        let step = |_| if clock_runs { worker.step(timed) } else { worker.step(&mut ()) };
        let calls = (0..STEPS).map(step).sum();
        worker.error.take().map_or(Ok(calls), |error| Err(error.into()))
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
