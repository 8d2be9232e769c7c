//! *Bundle*: the benchmarks as an archive for a machine with many cores or a GPU and nothing else:
//! no toolchain, no network, no registry.
//!
//! It has `kvmem-lab`, the test program of the crate `kvmem`, and a script for the shell that runs
//! the suites, and the test on the real driver of a GPU. The tests on the driver's stand-in compile
//! C, and run where the archive is made. The programs are linked to the C library of the building
//! machine, so the other one must have that version or a later one.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::run::{output, succeed};
use crate::workspace::{cargo, target_folder};

/// The folder in the archive.
pub(super) const NAME: &str = "kvmem-bench";
/// The script of the archive.
const SCRIPT: &str = include_str!("run.sh");

/// Builds the archive, and returns its path.
pub(super) fn make(root: &Path) -> Result<PathBuf> {
    let target = target_folder(root)?;
    let mut tests = Command::new(cargo());
    tests.current_dir(root).args(["test", "--locked", "--package", "kvmem", "--test", "it"]);
    let built = output(tests.args(["--no-run", "--message-format=json-render-diagnostics"]))?;
    let messages = built.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let test = messages.filter_map(|one| Some(one["executable"].as_str()?.to_owned())).next_back();
    let test = test.context("cargo has built no test program `it`")?;
    let mut build = Command::new(cargo());
    build.current_dir(root).args(["build", "--profile", "bench", "--locked"]);
    build.args(["--package", "kvmem-lab", "--bin", "kvmem-lab"]);
    succeed(&mut build)?;
    let folder = target.join(NAME);
    fill(&folder, Path::new(&test), &target.join("release/kvmem-lab"))?;
    let archive = target.join(format!("{NAME}.tar.gz"));
    let mut tar = Command::new("tar");
    tar.arg("-C").arg(&target).arg("-czf").arg(&archive).arg(NAME);
    succeed(&mut tar)?;
    Ok(archive)
}

/// Puts the programs, without what debuggers need, and the script into the folder.
fn fill(folder: &Path, test: &Path, command: &Path) -> Result<()> {
    let _ = fs::remove_dir_all(folder);
    fs::create_dir_all(folder)?;
    for (from, name) in [(test, "tests"), (command, "kvmem-lab")] {
        let to = folder.join(name);
        fs::copy(from, &to).with_context(|| format!("cannot copy {}", from.display()))?;
        // Without `strip` the archive is larger, and no worse.
        let _ = Command::new("strip").arg(&to).output();
    }
    let script = folder.join("run.sh");
    fs::write(&script, SCRIPT)?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Output;
    use tempfile::TempDir;

    /// A bundle whose programs are scripts.
    struct Bundle(TempDir);

    impl Bundle {
        fn new(tests: &str, bench: &str) -> Bundle {
            let folder = tempfile::tempdir().unwrap();
            let programs = folder.path().join("programs");
            fs::create_dir_all(&programs).unwrap();
            for (name, lines) in [("tests", tests), ("kvmem-lab", bench)] {
                let path = programs.join(name);
                fs::write(&path, format!("#!/bin/sh\n{lines}\n")).unwrap();
                fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
            }
            let bundle = folder.path().join("bundle");
            fill(&bundle, &programs.join("tests"), &programs.join("kvmem-lab")).unwrap();
            Bundle(folder)
        }

        fn path(&self, name: &str) -> PathBuf {
            self.0.path().join(name)
        }

        /// Runs it from another folder, without the variables of this process.
        fn run(&self, args: &[&str], seconds: &str) -> (Option<i32>, String) {
            let mut run = Command::new(self.path("bundle/run.sh"));
            run.env_clear().env("SECONDS_IN_ALL", seconds);
            let Output { status, stdout, stderr } =
                run.args(args).current_dir(self.0.path()).output().unwrap();
            let text = [stdout, stderr].concat();
            (status.code(), String::from_utf8(text).unwrap())
        }
    }

    /// A benchmark that writes its arguments as the rows.
    const MEASURES: &str = "echo \"$@\" > \"$4\"";

    #[test]
    fn each_suite_leaves_its_rows() {
        let bundle = Bundle::new("echo 'test result: ok. 1 passed'", MEASURES);
        let (status, text) = bundle.run(&["out"], "60");
        assert_eq!(status, Some(0), "{text}");
        assert!(text.contains("1 passed") && text.contains("rows: out.tar.gz"), "{text}");
        let rows = |file: &str| fs::read_to_string(bundle.path(file)).unwrap();
        for suite in ["arena", "concurrency", "cache", "node", "register", "offset", "gpu"] {
            let expected = format!("bench {suite} --json out/{suite}.json --quick\n");
            assert_eq!(rows(&format!("out/{suite}.json")), expected);
        }
        let date = rows("out/date");
        assert!(date.len() == 11 && date.starts_with("20"), "{date}");
        let list = output(Command::new("tar").arg("-tf").arg(bundle.path("out.tar.gz"))).unwrap();
        assert!(list.contains("out/log.txt") && list.contains("out/arena.json"), "{list}");
        // One suite, with its arguments.
        let (status, text) = bundle.run(&["one", "gpu", "--size", "64GiB"], "60");
        assert_eq!(status, Some(0), "{text}");
        assert_eq!(rows("one/gpu.json"), "bench gpu --json one/gpu.json --size 64GiB\n");
        assert!(!bundle.path("one/arena.json").exists());
    }

    #[test]
    fn a_failure_is_named_and_the_time_of_all_is_limited() {
        let bad = "echo half > \"$4\"; [ $2 != cache ] || exit 2
                   [ $2 != concurrency ] || exec sleep 60";
        let bundle = Bundle::new("exit 101", bad);
        let start = std::time::Instant::now();
        let (status, text) = bundle.run(&["out"], "8");
        assert_eq!(status, Some(1), "{text}");
        assert!(start.elapsed().as_secs() < 20, "{text}");
        assert!(text.contains("failed: concurrency cache tests;"), "{text}");
        for suite in ["concurrency", "cache"] {
            assert!(!bundle.path(&format!("out/{suite}.json")).exists(), "half a file");
        }
        assert!(bundle.path("out/gpu.json").exists(), "a slow suite takes two shares of the time");
        let (status, text) = bundle.run(&["out"], "0");
        assert_eq!(status, Some(1), "{text}");
        assert!(text.contains("left out, no time"), "{text}");
    }
}
