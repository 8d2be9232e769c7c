//! *Child*: a running command, its lines, and the processor time that it used.
//!
//! Each command leads a process group. Processes of the group that outlive the command are killed,
//! so a forgotten process neither holds the output open nor disturbs later steps.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::scratch;

/// How much nicer the steps in the background are than tests, whose waits have limits.
const NICER: i32 = 5;
/// How long processes may take to end after a signal, before they are killed.
const GRACE: Duration = Duration::from_secs(5);

/// Set when a signal has ended the run: no command is started any more.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// How a command ended.
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    /// The time that processors spent on it and on its children.
    pub(crate) processor: Duration,
}

/// Runs a command, and passes each line of its output and its errors to `line`. With `out` the
/// output goes to that file instead. In the `background` it leaves the processors to others.
pub(crate) fn run(
    command: &mut Command,
    out: Option<File>,
    background: bool,
    line: &mut dyn FnMut(&str),
) -> io::Result<Ended> {
    // Acquire: pairs with the Release of the thread that has received a signal.
    if INTERRUPTED.load(Ordering::Acquire) {
        return Err(io::Error::other("a signal has ended the run"));
    }
    scratch::give(command);
    let (reader, writer) = io::pipe()?;
    match out {
        Some(file) => command.stdout(file),
        None => command.stdout(writer.try_clone()?),
    };
    let child = command.stdin(Stdio::null()).stderr(writer).process_group(0).spawn();
    // The command still has the writer's end, and the reader would wait for it.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let id = child?.id() as libc::pid_t;
    if background {
        // SAFETY: the call takes numbers only. A process that has ended is an error, which does not
        // matter.
        unsafe { libc::setpriority(libc::PRIO_PGRP, id as libc::id_t, own_nice() + NICER) };
    }
    thread::scope(|scope| {
        let ended = scope.spawn(|| wait(id));
        let mut reader = BufReader::new(reader);
        let mut bytes = Vec::new();
        while reader.read_until(b'\n', &mut bytes)? > 0 {
            line(&String::from_utf8_lossy(&bytes));
            bytes.clear();
        }
        ended.join().unwrap_or_else(|_| Err(io::Error::other("the waiting thread panicked")))
    })
}

/// Waits for the leader of a process group, and kills what it leaves behind.
fn wait(id: libc::pid_t) -> io::Result<Ended> {
    // The zombie keeps its number, so the signal reaches no other group.
    retry(|| {
        // SAFETY: all zeros is a value of this structure, and the call writes to it alone.
        unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            libc::waitid(
                libc::P_PID,
                id as libc::id_t,
                &raw mut info,
                libc::WEXITED | libc::WNOWAIT,
            )
        }
    })?;
    // SAFETY: the call takes numbers only.
    unsafe { libc::kill(-id, libc::SIGKILL) };
    let mut status = 0;
    // SAFETY: all zeros is a value of this structure.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: both places are valid for the call.
    retry(|| unsafe { libc::wait4(id, &raw mut status, 0, &raw mut usage) })?;
    let time = |time: libc::timeval| {
        Duration::from_secs(time.tv_sec as u64) + Duration::from_micros(time.tv_usec as u64)
    };
    Ok(Ended {
        status: ExitStatus::from_raw(status),
        processor: time(usage.ru_utime) + time(usage.ru_stime),
    })
}

/// Repeats a system call that a signal interrupts.
fn retry(mut call: impl FnMut() -> libc::c_int) -> io::Result<()> {
    while call() < 0 {
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    Ok(())
}

/// From now on SIGINT, SIGTERM and SIGHUP end all descendants, whatever group they are in, and then
/// this process.
pub(crate) fn end_all_on_signals() -> io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    thread::spawn(move || {
        let Some(signal) = signals.forever().next() else { return };
        // Release: pairs with the Acquire of threads that are about to start a command.
        INTERRUPTED.store(true, Ordering::Release);
        eprintln!("\nsignal {signal}: all steps are ended");
        end_descendants();
        std::process::exit(128 + signal);
    });
    Ok(())
}

