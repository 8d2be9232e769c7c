//! *Engine*: a plan carried out, all of it or nothing.
//!
//! ```text
//!  for each step:   populate what is not there
//!                   the first time: find out which way of calling is faster   (trial.rs)
//!                   threads take turns at the registrars                      (lanes.rs)
//!  on any failure:  whoever works stops; every key is given back; the first failure is told
//! ```
//!
//! The pages are held from before the first key is given until after the last one was taken back.

use std::any::Any;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use super::crew::{Crew, lead};
use super::lanes::{Lanes, Turn};
use super::plan::{Way, check_keys, check_memlock};
use super::release::{Given, release};
use super::trial::Slice;
use super::watching::{Watching, Wishes};
use super::{
    Calibration, ChunkError, DevicePlan, Key, Limits, Outcome, Plan, Platform, Policy,
    RegisterError, Registrar, Registration, RegistrationSet,
};
use crate::arena::{Hold, Populate, Populated, Region, WorkUnit};
use crate::trace::span;

/// What took longer than this to register is given back by several threads. Giving back is quicker
/// than getting, 2 to 4 times for base pages and 20 to 50 times for hugepages, where a second
/// thread gained nothing until it took some milliseconds.
const WORTH_THREADS: f64 = 0.05;

/// One region that is being registered.
pub(super) struct Job {
    pub(super) region: Arc<Region>,
    pub(super) plan: Plan,
    /// Bytes that are not resident and that nobody populates: registering will make them so.
    pub(super) faulted: u64,
}

/// Some regions that are being registered, together.
pub(super) struct Engine {
    pub(super) host: Arc<dyn Platform>,
    pub(super) registrars: Vec<Arc<dyn Registrar>>,
    pub(super) jobs: Vec<Job>,
    pub(super) way: Way,
    populate: Populate,
    /// For each lane and job: how many chunks of the lane come before those of the job. One more
    /// at the end.
    before: Vec<Vec<usize>>,
    pub(super) lanes: Lanes<Key>,
    pub(super) watching: Arc<Watching>,
    wishes: Wishes,
    /// What threads do instead of their chunks, while a trial is made on slices.
    pub(super) aside: Mutex<Option<Arc<Slice>>>,
    failure: Mutex<Option<RegisterError>>,
    _holds: Vec<Hold>,
    /// What the first registrar will make resident, until the run ends.
    reserved: Mutex<Option<Box<dyn Any + Send + Sync>>>,
}

/// What has been found out on the way.
#[derive(Debug, Default)]
pub(super) struct Figures {
    populated: Populated,
    threads: usize,
    trial: Option<Calibration>,
    register_seconds: f64,
}

/// What is done before the next step is begun.
struct Step {
    /// Of which job what is populated.
    populate: Vec<(usize, Range<usize>)>,
    /// How far each lane may go.
    upto: Vec<usize>,
}

impl Engine {
    /// Everything that can be known to fail is found out here.
    pub(super) fn new(
        host: Arc<dyn Platform>,
        registrars: Vec<Arc<dyn Registrar>>,
        limits: &[Limits],
        jobs: Vec<Job>,
        way: Way,
        populate: Populate,
        wishes: Wishes,
    ) -> Result<Engine, RegisterError> {
        let total: u64 = jobs.iter().map(|job| job.plan.len_bytes).sum();
        check_memlock(limits, total)?;
        let before: Vec<Vec<usize>> = (0..registrars.len())
            .map(|lane| {
                let mut count = 0;
                let counts = jobs.iter().map(|job| {
                    count += job.plan.lanes[lane].chunks.len();
                    count
                });
                [0].into_iter().chain(counts).collect()
            })
            .collect();
        for (limits, before) in limits.iter().zip(&before) {
            check_keys(limits, before[jobs.len()] as u64)?;
        }
        let reserved = host.reserve(jobs.iter().map(|job| job.faulted).sum())?;
        let to_populate =
            jobs.iter().flat_map(|job| &job.plan.populate).map(|range| range.len() as u64).sum();
        let to_register = total * registrars.len() as u64;
        let watching = Watching::begin(Arc::clone(&host), wishes.clone(), to_populate, to_register);
        Ok(Engine {
            lanes: Lanes::new(registrars.len()),
            watching: Arc::new(watching),
            aside: Mutex::new(None),
            failure: Mutex::new(None),
            _holds: jobs.iter().map(|job| job.region.hold()).collect(),
            reserved: Mutex::new(Some(reserved)),
            host,
            registrars,
            jobs,
            way,
            populate,
            before,
            wishes,
        })
    }

