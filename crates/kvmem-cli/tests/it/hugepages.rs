//! Benchmarks and the machine's pool of hugepages. Only `--borrow-hugepages` resizes the pool, and
//! the pool has its old size after the run, however the run ends. These tests need root and 1 GiB
//! of free memory, and restore the pool.
#![cfg(target_os = "linux")]

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const POOL: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
const LOAN_FILE: &str = "/run/kvmem-hugepages-2048kB.lock";
const LIMIT: Duration = Duration::from_secs(120);

/// A benchmark of one row that needs 512 MiB of hugepages.
const ROWS: [&str; 6] = ["bench", "arena", "--quick", "--op", "populate", "--contender"];
/// A benchmark that needs no hugepages.
const OTHER: [&str; 8] =
    ["bench", "arena", "--quick", "--op", "map", "--reps", "1", "--contender=kvmem"];

fn pool() -> u64 {
    fs::read_to_string(POOL).unwrap().trim().parse().unwrap()
}

/// The pool, for one test at a time. Dropping this restores the pool.
struct Machine {
    before: u64,
    _alone: MutexGuard<'static, ()>,
}

impl Machine {
    /// Returns `None` if the pool cannot be resized, or is not empty: a run would use its free
    /// pages before it borrows any.
    fn take() -> Option<Machine> {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let skip = |why: &str| {
            println!("skipped: {why}");
            None
        };
        if Path::new(LOAN_FILE).exists() {
            return skip("another run borrows hugepages at the moment");
        }
        let Ok(text) = fs::read_to_string(POOL) else {
            return skip("there are no hugepages of 2 MiB");
        };
        let before: u64 = text.trim().parse().unwrap();
        if fs::write(POOL, (before + 300).to_string()).is_err() {
            return skip("only root resizes the pool");
        }
        let got = pool();
        fs::write(POOL, before.to_string()).unwrap();
        if before > 0 {
            return skip("the pool has pages already");
        }
        if got < before + 300 {
            return skip("the machine has no memory for 300 hugepages");
        }
        Some(Machine { before, _alone: alone })
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = fs::write(POOL, self.before.to_string());
        let _ = fs::remove_file(LOAN_FILE);
    }
}

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvmem"));
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn kvmem(args: &[&str]) -> Output {
    command(args).output().unwrap()
}

/// Repetitions of a run that lasts until it is ended: each takes 25 ms or more.
const ENDLESS: u32 = 4000;

/// Waits until no run changes the pool: each holds the lock of the file meanwhile.
fn settled() {
    if let Ok(loans) = fs::File::open(LOAN_FILE) {
        loans.lock().unwrap();
    }
}

/// A run that borrows pages. Dropping this kills the run, also if the test panics.
struct Run(Option<Child>);

impl Run {
    /// Starts an endless run and waits until the pool has `pages` pages.
    fn borrowing(pages: u64) -> Run {
        let args = [&ROWS[..], &["touch", "--borrow-hugepages", "--reps"]].concat();
        let run = Run(Some(command(&args).arg(ENDLESS.to_string()).spawn().unwrap()));
        let start = Instant::now();
        while pool() < pages {
            assert!(start.elapsed() < LIMIT, "it borrows nothing");
            std::thread::sleep(Duration::from_millis(1));
        }
        run
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
    fs::write(POOL, "256").unwrap();
    let output = kvmem(&[&ROWS[..], &["map-populate", "--reps", "1"]].concat());
    let table = String::from_utf8_lossy(&output.stdout);
    if pool() == 256 {
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
        for wait in if signal == "HUP" { &[0][..] } else { &[0, 20, 100] } {
            let run = Run::borrowing(machine.before + 1);
            std::thread::sleep(Duration::from_millis(*wait));
            run.send(signal);
            assert_eq!(run.ended().signal(), Some(number), "{signal} after {wait} ms");
            let left = (pool(), Path::new(LOAN_FILE).exists());
            assert_eq!(left, (machine.before, false), "{signal} after {wait} ms");
        }
    }
    // An ignored signal stays ignored, as under nohup.
    let run =
        format!("trap '' HUP; exec \"$0\" {} touch --reps 20 --borrow-hugepages", ROWS.join(" "));
    let mut command = Command::new("sh");
    command.args(["-c", &run, env!("CARGO_BIN_EXE_kvmem")]).stdout(Stdio::null());
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
    for wait in [0, 80] {
        let run = Run::borrowing(machine.before + 1);
        std::thread::sleep(Duration::from_millis(wait));
        let process = run.id();
        run.send("KILL");
        run.ended();
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
        let one = Run::borrowing(machine.before + 1);
        // The first run keeps its pages until the second has its own. It has unlocked the file.
        settled();
        one.send("STOP");
        let pages = pool() - machine.before;
        let two = Run::borrowing(machine.before + pages + 1);
        settled();
        assert_eq!(pool(), machine.before + 2 * pages, "each has its own");
        one.send(first_ends);
        one.send("CONT");
        one.ended();
        // A third run returns the pages of a killed one, and leaves those of the second.
        settled();
        two.send("STOP");
        assert!(kvmem(&OTHER).status.success());
        assert_eq!(pool(), machine.before + pages);
        two.send("TERM");
        two.send("CONT");
        two.ended();
        assert_eq!((pool(), Path::new(LOAN_FILE).exists()), (machine.before, false));
    }
}
