//! *Tools*: cargo-deny and cargo-semver-checks, where they are installed.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::run::{output, succeed};
use crate::say;
use crate::setup::works;
use crate::step::{Kind, Report};
use crate::workspace::cargo;

/// The tools: subcommands of cargo from packages `cargo-<subcommand>`.
const TOOLS: [&str; 2] = ["deny", "semver-checks"];

/// The crate whose public API is promised.
const LIBRARY: &str = "kvmem";

/// Compiles the tools that are missing.
pub(super) fn install(report: &mut Report) {
    for tool in TOOLS {
        if !works(cargo(), &[tool, "--version"]) {
            let mut install = Command::new(cargo());
            install.args(["install", "--locked", &format!("cargo-{tool}")]);
            report.command(&format!("setup: cargo-{tool}"), Kind::Plain, &mut install);
        }
    }
}

/// Runs the tools that are installed.
pub(super) fn run(root: &Path, report: &mut Report) {
    deny(root, report);
    public_api(root, report);
}

/// Compares the dependencies with `deny.toml`: licences, sources, bans, duplicate versions, and the
/// database of advisories if it can be fetched.
fn deny(root: &Path, report: &mut Report) {
    if !is_installed("deny", "licences, sources and advisories of the dependencies") {
        return;
    }
    let mut offline = deny_command(root, &["--offline"]);
    offline.args(["check", "bans", "licenses", "sources"]);
    report.command("package: dependencies by deny.toml", Kind::Plain, &mut offline);
    // A database that cannot be fetched says nothing about the dependencies.
    if succeed(deny_command(root, &[]).args(["fetch", "db"]).stderr(Stdio::null())).is_err() {
        say!("(the database of advisories cannot be fetched: they are not compared)");
        return;
    }
    let mut advisories = deny_command(root, &[]);
    advisories.args(["check", "--disable-fetch", "advisories"]);
    report.command("package: advisories", Kind::Plain, &mut advisories);
}

fn deny_command(root: &Path, options: &[&str]) -> Command {
    let mut deny = Command::new(cargo());
    // All features: an optional dependency is a dependency of the users of its feature.
    deny.current_dir(root)
        .args(["deny", "--locked", "--workspace", "--all-features"])
        .args(options);
    deny
}

/// Compares the library's public API with that of the newest version tag.
fn public_api(root: &Path, report: &mut Report) {
    if !is_installed("semver-checks", "the public API and its version") {
        return;
    }
    let Some(tag) = newest_tag(root) else {
        say!("(there is no version tag yet, so the public API has nothing to be compared with)");
        return;
    };
    let mut compare = Command::new(cargo());
    compare.current_dir(root).args(["semver-checks", "--package", LIBRARY]);
    compare.args(["--only-explicit-features", "--features", "metrics,tracing"]);
    compare.args(["--baseline-rev", &tag]);
    report.command(&format!("package: public API since {tag}"), Kind::Plain, &mut compare);
}

/// Whether a tool is installed; if not, tells what is not checked.
fn is_installed(tool: &str, so: &str) -> bool {
    let works = works(cargo(), &[tool, "--version"]);
    if !works {
        say!(
            "(cargo-{tool} is missing, so {so} are not checked: cargo install --locked \
             cargo-{tool})"
        );
    }
    works
}

/// Returns the newest version tag that the current commit descends from.
fn newest_tag(root: &Path) -> Option<String> {
    let mut git = Command::new("git");
    git.current_dir(root).args(["describe", "--tags", "--abbrev=0", "--match", "v[0-9]*"]);
    let tag = output(&mut git).ok()?.trim().to_owned();
    (!tag.is_empty()).then_some(tag)
}
