//! `cargo xtask chaos`: attacks on the built command and on the library's tests.
//!
//! An attack is a test in `xtask/tests/chaos`: many small runs of `kvmem` in surroundings that are
//! hostile in one way, each checked by the rules in `attack.py`. Random choices come from a seed
//! that a failure names. Attacks that this machine does not allow (no root, no cgroups) are
//! reported as skipped. Then groups of the library's tests are repeated with larger counts.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::deploy::{left_out, pytest};
use crate::run::succeed;
use crate::step::{Kind, Report};
use crate::workspace::{cargo, target_folder};

/// The attacks, and their duration.
#[derive(Args)]
pub(crate) struct ChaosOptions {
    /// Run all chosen attacks this many times, with other random choices each time.
    #[arg(long, value_name = "N", default_value_t = 1)]
    rounds: u64,
    /// Repeat them until this many seconds have passed.
    #[arg(long, value_name = "N")]
    seconds: Option<u64>,
    /// The seed of all random choices, which a failure names; the default comes from the clock.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Only attacks that take less than a minute, as in `cargo xtask test`.
    #[arg(long)]
    quick: bool,
    /// Attack a build with optimization.
    #[arg(long)]
    release: bool,
    /// Attack this command, and the `kvmem-lab` beside it, instead of building them.
    #[arg(long, value_name = "FILE", conflicts_with = "release")]
    command: Option<PathBuf>,
    /// Kill servers and clients of a node N times while clients read, write and verify, once by
    /// sockets and once by rings. Without an ATTACK, nothing else.
    #[arg(long, value_name = "N")]
    kills: Option<u64>,
    /// Print the names of the attacks and stop.
    #[arg(long)]
    list: bool,
    /// Run only attacks with these words in their names (default: all): `signals`, `nodes`.
    #[arg(value_name = "ATTACK")]
    attacks: Vec<String>,
}

/// Tests of the library that are repeated: package, target, filter. Children of busy processes,
/// user code that panics, the oracle.
const GROUPS: [[&str; 3]; 4] = [
    ["kvmem", "it", "fork"],
    ["kvmem", "alone", "concurrent_population"],
    ["kvmem", "it", "panic"],
    ["kvmem", "it", "oracle"],
];

/// Runs the attacks and prints the summary; the exit status is a failure if anything failed.
pub(crate) fn run(root: &Path, options: &ChaosOptions) -> Result<ExitCode> {
    let mut report = Report::default();
    let command = match &options.command {
        Some(command) => std::path::absolute(command)?,
        None => build(root, options.release, &mut report)?,
    };
    ensure!(command.exists(), "there is no {}", command.display());
    let seed = options.seed.unwrap_or_else(clock);
    let (start, mut round) = (Instant::now(), 0);
    let more = |round| match options.seconds {
        Some(seconds) => round == 0 || start.elapsed() < Duration::from_secs(seconds),
        None => round < options.rounds,
    };
    let is_named = !options.attacks.is_empty();
    while more(round) && (is_named || options.kills.is_none()) {
        let mut tests = attacks(root, &command, seed.wrapping_add(round), options.quick)?;
        if is_named {
            tests.arg("-k").arg(options.attacks.join(" or "));
        }
        if options.list {
            succeed(tests.arg("--collect-only"))?;
            return Ok(ExitCode::SUCCESS);
        }
        report.command(&format!("chaos: round {}", round + 1), Kind::Tests, &mut tests);
        round += 1;
    }
    if let Some(kills) = options.kills {
        // One after the other: by sockets, and by rings.
        let filter = ["processes_are_killed_at_random_instants", "--test-threads=1"];
        let mut tests = cargo_test(root, "kvmem-node", "it", &filter);
        tests.env("KVMEM_TEST_ROUNDS", kills.to_string());
        report.command(&format!("chaos: {kills} kills"), Kind::Tests, &mut tests);
    } else if !options.quick && !is_named {
        for [package, target, filter] in GROUPS {
            let mut tests = cargo_test(root, package, target, &[filter]);
            // Twice the cases and rounds of a usual run.
            tests.env("PROPTEST_CASES", "512").env("KVMEM_TEST_ROUNDS", "100");
            report.command(&format!("chaos: {package}:{target}:{filter}"), Kind::Tests, &mut tests);
        }
    }
    report.finish()
}

/// Runs the quick attacks on a command that is built, as a step of `cargo xtask test`.
pub(crate) fn quick(root: &Path, command: &Path, report: &mut Report) {
    match attacks(root, command, clock(), true) {
        Ok(mut tests) => drop(report.command("chaos", Kind::Tests, &mut tests)),
        Err(error) => left_out("chaos", error, report),
    }
}

/// Returns the command that attacks.
fn attacks(root: &Path, command: &Path, seed: u64, quick: bool) -> Result<Command> {
    let mut tests = pytest(root, command, "chaos").context("cannot install pytest")?;
    tests.arg(format!("--seed={seed}")).args(quick.then_some("--quick"));
    Ok(tests)
}

/// Returns a number that differs from run to run.
pub(crate) fn clock() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn build(root: &Path, release: bool, report: &mut Report) -> Result<PathBuf> {
    let mut build = Command::new(cargo());
    build.current_dir(root).args(["build", "--locked", "--package", "kvmem-cli"]);
    build.args(["--package", "kvmem-lab"]).args(release.then_some("--release"));
    report.command("chaos: build", Kind::Plain, &mut build);
    Ok(target_folder(root)?.join(if release { "release" } else { "debug" }).join("kvmem"))
}

fn cargo_test(root: &Path, package: &str, target: &str, arguments: &[&str]) -> Command {
    let mut tests = Command::new(cargo());
    tests.current_dir(root).args(["test", "--locked", "--package", package, "--test", target]);
    tests.arg("--").args(arguments);
    tests
}
