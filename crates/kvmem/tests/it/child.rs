//! Children of tests: forked, with a time limit and with threads that work meanwhile, or the test
//! program again.

// Two test programs include this file, and each of them uses a part.
#![allow(dead_code)]

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

// The unit tests of the library fork in the same way.
#[path = "../../src/sys/child.rs"]
mod forked;

pub(crate) use forked::forked;

/// Runs `parent` while each of `threads` threads calls `work` with its number and the number of
/// the call, again and again. The threads end with `parent`, even if it panics.
pub(crate) fn while_threads<T>(
    threads: u64,
    work: impl Fn(u64, u64) + Sync,
    parent: impl FnOnce() -> T,
) -> T {
    struct Stop<'a>(&'a AtomicBool);
    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for thread in 0..threads {
            let (stop, work) = (&stop, &work);
            scope.spawn(move || {
                (0..).take_while(|_| !stop.load(Ordering::Relaxed)).for_each(|call| {
                    work(thread, call);
                });
            });
        }
        let _stop = Stop(&stop);
        parent()
    })
}

/// Forks `times` times while each of three threads repeats `work`; every child must return 0.
/// `prepare` runs in the parent and returns the code of the next child.
pub(crate) fn fork_while_threads<C: FnOnce() -> i32>(
    times: u32,
    work: impl Fn(u64, u64) + Sync,
    mut prepare: impl FnMut() -> C,
) {
    while_threads(3, work, || {
        for round in 0..times {
            assert_eq!(forked(prepare()), 0, "round {round}");
        }
    });
}

/// Returns a command that runs a test of this program again, as a process that plays `role`.
pub(crate) fn again(test: &str, role: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("our own path"));
    as_role(&mut command, test, role);
    command
}

/// Makes a command whose program is a copy of this one run a test as a process that plays `role`.
pub(crate) fn as_role(command: &mut Command, test: &str, role: &str) {
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]).env("KVMEM_TEST_ROLE", role);
}

/// Returns the role of this process, if [`again`] started it.
pub(crate) fn role() -> Option<String> {
    std::env::var("KVMEM_TEST_ROLE").ok()
}

/// Runs a test of this program again, asserts that it passes, and returns what it prints. Prints
/// why a part of it was skipped.
pub(crate) fn passes(command: &mut Command) -> String {
    let output = command.output().expect("a child");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let complaints = String::from_utf8_lossy(&output.stderr);
    let passed = output.status.success() && text.contains("1 passed");
    assert!(passed, "{}: {text} {complaints}", output.status);
    text.lines().filter(|line| line.contains("skipped")).for_each(|line| println!("{line}"));
    text
}
