//! *Publisher*: a thread that publishes at intervals.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::exporter::Exporter;
use crate::pool::PoolError;
use crate::sys;

/// Publishes at intervals until it is dropped, and then once more. See [`Exporter::publish_every`].
#[must_use = "it ends when it is dropped"]
#[derive(Debug)]
pub struct Publisher {
    end: Arc<StopSignal>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct StopSignal {
    requested: Mutex<bool>,
    changed: Condvar,
}

impl Exporter {
    /// Publishes at each interval to the global recorder, from a thread of its own, until the
    /// returned value is dropped.
    ///
    /// # Errors
    /// [`PoolError::NoThread`].
    pub fn publish_every(self, interval: Duration) -> Result<Publisher, PoolError> {
        Publisher::begin(self, interval)
    }
}

impl Publisher {
    fn begin(exporter: Exporter, interval: Duration) -> Result<Publisher, PoolError> {
        let end = Arc::new(StopSignal::default());
        let until = Arc::clone(&end);
        let thread = sys::spawn("kvmem-metrics", move || {
            loop {
                exporter.publish();
                let requested = until.requested.lock().unwrap_or_else(PoisonError::into_inner);
                let waited =
                    until.changed.wait_timeout_while(requested, interval, |requested| !*requested);
                if *waited.unwrap_or_else(PoisonError::into_inner).0 {
                    break;
                }
            }
            exporter.publish();
        });
        let thread = thread.map_err(|errno| PoolError::NoThread { errno })?;
        Ok(Publisher { end, thread: Some(thread) })
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        *self.end.requested.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.end.changed.notify_all();
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != thread::current().id()
        {
            // The panic message of the recorder is out; no caller could receive the panic.
            let _ = thread.join();
        }
    }
}
