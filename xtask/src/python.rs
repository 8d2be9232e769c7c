//! *Python*: lints the package, builds its wheel, installs it into a new virtual environment, and
//! runs its tests.
//!
//! The tools of the tests (pytest, NumPy and others) come from the package index of pip's
//! configuration. If the index is not reachable, or no Python can make virtual environments, the
//! step names what is missing and skips the tests. The wheel is built with the profile of tests, in
//! a target folder of its own: maturin sets variables that would otherwise make cargo rebuild PyO3
//! each time. The command and the C library in it are those that the other tests have built.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::ensure;

use crate::engines;
use crate::notices;
use crate::setup::{self, works};
use crate::step::{Kind, Report};
use crate::wheel::stage;
use crate::workspace::cargo;

/// Packages that build, test and lint the wheel. Ruff is pinned, because its releases differ in
/// format.
const TOOLS: [&str; 7] =
    ["maturin", "pytest", "numpy", "hypothesis", "tqdm", "mypy", "ruff==0.17.*"];

/// Interpreters to look for, in order of preference.
const PYTHONS: [&str; 5] = ["python3", "python3.11", "python3.12", "python3.13", "python3.14"];

/// Program whose exit status is 0 if its interpreter is suitable.
const IS_SUITABLE: &str = "import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))";

/// Lints, builds, installs and tests the package.
pub(crate) fn run(root: &Path, report: &mut Report) {
    report.check("python: notices", || notices::check(root));
    let folder = root.join("target/python");
    let Some(environment) = new_environment(&folder) else {
        if engines::required() {
            report.check("python: environment", || {
                anyhow::bail!(
                    "there is no Python environment, and {} is 1: see the reason above",
                    engines::REQUIRED
                )
            });
        }
        return;
    };
    let python = environment.join("bin/python");
    lint(root, &python, report);
    let variables = engines::for_python(root, &environment);
    let staged = folder.join("stage");
    report.check("python: the command and the C library", || {
        let built = root.join("target/debug");
        if !["kvmem", "libkvmem_capi.so", "libkvmem_capi.a"]
            .iter()
            .all(|it| built.join(it).exists())
        {
            let mut build = Command::new(cargo());
            build.current_dir(root).args([
                "build",
                "--locked",
                "-p",
                "kvmem-cli",
                "-p",
                "kvmem-capi",
            ]);
            ensure!(build.status()?.success(), "cargo build failed");
        }
        stage::fill(root, &built, &staged)
    });
    let mut install = Command::new(&python);
    install.args([
        "-m",
        "pip",
        "install",
        "--no-build-isolation",
        "--no-deps",
        "--no-input",
        "--quiet",
    ]);
    install.arg(format!("--config-settings=stage={}", staged.display()));
    install.arg(root.join("crates/kvmem-python"));
    install.env("CARGO_TARGET_DIR", &folder).env("MATURIN_PEP517_ARGS", "--profile=dev");
    install.env("PATH", path_with(&environment.join("bin")));
    report.command("python: wheel", Kind::Plain, &mut install);

    let mut tests = Command::new(&python);
    tests.current_dir(&folder).args(["-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider"]);
    tests.arg(root.join("crates/kvmem-python/tests")).env("PYTHONDONTWRITEBYTECODE", "1");
    tests.envs(variables);
    report.command("python: tests", Kind::Pytest, &mut tests);
}

/// Checks the format of the Python files, and lints them, by the settings in their
/// `pyproject.toml`.
fn lint(root: &Path, python: &Path, report: &mut Report) {
    for (name, arguments) in [
        ("python: format", &["format", "--check", "--quiet", "--no-cache"][..]),
        ("python: lint", &["check", "--quiet", "--no-cache"][..]),
    ] {
        let mut ruff = Command::new(python);
        ruff.current_dir(root).args(["-m", "ruff"]).args(arguments).arg("crates/kvmem-python");
        report.command(name, Kind::Plain, &mut ruff);
    }
}

/// Makes a new virtual environment with the tools. If that fails, prints what is missing.
fn new_environment(folder: &Path) -> Option<PathBuf> {
    let Some(python) = find() else {
        println!(
            "(Python 3.11 or later with the modules venv and ensurepip is missing, so the Python \
             package is not tested: {})",
            setup::by_hand("python3 python3-venv")
        );
        return None;
    };
    let environment = folder.join("venv");
    println!("\nPython: a new environment in {}, by {python}", environment.display());
    let mut make = Command::new(&python);
    make.args(["-m", "venv", "--clear"]).arg(&environment).stdin(Stdio::null());
    if !make.status().is_ok_and(|status| status.success()) {
        println!(
            "({python} could not make a virtual environment, so the Python package is not tested)"
        );
        return None;
    }
    let pip = |retries: &str, packages: &[&str]| {
        let mut install = Command::new(environment.join("bin/python"));
        install.args([
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-input",
            "--disable-pip-version-check",
        ]);
        install
            .args(["--retries", retries])
            .args(packages)
            .stdin(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    };
    if pip("3", &TOOLS) {
        return Some(environment);
    }
    // One by one, to find the missing ones.
    let missing: Vec<&str> = TOOLS.into_iter().filter(|tool| !pip("0", &[tool])).collect();
    if missing.is_empty() {
        return Some(environment);
    }
    println!(
        "(pip cannot install {}, so the Python package is not tested: check the network, or set a \
         mirror in pip.conf)",
        missing.join(", ")
    );
    None
}

/// Returns a suitable Python, after installing its Debian package if necessary.
pub(crate) fn find() -> Option<String> {
    let found = || {
        PYTHONS.into_iter().find(|python| works(python, &["-c", IS_SUITABLE])).map(str::to_owned)
    };
    let missing = "Python with the module venv is missing";
    setup::package(missing, "python3-venv", || found().is_some())
        .ok()
        .filter(|installed| *installed)
        .and_then(|_| found())
}

/// Returns `PATH` with a folder before it.
pub(crate) fn path_with(folder: &Path) -> std::ffi::OsString {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::iter::once(folder.to_owned()).chain(std::env::split_paths(&path));
    std::env::join_paths(folders).unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_comes_first() {
        let path = path_with(Path::new("/here/first"));
        assert_eq!(std::env::split_paths(&path).next().unwrap(), Path::new("/here/first"));
    }
}
