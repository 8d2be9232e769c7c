//! `cargo xtask package`: the crates that are meant to be published, packed and built as a registry
//! would give them to a user.
//!
//! 1. *Contents*: every tracked source file and page is in the package, tests are not, and the
//!    manifest has what a registry shows.
//! 2. *Build*: cargo packs all of them, and builds each from its package alone.
//! 3. *Documentation*: it is built with the settings of docs.rs, if there is a nightly toolchain.
//! 4. *Dependencies*: `cargo deny` compares them with `deny.toml`.
//! 5. *Public API*: `cargo semver-checks` compares it with that of the newest version tag, where it
//!    is installed.
//!
//! The group `package` of `cargo xtask test` takes the steps that need seconds: it packs without
//! building.

mod contents;

use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use anyhow::Result;
use clap::Args;

use crate::deploy::left_out;
use crate::run::{output, succeed};
use crate::sanitize::nightly;
use crate::say;
use crate::setup::works;
use crate::step::{Kind, Report};
use crate::venv;
use crate::workspace::{Published, cargo, published};

/// How thoroughly to check.
#[derive(Args)]
pub(crate) struct PackageOptions {
    /// Do not build the packages.
    #[arg(long)]
    no_verify: bool,
    /// Pack files that are not committed too.
    #[arg(long)]
    allow_dirty: bool,
}

/// The packages and what cargo builds of them, apart from the files of other builds.
const TARGET: &str = "target/published";

/// The features of the library that docs.rs shows, and whose public API is promised.
const FEATURES: [&str; 4] = ["--package", "kvmem", "--features", "metrics,tracing"];

/// Runs all steps and prints the summary.
pub(crate) fn run(root: &Path, options: &PackageOptions) -> Result<ExitCode> {
    let mut report = Report::default();
    if let Some(crates) = contents_of(root, &mut report) {
        let mut pack = pack(root, &crates);
        pack.args(options.no_verify.then_some("--no-verify"));
        pack.args(options.allow_dirty.then_some("--allow-dirty"));
        report.command("package: build", Kind::Plain, &mut pack);
    }
    documentation(root, &mut report);
    deny(root, &mut report);
    public_api(root, &mut report);
    report.finish()
}

/// Runs the steps that take seconds.
pub(crate) fn quick(root: &Path, report: &mut Report) {
    if let Some(crates) = contents_of(root, report) {
        // Downloads what is missing of all platforms, so that packing needs no network.
        let fetch = || succeed(Command::new(cargo()).current_dir(root).args(["fetch", "--locked"]));
        if report.check("package: dependencies", fetch) {
            let mut pack = pack(root, &crates);
            pack.args(["--no-verify", "--allow-dirty", "--offline", "--quiet"]);
            report.command("package: pack", Kind::Plain, &mut pack);
        }
    }
    deny(root, report);
}

/// Checks what each package contains. Returns the crates, or `None` if cargo did not tell them.
fn contents_of(root: &Path, report: &mut Report) -> Option<Vec<Published>> {
    let mut crates = None;
    report.check("package: contents", || {
        let published = published(root)?;
        published.iter().try_for_each(|each| contents::check(root, each))?;
        crates = Some(published);
        Ok(())
    });
    crates
}

/// Returns the command that packs the crates.
fn pack(root: &Path, crates: &[Published]) -> Command {
    let mut pack = Command::new(cargo());
    pack.current_dir(root).args(["package", "--locked", "--target-dir", TARGET]);
    for each in crates {
        pack.args(["--package", &each.name]);
    }
    pack
}

/// Builds the library's documentation as docs.rs does: on nightly, where items tell their features.
fn documentation(root: &Path, report: &mut Report) {
    if !works("rustup", &["run", "nightly", "cargo", "--version"]) {
        say!("(documentation as on docs.rs is skipped; rustup toolchain install nightly)");
        return;
    }
    let mut doc = nightly(root, &["doc", "--no-deps", "--locked"]);
    doc.args(FEATURES).args(["--target-dir", "target/docsrs"]);
    doc.env("RUSTDOCFLAGS", "--cfg docsrs -D warnings");
    report.command("package: documentation as on docs.rs", Kind::Plain, &mut doc);
}

/// Compares the dependencies with `deny.toml`: licences, sources, bans, duplicate versions, and the
/// database of advisories if it can be fetched. All features: an optional dependency is a
/// dependency of the users of its feature.
fn deny(root: &Path, report: &mut Report) {
    let path = match venv::tools(root) {
        Ok(tools) => tools.path(),
        Err(error) => return left_out("package: deny.toml", error, report),
    };
    let deny = |arguments: &[&str]| {
        let mut deny = Command::new(cargo());
        deny.current_dir(root).env("PATH", &path);
        deny.args(["deny", "--locked", "--workspace", "--all-features"]).args(arguments);
        deny
    };
    let mut offline = deny(&["--offline", "check", "bans", "licenses", "sources"]);
    report.command("package: dependencies by deny.toml", Kind::Plain, &mut offline);
    // Without the database, nothing is known about advisories: the check is skipped, and says so.
    if succeed(deny(&["fetch", "db"]).stderr(Stdio::null())).is_err() {
        say!("(the database of advisories cannot be fetched: they are not compared)");
        return;
    }
    let mut advisories = deny(&["check", "--disable-fetch", "advisories"]);
    report.command("package: advisories", Kind::Plain, &mut advisories);
}

/// Compares the library's public API with that of the newest version tag that the current commit
/// descends from.
fn public_api(root: &Path, report: &mut Report) {
    if !works(cargo(), &["semver-checks", "--version"]) {
        say!("(the public API is not compared: cargo install --locked cargo-semver-checks)");
        return;
    }
    let mut git = Command::new("git");
    git.current_dir(root).args(["describe", "--tags", "--abbrev=0", "--match", "v[0-9]*"]);
    let Ok(tag) = output(&mut git) else {
        say!("(there is no version tag yet, so the public API has nothing to be compared with)");
        return;
    };
    let mut compare = Command::new(cargo());
    compare.current_dir(root).arg("semver-checks").args(FEATURES);
    compare.args(["--only-explicit-features", "--baseline-rev", tag.trim()]);
    report.command(&format!("package: public API since {}", tag.trim()), Kind::Plain, &mut compare);
}
