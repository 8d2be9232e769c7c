//! *Deploy*: checks the Dockerfile, the systemd units, the Kubernetes manifests and the workflows.
//!
//! There is no container runtime, no running systemd and no cluster here. The files are therefore
//! checked in three ways: by the linters and schemas of their formats, against each other and the
//! rest of the project, and by running the commands in them with the built command.
//!
//! - [`linters`] installs the linters into an environment of their own,
//! - [`dockerfile`] reads the instructions of the Dockerfile,
//! - [`mod@unit`] reads the units and their settings,
//! - [`manifests`] looks into the Kubernetes manifests,
//! - [`limits`] runs the commands of the README under the limits that they name,
//! - [`workflows`] reads the commands of the workflows.

mod dockerfile;
mod limits;
mod linters;
mod manifests;
mod unit;
mod workflows;

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::say;
use crate::setup::{self, works};
use crate::step::{Kind, Report};

/// Runs all checks as steps, with the built command.
pub(crate) fn run(root: &Path, command: &Path, report: &mut Report) {
    report.check("deploy: Dockerfile", || dockerfile::check(root, command));
    report.check("deploy: unit", || unit::check(root, command));
    report.check("deploy: limits", || limits::check(root, command));
    report.check("deploy: workflows", || workflows::check(root));
    let systemd = "systemd-analyze is missing";
    let has_systemd = || works("systemd-analyze", &["--version"]);
    if setup::package(systemd, "systemd", has_systemd).unwrap_or(false) {
        report.check("deploy: systemd-analyze", || unit::analyze(root));
    } else {
        say!("({systemd}, so it does not check the unit: {})", setup::by_hand("systemd"));
    }
    let Some(tools) = linters::Linters::install(root) else { return };
    report.command("deploy: hadolint", Kind::Plain, &mut tools.hadolint(root));
    report.command("deploy: schema of Kubernetes", Kind::Plain, &mut tools.kubernetes(root));
    report.command("deploy: schema of workflows", Kind::Plain, &mut tools.workflows(root));
    report.check("deploy: manifests", || manifests::check(root, &tools, command));
    report.check("deploy: schema of kvmem doctor", || doctor(root, &tools, command));
}

/// Compares what `kvmem doctor --json` prints with the schema that it prints.
fn doctor(root: &Path, tools: &linters::Linters, command: &Path) -> Result<()> {
    let folder = root.join("target/deploy");
    let print = |option: &str, name: &str| {
        let output = Command::new(command).args(["doctor", option]).stdin(Stdio::null()).output();
        let output = output.with_context(|| format!("cannot run {}", command.display()))?;
        let file = folder.join(name);
        std::fs::write(&file, output.stdout)?;
        Ok::<_, anyhow::Error>(file)
    };
    tools.json(&print("--schema", "doctor.schema.json")?, &print("--json", "doctor.json")?)
}

/// Has the built command parse the arguments of a file without obeying them.
fn parses<S: AsRef<std::ffi::OsStr>>(command: &Path, arguments: &[S]) -> Result<()> {
    // Help is shown when all arguments before have been parsed.
    let mut run = Command::new(command);
    let output = run.args(arguments).arg("--help").stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("cannot run {}", command.display()))?;
    let shown: Vec<_> = arguments.iter().map(|word| word.as_ref().to_string_lossy()).collect();
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "kvmem {}: {}", shown.join(" "), errors.trim());
    Ok(())
}

/// Runs the built command with the arguments that a file has for it. A check of the machine may
/// fail; the arguments may not.
fn understands<S: AsRef<std::ffi::OsStr>>(command: &Path, arguments: &[S]) -> Result<()> {
    let mut run = Command::new(command);
    let output = run.args(arguments).stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("cannot run {}", command.display()))?;
    let shown: Vec<_> = arguments.iter().map(|word| word.as_ref().to_string_lossy()).collect();
    ensure!(
        matches!(output.status.code(), Some(0 | 1)),
        "kvmem {} ended with {}: {}",
        shown.join(" "),
        output.status,
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(())
}