    /// Does it all. On failure nothing is registered.
    pub(super) fn run(&self) -> Result<Vec<RegistrationSet>, RegisterError> {
        span!(INFO, "register", regions = self.jobs.len(), registrars = self.registrars.len());
        let undo = Undo(self);
        let result = self.steps_through();
        std::mem::forget(undo);
        drop(self.reserved.lock().unwrap_or_else(PoisonError::into_inner).take());
        match result {
            Ok(figures) => {
                let sets = self.sets(&figures);
                self.watching.end(true);
                Ok(sets)
            }
            Err(error) => Err(self.undo(error)),
        }
    }

    fn steps_through(&self) -> Result<Figures, RegisterError> {
        let mut figures = Figures::default();
        let mut chosen = None;
        for step in self.steps() {
            for (job, range) in step.populate {
                self.populate(job, range, &mut figures.populated)?;
            }
            let start = self.host.now();
            figures.threads = lead(
                &*self.host,
                || self.work(),
                |crew| {
                    let threads = match chosen {
                        Some(threads) => threads,
                        None => {
                            let (threads, trial) = self.choose(crew)?;
                            figures.trial = trial;
                            *chosen.insert(threads)
                        }
                    };
                    crew.shrink(threads);
                    self.lanes.open(step.upto);
                    self.sweep(crew, threads).map(|(threads, _)| threads)
                },
            )?;
            figures.register_seconds += self.host.now().saturating_sub(start).as_secs_f64();
        }
        Ok(figures)
    }

