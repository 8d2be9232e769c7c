//! *Housekeeping*: a thread of the server's process: signals of life to systemd, a line about a
//! disk tier that stores nothing any more, and a memory holder that is started again when it has
//! ended.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use indicatif::{BinaryBytes, HumanCount};
use kvmem_node::{DrainProgress, NodeObserver, NodeStats};
use sd_notify::NotifyState;

use super::retention::Retention;
use super::tier::TierWatch;
use crate::output::print_message;

/// The longest time between two looks at the memory holder.
const PERIOD: Duration = Duration::from_millis(500);
/// The time between two lines of status for systemd.
const STATUS: Duration = Duration::from_secs(10);

/// The thread, until it is [ended](Self::end).
pub(super) struct Housekeeping {
    stop: SyncSender<()>,
    thread: JoinHandle<Retention>,
}

impl Housekeeping {
    /// Starts the thread. `files` are the three files of the node.
    pub(super) fn start(
        retention: Retention,
        files: [OwnedFd; 3],
        socket: PathBuf,
        observer: NodeObserver,
        mut tier: Option<TierWatch>,
    ) -> io::Result<Housekeeping> {
        let (stop, stopped) = sync_channel(1);
        let work = move || run(retention, &files, &socket, &observer, &mut tier, &stopped);
        let thread = thread::Builder::new().name("kvmem-retention".into()).spawn(work)?;
        Ok(Housekeeping { stop, thread })
    }

    /// Ends the thread. Returns the process that retains the files; nothing if the thread has
    /// panicked.
    pub(super) fn end(self) -> Retention {
        let _ = self.stop.try_send(());
        self.thread.join().unwrap_or(Retention::Nothing)
    }
}

fn run(
    mut retention: Retention,
    files: &[OwnedFd; 3],
    socket: &std::path::Path,
    observer: &NodeObserver,
    tier: &mut Option<TierWatch>,
    stopped: &Receiver<()>,
) -> Retention {
    let watchdog = sd_notify::watchdog_enabled().map(|limit| limit / 2);
    let period = watchdog.map_or(PERIOD, |watchdog| watchdog.min(PERIOD));
    let mut beats = observer.beats();
    let mut status_at: Option<Instant> = None;
    let (mut failed, mut reported_drain) = (false, false);
    loop {
        match stopped.recv_timeout(period) {
            Err(RecvTimeoutError::Timeout) => {}
            _ => return retention,
        }
        if let Some(tier) = tier {
            tier.look();
        }
        // The server's event loop runs at least once a second. If it hangs, systemd restarts it.
        if watchdog.is_some() && observer.beats() != beats {
            beats = observer.beats();
            let _ = sd_notify::notify(&[NotifyState::Watchdog]);
        }
        let drain = observer.drain();
        if let Some(progress) = drain {
            let status = draining(progress);
            if !reported_drain {
                reported_drain = true;
                print_message(format_args!(
                    "kvmem: stopping: {status}; another signal ends it at once"
                ));
            }
            let _ = sd_notify::notify(&[NotifyState::Status(&status)]);
        } else if status_at.is_none_or(|at| at.elapsed() >= STATUS) {
            status_at = Some(Instant::now());
            let _ = sd_notify::notify(&[NotifyState::Status(&status(&observer.stats()))]);
        }
        match retention.renew(socket, files) {
            Ok(false) => {}
            Ok(true) => {
                failed = false;
                print_message(format_args!(
                    "kvmem: the memory holder has ended, and another one has the memory"
                ));
            }
            Err(error) => {
                if !failed {
                    print_message(format_args!(
                        "kvmem: the memory holder has ended, and the values now end with this \
                         server: {error}"
                    ));
                }
                failed = true;
            }
        }
    }
}

fn draining(progress: DrainProgress) -> String {
    format!(
        "{} values of {} to be stored in the tier",
        HumanCount(progress.values),
        BinaryBytes(progress.bytes)
    )
}

fn status(stats: &NodeStats) -> String {
    format!(
        "{} values, {} of {} in use, {} clients",
        HumanCount(stats.values),
        BinaryBytes(stats.used),
        BinaryBytes(stats.capacity),
        stats.sessions
    )
}
