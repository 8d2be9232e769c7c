//! *Owner*: what all clones of a pool share, and what ends with the last of them.

use std::cell::Cell;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use super::PoolReport;
use super::observe::FailureCounts;
use super::provisioner::{add_populated, add_registered};
use super::provisioning::Provisioning;
use crate::arena::Populated;
use crate::register::Outcome;

thread_local! {
    /// How many listeners this thread is just calling, one in another.
    static LISTENING: Cell<u32> = const { Cell::new(0) };
}

/// Calls a listener. What it drops does not wait for the work that it is told of.
pub(super) fn listening(call: impl FnOnce()) {
    struct Back;
    impl Drop for Back {
        fn drop(&mut self) {
            LISTENING.set(LISTENING.get() - 1);
        }
    }
    LISTENING.set(LISTENING.get() + 1);
    let _back = Back;
    call();
}

/// How the pool was laid out.
#[derive(Clone, Copy, Debug)]
pub(super) struct PoolLayout {
    /// It grows and shrinks by so many bytes.
    pub(super) unit: u64,
    /// Whether there is anybody that it is registered with.
    pub(super) registered: bool,
    /// Whether parts become ready while it is in use.
    pub(super) in_background: bool,
}

pub(super) struct Owner {
    pub(super) provisioning: Arc<Provisioning>,
    pub(super) plan: PoolLayout,
    pub(super) failures: FailureCounts,
    report: PoolReport,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Held while the size is changed; what growing has populated and registered.
    grown: Mutex<(Option<Populated>, Option<Outcome>)>,
}

impl Owner {
    pub(super) fn new(provisioning: Arc<Provisioning>, plan: PoolLayout, report: PoolReport) -> Owner {
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

    /// This thread works on the pool.
    pub(super) fn works(&self, thread: JoinHandle<()>) {
        *self.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
    }

    /// Nobody else changes the size meanwhile.
    pub(super) fn resizing(&self) -> MutexGuard<'_, (Option<Populated>, Option<Outcome>)> {
        self.grown.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The report as it was when the pool was built, with what has become of it.
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
            // A listener may have had the last clone; then the thread waits for it, and not the
            // other way round.
            let by_itself = thread.thread().id() == thread::current().id();
            if !by_itself && LISTENING.get() == 0 {
                // Its panic has nobody to go to; what it was about has been reported.
                let _ = thread.join();
            }
        }
    }
}
