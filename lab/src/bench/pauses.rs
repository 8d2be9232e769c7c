//! *Pauses*: times in which a virtual machine had no processor, because its host ran others.
//!
//! On each processor a thread sleeps for a millisecond at a time. When it wakes late, and the
//! kernel has counted time that the host took meanwhile (`steal` in `/proc/stat`), there was a
//! pause. A call in such a time says nothing about the program.

use std::fs;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::team::{bind, cores};

const SLEEP: Duration = Duration::from_millis(1);
/// Later than a slice of a busy thread.
const LATE: Duration = Duration::from_millis(10);

/// Works, and returns the pauses of all processors meanwhile, in no order.
pub(crate) fn during<R>(work: impl FnOnce() -> R) -> (R, Vec<Range<Instant>>) {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let over = &over;
        let threads: Vec<_> =
            cores().into_iter().map(|core| scope.spawn(move || watch(core, over))).collect();
        let result = work();
        over.store(true, Ordering::Relaxed);
        let pauses = threads.into_iter().flat_map(|it| it.join().expect("no panic")).collect();
        (result, pauses)
    })
}

fn watch(core: usize, over: &AtomicBool) -> Vec<Range<Instant>> {
    bind(&[core], 0);
    let (mut before, mut pauses) = (stolen(core), Vec::new());
    while !over.load(Ordering::Relaxed) {
        let began = Instant::now();
        thread::sleep(SLEEP);
        if began.elapsed() >= LATE {
            let now = stolen(core);
            if now > before {
                pauses.push(began..Instant::now());
            }
            before = now;
        }
    }
    pauses
}

/// Returns the ticks that the host has taken from a processor; 0 if the kernel does not say so.
fn stolen(core: usize) -> u64 {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let name = format!("cpu{core} ");
    let line = stat.lines().find_map(|line| line.strip_prefix(&name));
    line.and_then(|line| line.split_whitespace().nth(7)?.parse().ok()).unwrap_or(0)
}
