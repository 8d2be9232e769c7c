//! *Step*: a command whose output is shown as it comes and whose tests are counted.
//!
//! A step is either a *test step*, which counts what libtest reports (`test result: ok. 3 passed; 0
//! failed; …`, one line per test binary and per batch of doc tests) or pytest (`3 passed, 1 skipped
//! in 0.5s`), or a *plain step*, which counts as one check.
//! A test step can fail in two further ways, and each counts as one failure: the command fails
//! without a failed test (it did not compile, or it was killed), or it succeeds without having run
//! a single test.

use std::fmt;
use std::io::{self, BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Passed and failed checks.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Count {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
}

impl Count {
    const PASS: Count = Count { passed: 1, failed: 0 };
    const FAIL: Count = Count { passed: 0, failed: 1 };

    fn add(&mut self, other: Count) {
        self.passed += other.passed;
        self.failed += other.failed;
    }
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed", self.passed, self.failed)
    }
}

/// Whether a command counts as one check or reports tests of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// One check: it passes when the command succeeds.
    Plain,
    /// Counts the tests that libtest reports.
    Tests,
    /// Counts the tests that pytest reports.
    Pytest,
}

/// The result of one step.
struct Outcome {
    name: String,
    count: Count,
    took: Duration,
    note: Option<String>,
}

/// The results of the steps so far.
#[derive(Default)]
pub(crate) struct Report {
    outcomes: Vec<Outcome>,
}

impl Report {
    /// Runs `command` as the step `name`, showing its output.
    pub(crate) fn command(&mut self, name: &str, kind: Kind, command: &mut Command) {
        self.step(name, || match stream(command, kind) {
            Ok((ended_well, tests, status)) => {
                let (count, note) = judge(kind, ended_well, tests);
                (count, note.map(|note| note.replace("STATUS", &status)))
            }
            Err(error) => (
                Count::FAIL,
                Some(format!("cannot run {}: {error}", command.get_program().display())),
            ),
        });
    }

    /// Runs `check` as the step `name`; it counts as one check.
    pub(crate) fn check(&mut self, name: &str, check: impl FnOnce() -> anyhow::Result<()>) -> bool {
        self.step(name, || match check() {
            Ok(()) => (Count::PASS, None),
            Err(error) => (Count::FAIL, Some(format!("{error:#}"))),
        });
        self.outcomes.last().is_some_and(|outcome| outcome.count.failed == 0)
    }

    fn step(&mut self, name: &str, body: impl FnOnce() -> (Count, Option<String>)) {
        println!("\n── {name}");
        let start = Instant::now();
        let (count, note) = body();
        let took = start.elapsed();
        println!("── {name}: {count} ({:.1} s)", took.as_secs_f64());
        if let Some(note) = &note {
            println!("   {note}");
        }
        self.outcomes.push(Outcome { name: name.to_owned(), count, took, note });
    }

    /// Returns the sum over all steps.
    pub(crate) fn total(&self) -> Count {
        let mut total = Count::default();
        for outcome in &self.outcomes {
            total.add(outcome.count);
        }
        total
    }

    /// Prints every step with its count and time, and the total on a line of its own at the end.
    pub(crate) fn print(&self) {
        let width =
            self.outcomes.iter().map(|outcome| outcome.name.chars().count()).max().unwrap_or(0);
        let mut whole = Duration::ZERO;
        println!("\nSteps:");
        for Outcome { name, count, took, note } in &self.outcomes {
            let mark = if count.failed == 0 { "ok  " } else { "FAIL" };
            println!("  {mark} {name:width$} {:>7.1} s  {count}", took.as_secs_f64());
            if let Some(note) = note {
                println!("       {note}");
            }
            whole += *took;
        }
        println!("  in {:.0} s", whole.as_secs_f64());
        println!("\n{}", self.total());
    }
}

/// Returns the checks of a command that reported `tests` and then succeeded or failed, and a note.
fn judge(kind: Kind, ended_well: bool, tests: Count) -> (Count, Option<String>) {
    match (kind, ended_well) {
        (Kind::Plain, true) => (Count::PASS, None),
        (Kind::Plain, false) => (Count::FAIL, Some("ended with STATUS".into())),
        (_, true) if tests == Count::default() => (Count::FAIL, Some("it ran no test".into())),
        (_, true) => (tests, None),
        (_, false) if tests.failed > 0 => (tests, None),
        (_, false) => (
            Count { failed: 1, ..tests },
            Some("ended with STATUS, though no test failed: did it compile, was it killed?".into()),
        ),
    }
}

