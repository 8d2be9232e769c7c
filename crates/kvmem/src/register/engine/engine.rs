//! *Engine*: one run, from the plans of its regions to their keys, or back.

use std::any::Any;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use super::calibration::calibrate;
use super::chunk_work::{ChunkRun, ChunkWork};
use super::outcome::{Calibration, Outcome};
use super::progress::{RegisterListener, RunOptions, RunProgress};
use super::release::IssuedKeys;
use super::schedule::{RegionJob, Schedule};
use super::team::with_team;
use crate::arena::{Populate, Populated, Region};
use crate::register::plan::{CallStrategy, check_keys, check_memlock};
use crate::register::{
    ChunkError, Key, Limits, PlanOptions, Platform, Policy, RegisterError, Registrar,
};
use crate::threads::ThreadTeam;
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
    /// The reservation for the bytes that the first registrar faults in, held until the run ends.
    reserved: Mutex<Option<Box<dyn Any + Send + Sync>>>,
}

/// The result of a successful run.
pub(in crate::register) struct EngineResult {
    /// For each region, its keys by registrar.
    pub(in crate::register) keys: Vec<Vec<IssuedKeys>>,
    pub(in crate::register) outcome: Outcome,
    /// The number of threads that deregister the keys.
    pub(in crate::register) release_threads: usize,
}

/// The figures collected during a run.
#[derive(Debug, Default)]
struct RunFigures {
    populated: Populated,
    threads: usize,
    calibration: Option<Calibration>,
    register_seconds: f64,
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
        let reserved = host.reserve(schedule.faulted_bytes())?;
        let to_register = schedule.len_bytes() * registrars.len() as u64;
        let listener = run.listener.clone();
        let tracker =
            RunProgress::begin(Arc::clone(&host), run, schedule.populated_bytes(), to_register);
        Ok(Engine {
            work: ChunkWork::new(host, registrars, schedule, Arc::new(tracker)),
            strategy,
            populate: options.populate,
            listener,
            reserved: Mutex::new(Some(reserved)),
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
    /// `finish` gives all keys to registrations, which hold their regions.
    pub(in crate::register) unsafe fn run<R>(
        &self,
        finish: impl FnOnce(EngineResult) -> R,
    ) -> Result<R, RegisterError> {
        span!(INFO, "register", regions = self.jobs().len(), registrars = self.registrars());
        let run = ChunkRun::begin(&self.work, self.release_threads(f64::INFINITY));
        let result = self.run_steps(&run);
        drop(self.reserved.lock().unwrap_or_else(PoisonError::into_inner).take());
        match result {
            Ok(figures) => {
                // SAFETY: the caller promises that `finish` gives the keys to registrations; `self`
                // still borrows the work then.
                let keys = unsafe { run.take_keys() };
                let done = finish(self.result(keys, figures));
                self.work.tracker.end(true);
                Ok(done)
            }
            Err(error) => Err(with_kept(error, run.roll_back())),
        }
    }

    fn run_steps(&self, run: &ChunkRun<'_>) -> Result<RunFigures, RegisterError> {
        let mut figures = RunFigures::default();
        let mut chosen = None;
        let host = &*self.work.host;
        for step in self.work.schedule.steps() {
            for (job, range) in step.populate {
                self.populate(&self.jobs()[job], range, &mut figures.populated)?;
            }
            let start = host.now();
            let lead = |team: &mut ThreadTeam<'_, '_>| {
                let threads = match chosen {
                    Some(threads) => threads,
                    None => {
                        let (threads, calibration) = self.choose_threads(run, team)?;
                        figures.calibration = calibration;
                        *chosen.insert(threads)
                    }
                };
                team.shrink(threads);
                self.work.lanes.open(step.open_chunks);
                run.run(team, threads)
            };
            figures.threads = with_team(host, || run.work(), lead)?.threads;
            figures.register_seconds += host.now().saturating_sub(start).as_secs_f64();
        }
        Ok(figures)
    }

    /// Returns the number of threads to register with, and the figures behind it.
    fn choose_threads(
        &self,
        run: &ChunkRun<'_>,
        team: &mut ThreadTeam<'_, '_>,
    ) -> Result<(usize, Option<Calibration>), RegisterError> {
        let threads = self.strategy.threads;
        match self.strategy.calibration {
            Some(plan) => calibrate(run, team, plan, threads),
            None => Ok((threads, None)),
        }
    }

    fn populate(
        &self,
        job: &RegionJob,
        range: Range<usize>,
        sum: &mut Populated,
    ) -> Result<(), RegisterError> {
        let tracker = &self.work.tracker;
        tracker.check()?;
        let options = tracker.populate_options(sum.bytes);
        let how = if self.populate == Populate::None { Populate::Auto } else { self.populate };
        let done = self.work.host.populate(job.region(), range, how, &options);
        let done = done.map_err(|error| tracker.convert_error(error))?;
        sum.bytes += done.bytes;
        sum.seconds += done.seconds;
        sum.threads = sum.threads.max(done.threads);
        Ok(())
    }

    fn registrars(&self) -> usize {
        self.work.registrars.len()
    }

    /// Returns the number of threads that deregister, given how long registering took.
    fn release_threads(&self, register_seconds: f64) -> usize {
        let sequential = self.strategy.policy == Policy::Sequential
            || register_seconds < PARALLEL_RELEASE_SECONDS;
        if sequential { 1 } else { self.work.host.cores().min(self.registrars()).max(1) }
    }

    fn result(&self, keys: Vec<Vec<IssuedKeys>>, figures: RunFigures) -> EngineResult {
        let schedule = &self.work.schedule;
        let outcome = Outcome {
            len_bytes: schedule.len_bytes(),
            resident_bytes: schedule.resident_bytes(),
            devices: self.registrars(),
            policy: self.strategy.policy,
            populated: figures.populated,
            threads: figures.threads,
            calibration: figures.calibration,
            register_seconds: figures.register_seconds,
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
