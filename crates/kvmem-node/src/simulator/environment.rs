//! [`Environment`]: the clock, the random numbers and the processes of a simulated machine.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use kvmem_testkit::random::Random;
use rustix::event::{EventfdFlags, eventfd};

/// Numbers of processes, which are used again and again.
const PIDS: std::ops::Range<u32> = 100..108;

/// The simulated kernel of this thread: clock, random numbers and processes.
#[derive(Debug)]
struct Environment {
    base: Instant,
    /// Since the machine started, suspended time included.
    boot: Duration,
    /// Without suspended time.
    running: Duration,
    /// The time that a look at the clock takes: a loop that waits for the clock ends, and so does a
    /// slice of time.
    look: Duration,
    random: Random,
    processes: BTreeMap<u32, Process>,
    last_pid: u32,
    last_number: u64,
    /// The numbers of the processes whose descriptors were opened.
    opened: HashMap<i32, u64>,
}

/// A process. Its descriptor is readable when it has ended.
#[derive(Debug)]
struct Process {
    descriptor: OwnedFd,
    number: u64,
}

thread_local! {
    static ENVIRONMENT: RefCell<Option<Environment>> = const { RefCell::new(None) };
}

fn with<R>(look: impl FnOnce(&mut Environment) -> R) -> Option<R> {
    ENVIRONMENT.with_borrow_mut(|it| it.as_mut().map(look))
}

/// Begins a simulation in this thread.
pub(super) fn begin(seed: u64) {
    ENVIRONMENT.set(Some(Environment {
        base: Instant::now(),
        boot: Duration::from_secs(1000),
        running: Duration::ZERO,
        look: Duration::from_micros(10),
        random: Random::new(seed),
        processes: BTreeMap::new(),
        last_pid: PIDS.start,
        last_number: 0,
        opened: HashMap::new(),
    }));
}

/// Sets the time that a look at the clock takes.
pub(super) fn set_look(look: Duration) {
    with(|it| it.look = look);
}

/// Ends the simulation of this thread.
pub(super) fn end() {
    ENVIRONMENT.set(None);
}

/// Returns whether this thread simulates.
pub(crate) fn is_on() -> bool {
    with(|_| ()).is_some()
}

pub(crate) fn now_ms() -> Option<u64> {
    with(|it| it.boot.as_millis() as u64)
}

pub(crate) fn instant() -> Option<Instant> {
    with(|it| {
        it.boot += it.look;
        it.running += it.look;
        it.base + it.running
    })
}

pub(crate) fn fill_random(bytes: &mut [u8]) -> bool {
    let fill = |it: &mut Environment| {
        for part in bytes.chunks_mut(8) {
            part.copy_from_slice(&it.random.bits().to_le_bytes()[..part.len()]);
        }
    };
    with(fill).is_some()
}

/// Opens a process by its number, which another one may have by now.
pub(crate) fn open_process(pid: u32) -> Option<Option<OwnedFd>> {
    with(|it| {
        let process = it.processes.get(&pid)?;
        let descriptor = process.descriptor.try_clone().ok()?;
        it.opened.insert(descriptor.as_raw_fd(), process.number);
        Some(descriptor)
    })
}

pub(crate) fn process_id(descriptor: &OwnedFd) -> Option<u64> {
    with(|it| it.opened.get(&descriptor.as_raw_fd()).copied().unwrap_or(0))
}

/// Returns the time since the machine started.
pub(super) fn time() -> Duration {
    with(|it| it.boot).expect("a simulation runs")
}

/// Lets time pass.
pub(super) fn advance(time: Duration) {
    with(|it| (it.boot, it.running) = (it.boot + time, it.running + time));
}

/// Suspends the machine.
pub(super) fn suspend(time: Duration) {
    with(|it| it.boot += time);
}

/// Starts a process. Returns its number, and the one that no other process ever has.
pub(super) fn start_process() -> (u32, u64) {
    let start = |it: &mut Environment| {
        let next = |pid: u32| if pid + 1 == PIDS.end { PIDS.start } else { pid + 1 };
        it.last_pid = next(it.last_pid);
        while it.processes.contains_key(&it.last_pid) {
            it.last_pid = next(it.last_pid);
        }
        it.last_number += 1;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let descriptor = eventfd(0, flags).expect("there are descriptors");
        let process = Process { descriptor, number: it.last_number };
        it.processes.insert(it.last_pid, process);
        (it.last_pid, it.last_number)
    };
    with(start).expect("a simulation runs")
}

/// Ends a process: its descriptors say so, and its number is free.
pub(super) fn end_process(pid: u32) {
    let end = |it: &mut Environment| it.processes.remove(&pid);
    let process = with(end).flatten().expect("it runs");
    rustix::io::write(&process.descriptor, &1_u64.to_ne_bytes()).expect("it has space");
}
