//! *Groups*: tests of the library, repeated with larger counts.
//!
//! Property tests take the number of their cases from `PROPTEST_CASES`, others the number of their
//! rounds from `KVMEM_TEST_ROUNDS`. Random choices differ from repetition to repetition.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::step::{Kind, Report};
use crate::workspace::cargo;

/// The groups that are repeated by default: package, target, filter.
const GROUPS: [&str; 4] = [
    // Children of busy processes.
    "kvmem:it:fork",
    "kvmem:alone:concurrent_population",
    // User code that panics.
    "kvmem:it:panic",
    // The oracle.
    "kvmem:it:oracle",
];
/// The default number of cases and of rounds.
const CASES: u64 = 256;
const ROUNDS: u64 = 50;

/// The name of a group of tests.
#[derive(Debug, PartialEq, Eq)]
struct TestGroup<'a> {
    package: &'a str,
    target: &'a str,
    filter: &'a str,
}

fn parse(text: &str) -> Option<TestGroup<'_>> {
    let (package, rest) = text.split_once(':')?;
    let (target, filter) = rest.split_once(':')?;
    let is_named = !package.is_empty() && !target.is_empty();
    is_named.then_some(TestGroup { package, target, filter })
}

/// Repeats groups of tests.
pub(super) fn run(
    root: &Path,
    named: &[String],
    repeat: u64,
    times: u64,
    report: &mut Report,
) -> Result<()> {
    ensure!(times > 0, "--times 0 would leave no cases: say 1 or more");
    let all: Vec<&str> =
        if named.is_empty() { GROUPS.to_vec() } else { named.iter().map(String::as_str).collect() };
    for text in all {
        let group = parse(text).with_context(|| {
            format!("`{text}` is no group: say PACKAGE:TARGET:FILTER, as in kvmem:it:cache")
        })?;
        for turn in 1..=repeat {
            let mut tests = Command::new(cargo());
            tests.current_dir(root).args(["test", "--locked", "--package", group.package]);
            match group.target {
                "lib" => tests.arg("--lib"),
                target => tests.args(["--test", target]),
            };
            tests.args(["--", group.filter]);
            tests.env("PROPTEST_CASES", (CASES * times).to_string());
            tests.env("KVMEM_TEST_ROUNDS", (ROUNDS * times).to_string());
            report.command(&format!("chaos: {text}, {turn} of {repeat}"), Kind::Tests, &mut tests);
        }
    }
    Ok(())
}

/// Kills servers and clients of a node at random instants, while others read, write and verify.
pub(super) fn kill(root: &Path, kills: u64, report: &mut Report) {
    let mut tests = Command::new(cargo());
    tests.current_dir(root).args(["test", "--locked", "--package", "kvmem-node", "--test", "it"]);
    // One after the other: by sockets, and by rings.
    tests.args(["--", "processes_are_killed_at_random_instants", "--test-threads=1"]);
    tests.env("KVMEM_TEST_ROUNDS", kills.to_string());
    report.command(&format!("chaos: {kills} kills"), Kind::Tests, &mut tests);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_have_three_parts() {
        let group = TestGroup { package: "kvmem", target: "it", filter: "cache" };
        assert_eq!(parse("kvmem:it:cache"), Some(group));
        assert_eq!(
            parse("kvmem:lib:"),
            Some(TestGroup { package: "kvmem", target: "lib", filter: "" })
        );
        for bad in ["", "kvmem", "kvmem:it", ":it:x", "kvmem::x"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
        assert!(GROUPS.iter().all(|group| parse(group).is_some()));
    }
}
