//! Benchmarks and the machine's pool of hugepages. Only `--borrow-hugepages` resizes the pool, and
//! the pool has its old size after the run, however the run ends. These tests need root and 1 GiB
//! of free memory, and restore the pool.
#![cfg(target_os = "linux")]

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use crate::pool::{LOAN_FILE, Machine, PAGES, POOL, pool};

const LIMIT: Duration = Duration::from_secs(120);

/// A benchmark of one row that needs [`PAGES`] hugepages.
const ROWS: [&str; 6] = ["bench", "arena", "--quick", "--op", "populate", "--contender"];
/// A benchmark that needs no hugepages.
const OTHER: [&str; 8] =
    ["bench", "arena", "--quick", "--op", "map", "--reps", "1", "--contender=kvmem"];

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvmem-lab"));
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn kvmem(args: &[&str]) -> Output {
    command(args).output().unwrap()
}

/// Repetitions of a run, of at least 3 ms each: mostly long enough to be met with its pages.
const REPS: &str = "12";

/// Whether no run changes the pool: each holds the lock of the file meanwhile.
fn is_settled() -> bool {
    fs::File::open(LOAN_FILE).is_ok_and(|loans| loans.try_lock().is_ok())
}

/// A run that borrows pages. Dropping this kills the run, also if the test panics.
struct Run(Option<Child>);

