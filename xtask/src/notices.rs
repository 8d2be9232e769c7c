//! *Notices*: the licences of the crates that are linked into the Python wheel.
//!
//! A wheel is a binary distribution, so it carries the notices of all crates compiled into it: into
//! the extension module, the command and the C library. They are collected from cargo's sources,
//! for the versions in `Cargo.lock`, into a file of the repository that the wheel includes. A file
//! that does not match `Cargo.lock` fails the test run.
//!
//! Linked are the crates that `cargo tree` shows for the packages, with the features that they
//! build with. Macro crates and build scripts run at compile time only.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::say;
use crate::workspace;

/// The package of the wheel, whose folder has the file.
const PACKAGE: &str = "kvmem-python";
/// The packages that are compiled into the wheel.
const COMPILED: [&str; 3] = [PACKAGE, "kvmem-cli", "kvmem-capi"];
/// The file of the notices.
const FILE: &str = "THIRD-PARTY.md";
/// Wheels are built for Linux alone.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// NoticesOptions of `cargo xtask notices`.
#[derive(clap::Args)]
pub(crate) struct NoticesOptions {
    /// Compare the file with the expected one, and write nothing.
    #[arg(long)]
    check: bool,
}

/// A crate that is linked.
struct Linked {
    name: String,
    version: String,
    licence: String,
    source: String,
    /// Its licence files: name and text.
    texts: Vec<(String, String)>,
}

/// Writes the file, or compares it.
pub(crate) fn run(root: &Path, options: &NoticesOptions) -> Result<ExitCode> {
    if options.check {
        check(root)?;
        say!("{FILE} fits Cargo.lock");
    } else {
        fs::write(file(root), generate(root)?)?;
        say!("wrote {}", file(root).display());
    }
    Ok(ExitCode::SUCCESS)
}

/// Checks that the file matches `Cargo.lock`, and that the package's licence is the repository's.
pub(crate) fn check(root: &Path) -> Result<()> {
    let there = fs::read_to_string(file(root)).unwrap_or_default();
    ensure!(
        there == generate(root)?,
        "{} does not fit Cargo.lock: run `cargo xtask notices`",
        file(root).display()
    );
    let (ours, theirs) = (root.join("LICENSE"), root.join("crates").join(PACKAGE).join("LICENSE"));
    ensure!(
        fs::read(&ours)? == fs::read(&theirs)?,
        "{} is not what {} is: copy it",
        theirs.display(),
        ours.display()
    );
    Ok(())
}

fn file(root: &Path) -> PathBuf {
    root.join("crates").join(PACKAGE).join(FILE)
}

/// Returns the text of the file.
fn generate(root: &Path) -> Result<String> {
    of_packages(root, &COMPILED, TARGET, HEAD)
}

/// Returns the notices of the crates that are linked into some packages: `head`, a table, and each
/// text once.
pub(crate) fn of_packages(
    root: &Path,
    packages: &[&str],
    target: &str,
    head: &str,
) -> Result<String> {
    let mut trees = String::new();
    for package in packages {
        trees += &tree(root, package, target)?;
    }
    let metadata = metadata(root, target)?;
    let all: Result<Vec<Linked>> = linked(&trees, &metadata)?.into_iter().map(read).collect();
    Ok(compose(head, &all?))
}

/// Returns the crates that are linked into a package, `name vVERSION` in each line.
pub(crate) fn tree(root: &Path, package: &str, target: &str) -> Result<String> {
    let arguments = ["tree", "-p", package, "-e", "normal,no-proc-macro", "--prefix", "none"];
    cargo(root, &[&arguments[..], &["--target", target]].concat())
}

/// Returns what cargo tells about all crates for a platform.
pub(crate) fn metadata(root: &Path, target: &str) -> Result<Value> {
    let metadata =
        cargo(root, &["metadata", "--format-version", "1", "--filter-platform", target])?;
    serde_json::from_str(&metadata).context("cargo metadata printed no JSON")
}

/// Returns the output of cargo.
fn cargo(root: &Path, arguments: &[&str]) -> Result<String> {
    let output = Command::new(workspace::cargo())
        .current_dir(root)
        .args(arguments)
        .arg("--locked")
        .output()
        .with_context(|| format!("cannot run cargo {}", arguments[0]))?;
    if !output.status.success() {
        bail!("cargo {} failed: {}", arguments[0], String::from_utf8_lossy(&output.stderr).trim());
    }
    String::from_utf8(output.stdout)
        .with_context(|| format!("cargo {} printed no text", arguments[0]))
}

/// Returns the packages of a tree, `name vVERSION` in each line, without those of this workspace,
/// by name.
fn linked<'a>(tree: &str, metadata: &'a Value) -> Result<Vec<&'a Value>> {
    let packages = metadata["packages"].as_array().context("cargo metadata lists no packages")?;
    let names: BTreeSet<(&str, &str)> = tree
        .lines()
        .filter_map(|line| {
            let mut words = line.split(' ');
            Some((words.next()?, words.next()?.strip_prefix('v')?))
        })
        .collect();
    let mut found = Vec::new();
    for (name, version) in names {
        let package =
            packages.iter().find(|each| each["name"] == name && each["version"] == version);
        let package =
            package.with_context(|| format!("cargo metadata does not list {name} {version}"))?;
        if !package["source"].is_null() {
            found.push(package);
        }
    }
    Ok(found)
}

