//! *Engine*: carries out a plan, all of it or nothing.
//!
//! ```text
//!  for each step:   populate missing pages
//!                   the first time: measure which strategy is faster          (calibration.rs)
//!                   threads take turns at the registrars                      (lanes.rs)
//!  on any failure:  all threads stop, every key is deregistered, the first failure is returned
//! ```
//!
//! The pages are held from before the first key is issued until after the last one is deregistered.

use std::any::Any;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use super::calibration::ProbeSlice;
use super::lanes::{ChunkTurn, Lanes};
use super::progress::{RunOptions, RunProgress};
use super::release::{IssuedKeys, release};
use super::team::with_team;
use crate::arena::{PinnedRange, Populate, Populated, Region, WorkUnit};
use crate::register::plan::{CallStrategy, check_keys, check_memlock};
use crate::register::{
    Calibration, ChunkError, DevicePlan, Key, Limits, Outcome, Plan, Platform, Policy,
    RegisterError, Registrar, Registration, RegistrationSet,
};
use crate::threads::{TeamRun, ThreadTeam};
use crate::trace::span;

/// If registering took longer than this many seconds, several threads deregister. Deregistering is
/// faster than registering: 2 to 4 times for base pages, 20 to 50 times for hugepages, where a
/// second thread gained nothing until it took some milliseconds.
const PARALLEL_RELEASE_SECONDS: f64 = 0.05;

/// One region that is being registered.
pub(in crate::register) struct RegionJob {
    pub(in crate::register) region: Arc<Region>,
    pub(in crate::register) plan: Plan,
    /// Bytes that are not resident and not populated beforehand: registering faults them in.
    pub(in crate::register) faulted: u64,
}

/// Regions that are being registered together.
pub(in crate::register) struct Engine {
    pub(in crate::register) host: Arc<dyn Platform>,
    pub(in crate::register) registrars: Vec<Arc<dyn Registrar>>,
    pub(in crate::register) jobs: Vec<RegionJob>,
    pub(in crate::register) strategy: CallStrategy,
    populate: Populate,
    /// For each lane and job, the number of the lane's chunks that precede those of the job, and
    /// one more entry at the end for the total.
    chunks_before: Vec<Vec<usize>>,
    pub(in crate::register) lanes: Lanes<Key>,
    pub(in crate::register) tracker: Arc<RunProgress>,
    options: RunOptions,
    /// The slice that threads register instead of their chunks while slices are calibrated.
    pub(in crate::register) probe: Mutex<Option<Arc<ProbeSlice>>>,
    failure: Mutex<Option<RegisterError>>,
    _pinned: Vec<PinnedRange>,
    /// The reservation for the bytes that the first registrar faults in, held until the run ends.
    reserved: Mutex<Option<Box<dyn Any + Send + Sync>>>,
}

/// The figures collected during a run.
#[derive(Debug, Default)]
pub(in crate::register) struct RunFigures {
    populated: Populated,
    threads: usize,
    trial: Option<Calibration>,
    register_seconds: f64,
}

/// The work done before the next step begins.
struct EngineStep {
    /// The ranges to populate, each with the index of its job.
    populate: Vec<(usize, Range<usize>)>,
    /// The number of chunks up to which each lane is opened.
    open_chunks: Vec<usize>,
}

