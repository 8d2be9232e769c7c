//! *Workflows*: every command of a workflow is a chore, or installs a part of the toolchain.
//!
//! The lines are read without a parser of YAML: the schema of workflows is checked beside this, and
//! a command must be in one line.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;

use super::linters::files;
use crate::Cli;

/// The commands that install parts of the toolchain.
const TOOLCHAIN: [&str; 3] =
    ["rustup toolchain install ", "rustup component add ", "rustup target add "];

/// Checks all workflows.
pub(super) fn check(root: &Path) -> Result<()> {
    let files = files(&root.join(".github/workflows"));
    ensure!(files.len() == 4, "there are {} workflows, and 4 are known", files.len());
    for file in files {
        let text = fs::read_to_string(&file)?;
        check_text(&text).with_context(|| format!("{}", file.display()))?;
    }
    Ok(())
}

fn check_text(text: &str) -> Result<()> {
    ensure!(text.contains("\npermissions:\n  contents: read\n"), "the token may do more than read");
    ensure!(text.contains("\nconcurrency:\n"), "two runs of a branch may overlap");
    let mut chores = 0;
    for line in text.lines().map(str::trim).filter(|line| !line.starts_with('#')) {
        let step = line.strip_prefix("- ").unwrap_or(line);
        if let Some(action) = step.strip_prefix("uses: ") {
            let version = action.rsplit_once("@v").map(|(_, version)| version);
            let is_major = |version: &str| version.parse::<u32>().is_ok();
            ensure!(version.is_some_and(is_major), "{action} has no major version");
        } else if let Some(run) = step.strip_prefix("run: ") {
            if !TOOLCHAIN.iter().any(|start| run.starts_with(start)) {
                understood(run)?;
                chores += 1;
            }
        } else {
            ensure!(
                !step.contains("run:"),
                "{step:?}: a command must be in one line after `run: `"
            );
        }
    }
    ensure!(chores > 0, "it runs no chore");
    Ok(())
}

/// Checks that a command is one of the chores, with options that it has.
pub(super) fn understood(run: &str) -> Result<()> {
    let Some(arguments) = run.strip_prefix("cargo xtask ") else {
        bail!("{run:?} is no chore: make it one, so that it can be run by hand");
    };
    let words = std::iter::once("cargo xtask").chain(arguments.split_whitespace());
    match Cli::try_parse_from(words) {
        Ok(_) => Ok(()),
        Err(error) => bail!("{run:?}: {}", error.to_string().lines().next().unwrap_or_default()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_of_the_workflows_is_a_chore() {
        check(&crate::workspace::root().unwrap()).unwrap();
    }

    #[test]
    fn other_commands_are_found() {
        let workflow = |step: &str| {
            let head = "\npermissions:\n  contents: read\nconcurrency:\n  group: a\n";
            check_text(&format!(
                "{head}jobs:\n  a:\n    steps:\n      - {step}\n      - run: cargo xtask test\n"
            ))
        };
        assert!(workflow("uses: actions/checkout@v5").is_ok());
        assert!(workflow("run: rustup component add clippy").is_ok());
        for wrong in [
            "run: make",
            "run: cargo test",
            "run: cargo xtask no-such-chore",
            "run: cargo xtask test --no-such-option",
            "run: |\n          cargo xtask test",
            "{run: make}",
            "uses: actions/checkout@main",
            "uses: actions/checkout",
        ] {
            assert!(workflow(wrong).is_err(), "{wrong}");
        }
        assert!(check_text("jobs:\n  a:\n    steps:\n      - run: cargo xtask test\n").is_err());
    }
}