/// Returns a package's name, version and licence, with its licence files.
fn read(package: &Value) -> Result<Linked> {
    let text = |name: &str| package[name].as_str().unwrap_or_default().to_owned();
    let (name, manifest) = (text("name"), text("manifest_path"));
    let folder = Path::new(&manifest).parent().with_context(|| format!("{name} has no folder"))?;
    let mut files: Vec<String> = fs::read_dir(folder)
        .with_context(|| format!("cannot read {}", folder.display()))?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|file| is_notice(file))
        .collect();
    files.sort();
    let mut texts = Vec::new();
    for file in needed(files) {
        let text =
            fs::read_to_string(folder.join(&file)).with_context(|| format!("{name}: {file}"))?;
        let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
        texts.push((file, lines.join("\n").trim_matches('\n').to_owned()));
    }
    ensure!(
        !texts.is_empty(),
        "{name} has no licence file: say in notices.rs where its licence is"
    );
    Ok(Linked {
        name,
        version: text("version"),
        licence: text("license"),
        source: text("repository"),
        texts,
    })
}

/// Whether a file of this name is a notice that a distribution must carry.
fn is_notice(file: &str) -> bool {
    let upper = file.to_uppercase();
    ["LICENSE", "LICENCE", "COPYING", "NOTICE", "COPYRIGHT", "UNLICENSE"]
        .iter()
        .any(|name| upper.starts_with(name))
}

/// Returns the files that are needed: of a choice between MIT and others, MIT.
fn needed(files: Vec<String>) -> Vec<String> {
    let is_choice = files.iter().any(|file| file.to_uppercase().contains("MIT"));
    let is_other = |file: &String| {
        let upper = file.to_uppercase();
        upper.contains("APACHE") || upper.starts_with("UNLICENSE") || upper.starts_with("COPYING")
    };
    files.into_iter().filter(|file| !is_choice || !is_other(file)).collect()
}

/// What stands before the table in the wheel's file.
const HEAD: &str = "# Third-party software in the wheel\n\n\
    The extension module, the kvmem command and the C library contain the crates below, each \
    under\nthe licence that stands beside it, and the standard library of Rust\n\
    (<https://www.rust-lang.org>), Copyright (c) The Rust Project Contributors, under MIT OR\n\
    Apache-2.0. The command also contains libunwind of LLVM (<https://llvm.org>), under \
    Apache-2.0\nWITH LLVM-exception. kvmem itself is under Apache-2.0: see `LICENSE`.\n\n\
    `cargo xtask notices` has made this file from `Cargo.lock`.\n\n";

/// Formats the file: the head, a table, and each text once, with its crates.
fn compose(head: &str, all: &[Linked]) -> String {
    let mut page = format!("{head}| crate | version | licence | source |\n|---|---|---|---|\n");
    let mut texts: Vec<(&str, Vec<String>)> = Vec::new();
    for each in all {
        let Linked { name, version, licence, source, .. } = each;
        let _ = writeln!(page, "| {name} | {version} | {licence} | {source} |");
        for (file, text) in &each.texts {
            let of = format!("{name} ({file})");
            match texts.iter_mut().find(|(known, _)| known == text) {
                Some((_, those)) => those.push(of),
                None => texts.push((text, vec![of])),
            }
        }
    }
    for (text, those) in texts {
        let _ = write!(page, "\n## {}\n\n````text\n{text}\n````\n", those.join(", "));
    }
    page
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_crates_of_the_workspace_are_not_third_parties() {
        fn package(name: &str, version: &str, source: Option<&str>) -> serde_json::Value {
            json!({ "name": name, "version": version, "source": source })
        }
        let metadata = json!({ "packages": [
            package("ours", "0.1.0", None),
            package("theirs", "1.0.0", Some("somewhere")),
            package("theirs", "2.0.0", Some("somewhere")),
            package("unused", "1.0.0", Some("somewhere")),
        ]});
        let tree = "ours v0.1.0 (/folder)\ntheirs v2.0.0\ntheirs v2.0.0 (*)\n";
        let found = linked(tree, &metadata).unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0]["version"], "2.0.0");
        assert!(linked("missing v1.0.0\n", &metadata).is_err());
    }

    #[test]
    fn a_text_stands_once() {
        let one = |name: &str, text: &str| Linked {
            name: name.to_owned(),
            version: "1.0.0".to_owned(),
            licence: "MIT".to_owned(),
            source: String::new(),
            texts: vec![("LICENSE".to_owned(), text.to_owned())],
        };
        let page = compose("head\n\n", &[one("a", "same"), one("b", "other"), one("c", "same")]);
        assert!(page.contains("## a (LICENSE), c (LICENSE)\n\n````text\nsame\n````"));
        assert_eq!(page.matches("\nsame\n").count(), 1);
    }

    #[test]
    fn of_several_licences_the_shortest_is_chosen_and_notices_stay() {
        let names = |all: &[&str]| needed(all.iter().map(|&name| name.to_owned()).collect());
        assert_eq!(names(&["LICENSE-APACHE", "LICENSE-MIT", "NOTICE"]), ["LICENSE-MIT", "NOTICE"]);
        assert_eq!(names(&["COPYING", "LICENSE-MIT", "UNLICENSE"]), ["LICENSE-MIT"]);
        assert_eq!(names(&["LICENSE-APACHE"]), ["LICENSE-APACHE"]);
        assert!(is_notice("LICENCE.md") && !is_notice("README.md"));
    }
}
