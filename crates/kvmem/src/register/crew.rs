//! *Crew*: threads that register together, on whatever host.

use std::cell::Cell;
use std::time::Duration;

use super::Host;
use crate::arena;

/// Runs `work` on so many threads, this one among them, or on fewer if they cannot be had. Returns on how many, and how many seconds
/// that took by the clock of the host.
pub(super) fn together(host: &dyn Host, threads: usize, work: impl Fn() + Sync) -> (usize, f64) {
    let start = Cell::new(host.now());
    let threads = if threads < 2 {
        work();
        1
    } else {
        let begin = |threads| {
            start.set(host.now());
            host.gather(threads);
        };
        arena::together(threads, "kvmem-register", begin, |number, _| {
            host.enter(number);
            let _leaves = Leave(host);
            work();
        })
    };
    (threads, seconds(host.now().saturating_sub(start.get())))
}

/// A clock may be too coarse to see it; work that was done took some time.
fn seconds(took: Duration) -> f64 {
    took.as_secs_f64().max(1e-9)
}

/// Leaves in any case: others wait for it.
struct Leave<'a>(&'a dyn Host);

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}