impl Run {
    /// Starts a run and stops it when the pool has `pages` pages. A run that ends before it is
    /// stopped is followed by another.
    fn borrowing(pages: u64) -> Run {
        let args = [&ROWS[..], &["touch", "--borrow-hugepages", "--reps", REPS]].concat();
        let start = Instant::now();
        while start.elapsed() < LIMIT {
            let mut run = Run(Some(command(&args).spawn().unwrap()));
            while run.is_running() && start.elapsed() < LIMIT {
                if pool() >= pages {
                    run.send("STOP");
                    if pool() >= pages && is_settled() && run.is_running() {
                        return run;
                    }
                    run.send("CONT");
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        panic!("it borrows nothing");
    }

    fn is_running(&mut self) -> bool {
        self.0.as_mut().unwrap().try_wait().unwrap().is_none()
    }

    fn id(&self) -> u32 {
        self.0.as_ref().unwrap().id()
    }

    fn send(&self, signal: &str) {
        assert!(
            Command::new("kill")
                .args(["-s", signal, &self.id().to_string()])
                .status()
                .unwrap()
                .success()
        );
    }

    fn ended(mut self) -> ExitStatus {
        self.0.take().unwrap().wait_with_output().unwrap().status
    }

    /// Lets the run go on for `wait`, and then ends it by a signal. Returns `None` if the run had
    /// ended before.
    fn ended_by(self, signal: &str, wait: Duration) -> Option<ExitStatus> {
        self.send("CONT");
        std::thread::sleep(wait);
        self.send(signal);
        Some(self.ended()).filter(|status| !status.success())
    }
}

/// Starts runs until one is ended by the signal; returns the number of its process and its end. The
/// wait is shorter after a run that ended before it.
fn interrupted(pages: u64, signal: &str, mut wait: Duration) -> (u32, ExitStatus) {
    loop {
        let run = Run::borrowing(pages);
        let process = run.id();
        if let Some(status) = run.ended_by(signal, wait) {
            return (process, status);
        }
        wait /= 2;
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[test]
fn without_the_option_no_page_is_borrowed() {
    let Some(machine) = Machine::take() else { return };
    let mut child =
        command(&[&ROWS[..], &["map-populate", "--reps", "1"]].concat()).spawn().unwrap();
    while child.try_wait().unwrap().is_none() {
        assert_eq!(pool(), machine.before);
        assert!(!Path::new(LOAN_FILE).exists());
        std::thread::sleep(Duration::from_millis(1));
    }
    let output = child.wait_with_output().unwrap();
    let table = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{table}{}", String::from_utf8_lossy(&output.stderr));
    assert!(table.contains("Not measured") && table.contains("--borrow-hugepages"), "{table}");
    // Without the option a run uses the pages that the pool has.
    fs::write(POOL, PAGES.to_string()).unwrap();
    let output = kvmem(&[&ROWS[..], &["map-populate", "--reps", "1"]].concat());
    let table = String::from_utf8_lossy(&output.stdout);
    if pool() == PAGES {
        assert!(table.contains("2m, ") && !table.contains("--borrow-hugepages"), "{table}");
    } else {
        println!("skipped: another program has set the pool to {} pages meanwhile", pool());
    }

    for suite in [&["bench"][..], &["bench", "arena"], &["bench", "register"]] {
        let help = kvmem(&[suite, &["--help"]].concat());
        let help = String::from_utf8_lossy(&help.stdout).into_owned();
        assert!(help.contains("--borrow-hugepages") && help.contains("vm.nr_hugepages"), "{help}");
    }
}

#[test]
fn a_finished_run_returns_its_pages() {
    let Some(machine) = Machine::take() else { return };
    let output =
        kvmem(&[&ROWS[..], &["map-populate", "--reps", "1", "--borrow-hugepages"]].concat());
    let table = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{table}{}", String::from_utf8_lossy(&output.stderr));
    assert!(table.contains("2m, ") && !table.contains("Not measured"), "{table}");
    assert_eq!((pool(), Path::new(LOAN_FILE).exists()), (machine.before, false));
}

#[test]
fn an_interrupted_run_returns_its_pages() {
    let Some(machine) = Machine::take() else { return };
    for (signal, number) in [("INT", 2), ("TERM", 15), ("HUP", 1)] {
        for wait in if signal == "HUP" { &[0][..] } else { &[0, 5, 20] } {
            let (_, end) = interrupted(machine.before + 1, signal, Duration::from_millis(*wait));
            assert_eq!(end.signal(), Some(number), "{signal} after {wait} ms");
            let left = (pool(), Path::new(LOAN_FILE).exists());
            assert_eq!(left, (machine.before, false), "{signal} after {wait} ms");
        }
    }
    // An ignored signal stays ignored, as under nohup.
    let run =
        format!("trap '' HUP; exec \"$0\" {} touch --reps 2 --borrow-hugepages", ROWS.join(" "));
    let mut command = Command::new("sh");
    command.args(["-c", &run, env!("CARGO_BIN_EXE_kvmem-lab")]).stdout(Stdio::null());
    let run = Run(Some(command.spawn().unwrap()));
    let start = Instant::now();
    while pool() == machine.before && start.elapsed() < LIMIT {
        std::thread::sleep(Duration::from_millis(1));
    }
    run.send("HUP");
    assert!(run.ended().success());
    assert_eq!((pool(), Path::new(LOAN_FILE).exists()), (machine.before, false));
}

#[test]
fn the_next_run_returns_the_pages_of_a_killed_run() {
    let Some(machine) = Machine::take() else { return };
    for wait in [0, 20] {
        let wait = Duration::from_millis(wait);
        let (process, _) = interrupted(machine.before + 1, "KILL", wait);
        assert!(
            pool() > machine.before && Path::new(LOAN_FILE).exists(),
            "a killed run cannot return its pages"
        );
        let loans = fs::read_to_string(LOAN_FILE).unwrap();
        assert!(
            loans.contains(&format!("borrower {process} ")) && loans.contains("before 0"),
            "{loans}"
        );
        // Every later run returns the pages, with the option or without.
        let output = kvmem(&OTHER);
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{message}");
        assert!(message.contains(&format!("process {process} was killed")), "{message}");
        assert_eq!((pool(), Path::new(LOAN_FILE).exists()), (machine.before, false));
    }
    let output = kvmem(&OTHER);
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "once");
}

#[test]
fn concurrent_runs_share_the_pool() {
    let Some(machine) = Machine::take() else { return };
    for first_ends in ["INT", "KILL"] {
        // Both are stopped, so the first run keeps its pages until the second has its own.
        let one = Run::borrowing(machine.before + 1);
        let pages = pool() - machine.before;
        let two = Run::borrowing(machine.before + pages + 1);
        assert_eq!(pool(), machine.before + 2 * pages, "each has its own");
        one.send(first_ends);
        one.send("CONT");
        one.ended();
        // A third run returns the pages of a killed one, and leaves those of the second.
        assert!(kvmem(&OTHER).status.success());
        assert_eq!(pool(), machine.before + pages);
        two.send("TERM");
        two.send("CONT");
        two.ended();
        assert_eq!((pool(), Path::new(LOAN_FILE).exists()), (machine.before, false));
    }
}