    /// Several regions are populated all before they are registered; by ranges, each range is.
    fn steps(&self) -> Vec<Step> {
        let by_range = self.jobs.iter().any(|job| job.plan.steps.len() > 1);
        let all =
            |job: usize| self.jobs[job].plan.populate.iter().map(move |range| (job, range.clone()));
        if !by_range {
            let upto = self.before.iter().map(|before| before[self.jobs.len()]).collect();
            return vec![Step { populate: (0..self.jobs.len()).flat_map(all).collect(), upto }];
        }
        let mut steps = Vec::new();
        for (job, Job { plan, .. }) in self.jobs.iter().enumerate() {
            for step in &plan.steps {
                let common =
                    |range: &Range<usize>| range.start.max(step.start)..range.end.min(step.end);
                let populate = plan.populate.iter().map(common).filter(|range| !range.is_empty());
                let upto = plan.lanes.iter().zip(&self.before).map(|(lane, before)| {
                    before[job] + lane.chunks.partition_point(|chunk| chunk.end <= step.end)
                });
                steps.push(Step {
                    populate: populate.map(|range| (job, range)).collect(),
                    upto: upto.collect(),
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
        self.watching.go_on()?;
        let watch = self.watching.for_populating(sum.bytes);
        let how = if self.populate == Populate::None { Populate::Auto } else { self.populate };
        let done = self.host.populate(&self.jobs[job].region, range, how, &watch);
        let done = done.map_err(|error| self.watching.of_populating(error))?;
        sum.bytes += done.bytes;
        sum.seconds += done.seconds;
        sum.threads = sum.threads.max(done.threads);
        Ok(())
    }

    /// Has so many threads, or fewer if they cannot be had, do what the lanes are open for; returns
    /// how many they were, and how many seconds that took.
    pub(super) fn sweep(
        &self,
        crew: &mut Crew<'_, '_, '_>,
        threads: usize,
    ) -> Result<(usize, f64), RegisterError> {
        let swept = crew.sweep(threads);
        match self.failure.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(error) => Err(error),
            None => Ok(swept),
        }
    }

    /// What one thread does.
    fn work(&self) {
        let aside = self.aside.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match aside {
            Some(slice) => slice.register(self),
            None => self.take_turns(),
        }
    }

    fn take_turns(&self) {
        let _stop = StopOnPanic(&self.lanes);
        while let Some(turn) = self.lanes.take() {
            let began = self.watching.elapsed();
            match self.watching.go_on().and_then(|()| self.register(turn)) {
                Ok((key, bytes)) => {
                    let piece = WorkUnit::new(turn.lane, began, self.watching.elapsed());
                    self.lanes.finish(turn, Some(key));
                    self.watching.registered(bytes, self.ready(), piece);
                }
                Err(error) => {
                    // The first failure is what is told.
                    self.failure
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .get_or_insert(error);
                    self.lanes.finish(turn, None);
                }
            }
        }
    }

    fn register(&self, turn: Turn) -> Result<(Key, u64), RegisterError> {
        let (job, chunk) = self.place(turn);
        let Job { region, plan, .. } = &self.jobs[job];
        let range = &plan.lanes[turn.lane].chunks[chunk];
        let registrar = &self.registrars[turn.lane];
        span!(DEBUG, "register_chunk", registrar = registrar.name(), chunk, bytes = range.len());
        // SAFETY: the chunk lies in the region, which is mapped for reading and writing. `self`,
        // and later the registration, keeps it mapped and its pages held until the key has
        // been taken back, or for ever.
        let key = unsafe { registrar.register(region.base().add(range.start), range.len()) };
        match key {
            Ok(key) => Ok((key, range.len() as u64)),
            Err(refusal) => {
                let device = registrar.name().to_owned();
                let error = Box::new(ChunkError { device, chunk, range: range.clone(), refusal });
                Err(RegisterError::Refused { error, kept: Vec::new() })
            }
        }
    }

    /// The job of a turn, and the number of the chunk within it.
    fn place(&self, turn: Turn) -> (usize, usize) {
        let before = &self.before[turn.lane];
        let job = before.partition_point(|before| *before <= turn.index) - 1;
        (job, turn.index - before[job])
    }

    /// Bytes, from the beginning of the first region, that all lanes have keys for.
    fn ready(&self) -> u64 {
        let mut ready = 0;
        for (job, Job { plan, .. }) in self.jobs.iter().enumerate() {
            let ends = plan.lanes.iter().enumerate().map(|(lane, DevicePlan { chunks, .. })| {
                let done =
                    self.lanes.count(lane).saturating_sub(self.before[lane][job]).min(chunks.len());
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

    /// Gives everything back, and makes the error say what could not be.
    fn undo(&self, error: RegisterError) -> RegisterError {
        let kept = self.roll_back();
        self.watching.end(false);
        match error {
            RegisterError::Refused { error, .. } => RegisterError::Refused { error, kept },
            error if kept.is_empty() => error,
            _ => RegisterError::DeregisterFailed { kept },
        }
    }

    fn roll_back(&self) -> Vec<ChunkError> {
        let jobs = self.given(self.lanes.drain());
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

    /// The keys of all lanes, for each job and each of its lanes.
    fn given(&self, keys: Vec<Vec<Key>>) -> Vec<Vec<Given>> {
        let mut lanes: Vec<_> = keys.into_iter().map(Vec::into_iter).collect();
        let jobs = self.jobs.iter().map(|Job { plan, .. }| {
            let given = lanes.iter_mut().zip(&plan.lanes).zip(&self.registrars);
            let given = given.map(|((keys, lane), registrar)| {
                let chunks = lane.chunks.iter().cloned().enumerate();
                let keys = chunks.zip(keys).map(|((chunk, range), key)| (chunk, range, key));
                Given { registrar: Arc::clone(registrar), keys: keys.collect() }
            });
            given.collect()
        });
        jobs.collect()
    }

    /// How many threads give back what took so long to register.
    fn release_threads(&self, register_seconds: f64) -> usize {
        let alone = self.way.policy == Policy::Sequential || register_seconds < WORTH_THREADS;
        if alone { 1 } else { self.host.cores().min(self.registrars.len()).max(1) }
    }

    /// What was registered, to be kept.
    fn sets(&self, figures: &Figures) -> Vec<RegistrationSet> {
        let outcome = Outcome {
            len_bytes: self.jobs.iter().map(|job| job.plan.len_bytes).sum(),
            resident_bytes: self.jobs.iter().map(|job| job.plan.resident_bytes).sum(),
            devices: self.registrars.len(),
            policy: self.way.policy,
            populated: figures.populated,
            threads: figures.threads,
            trial: figures.trial,
            register_seconds: figures.register_seconds,
            keys: self.before.iter().map(|before| before[self.jobs.len()]).sum(),
        };
        let threads = self.release_threads(figures.register_seconds);
        let jobs = self.given(self.lanes.all()).into_iter().zip(&self.jobs);
        let sets = jobs.map(|(lanes, job)| {
            let lanes =
                lanes.into_iter().map(|given| Registration::new(&self.host, &job.region, given));
            RegistrationSet::new(
                &self.host,
                &job.region,
                lanes.collect(),
                outcome.clone(),
                job.plan.boundary_bytes,
                threads,
                self.wishes.listener.clone(),
            )
        });
        sets.collect()
    }
}

/// Keeps a region mapped, and its pages held, for the life of the process: a device can still reach
/// them.
pub(super) fn leak(region: &Arc<Region>) {
    std::mem::forget(region.hold());
    std::mem::forget(Arc::clone(region));
}

/// Rolls back if a panic comes through.
struct Undo<'a>(&'a Engine);

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        self.0.roll_back();
        self.0.watching.end(false);
    }
}

/// Has the other threads stop if this one panics.
struct StopOnPanic<'a>(&'a Lanes<Key>);

impl Drop for StopOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.stop();
        }
    }
}
