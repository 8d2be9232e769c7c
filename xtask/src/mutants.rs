//! *Mutants*: changes of the code that no test notices.
//!
//! cargo-mutants changes one place of the code at a time and runs the tests of its crate. A mutant
//! that no test notices is a missing test, or does the same as the code. `.cargo/mutants.toml` has
//! the files, and says of which mutants it is known that they do the same.
//!
//! An incremental build takes seconds, so a mutant takes about as long as the tests that run. All
//! mutants of a crate take one build with [`switched`], and each then takes milliseconds.

mod rewrite;
mod switched;

use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::run::{output, shown};
use crate::setup::works;
use crate::workspace::cargo;

/// The crates, the targets of the tests that judge their mutants, and the filters of these tests.
const CRATES: [(&str, &[&str], &[&str]); 3] = [
    ("kvmem", &["--lib", "--test=it"], &["offset::", "slab::", "cache::"]),
    ("kvmem-tier", &["--lib", "--test=it"], &[]),
    ("kvmem-node", &["--lib"], &["node::", "format::", "session_file::", "simulator::"]),
];
/// The folder of builds, lists and logs.
const FOLDER: &str = "target/mutants";

/// The mutants to try.
#[derive(Args)]
pub(crate) struct MutantsOptions {
    /// Only mutants of lines that have changed since this commit.
    #[arg(long, value_name = "COMMIT")]
    since: Option<String>,
    /// Only this part of all: `2/8` is the third eighth.
    #[arg(long, value_name = "K/N")]
    shard: Option<String>,
    /// Build all mutants of a crate at once, and switch each of them on while its tests run. The
    /// results are in target/mutants/CRATE.txt, and a run goes on with what is not caught there.
    #[arg(long, conflicts_with_all = ["since", "shard"])]
    switched: bool,
    /// Only this crate.
    #[arg(long, value_name = "CRATE", requires = "switched")]
    package: Option<String>,
    /// End after this number of minutes.
    #[arg(long, requires = "switched", default_value_t = 600)]
    minutes: u64,
    /// Judge by the tests that take at most this number of seconds.
    #[arg(long, value_name = "SECONDS", requires = "switched", default_value_t = 1.0)]
    slowest: f64,
    /// Only mutants whose description this expression matches: a file, a function.
    #[arg(value_name = "EXPRESSION")]
    only: Option<String>,
}

/// Tries the mutants. Fails if tests do not notice one.
pub(crate) fn run(root: &Path, options: &MutantsOptions) -> Result<ExitCode> {
    ensure!(
        works(cargo(), &["mutants", "--version"]),
        "cargo-mutants is missing: cargo install --locked cargo-mutants"
    );
    if options.switched {
        return switched::run(root, options);
    }
    let mut chosen = Vec::new();
    if let Some(commit) = &options.since {
        let mut diff = Command::new("git");
        let diff = output(diff.current_dir(root).args(["diff", commit, "--", "crates"]))?;
        if diff.is_empty() {
            println!("no changes since {commit}");
            return Ok(ExitCode::SUCCESS);
        }
        fs::create_dir_all(root.join(FOLDER))?;
        let file = root.join(FOLDER).join("changes.diff");
        fs::write(&file, diff)?;
        chosen.extend(["--in-diff".into(), file.into_os_string()]);
    }
    for (name, value) in [("--shard", &options.shard), ("--re", &options.only)] {
        if let Some(value) = value {
            chosen.extend([name.into(), value.into()]);
        }
    }
    let mut failed = Vec::new();
    for (package, targets, tests) in CRATES {
        let mut mutants = Command::new(cargo());
        mutants.current_dir(root).args(["mutants", "--package", package]).args(&chosen);
        mutants.arg("--output").arg(root.join(FOLDER).join(package));
        mutants.args(targets.iter().map(|it| format!("--cargo-arg={it}")));
        mutants.args(["--cargo-arg=--locked", "--", "--"]).args(tests);
        mutants.env("CARGO_INCREMENTAL", "1");
        if let Err(error) = shown(&format!("mutants of {package}"), &mut mutants) {
            failed.push(error);
        }
    }
    match failed.pop() {
        Some(error) => Err(error).context(format!("{FOLDER}/*/mutants.out has the lists")),
        None => Ok(ExitCode::SUCCESS),
    }
}
