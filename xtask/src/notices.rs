//! *Notices*: the licences of the crates that are linked into what is shipped, and a list of them:
//! `xtask/tests/parts/linked.py` collects both.
//!
//! A wheel includes the file with its notices, which is in the repository. A file that does not
//! match `Cargo.lock` fails the test run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};

use crate::run::output;
use crate::say;
use crate::venv;
use crate::workspace::cargo;

/// The folder of the wheel's package, which has the file.
const FOLDER: &str = "crates/kvmem-python";
/// The packages that are compiled into the wheel.
const COMPILED: [&str; 3] = ["kvmem-python", "kvmem-cli", "kvmem-capi"];
/// Wheels are built for Linux alone.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// What stands before the table in the wheel's file.
const HEAD: &str = include_str!("notices/wheel.md");

/// Options of `cargo xtask notices`.
#[derive(clap::Args)]
pub(crate) struct NoticesOptions {
    /// Compare the file with the expected one, and write nothing.
    #[arg(long)]
    check: bool,
}

/// Writes the file, or compares it.
pub(crate) fn run(root: &Path, options: &NoticesOptions) -> Result<ExitCode> {
    if options.check {
        check(root)?;
        say!("{} fits Cargo.lock", file(root).display());
    } else {
        fs::write(file(root), of_packages(root, &COMPILED, TARGET, HEAD)?)?;
        say!("wrote {}", file(root).display());
    }
    Ok(ExitCode::SUCCESS)
}

/// Checks that the file matches `Cargo.lock`, and that the package's licence is the repository's.
pub(crate) fn check(root: &Path) -> Result<()> {
    let (file, theirs) = (file(root), root.join(FOLDER).join("LICENSE"));
    let is_same = fs::read_to_string(&file)? == of_packages(root, &COMPILED, TARGET, HEAD)?;
    ensure!(is_same, "{} does not fit Cargo.lock: run `cargo xtask notices`", file.display());
    let is_same = fs::read(root.join("LICENSE"))? == fs::read(&theirs)?;
    ensure!(is_same, "{} differs from LICENSE: copy it", theirs.display());
    Ok(())
}

fn file(root: &Path) -> PathBuf {
    root.join(FOLDER).join("THIRD-PARTY.md")
}

/// Returns the notices of the crates that are linked into some packages: `head`, a table, and each
/// text once.
pub(crate) fn of_packages(
    root: &Path,
    packages: &[&str],
    target: &str,
    head: &str,
) -> Result<String> {
    let python = venv::find().context("Python 3.11 or later is missing")?;
    linked(root, python.as_ref(), "notices", packages, &["--target", target, "--head", head])
}

/// Returns the list of these crates, in the format CycloneDX, after its validation.
pub(crate) fn parts(root: &Path, packages: &[&str], target: &str, epoch: u64) -> Result<String> {
    let (python, epoch) = (venv::tools(root)?.program("python"), epoch.to_string());
    linked(root, &python, "parts", packages, &["--target", target, "--epoch", &epoch])
}

fn linked(
    root: &Path,
    python: &Path,
    what: &str,
    packages: &[&str],
    options: &[&str],
) -> Result<String> {
    let mut linked = Command::new(python);
    linked.arg("-B").arg(root.join("xtask/tests/parts/linked.py")).arg(what).arg(root);
    output(linked.args(packages).args(options).env("CARGO", cargo()))
}
