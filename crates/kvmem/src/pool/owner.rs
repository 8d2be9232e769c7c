//! *Owner*: the state that all clones of a pool share, and that ends with the last of them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use super::PoolReport;
use super::observe::FailureCounts;
use super::provision::{Provisioning, add_populated, add_registered, is_listening};
use crate::arena::Populated;
use crate::register::Outcome;

/// The layout of a pool.
#[derive(Clone, Copy, Debug)]
pub(super) struct PoolLayout {
    /// The pool grows and shrinks by multiples of this number of bytes.
    pub(super) unit: u64,
    /// Whether the pool has a registrar.
    pub(super) registered: bool,
    /// Whether parts become ready while the pool is in use.
    pub(super) in_background: bool,
}

pub(super) struct Owner {
    pub(super) provisioning: Arc<Provisioning>,
    pub(super) plan: PoolLayout,
    pub(super) failures: FailureCounts,
    report: PoolReport,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Locked while the size changes; the memory that growing has populated and registered.
    grown: Mutex<(Option<Populated>, Option<Outcome>)>,
}

impl Owner {
    pub(super) fn new(
        provisioning: Arc<Provisioning>,
        plan: PoolLayout,
        report: PoolReport,
    ) -> Owner {
        let failures = FailureCounts::default();
        Owner {
            provisioning,
            plan,
            failures,
            report,
            thread: Mutex::new(None),
            grown: Mutex::default(),
        }
    }

    /// Stores the thread that provisions the pool; dropping the owner joins it.
    pub(super) fn set_thread(&self, thread: JoinHandle<()>) {
        *self.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
    }

    /// Locks the size: no other thread changes it until the guard is dropped.
    pub(super) fn resizing(&self) -> MutexGuard<'_, (Option<Populated>, Option<Outcome>)> {
        self.grown.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the report of the build, updated to the current state.
    pub(super) fn report(&self, capacity: u64) -> PoolReport {
        let mut report = self.report.clone();
        {
            let state = self.provisioning.state();
            report.quarantined = state.quarantined();
            report.stopped = state.stopped.clone();
            add_populated(&mut report.populated, state.populated);
            add_registered(&mut report.registered, state.registered.clone());
        }
        let grown = self.resizing().clone();
        add_populated(&mut report.populated, grown.0);
        add_registered(&mut report.registered, grown.1);
        report.capacity_bytes = capacity;
        report.ready_bytes = self.provisioning.ready();
        report
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let thread = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            self.provisioning.provisioner.cancel();
            // A listener may have dropped the last clone. The provisioning thread then waits for
            // the listener, so the listener must not wait for that thread.
            let by_itself = thread.thread().id() == thread::current().id();
            if !by_itself && !is_listening() {
                // No caller could receive the panic of the thread; the report has its cause.
                let _ = thread.join();
            }
        }
    }
}
