//! What needs the process, its limits or the machine's pools of hugepages alone.
//!
//! Every test here takes [`alone`] first, so they run one after the other, whatever the harness does.

use std::process::{Command, Output};
use std::sync::{Mutex, MutexGuard, PoisonError};

mod faults;
mod limits;
mod pools;

const MIB: usize = 1 << 20;

/// Held by each test from its beginning to its end.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a test of this file again, in a process of its own that knows it is `role`.
fn again(test: &str, role: &str) -> Output {
    let mut command = Command::new(std::env::current_exe().expect("our own path"));
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]).env("KVMEM_TEST_ROLE", role);
    command.output().expect("a child")
}

/// What this process is to be, if it was started by [`again`].
fn role() -> Option<String> {
    std::env::var("KVMEM_TEST_ROLE").ok()
}

/// The mappings of this process, but for those that change by themselves: heap, stacks.
fn maps() -> Vec<String> {
    let text = std::fs::read_to_string("/proc/self/maps").expect("our own maps");
    text.lines()
        .filter(|line| !line.contains("[heap]") && !line.contains("[stack]"))
        .map(str::to_owned)
        .collect()
}

/// How many descriptors this process has open.
fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("our own descriptors").count()
}
