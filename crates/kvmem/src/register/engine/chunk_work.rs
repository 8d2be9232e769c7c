//! *Chunk work*: what the threads of a run share. They take turns at the lanes and register a chunk
//! in each turn, or, while slices are measured, the slice.
//!
//! Only a [`ChunkRun`] registers. It owns the keys until they are taken, and deregisters them if
//! they are not.

use std::sync::{Arc, Mutex, PoisonError};

use super::lanes::{ChunkTurn, Lanes};
use super::probe_slice::ProbeSlice;
use super::progress::RunProgress;
use super::release::{IssuedKeys, leak, release};
use super::schedule::Schedule;
use crate::register::{ChunkError, Key, Platform, RegisterError, Registrar};
use crate::threads::{TeamRun, ThreadTeam, WorkUnit};
use crate::trace::span;

/// The state that the threads of a run share.
pub(super) struct ChunkWork {
    pub(super) host: Arc<dyn Platform>,
    pub(super) registrars: Vec<Arc<dyn Registrar>>,
    pub(super) schedule: Schedule,
    pub(super) lanes: Lanes<Key>,
    pub(super) tracker: Arc<RunProgress>,
    /// The slice that threads register instead of their chunks.
    probe: Mutex<Option<Arc<ProbeSlice>>>,
    failure: Mutex<Option<RegisterError>>,
}

impl ChunkWork {
    pub(super) fn new(
        host: Arc<dyn Platform>,
        registrars: Vec<Arc<dyn Registrar>>,
        schedule: Schedule,
        tracker: Arc<RunProgress>,
    ) -> ChunkWork {
        ChunkWork {
            lanes: Lanes::new(registrars.len()),
            host,
            registrars,
            schedule,
            tracker,
            probe: Mutex::new(None),
            failure: Mutex::new(None),
        }
    }

    /// Lets the threads register this slice in the next run; `None`: their chunks.
    ///
    /// # Safety
    /// The caller fulfils the conditions of [`ProbeSlice::register`] until it passes `None`.
    pub(super) unsafe fn set_probe(&self, slice: Option<Arc<ProbeSlice>>) {
        *self.probe.lock().unwrap_or_else(PoisonError::into_inner) = slice;
    }

    /// Registers the open chunks in turns.
    ///
    /// # Safety
    /// The caller deregisters all keys in the lanes before it drops `self`, or leaks the region, or
    /// passes them to registrations.
    unsafe fn take_turns(&self) {
        let _stop = StopOnPanic(&self.lanes);
        while let Some(turn) = self.lanes.take() {
            let began = self.tracker.elapsed();
            // SAFETY: the caller promises the conditions of `register`.
            match self.tracker.check().and_then(|()| unsafe { self.register(turn) }) {
                Ok((key, bytes)) => {
                    let piece = WorkUnit::new(turn.lane, began, self.tracker.elapsed());
                    self.lanes.finish(turn, Some(key));
                    let ready = self.schedule.ready_bytes(|lane| self.lanes.count(lane));
                    self.tracker.registered(bytes, ready, piece);
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

    /// Registers the chunk of a turn.
    ///
    /// # Safety
    /// The conditions of [`take_turns`](ChunkWork::take_turns).
    unsafe fn register(&self, turn: ChunkTurn) -> Result<(Key, u64), RegisterError> {
        let (job, chunk) = self.schedule.chunk_of(turn);
        let range = &job.plan().devices[turn.lane].chunks[chunk];
        let registrar = &self.registrars[turn.lane];
        span!(DEBUG, "register_chunk", registrar = registrar.name(), chunk, bytes = range.len());
        // SAFETY: the job's plan was made for its region, so the chunk lies in it. A `Region` is
        // mapped for reading and writing as long as it exists, and the job keeps it and holds its
        // pages until `self` is dropped. The caller promises that the key is deregistered by then,
        // that the region is leaked, or that a registration holds it.
        let key = unsafe { registrar.register(job.region().base().add(range.start), range.len()) };
        match key {
            Ok(key) => Ok((key, range.len() as u64)),
            Err(cause) => {
                let device = registrar.name().to_owned();
                let error = Box::new(ChunkError { device, chunk, range: range.clone(), cause });
                Err(RegisterError::ChunkFailed { error, kept: Vec::new() })
            }
        }
    }
}

/// The right to register the chunks of a run. The keys are deregistered when it is dropped, unless
/// they were [taken](ChunkRun::take_keys).
pub(super) struct ChunkRun<'a> {
    work: &'a ChunkWork,
    /// The number of threads that roll back.
    release_threads: usize,
}

impl<'a> ChunkRun<'a> {
    /// Begins a run, which `release_threads` threads roll back if it fails.
    pub(super) fn begin(work: &'a ChunkWork, release_threads: usize) -> ChunkRun<'a> {
        ChunkRun { work, release_threads }
    }

    pub(super) fn shared(&self) -> &'a ChunkWork {
        self.work
    }

    /// The work of one thread.
    pub(super) fn work(&self) {
        let probe = self.work.probe.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match probe {
            // SAFETY: the caller of `set_probe` promises the conditions for this slice until it
            // sets another.
            Some(slice) => unsafe { slice.register(&self.work.registrars) },
            // SAFETY: `drop` deregisters the keys or leaks the region, while `self.work` is still
            // borrowed; the caller of `take_keys` promises the same.
            None => unsafe { self.work.take_turns() },
        }
    }

    /// Runs the open chunks of all lanes on `threads` threads of a team that does
    /// [`work`](ChunkRun::work), or on fewer if they cannot be created.
    pub(super) fn run(
        &self,
        team: &mut ThreadTeam<'_, '_>,
        threads: usize,
    ) -> Result<TeamRun, RegisterError> {
        let run = team.run(threads);
        match self.work.failure.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(error) => Err(error),
            None => Ok(run),
        }
    }

    /// Ends the run; returns the keys: for each region, those of each registrar.
    ///
    /// # Safety
    /// The caller passes the keys to registrations, which hold their regions, before the
    /// [`ChunkWork`] is dropped.
    pub(super) unsafe fn take_keys(self) -> Vec<Vec<IssuedKeys>> {
        let work = self.work;
        std::mem::forget(self);
        work.schedule.issued_keys(work.lanes.all(), &work.registrars)
    }

    /// Ends the run: deregisters everything. Returns the keys that failed; their regions stay
    /// mapped.
    pub(super) fn roll_back(self) -> Vec<ChunkError> {
        let kept = self.release_keys();
        std::mem::forget(self);
        kept
    }

    fn release_keys(&self) -> Vec<ChunkError> {
        let ChunkWork { host, registrars, schedule, lanes, tracker, .. } = self.work;
        let mut kept = Vec::new();
        let jobs = schedule.issued_keys(lanes.drain(), registrars);
        for (job, issued) in schedule.jobs().iter().zip(jobs) {
            let (_, failed) = release(&**host, &issued, self.release_threads, &|_, _| ());
            if !failed.is_empty() {
                leak(job.region());
            }
            kept.extend(failed.into_iter().map(|(_, error)| error));
        }
        tracker.end(false);
        kept
    }
}

impl Drop for ChunkRun<'_> {
    fn drop(&mut self) {
        self.release_keys();
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
