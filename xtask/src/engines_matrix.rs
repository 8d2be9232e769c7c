//! *Engines' matrix*: the table of `docs/engines.md`, from what test runs have found out:
//! `xtask/tests/engines/table.py` writes and compares it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use clap::Args;
use serde_json::json;

use crate::run::output;
use crate::say;
use crate::venv;

/// Where runs leave their outcomes.
const OUTCOMES: &str = "target/engine-outcomes";
/// A feature without tests.
const UNTESTED: &str = "untested";

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

/// Notes the outcomes of a run whose tests are in Rust: features of one engine, all of which
/// passed.
pub(crate) fn note(
    root: &Path,
    run: &str,
    engine: &str,
    version: &str,
    command: &str,
    features: &[(&str, &str)],
) -> Result<()> {
    let row = |&(feature, tested): &(&str, &str)| {
        let [version, file] = if tested == UNTESTED { ["–"; 2] } else { [version, command] };
        json!({"engine": engine, "version": version, "feature": feature, "tested": tested,
            "file": file})
    };
    let known: Vec<_> = features.iter().map(|(feature, _)| json!([engine, feature])).collect();
    let rows: Vec<_> = features.iter().map(row).collect();
    let folder = folder(root, run);
    fs::create_dir_all(&folder)?;
    let outcomes = json!({"features": known, "outcomes": rows});
    Ok(fs::write(folder.join("outcomes.json"), outcomes.to_string())?)
}
