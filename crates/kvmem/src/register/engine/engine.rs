//! *Engine*: one run, from the plans of its regions to their keys, or back.

use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::calibration::calibrate;
use super::chunk_work::{ChunkRun, ChunkWork};
use super::outcome::{Calibration, Outcome};
use super::progress::{RegisterListener, RunOptions, RunProgress};
use super::release::IssuedKeys;
use super::schedule::{EngineStep, MIN_STEP, RegionJob, Schedule};
use super::team::with_team;
use crate::arena::{Populate, Populated, Region};
use crate::register::plan::{CallStrategy, check_keys, check_memlock};
use crate::register::{
    CalibrationPlan, ChunkError, HeldHeadroom, Key, Limits, PlanOptions, Platform, Policy,
    RegisterError, Registrar,
};
use crate::threads::{ThreadTeam, ladder};
use crate::trace::span;

/// If registering took longer than this many seconds, several threads deregister. Deregistering is
/// faster than registering: 2 to 4 times for base pages, 20 to 50 times for hugepages, where a
/// second thread gained nothing until it took some milliseconds.
const PARALLEL_RELEASE_SECONDS: f64 = 0.05;

/// Regions that are being registered together.
pub(in crate::register) struct Engine {
    work: ChunkWork,
    strategy: CallStrategy,
    populate: Populate,
    listener: Option<RegisterListener>,
    /// The reservation for the bytes to be made resident, held until the run ends, and its bytes.
    reserved: Mutex<Option<(HeldHeadroom, u64)>>,
}

/// The result of a successful run.
pub(in crate::register) struct EngineResult {
    /// For each region, its keys by registrar.
    pub(in crate::register) keys: Vec<Vec<IssuedKeys>>,
    pub(in crate::register) outcome: Outcome,
    /// The number of threads that deregister the keys.
    pub(in crate::register) release_threads: usize,
}

/// The figures of populating, and the number of threads that was the fastest for a long range:
/// measuring it again in each step would take a part of each.
#[derive(Clone, Copy, Debug, Default)]
struct Populating {
    sum: Populated,
    threads: Option<NonZeroUsize>,
}

/// A step that a thread populates while the others register the one before.
struct Ahead<'a> {
    /// Taken by the thread that populates it.
    step: Mutex<Option<&'a EngineStep>>,
    /// The figures so far, or why populating failed.
    populating: Mutex<Result<Populating, RegisterError>>,
    /// The time when the last thread had registered its chunks.
    registered: Mutex<Duration>,
}

