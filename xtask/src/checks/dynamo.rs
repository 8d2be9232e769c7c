//! The crate `kvmem-dynamo`: format, lints, tests and documentation, in a workspace of its own.
//!
//! Dynamo's crates bring some 300 others, of which some take libclang and protoc to build. The
//! group therefore runs only if it is named. NIXL's library is that of the wheel, which the tests
//! find through `LD_LIBRARY_PATH`.

use std::path::Path;
use std::process::Command;

use super::cargo_in;
use crate::engines;
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
    report.command("dynamo: tests", Kind::Tests, with_nixl(root, &mut build(&["test"])));
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
