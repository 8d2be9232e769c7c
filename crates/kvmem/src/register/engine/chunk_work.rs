//! *Chunk work*: what the threads of a run share. They take turns at the lanes and register a chunk
//! in each turn, or, while slices are measured, the slice.

use std::sync::{Arc, Mutex, PoisonError};

use super::lanes::{ChunkTurn, Lanes};
use super::probe_slice::ProbeSlice;
use super::progress::RunProgress;
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

    /// Runs the open chunks of all lanes on `threads` threads, or fewer if they cannot be created.
    pub(super) fn run(
        &self,
        team: &mut ThreadTeam<'_, '_>,
        threads: usize,
    ) -> Result<TeamRun, RegisterError> {
        let run = team.run(threads);
        match self.failure.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(error) => Err(error),
            None => Ok(run),
        }
    }

    /// Lets the threads register this slice in the next run; `None`: their chunks.
    ///
    /// # Safety
    /// The caller fulfils the conditions of [`ProbeSlice::register`] until it passes `None`.
    pub(super) unsafe fn set_probe(&self, slice: Option<Arc<ProbeSlice>>) {
        *self.probe.lock().unwrap_or_else(PoisonError::into_inner) = slice;
    }

    /// The work of one thread.
    pub(super) fn work(&self) {
        let probe = self.probe.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match probe {
            // SAFETY: the caller of `set_probe` promises the conditions for this slice until it
            // sets another.
            Some(slice) => unsafe { slice.register(&self.registrars) },
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

    fn register(&self, turn: ChunkTurn) -> Result<(Key, u64), RegisterError> {
        let (job, chunk) = self.schedule.chunk_of(turn);
        let range = &job.plan().devices[turn.lane].chunks[chunk];
        let registrar = &self.registrars[turn.lane];
        span!(DEBUG, "register_chunk", registrar = registrar.name(), chunk, bytes = range.len());
        // SAFETY: the job's plan was made for its region, so the chunk lies in it. A `Region` is
        // mapped for reading and writing as long as it exists. The job keeps it mapped and its
        // pages held until the engine has given the key to a registration, which does the same, or
        // has deregistered it. If that fails, `leak` keeps the region for the life of the process.
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

/// Stops the other threads if this one panics.
struct StopOnPanic<'a>(&'a Lanes<Key>);

impl Drop for StopOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.stop();
        }
    }
}
