//! Fuzz targets: the stored corpus of each, then random inputs.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::ensure;

use super::CHECKS;
use crate::programs;
use crate::say;
use crate::schedule::Task;
use crate::setup;
use crate::step::{Kind, Report};
use crate::workspace::targets;

/// Manifest of the fuzz targets.
const FUZZ: &str = "fuzz/Cargo.toml";

/// Builds all fuzz targets, and adds a task for each.
pub(super) fn task(root: &Path, seconds: u64) -> Task<'_> {
    Task::growing("fuzz", "fuzz: build", move |report| build(root, report, seconds))
        .with(CHECKS)
        .background()
}

fn build<'a>(root: &'a Path, report: &mut Report, seconds: u64) -> Vec<Task<'a>> {
    let mut names = Vec::new();
    report.check("fuzz: list", || {
        names = targets(&root.join(FUZZ), "bin")?;
        ensure!(!names.is_empty(), "{FUZZ} has no [[bin]]");
        for name in &names {
            fs::create_dir_all(root.join(scratch_corpus(name)))?;
        }
        Ok(())
    });
    let args = ["build", "--profile", "checks", "--target-dir", CHECKS, "--locked"];
    let args = [&args[..], &["--package", "kvmem-fuzz", "--bins"]].concat();
    let programs = programs::build(root, report, "fuzz: build", &args);
    let replay = |name: String| {
        let program = programs.iter().find(|program| program.target == name).cloned();
        Task::new("fuzz", format!("fuzz: {name}"), move |report| {
            let step = format!("fuzz: {name}");
            match program {
                Some(program) => {
                    let mut replay = Command::new(program.path);
                    replay.current_dir(root).args(["--seconds", &seconds.to_string()]);
                    report.command(&step, Kind::Plain, &mut replay);
                }
                None => drop(report.check(&step, || anyhow::bail!("it was not built"))),
            }
        })
        .background()
    };
    let mut tasks: Vec<Task<'a>> = names.iter().cloned().map(replay).collect();
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
    // New inputs go into the first folder; the stored corpus is only read.
    let mut guided = Command::new("rustup");
    guided.current_dir(root).args(["run", "nightly", "cargo", "fuzz", "run", name]);
    guided.args([&scratch_corpus(name), &format!("fuzz/corpus/{name}"), "--"]);
    guided.arg(format!("-max_total_time={seconds}"));
    report.command(&format!("fuzz: {name}, guided by coverage"), Kind::Plain, &mut guided);
}

/// Returns the folder in which coverage-guided runs store the inputs that they find.
fn scratch_corpus(name: &str) -> String {
    format!("target/fuzz-corpus/{name}")
}