impl<'a> Ahead<'a> {
    fn new(populating: Populating, start: Duration) -> Ahead<'a> {
        let (populating, registered) = (Mutex::new(Ok(populating)), Mutex::new(start));
        Ahead { step: Mutex::new(None), populating, registered }
    }

    fn set(&self, step: Option<&'a EngineStep>) {
        *lock(&self.step) = step;
    }

    /// Populates the step, if there is one that no thread has taken. After a failure no more chunks
    /// are registered.
    fn populate(&self, engine: &Engine) -> bool {
        let Some(step) = lock(&self.step).take() else { return false };
        let mut populating = lock(&self.populating);
        if let Ok(figures) = &mut *populating
            && let Err(error) = engine.populate(step, figures)
        {
            *populating = Err(error);
            engine.work.lanes.stop();
        }
        true
    }

    fn has_registered(&self, now: Duration) {
        let mut registered = lock(&self.registered);
        *registered = now.max(*registered);
    }

    /// Returns the figures of populating, and the time when the chunks were registered.
    fn end(self) -> Result<(Populating, Duration), RegisterError> {
        let registered = self.registered.into_inner().unwrap_or_else(PoisonError::into_inner);
        let populating = self.populating.into_inner().unwrap_or_else(PoisonError::into_inner);
        Ok((populating?, registered))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The figures collected during a run.
#[derive(Debug, Default)]
struct RunFigures {
    populating: Populating,
    threads: usize,
    calibration: Option<Calibration>,
    register_seconds: f64,
    seconds: f64,
}

impl Engine {
    /// Prepares a run for at least one region. Reports every failure that can be known before the
    /// run.
    pub(in crate::register) fn new(
        host: Arc<dyn Platform>,
        registrars: Vec<Arc<dyn Registrar>>,
        regions: Vec<Arc<Region>>,
        options: &PlanOptions,
        run: RunOptions,
    ) -> Result<Engine, RegisterError> {
        let limits: Vec<Limits> = registrars.iter().map(|registrar| registrar.limits()).collect();
        let jobs =
            regions.into_iter().map(|region| RegionJob::new(region, &*host, &limits, options));
        let jobs = jobs.collect::<Result<Vec<_>, RegisterError>>()?;
        if jobs.is_empty() {
            return Err(RegisterError::Empty);
        }
        let schedule = Schedule::new(jobs, registrars.len());
        let strategy = choose_strategy(options, &schedule);
        check_memlock(&limits, schedule.len_bytes())?;
        for (limits, chunks) in limits.iter().zip(schedule.chunk_counts()) {
            check_keys(limits, chunks as u64)?;
        }
        let absent = schedule.absent_bytes();
        let reserved = host.reserve(absent)?;
        let to_register = schedule.len_bytes() * registrars.len() as u64;
        let listener = run.listener.clone();
        let tracker =
            RunProgress::begin(Arc::clone(&host), run, schedule.populated_bytes(), to_register);
        Ok(Engine {
            work: ChunkWork::new(host, registrars, schedule, Arc::new(tracker)),
            strategy,
            populate: options.populate,
            listener,
            reserved: Mutex::new(Some((reserved, absent))),
        })
    }

    pub(in crate::register) fn host(&self) -> &Arc<dyn Platform> {
        &self.work.host
    }

    /// Returns the regions with their plans, at least one.
    pub(in crate::register) fn jobs(&self) -> &[RegionJob] {
        self.work.schedule.jobs()
    }

    pub(in crate::register) fn tracker(&self) -> &RunProgress {
        &self.work.tracker
    }

    pub(in crate::register) fn listener(&self) -> Option<&RegisterListener> {
        self.listener.as_ref()
    }

    /// Returns the key of a chunk in the lane of a registrar, or the number of chunks that have
    /// keys if this one has none yet.
    pub(in crate::register) fn key(&self, lane: usize, chunk: usize) -> Result<Key, usize> {
        self.work.lanes.get(lane, chunk).ok_or_else(|| self.work.lanes.count(lane))
    }

    /// Runs all steps; then `finish` takes the keys. On failure nothing is registered.
    ///
    /// # Safety
    /// `finish` passes all keys to registrations, which hold their regions.
    pub(in crate::register) unsafe fn run<R>(
        &self,
        finish: impl FnOnce(EngineResult) -> R,
    ) -> Result<R, RegisterError> {
        span!(INFO, "register", regions = self.jobs().len(), registrars = self.registrars());
        let run = ChunkRun::begin(&self.work, self.release_threads(f64::INFINITY));
        let result = self.run_steps(&run);
        drop(lock(&self.reserved).take());
        match result {
            Ok(figures) => {
                // SAFETY: the caller promises that `finish` passes the keys to registrations;
                // `self` still borrows the work then.
                let keys = unsafe { run.take_keys() };
                let done = finish(self.result(keys, figures));
                self.work.tracker.end(true);
                Ok(done)
            }
            Err(error) => Err(with_kept(error, run.roll_back())),
        }
    }

    /// Populates and registers step by step. In a pipeline, a step is registered while the next one
    /// is populated by a thread of the same team.
    fn run_steps(&self, run: &ChunkRun<'_>) -> Result<RunFigures, RegisterError> {
        let (steps, pipelined) = self.steps();
        let host = &*self.work.host;
        let (began, mut figures) = (host.now(), RunFigures::default());
        let mut chosen = None;
        for (at, step) in steps.iter().enumerate() {
            if at == 0 || !pipelined {
                self.populate(step, &mut figures.populating)?;
            }
            let start = host.now();
            let ahead = Ahead::new(figures.populating, start);
            let work = |number: usize, threads: usize| {
                // Thread 0 leads, and the others wait for it: the last thread populates.
                if number + 1 == threads && ahead.populate(self) && threads > 1 {
                    return;
                }
                run.work();
                ahead.has_registered(host.now());
            };
            let lead = |team: &mut ThreadTeam<'_, '_>| {
                let threads = match chosen {
                    Some(threads) => threads,
                    None => {
                        let (threads, calibration) = self.choose_threads(run, team, step)?;
                        figures.calibration = calibration;
                        *chosen.insert(threads)
                    }
                };
                self.work.lanes.open(step.open_chunks.iter().copied());
                let next = steps.get(at + 1).filter(|_| pipelined);
                ahead.set(next);
                let all = threads + usize::from(next.is_some());
                team.shrink(all);
                let run = run.run(team, all)?;
                Ok::<_, RegisterError>(run.threads.saturating_sub(all - threads).max(1))
            };
            figures.threads = with_team(host, work, lead)?;
            let registered;
            (figures.populating, registered) = ahead.end()?;
            figures.register_seconds += registered.saturating_sub(start).as_secs_f64();
        }
        figures.seconds = host.now().saturating_sub(began).as_secs_f64();
        Ok(figures)
    }

    /// Returns the steps, and whether one is populated while the one before is registered. That
    /// needs a core that registering leaves free.
    fn steps(&self) -> (Vec<EngineStep>, bool) {
        let schedule = &self.work.schedule;
        if schedule.is_by_range() {
            return (schedule.by_range(), false);
        }
        if self.strategy.threads >= self.work.host.cores() || schedule.populated_bytes() == 0 {
            return (schedule.whole(), false);
        }
        let sampled = match self.strategy.calibration {
            Some(CalibrationPlan::Chunks { rounds }) => {
                2 * rounds * ladder(self.strategy.threads).count()
            }
            _ => 1,
        };
        (schedule.pipeline(sampled), true)
    }

    /// Returns the number of threads to register with, and the figures behind it. The chunks of
    /// `step` are populated.
    fn choose_threads(
        &self,
        run: &ChunkRun<'_>,
        team: &mut ThreadTeam<'_, '_>,
        step: &EngineStep,
    ) -> Result<(usize, Option<Calibration>), RegisterError> {
        let threads = self.strategy.threads;
        match self.strategy.calibration {
            Some(plan) => {
                let chunks = &self.work.schedule.first().plan().devices[0].chunks;
                let populated = step.open_chunks[0].min(chunks.len());
                let populated = chunks[..populated].last().map_or(0, |chunk| chunk.end);
                calibrate(run, team, plan, threads, populated)
            }
            None => Ok((threads, None)),
        }
    }

    /// Populates the ranges of a step.
    fn populate(&self, step: &EngineStep, all: &mut Populating) -> Result<(), RegisterError> {
        let tracker = &self.work.tracker;
        for (mapping, range) in &step.populate {
            tracker.check()?;
            self.release_headroom(mapping, range.clone());
            let is_long = range.len() >= MIN_STEP;
            let how = match (self.populate, all.threads) {
                (Populate::Threads(threads), _) => Populate::Threads(threads),
                (_, Some(threads)) if is_long => Populate::Threads(threads),
                _ => Populate::Auto,
            };
            let options = tracker.populate_options(all.sum.bytes);
            let done = self.work.host.populate(mapping, range.clone(), how, &options);
            let done = done.map_err(|error| tracker.convert_error(error))?;
            all.sum.bytes += done.bytes;
            all.sum.seconds += done.seconds;
            all.sum.threads = all.sum.threads.max(done.threads);
            if is_long {
                all.threads = NonZeroUsize::new(done.threads);
            }
        }
        Ok(())
    }

    /// Ends the reservation for a range, which populating it reserves itself.
    fn release_headroom(&self, mapping: &Region, range: Range<usize>) {
        let pages = mapping.segments(range).filter(|(segment, _)| !segment.obtained.is_pooled());
        let bytes: u64 = pages.map(|(_, range)| range.len() as u64).sum();
        if let Some((lower_to, reserved)) = &mut *lock(&self.reserved) {
            *reserved = reserved.saturating_sub(bytes);
            lower_to(*reserved);
        }
    }

    fn registrars(&self) -> usize {
        self.work.registrars.len()
    }

    /// Returns the number of threads that deregister, from how long registering took.
    fn release_threads(&self, register_seconds: f64) -> usize {
        let max = match self.strategy.policy {
            _ if register_seconds < PARALLEL_RELEASE_SECONDS => 1,
            Policy::Sequential => 1,
            Policy::Parallel(threads) => threads.get(),
            Policy::Auto => usize::MAX,
        };
        max.min(self.work.host.cores()).min(self.registrars()).max(1)
    }

    fn result(&self, keys: Vec<Vec<IssuedKeys>>, figures: RunFigures) -> EngineResult {
        let schedule = &self.work.schedule;
        let outcome = Outcome {
            len_bytes: schedule.len_bytes(),
            resident_bytes: schedule.resident_bytes(),
            devices: self.registrars(),
            policy: self.strategy.policy,
            populated: figures.populating.sum,
            threads: figures.threads,
            calibration: figures.calibration,
            register_seconds: figures.register_seconds,
            seconds: figures.seconds,
            keys: schedule.chunk_counts().sum(),
        };
        let release_threads = self.release_threads(outcome.register_seconds);
        EngineResult { keys, outcome, release_threads }
    }
}

/// Returns how registrars are called for all regions of a run.
fn choose_strategy(options: &PlanOptions, schedule: &Schedule) -> CallStrategy {
    let regions: Vec<_> = schedule.jobs().iter().map(|job| &job.plan().devices[..]).collect();
    let (len, untouched) = (schedule.len_bytes(), schedule.is_untouched());
    CallStrategy::choose(options, &regions, len, untouched, schedule.min_slice_bytes()).0
}

/// Returns the error of a run whose keys were deregistered, except those that failed.
fn with_kept(error: RegisterError, kept: Vec<ChunkError>) -> RegisterError {
    match error {
        RegisterError::ChunkFailed { error, .. } => RegisterError::ChunkFailed { error, kept },
        error if kept.is_empty() => error,
        _ => RegisterError::DeregisterFailed { kept },
    }
}
