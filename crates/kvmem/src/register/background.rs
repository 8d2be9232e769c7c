//! *Background*: registering that goes on while the beginning is used already.

use std::ops::RangeBounds;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use super::engine::Engine;
use super::registration::locate;
use super::set::no_such_device;
use super::{Key, RegisterError, RegisterProgress, RegistrationSet};
use crate::arena::Region;
use crate::sys;
use crate::trace::Here;

/// A region that is being registered by another thread.
///
/// Bytes `0..ready_bytes()` can be used already. All or nothing holds here too: if a later chunk
/// fails, or this is dropped before the end, every key is given back, those of the beginning
/// included. So whoever uses the beginning early stops when [`wait`](Background::wait) gives an
/// error, and drops this only when no device is at work.
#[must_use = "dropping it gives everything back"]
pub struct Background {
    engine: Arc<Engine>,
    thread: Option<JoinHandle<Result<Vec<RegistrationSet>, RegisterError>>>,
}

impl Background {
    pub(super) fn begin(engine: Engine) -> Result<Background, RegisterError> {
        let engine = Arc::new(engine);
        let works = Arc::clone(&engine);
        let here = Here::now();
        let thread = sys::spawn("kvmem-register", move || here.run(|| works.run()))
            .map_err(|errno| RegisterError::NoThread { errno })?;
        Ok(Background { engine, thread: Some(thread) })
    }

    /// The memory.
    #[must_use]
    pub fn region(&self) -> &Region {
        &self.engine.jobs[0].region
    }

    /// Bytes, from the beginning, that can be used with all registrars. Never falls, but to 0 when
    /// all was given back.
    #[must_use]
    pub fn ready_bytes(&self) -> u64 {
        self.engine.watching.ready()
    }

    /// Waits until so many bytes are ready, it has ended, or the time is over; returns how many are
    /// ready then.
    pub fn wait_ready(&self, bytes: u64, timeout: Duration) -> u64 {
        self.engine.watching.wait(bytes, timeout)
    }

    /// How far it has come.
    #[must_use]
    pub fn progress(&self) -> RegisterProgress {
        self.engine.watching.progress()
    }

    /// Whether there is nothing more to wait for.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.engine.watching.has_ended()
    }

    /// The key with which this registrar can reach all of a range, if that is registered already.
    ///
    /// # Errors
    /// [`OutOfBounds`](RegisterError::OutOfBounds) says how many bytes there are keys for by now;
    /// [`Straddles`](RegisterError::Straddles), [`NoSuchDevice`](RegisterError::NoSuchDevice).
    pub fn key_for(
        &self,
        device: &str,
        range: impl RangeBounds<usize>,
    ) -> Result<Key, RegisterError> {
        let engine = &*self.engine;
        let lanes = &engine.jobs[0].plan.lanes;
        let lane = lanes.iter().position(|lane| lane.device == device);
        let lane =
            lane.ok_or_else(|| no_such_device(device, lanes.iter().map(|lane| &*lane.device)))?;
        let chunks = &lanes[lane].chunks;
        let chunk = locate(device, chunks, self.region().len(), range)?;
        engine.lanes.get(lane, chunk).ok_or_else(|| {
            let done = engine.lanes.count(lane).checked_sub(1).map_or(0, |last| chunks[last].end);
            RegisterError::OutOfBounds {
                start: chunks[chunk].start,
                end: chunks[chunk].end,
                len: done,
            }
        })
    }

    /// Ends it early: everything is given back, and [`wait`](Background::wait) says that it was
    /// cancelled. The builder's token does the same, and is not used by this.
    pub fn cancel(&self) {
        self.engine.watching.cancel();
    }

    /// Waits for the end.
    ///
    /// # Errors
    /// As [`register`](super::RegistrationBuilder::register).
    ///
    /// # Panics
    /// If a registrar or a listener has panicked.
    pub fn wait(mut self) -> Result<RegistrationSet, RegisterError> {
        let Some(thread) = self.thread.take() else { return Err(RegisterError::Empty) };
        match thread.join() {
            Ok(sets) => sets?.pop().ok_or(RegisterError::Empty),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.cancel();
            // What it has registered goes with its result; its panic has nobody to go to.
            drop(thread.join());
        }
    }
}

impl std::fmt::Debug for Background {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Background").field("progress", &self.progress()).finish_non_exhaustive()
    }
}
