//! *Clock*: the time of this machine.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Returns the time since the first call in this process.
pub(crate) fn now() -> Duration {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed()
}

/// Returns the seconds, at least 1 ns: a coarse clock may show no time for work that was done.
pub(crate) fn seconds(took: Duration) -> f64 {
    took.as_secs_f64().max(1e-9)
}
