//! *Background*: registering in another thread, while the beginning is already in use.

use std::ops::{Range, RangeBounds};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use super::engine::Engine;
use super::registration::locate;
use super::set::no_such_device;
use super::{Key, RegisterError, RegisterProgress, RegistrationSet};
use crate::arena::Region;
use crate::sys;
use crate::trace::TraceContext;

/// A region that is being registered by another thread.
///
/// Bytes `0..ready_bytes()` can be used already. If a later chunk fails, or this is dropped before
/// the end, every key is deregistered, those of the beginning included. A user of the beginning
/// must therefore stop when [`wait`](Background::wait) returns an error, and drop this only while
/// no device uses the keys.
#[must_use = "dropping it deregisters everything"]
pub struct Background {
    engine: Arc<Engine>,
    thread: Option<JoinHandle<Result<Vec<RegistrationSet>, RegisterError>>>,
}

impl Background {
    pub(super) fn begin(engine: Engine) -> Result<Background, RegisterError> {
        let engine = Arc::new(engine);
        let works = Arc::clone(&engine);
        let here = TraceContext::now();
        let thread =
            sys::spawn("kvmem-register", move || here.run(|| RegistrationSet::run(&works)))
                .map_err(|errno| RegisterError::NoThread { errno })?;
        Ok(Background { engine, thread: Some(thread) })
    }

    /// Returns the region.
    #[must_use]
    pub fn region(&self) -> &Region {
        self.engine.jobs()[0].region()
    }

    /// Returns the number of bytes, from the beginning, that have keys with all registrars. The
    /// number never falls, except to 0 when all keys are deregistered.
    #[must_use]
    pub fn ready_bytes(&self) -> u64 {
        self.engine.tracker().ready()
    }

    /// Waits until `bytes` bytes are ready, the work has ended, or `timeout` has passed. Returns
    /// the number of bytes ready then.
    pub fn wait_ready(&self, bytes: u64, timeout: Duration) -> u64 {
        self.engine.tracker().wait(bytes, timeout)
    }

    /// Returns the progress.
    #[must_use]
    pub fn progress(&self) -> RegisterProgress {
        self.engine.tracker().progress()
    }

    /// Returns whether the work has ended, with success or failure.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.engine.tracker().has_ended()
    }

    /// Returns the key with which this registrar can reach all of a range, if the range is
    /// registered already.
    ///
    /// # Errors
    /// [`OutOfBounds`](RegisterError::OutOfBounds) if the range is not registered yet, with the
    /// number of bytes that have keys now; [`Straddles`](RegisterError::Straddles) if it needs more
    /// than one key; [`NoSuchDevice`](RegisterError::NoSuchDevice).
    pub fn key_for(
        &self,
        device: &str,
        range: impl RangeBounds<usize>,
    ) -> Result<Key, RegisterError> {
        let plans = &self.engine.jobs()[0].plan().devices;
        let lane = plans.iter().position(|plan| plan.device == device);
        let lane =
            lane.ok_or_else(|| no_such_device(device, plans.iter().map(|plan| &*plan.device)))?;
        let chunks = &plans[lane].chunks;
        let chunk = locate(device, chunks, self.region().len(), range)?;
        self.engine.key(lane, chunk).map_err(|done| {
            let Range { start, end } = chunks[chunk];
            let len = done.checked_sub(1).map_or(0, |last| chunks[last].end);
            RegisterError::OutOfBounds { start, end, len }
        })
    }

    /// Cancels registering: everything is deregistered, and [`wait`](Background::wait) returns
    /// [`Cancelled`](RegisterError::Cancelled). Cancelling the builder's token has the same effect;
    /// this function does not cancel that token.
    pub fn cancel(&self) {
        self.engine.tracker().cancel();
    }

    /// Waits until the whole region is registered and returns the set.
    ///
    /// # Errors
    /// The errors of [`register`](super::RegistrationBuilder::register).
    ///
    /// # Panics
    /// Propagates the panic of a registrar or a listener.
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
            // The result deregisters its keys when dropped; a panic has no caller to go to.
            drop(thread.join());
        }
    }
}

impl std::fmt::Debug for Background {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Background").field("progress", &self.progress()).finish_non_exhaustive()
    }
}