/// Asks all descendants to end, and kills those that do not.
fn end_descendants() {
    let send = |signal| {
        let found = descendants(std::process::id());
        for id in &found {
            // SAFETY: the call takes numbers only.
            unsafe { libc::kill(*id as libc::pid_t, signal) };
        }
        found.len()
    };
    send(libc::SIGTERM);
    let start = Instant::now();
    while start.elapsed() < GRACE && !descendants(std::process::id()).is_empty() {
        thread::sleep(Duration::from_millis(20));
    }
    // A process may have started another one meanwhile.
    for _ in 0..10 {
        if send(libc::SIGKILL) == 0 {
            break;
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// Returns the processes that descend from one, without zombies.
fn descendants(of: u32) -> Vec<u32> {
    let read = |entry: io::Result<fs::DirEntry>| {
        let path = entry.ok()?.path();
        let id: u32 = path.file_name()?.to_str()?.parse().ok()?;
        let stat = fs::read_to_string(path.join("stat")).ok()?;
        // The name may have spaces and brackets; state and parent follow the last bracket.
        let mut words = stat.rsplit_once(')')?.1.split_whitespace();
        let (state, parent) = (words.next()?, words.next()?.parse().ok()?);
        (state != "Z").then_some((id, parent))
    };
    let all: Vec<(u32, u32)> =
        fs::read_dir("/proc").into_iter().flatten().filter_map(read).collect();
    let mut found = vec![of];
    let mut at = 0;
    while let Some(&parent) = found.get(at) {
        found.extend(all.iter().filter(|(_, its)| *its == parent).map(|(id, _)| *id));
        at += 1;
    }
    found.split_off(1)
}

/// Returns how nice this process is.
fn own_nice() -> i32 {
    // SAFETY: the call takes numbers only.
    unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(text: &str, background: bool) -> (Ended, String) {
        let mut lines = String::new();
        let mut command = Command::new("sh");
        let ended =
            run(command.args(["-c", text]), None, background, &mut |line| lines.push_str(line));
        (ended.unwrap(), lines)
    }

    #[test]
    fn lines_of_both_streams_and_the_status_are_returned() {
        let (ended, lines) = shell("echo out; echo err >&2; exit 3", false);
        assert_eq!((ended.status.code(), lines.as_str()), (Some(3), "out\nerr\n"));
        let mut missing = Command::new("kvmem-no-such-program");
        assert!(run(&mut missing, None, false, &mut |_| {}).is_err());
    }

    #[test]
    fn a_forgotten_process_does_not_hold_the_output_open() {
        let start = Instant::now();
        let (ended, lines) = shell("sleep 100 & echo $!", false);
        assert!(ended.status.success() && start.elapsed() < Duration::from_secs(50));
        let id: u32 = lines.trim().parse().unwrap();
        let is_gone = || !fs::exists(format!("/proc/{id}")).unwrap();
        while !is_gone() && start.elapsed() < Duration::from_secs(50) {
            thread::sleep(Duration::from_millis(5));
        }
        assert!(is_gone());
    }

    #[test]
    fn the_background_is_nicer_and_its_time_is_counted() {
        let (ended, lines) = shell(
            "sleep 0.3; nice; sh -c 'i=0; while [ $i -lt 100000 ]; do \
                                    i=$((i + 1)); done'",
            true,
        );
        assert_eq!(lines.trim().parse::<i32>().unwrap(), own_nice() + NICER);
        assert!(ended.processor > Duration::from_millis(5), "{:?}", ended.processor);
    }

    #[test]
    fn descendants_of_any_group_are_found() {
        let mut child = Command::new("sh");
        child.args(["-c", "sh -c 'sleep 100; :' ; :"]).process_group(0);
        let mut child = child.spawn().unwrap();
        let start = Instant::now();
        while descendants(child.id()).len() < 2 && start.elapsed() < Duration::from_secs(50) {
            thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(descendants(child.id()).len(), 2);
        assert!(descendants(std::process::id()).contains(&child.id()));
        // SAFETY: the call takes numbers only.
        unsafe { libc::kill(-(child.id() as libc::pid_t), libc::SIGKILL) };
        child.wait().unwrap();
    }
}
