//! Fuzz targets: the stored corpus of each, then random inputs.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::CHECKS;
use crate::programs::{self, ProgramKind};
use crate::say;
use crate::schedule::Task;
use crate::setup;
use crate::step::{Kind, Report};

/// Builds all fuzz targets, and adds a task for each.
pub(super) fn task(root: &Path, seconds: u64) -> Task<'_> {
    Task::growing("fuzz", "fuzz: build", move |report| build(root, report, seconds))
        .with(CHECKS)
        .background()
}

fn build<'a>(root: &'a Path, report: &mut Report, seconds: u64) -> Vec<Task<'a>> {
    let args = ["build", "--profile", "checks", "--target-dir", CHECKS, "--locked"];
    let args = [&args[..], &["--package", "kvmem-fuzz", "--bins"]].concat();
    let programs = programs::build(root, report, "fuzz: build", &args);
    let targets = programs.into_iter().filter(|program| program.kind == ProgramKind::Command);
    let (mut names, mut tasks) = (Vec::new(), Vec::new());
    for program in targets {
        let step = format!("fuzz: {}", program.target);
        let name = step.clone();
        names.push(program.target);
        let replay = move |report: &mut Report| {
            let mut replay = Command::new(program.path);
            replay.current_dir(root).args(["--seconds", &seconds.to_string()]);
            report.command(&step, Kind::Plain, &mut replay);
        };
        tasks.push(Task::new("fuzz", name, replay).background());
    }
    if setup::can_guide_fuzzing() {
        // One after the other: they share a target folder.
        let guide = move |report: &mut Report| {
            names.iter().for_each(|name| guided(root, report, name, seconds));
        };
        tasks.push(Task::new("fuzz", "fuzz: guided", guide).background());
    } else {
        say!(
            "(for fuzzing guided by coverage: rustup toolchain install nightly && cargo install \
             cargo-fuzz)"
        );
    }
    tasks
}

/// Runs a fuzz target guided by coverage.
fn guided(root: &Path, report: &mut Report, name: &str, seconds: u64) {
    let corpus = scratch_corpus(name);
    report.check(&format!("fuzz: {name}: folder"), || Ok(fs::create_dir_all(root.join(&corpus))?));
    // New inputs go into the first folder; the stored corpus is only read.
    let mut guided = Command::new("rustup");
    guided.current_dir(root).args(["run", "nightly", "cargo", "fuzz", "run", name]);
    guided.args([&corpus, &format!("fuzz/corpus/{name}"), "--"]);
    guided.arg(format!("-max_total_time={seconds}"));
    report.command(&format!("fuzz: {name}, guided by coverage"), Kind::Plain, &mut guided);
}

/// Returns the folder in which coverage-guided runs store the inputs that they find.
fn scratch_corpus(name: &str) -> String {
    format!("target/fuzz-corpus/{name}")
}
