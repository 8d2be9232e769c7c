//! *Deploy*: checks the Dockerfile, the systemd units, the Kubernetes manifests and the workflows,
//! by hadolint, zizmor, schemas and the tests in `xtask/tests/deploy`.

use std::path::Path;
use std::process::Command;

use anyhow::{Error, Result};

use crate::engines;
use crate::say;
use crate::setup;
use crate::step::{Kind, Report};
use crate::venv::{self, path_with};

/// Runs all checks as steps, with the built command. A `quick` run does not build helm, which takes
/// three minutes of a processor.
pub(crate) fn run(root: &Path, command: &Path, quick: bool, report: &mut Report) {
    setup::tool("systemd-analyze", "systemd", "it does not check the units");
    let so = "alerts and queries of the dashboard are not tried";
    let prometheus = setup::unpacked(root, "promtool", "prometheus", so);
    let so = "the chart is not rendered";
    let helm = setup::by_go(root, quick, "helm.sh/helm/v3/cmd/helm@v3.22.0", so);
    match pytest(root, command, "deploy") {
        Ok(mut tests) => {
            let folders = [prometheus.as_deref(), helm.as_deref()];
            let folders: Vec<&Path> = folders.into_iter().flatten().collect();
            tests.env("PATH", path_with(&folders));
            report.command("deploy", Kind::Tests, &mut tests);
        }
        Err(error) => left_out("deploy", error, report),
    }
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
