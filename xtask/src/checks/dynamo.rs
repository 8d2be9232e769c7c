//! The crate `kvmem-dynamo`: format, lints, tests and documentation, in a workspace of its own.
//!
//! Dynamo's crates bring some 300 others, of which some take libclang and protoc to build. The
//! group therefore runs only if it is named, and every night. NIXL's library is that of the wheel,
//! which the tests find through `LD_LIBRARY_PATH`.

use std::path::Path;
use std::process::Command;

use serde_json::json;

use super::cargo_in;
use crate::engines;
use crate::engines_matrix;
use crate::schedule::Task;
use crate::setup;
use crate::step::{Kind, Report};

/// The manifest of the crate.
const MANIFEST: &str = "crates/kvmem-dynamo/Cargo.toml";
/// The target folder of its workspace.
const TARGET: &str = "target/dynamo";
/// Tools of the build: the library that generates bindings and its headers, and the compiler of
/// messages. Each with its Debian package and a file of it.
const TOOLS: [(&str, &str, &str); 3] = [
    ("libclang-14.so.1", "libclang1-14", "/usr/lib/x86_64-linux-gnu/libclang-14.so.1"),
    ("stddef.h of clang", "libclang-common-14-dev", "/usr/lib/clang/14/include/stddef.h"),
    ("protoc", "protobuf-compiler", "/usr/bin/protoc"),
];

/// The kind of run under which the outcomes of the tests are filed.
const OUTCOMES: &str = "dynamo";
/// The command that repeats the tests.
const COMMAND: &str = "cargo xtask test dynamo";
/// The features of the table of engines, and what they are tested with.
const FEATURES: [(&str, &str); 4] = [
    ("regions and blocks of pools in layouts and arenas of Dynamo", "real modules"),
    ("transfers between regions by an agent of NIXL", "real modules"),
    ("a process is killed in transfers of NIXL, and another takes its place", "real modules"),
    ("a GPU, the engine that selects its memory by itself", "untested"),
];

/// Notes the features that the tests have shown, with the version of Dynamo's crates.
fn note(root: &Path, has_nixl: bool) -> anyhow::Result<()> {
    let lock = std::fs::read_to_string(root.join("crates/kvmem-dynamo/Cargo.lock"))?;
    let version = locked(&lock, "dynamo-memory")
        .ok_or_else(|| anyhow::anyhow!("the lock file names no dynamo-memory"))?;
    let known = FEATURES.map(|(feature, _)| json!(["dynamo", feature]));
    let rows = FEATURES.map(|(feature, tested)| {
        // Without an agent, the tests of transfers have skipped themselves.
        let is_tested = tested != "untested" && (has_nixl || !feature.contains("NIXL"));
        let [tested, version, file] =
            if is_tested { [tested, version, COMMAND] } else { ["untested", "–", "–"] };
        json!({"engine": "dynamo", "version": version, "feature": feature, "tested": tested,
            "file": file})
    });
    let folder = engines_matrix::folder(root, OUTCOMES);
    std::fs::create_dir_all(&folder)?;
    let outcomes = json!({"features": known, "outcomes": rows});
    Ok(std::fs::write(folder.join("outcomes.json"), outcomes.to_string())?)
}

/// Returns the version of a package in a lock file.
fn locked<'a>(lock: &'a str, package: &str) -> Option<&'a str> {
    let mut lines = lock.lines();
    lines.find(|line| *line == format!("name = \"{package}\""))?;
    lines.next()?.strip_prefix("version = \"")?.strip_suffix('"')
}

/// Builds the crate and runs its checks.
pub(super) fn task(root: &Path) -> Task<'_> {
    Task::new("dynamo", "dynamo", move |report| run(root, report)).with(TARGET)
}

fn run(root: &Path, report: &mut Report) {
    for (what, package, path) in TOOLS {
        let missing = format!("{what} is missing");
        // Another version, or another place, serves as well: the build shows it.
        let _ = setup::package(&missing, package, || Path::new(path).exists());
    }
    engines::for_rust(root);
    let cargo = |args: &[&str]| {
        let mut command = cargo_in(root, args);
        command.args(["--manifest-path", MANIFEST]);
        command
    };
    let build = |args: &[&str]| {
        let mut command = cargo(args);
        command.args(["--target-dir", TARGET, "--locked"]);
        command
    };
    report.command("dynamo: fmt", Kind::Plain, &mut cargo(&["fmt", "--check"]));
    let mut clippy = build(&["clippy", "--all-targets"]);
    report.command("dynamo: clippy", Kind::Plain, clippy.args(["--", "-D", "warnings"]));
    engines_matrix::forget(root, OUTCOMES);
    let tests = &mut build(&["test"]);
    if report.command("dynamo: tests", Kind::Tests, with_nixl(root, tests)) {
        let has_nixl = engines::nixl_library(root).is_some();
        report.check("dynamo: the table of engines", || {
            note(root, has_nixl)?;
            engines_matrix::check(root)
        });
    }
    let mut doc = build(&["doc", "--no-deps"]);
    report.command("dynamo: doc", Kind::Plain, doc.env("RUSTDOCFLAGS", "-D warnings"));
}

/// Sets the variables by which the tests find NIXL. Transfers stay on one host.
fn with_nixl<'a>(root: &Path, command: &'a mut Command) -> &'a mut Command {
    if let Some(library) = engines::nixl_library(root)
        && let Some(folder) = library.parent()
    {
        command.env("LD_LIBRARY_PATH", folder).env("NIXL_PLUGIN_DIR", folder.join("plugins"));
    }
    command.env("UCX_TLS", "tcp,sm,self").env("UCX_NET_DEVICES", "lo").env("UCX_MODULES", "^ib")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_that_of_the_lock_file() {
        let lock = "[[package]]\nname = \"a\"\nversion = \"1.2\"\n";
        assert_eq!((locked(lock, "a"), locked(lock, "b")), (Some("1.2"), None));
        let root = crate::workspace::root().unwrap();
        let lock = std::fs::read_to_string(root.join("crates/kvmem-dynamo/Cargo.lock")).unwrap();
        assert!(locked(&lock, "dynamo-memory").is_some());
    }
}