impl Engine {
    /// Prepares a run. Reports every failure that can be known before the run.
    pub(in crate::register) fn new(
        host: Arc<dyn Platform>,
        registrars: Vec<Arc<dyn Registrar>>,
        limits: &[Limits],
        jobs: Vec<RegionJob>,
        strategy: CallStrategy,
        populate: Populate,
        options: RunOptions,
    ) -> Result<Engine, RegisterError> {
        let total: u64 = jobs.iter().map(|job| job.plan.len_bytes).sum();
        check_memlock(limits, total)?;
        let chunks_before: Vec<Vec<usize>> = (0..registrars.len())
            .map(|lane| {
                let mut count = 0;
                let counts = jobs.iter().map(|job| {
                    count += job.plan.lanes[lane].chunks.len();
                    count
                });
                [0].into_iter().chain(counts).collect()
            })
            .collect();
        for (limits, before) in limits.iter().zip(&chunks_before) {
            check_keys(limits, before[jobs.len()] as u64)?;
        }
        let reserved = host.reserve(jobs.iter().map(|job| job.faulted).sum())?;
        let to_populate =
            jobs.iter().flat_map(|job| &job.plan.populate).map(|range| range.len() as u64).sum();
        let to_register = total * registrars.len() as u64;
        let tracker =
            RunProgress::begin(Arc::clone(&host), options.clone(), to_populate, to_register);
        Ok(Engine {
            lanes: Lanes::new(registrars.len()),
            tracker: Arc::new(tracker),
            probe: Mutex::new(None),
            failure: Mutex::new(None),
            _pinned: jobs.iter().map(|job| job.region.pin_pages()).collect(),
            reserved: Mutex::new(Some(reserved)),
            host,
            registrars,
            jobs,
            strategy,
            populate,
            chunks_before,
            options,
        })
    }

    /// Runs all steps. On failure nothing is registered.
    pub(in crate::register) fn run(&self) -> Result<Vec<RegistrationSet>, RegisterError> {
        span!(INFO, "register", regions = self.jobs.len(), registrars = self.registrars.len());
        let undo = UndoOnPanic(self);
        let result = self.run_steps();
        std::mem::forget(undo);
        drop(self.reserved.lock().unwrap_or_else(PoisonError::into_inner).take());
        match result {
            Ok(figures) => {
                let sets = self.sets(&figures);
                self.tracker.end(true);
                Ok(sets)
            }
            Err(error) => Err(self.undo(error)),
        }
    }

    fn run_steps(&self) -> Result<RunFigures, RegisterError> {
        let mut figures = RunFigures::default();
        let mut chosen = None;
        for step in self.steps() {
            for (job, range) in step.populate {
                self.populate(job, range, &mut figures.populated)?;
            }
            let start = self.host.now();
            figures.threads = with_team(
                &*self.host,
                || self.work(),
                |team| {
                    let threads = match chosen {
                        Some(threads) => threads,
                        None => {
                            let (threads, trial) = self.choose(team)?;
                            figures.trial = trial;
                            *chosen.insert(threads)
                        }
                    };
                    team.shrink(threads);
                    self.lanes.open(step.open_chunks);
                    self.run_team(team, threads).map(|(threads, _)| threads)
                },
            )?;
            figures.register_seconds += self.host.now().saturating_sub(start).as_secs_f64();
        }
        Ok(figures)
    }

    /// Returns the steps. By default all regions are populated before any is registered; with
    /// `by_range`, each range is populated and then registered.
    fn steps(&self) -> Vec<EngineStep> {
        let by_range = self.jobs.iter().any(|job| job.plan.steps.len() > 1);
        let all =
            |job: usize| self.jobs[job].plan.populate.iter().map(move |range| (job, range.clone()));
        if !by_range {
            let open_chunks =
                self.chunks_before.iter().map(|before| before[self.jobs.len()]).collect();
            return vec![EngineStep {
                populate: (0..self.jobs.len()).flat_map(all).collect(),
                open_chunks,
            }];
        }
        let mut steps = Vec::new();
        for (job, RegionJob { plan, .. }) in self.jobs.iter().enumerate() {
            for step in &plan.steps {
                let common =
                    |range: &Range<usize>| range.start.max(step.start)..range.end.min(step.end);
                let populate = plan.populate.iter().map(common).filter(|range| !range.is_empty());
                let open_chunks =
                    plan.lanes.iter().zip(&self.chunks_before).map(|(lane, before)| {
                        before[job] + lane.chunks.partition_point(|chunk| chunk.end <= step.end)
                    });
                steps.push(EngineStep {
                    populate: populate.map(|range| (job, range)).collect(),
                    open_chunks: open_chunks.collect(),
                });
            }
        }
        steps
    }

