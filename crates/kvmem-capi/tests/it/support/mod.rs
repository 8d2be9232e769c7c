//! *Support*: the installed prefix, the compiler, and running programs, for the tests of the C
//! interface.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

pub(crate) mod header;
#[path = "../../../../../xtask/src/layout.rs"]
pub(crate) mod layout;
pub(crate) mod program;
pub(crate) mod under;

/// Returns the folder of this crate.
pub(crate) fn crate_folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Returns a folder for files that a test makes.
pub(crate) fn scratch(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&folder).expect("the target folder can be written");
    folder
}

/// Returns a prefix with the layout of `cargo xtask install`, made of the libraries that cargo
/// built for this test.
pub(crate) fn prefix() -> &'static Path {
    static PREFIX: OnceLock<PathBuf> = OnceLock::new();
    PREFIX.get_or_init(|| {
        let test = std::env::current_exe().expect("a test has a path");
        let built = test.parent().expect("a test lies in a folder");
        // Test programs run in parallel: each has its own prefix, named without cargo's hash.
        let name = test.file_name().and_then(|name| name.to_str()).expect("a test has a name");
        let prefix = scratch("prefix").join(name.split('-').next().unwrap_or(name));
        layout::install_into(
            &prefix,
            built,
            &crate_folder().join("include"),
            env!("CARGO_PKG_VERSION"),
            layout::Parts::WithTesting,
        )
        .expect("the libraries are built and can be copied");
        prefix
    })
}

/// Returns whether a program is installed; otherwise prints that the test is skipped.
pub(crate) fn has(tool: &str) -> bool {
    let there =
        Command::new(tool).arg("--version").output().is_ok_and(|output| output.status.success());
    if !there {
        println!("skipped: {tool} is missing");
    }
    there
}

/// Warnings that C code must not cause.
pub(crate) const STRICT: [&str; 5] = ["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror"];

/// Builds a C program against the prefix, with the shared library.
pub(crate) fn compile(source: &Path, name: &str, flags: &[&str]) -> PathBuf {
    let program = scratch("programs").join(name);
    let lib = prefix().join("lib");
    let mut cc = Command::new("cc");
    cc.args(STRICT)
        .args(["-D_GNU_SOURCE", "-g", "-O1", "-pthread"])
        .args(flags)
        .arg("-I")
        .arg(prefix().join("include"));
    cc.arg("-I").arg(crate_folder().join("tests/c")).arg(source).arg("-o").arg(&program);
    cc.arg("-L").arg(&lib).arg("-lkvmem").arg(format!("-Wl,-rpath,{}", lib.display()));
    succeed(&mut cc);
    program
}

/// Runs a command that must succeed; returns its output.
pub(crate) fn succeed(command: &mut Command) -> String {
    let output =
        command.output().unwrap_or_else(|error| panic!("{:?}: {error}", command.get_program()));
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    for line in out.lines().filter(|line| line.starts_with("skipped:")) {
        println!("{line}");
    }
    assert!(output.status.success(), "{command:?} ended with {}\n{out}\n{err}", output.status);
    out.into_owned()
}

/// Runs a command under a tool, if the tool is installed.
pub(crate) fn succeed_under(tool: &str, args: &[&str], program: impl AsRef<OsStr>) {
    if has(tool) {
        succeed(Command::new(tool).args(args).arg(program));
    }
}

/// Returns the blocks of code in a page of `docs` that are marked with `language`: one for each
/// example.
pub(crate) fn code_blocks(page: &str, language: &str) -> Vec<String> {
    let path = crate_folder().join("docs").join(page);
    let page = std::fs::read_to_string(path).expect("the page can be read");
    let start = format!("```{language}\n");
    let blocks = page.split(&start).skip(1).filter_map(|rest| rest.split("```").next());
    let blocks: Vec<String> = blocks.map(str::to_owned).collect();
    assert_eq!(blocks.len(), 2, "in {language}");
    blocks
}
