//! *Farewell*: clients that were closed while their server was away.
//!
//! Such a client cannot say goodbye, and its process lives. The next server would resume its
//! session, with the pins and reservations that it had, until the process ends. A thread of the
//! process therefore says goodbye for it as soon as a server answers.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::ConnectOptions;

/// The shortest and the longest time between two attempts.
const PAUSES: [Duration; 2] = [Duration::from_millis(20), Duration::from_secs(2)];

/// The time after which no server is expected any more.
const PATIENCE: Duration = Duration::from_secs(3600);

/// The time that a server has for its answers.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);

/// Bytes of the stack of the thread.
const STACK_BYTES: usize = 256 << 10;

/// Says goodbye to the server at a path for the client of a session. Returns false if another
/// attempt may succeed.
pub(super) type SayGoodbye = fn(&Path, &ConnectOptions, u64) -> bool;

/// A session that its client has left.
#[derive(Debug)]
struct LeftSession {
    path: PathBuf,
    options: ConnectOptions,
    token: u64,
    until: Instant,
    say: SayGoodbye,
}

/// The sessions that clients of this process have left.
#[derive(Debug)]
struct LeftSessions {
    sessions: Vec<LeftSession>,
    /// The process with the thread, if there is one. A forked child has none.
    process: Option<u32>,
}

static LEFT: Mutex<LeftSessions> = Mutex::new(LeftSessions { sessions: Vec::new(), process: None });

fn lock() -> MutexGuard<'static, LeftSessions> {
    LEFT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Says goodbye for a session when a server answers at `path`.
pub(super) fn say_later(path: PathBuf, options: &ConnectOptions, token: u64, say: SayGoodbye) {
    let options =
        ConnectOptions { interrupt: None, answer_within: ANSWER_WITHIN, ..options.clone() };
    let until = Instant::now() + PATIENCE;
    let mut left = lock();
    let own = Some(std::process::id());
    if left.process != own {
        left.sessions.clear();
        let thread = std::thread::Builder::new().name("kvmem-farewell".into());
        let started = thread.stack_size(STACK_BYTES).spawn(run);
        // Without a thread, the session lasts as long as the process.
        left.process = if started.is_ok() { own } else { return };
    }
    left.sessions.push(LeftSession { path, options, token, until, say });
}

fn run() {
    let mut pause = PAUSES[0];
    let mut sessions: Vec<LeftSession> = Vec::new();
    loop {
        std::thread::sleep(pause);
        {
            let mut left = lock();
            if !left.sessions.is_empty() {
                pause = PAUSES[0];
            }
            sessions.append(&mut left.sessions);
            if sessions.is_empty() {
                left.process = None;
                return;
            }
        }
        // One attempt for each server: it answers all or none.
        let mut absent: Vec<PathBuf> = Vec::new();
        sessions.retain(|it| {
            if !absent.contains(&it.path) {
                if (it.say)(&it.path, &it.options, it.token) {
                    return false;
                }
                absent.push(it.path.clone());
            }
            Instant::now() < it.until
        });
        pause = (pause * 2).min(PAUSES[1]);
    }
}
