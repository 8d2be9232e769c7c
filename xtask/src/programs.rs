//! *Programs*: what cargo builds for the tests, and cargo-nextest, which runs the tests.
//!
//! Everything is built at once, while nextest may still be installed. Nextest lists the test
//! programs in a file, and runs them from it, because cargo would lock the target folder while it
//! looks at them.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::run::output;
use crate::setup::works;
use crate::step::{Kind, Report};
use crate::venv;
use crate::workspace::{cargo, target_folder};

/// The folder of the lists.
const LISTS: &str = "target/xtask";

/// Returns the command of nextest with `args`: as it is installed, or of the environment of tools,
/// whose other programs the tests do not see.
pub(crate) fn nextest(root: &Path, args: &[&str]) -> Result<Command> {
    let program = if works(cargo(), &["nextest", "--version"]) {
        cargo().into()
    } else {
        let remedy = "cargo-nextest is missing: cargo install --locked cargo-nextest";
        venv::tools(root).context(remedy)?.program("cargo-nextest")
    };
    let mut nextest = Command::new(program);
    nextest.current_dir(root).env("CARGO", cargo()).arg("nextest").args(args);
    Ok(nextest)
}

/// Lists the test programs of packages that are built.
pub(crate) fn list(root: &Path, report: &mut Report, packages: &[&str]) {
    let listed = || -> Result<(Command, File)> {
        fs::create_dir_all(root.join(LISTS))?;
        let mut metadata = Command::new(cargo());
        metadata.current_dir(root).args(["metadata", "--format-version", "1", "--locked"]);
        fs::write(root.join(LISTS).join("metadata.json"), output(&mut metadata)?)?;
        let args = ["list", "--locked", "--list-type", "binaries-only", "--message-format", "json"];
        let mut list = nextest(root, &args)?;
        list.args(packages);
        Ok((list, File::create(root.join(LISTS).join("binaries.json"))?))
    };
    let name = "build: list of tests";
    match listed() {
        Ok((mut list, file)) => drop(report.command_into(name, Kind::Plain, &mut list, Some(file))),
        Err(error) => drop(report.check(name, || Err(error))),
    }
}

/// Runs the built tests that a filter of nextest selects, with some variables, as the step `name`.
pub(crate) fn test(
    root: &Path,
    report: &mut Report,
    name: &str,
    filter: &str,
    variables: &[(&str, u64)],
) {
    let threads = std::thread::available_parallelism().map_or(2, usize::from).to_string();
    let args = ["run", "--retries", "1", "--test-threads", &threads, "-E", filter];
    match nextest(root, &args) {
        Ok(mut tests) => {
            let list = |name: &str| root.join(LISTS).join(name);
            tests.envs(variables.iter().map(|(name, value)| (name, value.to_string())));
            tests.arg("--cargo-metadata").arg(list("metadata.json"));
            tests.arg("--binaries-metadata").arg(list("binaries.json"));
            report.command(name, Kind::Tests, &mut tests);
        }
        Err(error) => drop(report.check(name, || Err(error))),
    }
}

/// Returns the variables that name built programs to the tests.
pub(crate) fn variables(root: &Path) -> Vec<(&'static str, PathBuf)> {
    let Ok(target) = target_folder(root) else { return Vec::new() };
    [("KVMEM_COMMAND", "kvmem"), ("KVMEM_NODE_SERVER", "examples/serve")]
        .map(|(variable, program)| (variable, target.join("debug").join(program)))
        .into_iter()
        .filter(|(_, program)| program.exists())
        .collect()
}