    fn populate(
        &self,
        job: usize,
        range: Range<usize>,
        sum: &mut Populated,
    ) -> Result<(), RegisterError> {
        self.tracker.check()?;
        let options = self.tracker.populate_options(sum.bytes);
        let how = if self.populate == Populate::None { Populate::Auto } else { self.populate };
        let done = self.host.populate(&self.jobs[job].region, range, how, &options);
        let done = done.map_err(|error| self.tracker.convert_error(error))?;
        sum.bytes += done.bytes;
        sum.seconds += done.seconds;
        sum.threads = sum.threads.max(done.threads);
        Ok(())
    }

    /// Runs the open chunks of all lanes on `threads` threads, or fewer if they cannot be created;
    /// returns their number, and the seconds that it took.
    pub(in crate::register) fn run_team(
        &self,
        team: &mut ThreadTeam<'_, '_>,
        threads: usize,
    ) -> Result<(usize, f64), RegisterError> {
        let TeamRun { threads, seconds, .. } = team.run(threads);
        match self.failure.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(error) => Err(error),
            None => Ok((threads, seconds)),
        }
    }

    /// The work of one thread.
    fn work(&self) {
        let probe = self.probe.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match probe {
            Some(slice) => slice.register(self),
            None => self.take_turns(),
        }
    }

    fn take_turns(&self) {
        let _stop = StopOnPanic(&self.lanes);
        while let Some(turn) = self.lanes.take() {
            let began = self.tracker.elapsed();
            match self.tracker.check().and_then(|()| self.register(turn)) {
                Ok((key, bytes)) => {
                    let piece = WorkUnit::new(turn.lane, began, self.tracker.elapsed());
                    self.lanes.finish(turn, Some(key));
                    self.tracker.registered(bytes, self.ready(), piece);
                }
                Err(error) => {
                    // Only the first failure is reported.
                    self.failure
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .get_or_insert(error);
                    self.lanes.finish(turn, None);
                }
            }
        }
    }

    fn register(&self, turn: ChunkTurn) -> Result<(Key, u64), RegisterError> {
        let (job, chunk) = self.job_of(turn);
        let RegionJob { region, plan, .. } = &self.jobs[job];
        let range = &plan.lanes[turn.lane].chunks[chunk];
        let registrar = &self.registrars[turn.lane];
        span!(DEBUG, "register_chunk", registrar = registrar.name(), chunk, bytes = range.len());
        // SAFETY: the chunk lies in the region, which is mapped for reading and writing. `self`,
        // and later the registration, keeps the region mapped and its pages held until the key is
        // deregistered, or forever.
        let key = unsafe { registrar.register(region.base().add(range.start), range.len()) };
        match key {
            Ok(key) => Ok((key, range.len() as u64)),
            Err(cause) => {
                let device = registrar.name().to_owned();
                let error = Box::new(ChunkError { device, chunk, range: range.clone(), cause });
                Err(RegisterError::ChunkFailed { error, kept: Vec::new() })
            }
        }
    }

    /// Returns the job of a turn, and the index of the chunk within the job.
    fn job_of(&self, turn: ChunkTurn) -> (usize, usize) {
        let before = &self.chunks_before[turn.lane];
        let job = before.partition_point(|before| *before <= turn.index) - 1;
        (job, turn.index - before[job])
    }

    /// Returns the bytes, from the beginning of the first region, that have keys in all lanes.
    fn ready(&self) -> u64 {
        let mut ready = 0;
        for (job, RegionJob { plan, .. }) in self.jobs.iter().enumerate() {
            let ends = plan.lanes.iter().enumerate().map(|(lane, DevicePlan { chunks, .. })| {
                let done = self
                    .lanes
                    .count(lane)
                    .saturating_sub(self.chunks_before[lane][job])
                    .min(chunks.len());
                done.checked_sub(1).map_or(0, |last| chunks[last].end as u64)
            });
            let ends = ends.min().unwrap_or(0);
            ready += ends;
            if ends < plan.len_bytes {
                break;
            }
        }
        ready
    }

    /// Deregisters everything, and adds the keys that failed to the error.
    fn undo(&self, error: RegisterError) -> RegisterError {
        let kept = self.roll_back();
        self.tracker.end(false);
        match error {
            RegisterError::ChunkFailed { error, .. } => RegisterError::ChunkFailed { error, kept },
            error if kept.is_empty() => error,
            _ => RegisterError::DeregisterFailed { kept },
        }
    }

    fn roll_back(&self) -> Vec<ChunkError> {
        let jobs = self.issued_keys(self.lanes.drain());
        let mut kept = Vec::new();
        for (job, lanes) in jobs.iter().enumerate() {
            let threads = self.release_threads(f64::INFINITY);
            let (_, failed) = release(&*self.host, lanes, threads, &|_, _| ());
            if !failed.is_empty() {
                leak(&self.jobs[job].region);
            }
            kept.extend(failed.into_iter().map(|(_, error)| error));
        }
        kept
    }

    /// Distributes the keys of all lanes over the jobs: for each job, the keys of each lane.
    fn issued_keys(&self, keys: Vec<Vec<Key>>) -> Vec<Vec<IssuedKeys>> {
        let mut lanes: Vec<_> = keys.into_iter().map(Vec::into_iter).collect();
        let jobs = self.jobs.iter().map(|RegionJob { plan, .. }| {
            let issued = lanes.iter_mut().zip(&plan.lanes).zip(&self.registrars);
            let issued = issued.map(|((keys, lane), registrar)| {
                let chunks = lane.chunks.iter().cloned().enumerate();
                let keys = chunks.zip(keys).map(|((chunk, range), key)| (chunk, range, key));
                IssuedKeys { registrar: Arc::clone(registrar), keys: keys.collect() }
            });
            issued.collect()
        });
        jobs.collect()
    }

    /// Returns the number of threads that deregister, given how long registering took.
    fn release_threads(&self, register_seconds: f64) -> usize {
        let sequential = self.strategy.policy == Policy::Sequential
            || register_seconds < PARALLEL_RELEASE_SECONDS;
        if sequential { 1 } else { self.host.cores().min(self.registrars.len()).max(1) }
    }

    /// Turns the keys of a successful run into registration sets.
    fn sets(&self, figures: &RunFigures) -> Vec<RegistrationSet> {
        let outcome = Outcome {
            len_bytes: self.jobs.iter().map(|job| job.plan.len_bytes).sum(),
            resident_bytes: self.jobs.iter().map(|job| job.plan.resident_bytes).sum(),
            devices: self.registrars.len(),
            policy: self.strategy.policy,
            populated: figures.populated,
            threads: figures.threads,
            trial: figures.trial,
            register_seconds: figures.register_seconds,
            keys: self.chunks_before.iter().map(|before| before[self.jobs.len()]).sum(),
        };
        let threads = self.release_threads(figures.register_seconds);
        let jobs = self.issued_keys(self.lanes.all()).into_iter().zip(&self.jobs);
        let sets = jobs.map(|(lanes, job)| {
            let lanes =
                lanes.into_iter().map(|issued| Registration::new(&self.host, &job.region, issued));
            RegistrationSet::new(
                &self.host,
                &job.region,
                lanes.collect(),
                outcome.clone(),
                job.plan.boundary_bytes,
                threads,
                self.options.listener.clone(),
            )
        });
        sets.collect()
    }
}

/// Keeps a region mapped, and its pages held, for the life of the process, because a device can
/// still reach them.
pub(in crate::register) fn leak(region: &Arc<Region>) {
    std::mem::forget(region.pin_pages());
    std::mem::forget(Arc::clone(region));
}

/// Rolls back on a panic.
struct UndoOnPanic<'a>(&'a Engine);

impl Drop for UndoOnPanic<'_> {
    fn drop(&mut self) {
        self.0.roll_back();
        self.0.tracker.end(false);
    }
}

/// Stops the other threads if this one panics.
struct StopOnPanic<'a>(&'a Lanes<Key>);

impl Drop for StopOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.stop();
        }
    }
}
