//! *Python*: the wheel, built and installed into a fresh virtual environment, and its tests.
//!
//! What the tests take besides (pytest, NumPy, …) comes from the package index that pip is set to.
//! Where that cannot be had, or there is no Python that can make virtual environments, what is
//! missing is told by name, and the tests are skipped. The wheel is built with the profile of
//! tests, in a target folder of its own: maturin sets variables that would else have cargo build
//! PyO3 anew at each turn.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::engines;
use crate::notices;
use crate::setup::{self, works};
use crate::step::{Kind, Report};

/// What the wheel and its tests are built and run with.
const TOOLS: [&str; 6] = ["maturin", "pytest", "numpy", "hypothesis", "tqdm", "mypy"];

/// Interpreters to look for, first choice first.
const PYTHONS: [&str; 5] = ["python3", "python3.11", "python3.12", "python3.13", "python3.14"];

/// Says by its exit status whether this is a Python that will do.
const WILL_DO: &str = "import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))";

/// Builds, installs, tests.
pub(crate) fn run(root: &Path, report: &mut Report) {
    report.check("python: notices", || notices::check(root));
    let folder = root.join("target/python");
    let Some(environment) = fresh_environment(&folder) else {
        if engines::required() {
            report.check("python: environment", || {
                anyhow::bail!("there is none, and {} is 1", engines::REQUIRED)
            });
        }
        return;
    };
    let python = environment.join("bin/python");
    let told = engines::for_python(root, &environment);
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
    install.arg(root.join("crates/kvmem-python"));
    install.env("CARGO_TARGET_DIR", &folder).env("MATURIN_PEP517_ARGS", "--profile=dev");
    install.env("PATH", with_first(&environment.join("bin")));
    report.command("python: wheel", Kind::Plain, &mut install);

    let mut tests = Command::new(&python);
    tests.current_dir(&folder).args(["-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider"]);
    tests.arg(root.join("crates/kvmem-python/tests")).env("PYTHONDONTWRITEBYTECODE", "1");
    tests.envs(told);
    let command = root.join("target/debug/kvmem");
    if command.exists() {
        tests.env("KVMEM_COMMAND", command);
    }
    report.command("python: tests", Kind::Pytest, &mut tests);
}

/// A new virtual environment with the tools in it, if it can be had; else says what is missing.
fn fresh_environment(folder: &Path) -> Option<PathBuf> {
    let Some(python) = find() else {
        println!(
            "(Python 3.11 or later with the modules venv and ensurepip is missing, so the Python \
             package is not tested: {})",
            setup::by_hand("python3 python3-venv")
        );
        return None;
    };
    let environment = folder.join("venv");
    println!("\nPython: a fresh environment in {}, by {python}", environment.display());
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
    // One by one, to know which it is.
    let missing: Vec<&str> = TOOLS.into_iter().filter(|tool| !pip("0", &[tool])).collect();
    if missing.is_empty() {
        return Some(environment);
    }
    println!(
        "(pip cannot get {}, so the Python package is not tested: is there a network, or a mirror \
         set in pip.conf?)",
        missing.join(", ")
    );
    None
}

/// A Python that will do, if need be after its Debian package was installed.
pub(crate) fn find() -> Option<String> {
    let found =
        || PYTHONS.into_iter().find(|python| works(python, &["-c", WILL_DO])).map(str::to_owned);
    let missing = "Python with the module venv is missing";
    setup::package(missing, "python3-venv", || found().is_some())
        .ok()
        .filter(|there| *there)
        .and_then(|_| found())
}

/// `PATH` with a folder before it.
fn with_first(folder: &Path) -> std::ffi::OsString {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::iter::once(folder.to_owned()).chain(std::env::split_paths(&path));
    std::env::join_paths(folders).unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_comes_first() {
        let path = with_first(Path::new("/here/first"));
        assert_eq!(std::env::split_paths(&path).next().unwrap(), Path::new("/here/first"));
    }
}
