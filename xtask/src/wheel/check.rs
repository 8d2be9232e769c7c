//! *Check*: a wheel as its users meet it.
//!
//! The index's own programs judge the metadata and the tag. Then nox installs the
//! wheel into a new environment of every CPython of this machine, with a `PATH` that has neither a
//! Rust toolchain nor a compiler. `crates/kvmem-python/tests/wheel/installed.py` uses it there.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use super::emulated;
use super::target::Target;
use crate::step::{Kind, Report};
use crate::venv::Environment;

/// Runs every check of a wheel.
pub(crate) fn run(
    root: &Path,
    work: &Path,
    tools: &Environment,
    target: Target,
    wheel: &Path,
    report: &mut Report,
) {
    let machine = target.machine();
    let mut twine = Command::new(tools.program("twine"));
    twine.args(["check", "--strict"]).arg(wheel);
    report.command(&format!("{machine}: metadata, by twine"), Kind::Plain, &mut twine);
    report.check(&format!("{machine}: tag, by auditwheel"), || audit(tools, target, wheel));
    if !target.is_native() {
        emulated::run(root, work, tools, target, wheel, report);
        return;
    }
    let mut nox = Command::new(tools.program("nox"));
    nox.arg("--noxfile").arg(root.join("xtask/tests/wheel/noxfile.py"));
    nox.args(["--no-error-on-missing-interpreters", "--envdir"]).arg(work.join("check"));
    nox.arg("--").arg(wheel);
    report.command(&format!("{machine}: installed, by nox"), Kind::Plain, &mut nox);
}

/// Checks that auditwheel gives the wheel the tag that it has.
fn audit(tools: &Environment, target: Target, wheel: &Path) -> Result<()> {
    let mut show = Command::new(tools.program("auditwheel"));
    let output = show.arg("show").arg(wheel).env("PATH", tools.path()).output();
    let output = output.context("cannot run auditwheel")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    print!("{text}");
    ensure!(
        output.status.success(),
        "auditwheel failed: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    let said = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let wanted = format!("platform tag: \"{}\"", target.platform());
    if !said.contains(&wanted) {
        bail!("auditwheel does not say `{wanted}`");
    }
    Ok(())
}
