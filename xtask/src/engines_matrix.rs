//! *Engines' matrix*: the table of `docs/engines.md`, from what test runs have found out:
//! `xtask/tests/engines/table.py` writes and compares it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use clap::Args;

use crate::run::output;
use crate::say;
use crate::venv;

/// Where runs leave their outcomes.
const OUTCOMES: &str = "target/engine-outcomes";

/// Whether the page is written or compared.
#[derive(Args)]
pub(crate) struct EnginesMatrixOptions {
    /// Compare the page with the outcomes of the last runs instead of writing it
    #[arg(long)]
    check: bool,
}

/// Writes or compares the page.
pub(crate) fn run(root: &Path, options: &EnginesMatrixOptions) -> Result<ExitCode> {
    table(root, if options.check { "check" } else { "write" })?;
    Ok(ExitCode::SUCCESS)
}

/// Fails if the page lacks what the last runs have tested.
pub(crate) fn check(root: &Path) -> Result<()> {
    table(root, "check")
}

fn table(root: &Path, action: &str) -> Result<()> {
    let python = venv::find().context("Python 3.11 or later is missing")?;
    let mut table = Command::new(python);
    table.arg("-B").arg(root.join("xtask/tests/engines/table.py")).arg(root).arg(action);
    say!("{}", output(&mut table)?.trim());
    Ok(())
}

/// Returns the folder for the outcomes of a kind of run.
pub(crate) fn folder(root: &Path, run: &str) -> PathBuf {
    root.join(OUTCOMES).join(run)
}

/// Removes the outcomes of a kind of run, before the next one.
pub(crate) fn forget(root: &Path, run: &str) {
    let _ = fs::remove_dir_all(folder(root, run));
}
