//! A thread that runs a function before a signal ends the process.
//!
//! The handler only writes to a pipe. The thread reads the pipe and may do what a handler may not:
//! open files, wait for locks. A signal that the process ignores stays ignored, as under `nohup`.

use std::sync::{Mutex, PoisonError};
use std::{fs, io, thread};

use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

/// The signals that end a process and that users or service managers send.
const ENDS: [i32; 4] = [SIGINT, SIGTERM, SIGHUP, SIGQUIT];

/// Runs `before` when a signal is about to end the process. Later calls have no effect.
///
/// # Errors
/// The handler or the thread cannot be created.
pub(super) fn watch(before: fn()) -> io::Result<()> {
    static WATCHED: Mutex<bool> = Mutex::new(false);
    let mut watched = WATCHED.lock().unwrap_or_else(PoisonError::into_inner);
    if *watched {
        return Ok(());
    }
    let ignored = ignored();
    let wanted = ENDS.into_iter().filter(|signal| ignored & (1 << (signal - 1)) == 0);
    let mut signals = Signals::new(wanted)?;
    let handle = signals.handle();
    let started = thread::Builder::new().name("kvmem-signals".into()).spawn(move || {
        for signal in signals.forever() {
            before();
            // Ends the process with the same signal.
            let _ = emulate_default_handler(signal);
        }
    });
    match started {
        Ok(_) => *watched = true,
        Err(error) => {
            handle.close();
            return Err(error);
        }
    }
    Ok(())
}

/// Returns the signals that this process ignores, one bit each; none if the system does not report
/// them.
fn ignored() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}
