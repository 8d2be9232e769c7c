//! Fuzz targets: the stored corpus of each, then random inputs.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::{CHECKS, cargo_in};
use crate::dist::files;
use crate::sanitize::nightly;
use crate::say;
use crate::schedule::Task;
use crate::setup;
use crate::step::{Kind, Report};

/// Builds all fuzz targets, and runs them.
pub(super) fn task(root: &Path, seconds: u64) -> Task<'_> {
    Task::new("fuzz", "fuzz", move |report| run(root, report, seconds)).with(CHECKS).background()
}

fn run(root: &Path, report: &mut Report, seconds: u64) {
    let args = ["build", "--profile", "checks", "--target-dir", CHECKS, "--locked", "--bins"];
    let mut build = cargo_in(root, &args);
    if !report.command("fuzz: build", Kind::Plain, build.args(["--package", "kvmem-fuzz"])) {
        return;
    }
    let targets = files(&root.join("fuzz/fuzz_targets")).unwrap_or_default();
    let names = targets.iter().filter_map(|file| file.file_stem()?.to_str()).collect::<Vec<_>>();
    report.check("fuzz: targets", || {
        anyhow::ensure!(!names.is_empty(), "fuzz/fuzz_targets has no program");
        Ok(())
    });
    for name in &names {
        let mut replay = Command::new(root.join(CHECKS).join("checks").join(name));
        replay.current_dir(root).args(["--seconds", &seconds.to_string()]);
        report.command(&format!("fuzz: {name}"), Kind::Plain, &mut replay);
    }
    if !setup::works("rustup", &["run", "nightly", "cargo", "fuzz", "--version"]) {
        say!(
            "(for fuzzing guided by coverage: rustup toolchain install nightly && cargo install \
             cargo-fuzz)"
        );
        return;
    }
    for name in names {
        let corpus = format!("target/fuzz-corpus/{name}");
        // The run says that its folder is missing.
        let _ = fs::create_dir_all(root.join(&corpus));
        // New inputs go into the first folder; the stored corpus is only read.
        let mut guided = nightly(root, &["fuzz", "run", name]);
        guided.args([&corpus, &format!("fuzz/corpus/{name}"), "--"]);
        guided.arg(format!("-max_total_time={seconds}"));
        report.command(&format!("fuzz: {name}, guided by coverage"), Kind::Plain, &mut guided);
    }
}
