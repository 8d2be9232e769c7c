//! *Check*: a wheel as its users meet it.
//!
//! The index's own programs judge the metadata and the tag. Then the wheel is installed into a new
//! environment of every CPython of this machine, with a `PATH` that has neither a Rust toolchain
//! nor a compiler. `crates/kvmem-python/tests/wheel/installed.py` uses it there.

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use super::build::remove;
use super::emulated;
use super::target::Target;
use super::tools::Tools;
use crate::say;
use crate::step::{Kind, Report};

/// The program that uses an installed wheel.
pub(crate) const PROGRAM: &str = "crates/kvmem-python/tests/wheel/installed.py";

/// Prints the version of an interpreter that can make environments, or fails.
const VERSION: &str = "import sys, venv, ensurepip; assert sys.implementation.name == 'cpython'; \
                       print('%d.%d' % sys.version_info[:2])";

/// Runs every check of a wheel.
pub(crate) fn run(
    root: &Path,
    work: &Path,
    tools: &Tools,
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
    let pythons = pythons();
    report.check(&format!("{machine}: interpreters"), || {
        ensure!(!pythons.is_empty(), "no CPython from 3.11 on is in PATH or ~/.pyenv/versions");
        for (version, python) in &pythons {
            say!("{}.{}: {}", version.0, version.1, python.display());
        }
        Ok(())
    });
    for (version, python) in &pythons {
        report.check(&format!("{machine}: Python 3.{}", version.1), || {
            let folder = work.join(format!("check/{}.{}", version.0, version.1));
            in_environment(root, &folder, python, wheel)
        });
    }
}

/// Checks that auditwheel gives the wheel the tag that it has.
fn audit(tools: &Tools, target: Target, wheel: &Path) -> Result<()> {
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

/// Returns the interpreters from 3.11 on, one for each version.
fn pythons() -> BTreeMap<(u32, u32), PathBuf> {
    let mut candidates = Vec::new();
    if let Some(home) = env::var_os("HOME") {
        let versions = Path::new(&home).join(".pyenv/versions");
        candidates.extend(
            fs::read_dir(versions)
                .into_iter()
                .flatten()
                .flatten()
                .map(|entry| entry.path().join("bin/python3")),
        );
    }
    for folder in env::split_paths(&env::var_os("PATH").unwrap_or_default()) {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let minor = name.to_str().and_then(|name| name.strip_prefix("python3"));
            if minor.is_some_and(|minor| minor.is_empty() || is_minor(minor)) {
                candidates.push(entry.path());
            }
        }
    }
    let mut found = BTreeMap::new();
    for python in candidates {
        if let Some(version) = version_of(&python)
            && version >= (3, 11)
        {
            found.entry(version).or_insert(python);
        }
    }
    found
}

/// Whether this is the end of a name such as `python3.12`.
fn is_minor(text: &str) -> bool {
    text.strip_prefix('.').is_some_and(|text| text.parse::<u32>().is_ok())
}

fn version_of(python: &Path) -> Option<(u32, u32)> {
    let mut ask = Command::new(python);
    ask.args(["-c", VERSION]).stdin(Stdio::null()).stderr(Stdio::null());
    let output = ask.output().ok().filter(|output| output.status.success())?;
    parse_version(&String::from_utf8_lossy(&output.stdout))
}

fn parse_version(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.trim().split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// Installs the wheel into a new environment, and uses it there.
fn in_environment(root: &Path, folder: &Path, python: &Path, wheel: &Path) -> Result<()> {
    remove(folder)?;
    let mut make = Command::new(python);
    ensure_success(make.args(["-m", "venv"]).arg(folder))?;
    let bin = folder.join("bin");
    let pip = |arguments: &[&OsStr]| {
        let mut pip = Command::new(bin.join("python"));
        pip.args(["-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check"]);
        pip.args(arguments).env("PATH", &bin).stdin(Stdio::null());
        pip
    };
    ensure_success(&mut pip(&["--no-index".as_ref(), wheel.as_os_str()]))?;
    // Only the checks of arrays need it. The program says when they are left out.
    let _ = pip(&["--only-binary=:all:".as_ref(), "numpy".as_ref()]).status();
    let mut check = Command::new(bin.join("python"));
    // A folder without modules, so the package of the repository is not found by accident.
    check.current_dir(folder).arg("-I").arg(root.join(PROGRAM)).arg("--compile");
    check.arg(env::var_os("PATH").unwrap_or_default()).env("PATH", &bin);
    ensure_success(&mut check)
}

/// Runs a command, which must succeed.
pub(crate) fn ensure_success(command: &mut Command) -> Result<()> {
    let program = command.get_program().display().to_string();
    let status = command.status().with_context(|| format!("cannot run {program}"))?;
    ensure!(status.success(), "{program} ended with {status}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_interpreters_are_told_from_others() {
        for (name, is_one) in [(".12", true), ("-config", false), (".11-config", false)] {
            assert_eq!(is_minor(name), is_one, "{name}");
        }
        assert_eq!(parse_version("3.13\n"), Some((3, 13)));
        assert_eq!(parse_version("Python\n"), None);
    }
}