/// Runs a command, passing its standard output through and counting the tests it reports.
fn stream(command: &mut Command, kind: Kind) -> io::Result<(bool, Count, String)> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let mut tests = Count::default();
    if let Some(output) = child.stdout.take() {
        let mut reader = BufReader::new(output);
        let mut line = Vec::new();
        while reader.read_until(b'\n', &mut line)? > 0 {
            let text = String::from_utf8_lossy(&line);
            print!("{text}");
            let count = match kind {
                Kind::Pytest => parse_pytest_result(&text),
                Kind::Plain | Kind::Tests => parse_test_result(&text),
            };
            if let Some(count) = count {
                tests.add(count);
            }
            line.clear();
        }
    }
    let status = child.wait()?;
    Ok((status.success(), tests, status.to_string()))
}

/// Reads `test result: ok. 3 passed; 1 failed; 0 ignored; …`.
fn parse_test_result(line: &str) -> Option<Count> {
    let rest = line.trim_start().strip_prefix("test result:")?;
    let number_before = |word: &str| -> Option<u64> {
        let head = rest.split(';').find_map(|part| part.trim_end().strip_suffix(word))?;
        head.split_whitespace().next_back()?.parse().ok()
    };
    Some(Count { passed: number_before("passed")?, failed: number_before("failed")? })
}

/// Reads `==== 1 failed, 3 passed, 2 skipped in 0.52s ====`, with the rule or without. An error
/// outside of a test counts as a failure.
fn parse_pytest_result(line: &str) -> Option<Count> {
    let (counts, took) = line.trim().trim_matches('=').trim().split_once(" in ")?;
    took.split_whitespace().next()?.strip_suffix('s')?.parse::<f64>().ok()?;
    let mut count = Count::default();
    for part in counts.split(", ") {
        let (number, word) = part.split_once(' ')?;
        let number: u64 = number.parse().ok()?;
        match word {
            "passed" | "xfailed" => count.passed += number,
            "failed" | "error" | "errors" | "xpassed" => count.failed += number,
            "skipped" | "deselected" | "warning" | "warnings" => {}
            _ => return None,
        }
    }
    Some(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_libtest_result_lines_only() {
        let line = "test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 2 filtered out; \
                    finished in 0.01s\n";
        assert_eq!(parse_test_result(line), Some(Count { passed: 12, failed: 0 }));
        let line = "test result: FAILED. 3 passed; 4 failed; 0 ignored; 0 measured; 0 filtered out";
        assert_eq!(parse_test_result(line), Some(Count { passed: 3, failed: 4 }));
        assert_eq!(parse_test_result("test offset::heap::exact_fit ... ok"), None);
        assert_eq!(parse_test_result("test result: unknown"), None);
    }

    #[test]
    fn reads_pytest_result_lines_only() {
        let count = |passed, failed| Some(Count { passed, failed });
        assert_eq!(parse_pytest_result("75 passed, 2 skipped in 26.67s\n"), count(75, 0));
        let line = "==== 1 failed, 3 passed, 1 warning, 2 errors in 71.52s (0:01:11) ====";
        assert_eq!(parse_pytest_result(line), count(3, 3));
        for other in [
            "3 passed",
            "tests/test_pool.py ..... [ 50%]",
            "no tests ran in 0.01s",
            "found 3 in 2s",
        ] {
            assert_eq!(parse_pytest_result(other), None, "{other}");
        }
    }

    #[test]
    fn a_test_step_without_tests_fails() {
        assert_eq!(judge(Kind::Tests, true, Count::default()).0, Count::FAIL);
    }

    #[test]
    fn a_test_step_that_breaks_after_passing_tests_fails_once() {
        let tests = Count { passed: 5, failed: 0 };
        assert_eq!(judge(Kind::Tests, false, tests).0, Count { passed: 5, failed: 1 });
        let tests = Count { passed: 5, failed: 2 };
        assert_eq!(judge(Kind::Tests, false, tests).0, tests);
    }

    #[test]
    fn steps_are_counted_and_a_missing_program_is_a_failure() {
        let mut report = Report::default();
        report.command("true", Kind::Plain, &mut Command::new("true"));
        report.command("false", Kind::Plain, &mut Command::new("false"));
        report.command("missing", Kind::Plain, &mut Command::new("kvmem-no-such-program"));
        let mut echo = Command::new("echo");
        echo.arg("test result: ok. 7 passed; 0 failed; 0 ignored");
        report.command("tests", Kind::Tests, &mut echo);
        assert!(report.check("check", || Ok(())));
        assert!(!report.check("broken check", || anyhow::bail!("broken")));
        assert_eq!(report.total(), Count { passed: 9, failed: 3 });
    }
}
