//! *Support*: the installed prefix, the compiler, and running programs, for the tests of the C
//! interface.

use std::ffi::OsStr;
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use kvmem::register::cuda::Cuda;

pub(crate) mod header;
#[path = "../../../../../xtask/src/layout.rs"]
pub(crate) mod layout;
pub(crate) mod node_server;
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
        let library = std::fs::metadata(built.join("libkvmem_capi.so")).expect("it is built");
        let time = library.modified().expect("the file system has times");
        unless_done(
            "prefix",
            &format!("{time:?} {:016x}", headers()),
            || prefix.exists(),
            || {
                layout::install_into(
                    &prefix,
                    built,
                    &crate_folder().join("include"),
                    env!("CARGO_PKG_VERSION"),
                    layout::Parts::WithTesting,
                )
                .expect("the libraries are built and can be copied");
            },
        );
        prefix
    })
}

/// Does something once for a key, for all tests: a test is a process. `name` is that of a file with
/// the last key.
fn unless_done(name: &str, key: &str, is_there: impl FnOnce() -> bool, work: impl FnOnce()) {
    let mut options = File::options();
    let path = scratch("programs").join(format!("{name}.done"));
    let file = options.read(true).write(true).create(true).truncate(false).open(path);
    let mut file = file.expect("the target folder can be written");
    file.lock().expect("the file can be locked");
    let mut earlier = String::new();
    file.read_to_string(&mut earlier).expect("the file can be read");
    if earlier == key && is_there() {
        return;
    }
    file.set_len(0).expect("the file can be written");
    work();
    file.rewind().and_then(|()| file.write_all(key.as_bytes())).expect("the file can be written");
}

/// Compiles the stand-in for the driver of GPUs, and returns the value of `LD_LIBRARY_PATH` with
/// which a program finds it.
pub(crate) fn driver_of_gpus() -> String {
    let folder = scratch("programs");
    let source = crate_folder().join("../kvmem/tests/standin/cuda.c");
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-pthread", "-o"]).arg(folder.join(Cuda::LIBRARY)).arg(&source);
    compiled(Cuda::LIBRARY, &source, &mut cc);
    folder.into_os_string().into_string().expect("the target folder has a UTF-8 path")
}

/// Returns the variable with the path of the vectors that the tests of all languages read.
pub(crate) fn prefix_vectors() -> (&'static str, &'static str) {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../kvmem/tests/data/prefix_keys.txt");
    ("KVMEM_TEST_PREFIX_KEYS", path)
}

/// Returns the environment variable with the path of the table of a cache's verbs.
pub(crate) fn cache_verbs() -> (&'static str, &'static str) {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../kvmem/tests/data/cache_verbs.txt");
    ("KVMEM_TEST_CACHE_VERBS", path)
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
        .args(["-D_GNU_SOURCE", "-g1", "-O1", "-pthread"])
        .args(flags)
        .arg("-I")
        .arg(prefix().join("include"));
    cc.arg("-I").arg(crate_folder().join("tests/c")).arg(source).arg("-o").arg(&program);
    cc.arg("-L").arg(&lib).arg("-lkvmem").arg(format!("-Wl,-rpath,{}", lib.display()));
    compiled(name, source, &mut cc);
    program
}

/// Runs a compiler that must succeed, unless it has succeeded before with the same command, the
/// same source and the same headers. Tests of other threads, processes and runs use the result too.
/// `name` is that of the program, or of the check if the compiler writes no program.
pub(crate) fn compiled(name: &str, source: &Path, command: &mut Command) {
    let mut hasher = DefaultHasher::new();
    format!("{command:?}").hash(&mut hasher);
    let version = Command::new(command.get_program()).arg("--version").output();
    version.expect("the compiler is installed").stdout.hash(&mut hasher);
    std::fs::read(source).expect("the source can be read").hash(&mut hasher);
    headers().hash(&mut hasher);
    let program = scratch("programs").join(name);
    let writes = command.get_args().any(|argument| argument == program.as_os_str());
    let is_there = || !writes || program.exists();
    unless_done(name, &format!("{:016x}", hasher.finish()), is_there, || drop(succeed(command)));
}

/// Returns a hash of all headers that a program may include, by their names and contents.
fn headers() -> u64 {
    fn add(folder: &Path, hasher: &mut DefaultHasher) {
        let entries = std::fs::read_dir(folder).expect("the folder can be read");
        let mut paths: Vec<PathBuf> =
            entries.map(|entry| entry.expect("a readable folder").path()).collect();
        paths.sort();
        for path in paths {
            if path.is_dir() {
                add(&path, hasher);
            } else {
                path.hash(hasher);
                std::fs::read(&path).expect("the header can be read").hash(hasher);
            }
        }
    }
    static HEADERS: OnceLock<u64> = OnceLock::new();
    *HEADERS.get_or_init(|| {
        let mut hasher = DefaultHasher::new();
        for folder in ["include", "tests/c", "tests/cpp"] {
            add(&crate_folder().join(folder), &mut hasher);
        }
        hasher.finish()
    })
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

/// Runs a command under a tool with environment variables, if the tool is installed.
pub(crate) fn succeed_under(
    tool: &str,
    args: &[&str],
    variables: &[(&str, &str)],
    program: impl AsRef<OsStr>,
) {
    if has(tool) {
        succeed(Command::new(tool).args(args).arg(program).envs(variables.iter().copied()));
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
    assert_eq!(blocks.len(), 4, "in {language}");
    blocks
}
