//! *Deploy*: checks the Dockerfile, the systemd units, the Kubernetes manifests and the workflows,
//! by hadolint, zizmor, schemas and the tests in `xtask/tests/deploy`.

use std::path::Path;
use std::process::Command;

use anyhow::{Error, Result};

use crate::engines;
use crate::say;
use crate::setup;
use crate::step::{Kind, Report};
use crate::venv;

/// Runs all checks as steps, with the built command.
pub(crate) fn run(root: &Path, command: &Path, report: &mut Report) {
    setup::tool("systemd-analyze", "systemd", "it does not check the units");
    tests(root, command, "deploy", report);
}

/// Runs the tests of a folder of `xtask/tests` as a step, or says why not.
pub(crate) fn tests(root: &Path, command: &Path, folder: &str, report: &mut Report) {
    match pytest(root, command, folder) {
        Ok(mut tests) => drop(report.command(folder, Kind::Tests, &mut tests)),
        Err(error) => left_out(folder, error, report),
    }
}

/// Says why checks are left out; where engines are required, that is a failure.
pub(crate) fn left_out(checks: &str, error: Error, report: &mut Report) {
    if engines::required() {
        report.check(checks, || Err(error));
    } else {
        say!("({checks}: not checked: {error:#})");
    }
}

/// Returns the command that runs the tests of a folder of `xtask/tests` with the built command. The
/// folder is the last argument. Failed tests do not run again: they are not in pytest's summary,
/// which would name them.
pub(crate) fn pytest(root: &Path, command: &Path, folder: &str) -> Result<Command> {
    let tests = root.join("xtask/tests");
    let tools = if folder == "site" { venv::site_tools } else { venv::tools };
    let mut pytest = Command::new(tools(root)?.program("python"));
    pytest.current_dir(root).env("PYTHONPATH", &tests).env("PYTHONDONTWRITEBYTECODE", "1");
    pytest.args(["-m", "pytest", "-q", "-rNs", "-p", "no:cacheprovider", "--durations", "5"]);
    pytest.arg("--rootdir").arg(&tests).arg("--command").arg(command);
    pytest.arg("--xtask").arg(std::env::current_exe()?);
    let packages: Vec<&str> = engines::debian_packages("Mooncake").collect();
    pytest.arg(format!("--mooncake-packages={}", packages.join(" ")));
    pytest.arg(tests.join(folder));
    Ok(pytest)
}
