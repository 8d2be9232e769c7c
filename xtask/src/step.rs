//! *Step*: a command or a function whose output is shown, whose tests are counted, and whose time
//! is measured.
//!
//! A step is either a *test step*, which counts what cargo-nextest, libtest or pytest report, or a
//! *plain step*, which counts as one check. A test step can fail in two further ways, and each
//! counts as one failure: the command fails without a failed test (it did not compile, or it was
//! killed), or it succeeds without having run a single test.
//!
//! The runners run a test that fails once more, after a pause: nextest by `--retries`, pytest by
//! its plugin `pytest-rerunfailures`. A test that passes then counts as passed, and the summary
//! names it with its cause, if `xtask/second-tries.txt` has one.
//!
//! A [`Report`] collects the steps of one thread. If the thread stores its output, a step prints a
//! line when it begins and all its output when it ends. [`child`] runs a command and ends it with
//! this process.

pub(crate) mod child;

use std::fmt;
use std::fs::File;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use crate::output;
use crate::say;

/// Whether a command counts as one check or reports tests of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// One check: it passes when the command succeeds.
    Plain,
    /// Counts the tests that nextest, libtest or pytest report.
    Tests,
}

/// Passed and failed checks.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Count {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
}

impl Count {
    const PASS: Count = Count { passed: 1, failed: 0 };
    const FAIL: Count = Count { passed: 0, failed: 1 };
}

impl std::iter::Sum for Count {
    fn sum<I: Iterator<Item = Count>>(counts: I) -> Count {
        counts.fold(Count::default(), |all, one| Count {
            passed: all.passed + one.passed,
            failed: all.failed + one.failed,
        })
    }
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed", self.passed, self.failed)
    }
}

/// The result of one step.
struct Outcome {
    group: &'static str,
    name: String,
    began: Instant,
    took: Duration,
    /// The processor time of its command.
    processor: Duration,
    count: Count,
    note: Option<String>,
    /// The tests that failed, and passed at the second try.
    second_tries: Vec<String>,
}

/// The results of the steps so far.
pub(crate) struct Report {
    began: Instant,
    outcomes: Vec<Outcome>,
    /// The group of its steps.
    group: &'static str,
    /// Whether its commands leave the processors to others.
    background: bool,
}

impl Default for Report {
    fn default() -> Report {
        Report { began: Instant::now(), outcomes: Vec::new(), group: "", background: false }
    }
}

impl Report {
    /// Returns a report whose steps belong to a group. In the `background` their commands leave the
    /// processors to others.
    pub(crate) fn in_group(group: &'static str, background: bool) -> Report {
        Report { group, background, ..Report::default() }
    }

    /// Runs `command` as the step `name`, showing its output. Returns whether it passed.
    pub(crate) fn command(&mut self, name: &str, kind: Kind, command: &mut Command) -> bool {
        self.command_into(name, kind, command, None)
    }

    /// Runs `command` as the step `name`; its output goes to a file, and its errors are shown.
    pub(crate) fn command_into(
        &mut self,
        name: &str,
        kind: Kind,
        command: &mut Command,
        out: Option<File>,
    ) -> bool {
        let background = self.background;
        self.step(name, |outcome| run(command, kind, out, background, outcome))
    }

    /// Runs `check` as the step `name`; it counts as one check. Returns whether it passed.
    pub(crate) fn check(&mut self, name: &str, check: impl FnOnce() -> anyhow::Result<()>) -> bool {
        self.step(name, |outcome| {
            outcome.note = check().err().map(|error| format!("{error:#}"));
            outcome.count = if outcome.note.is_none() { Count::PASS } else { Count::FAIL };
        })
    }

    fn step(&mut self, name: &str, body: impl FnOnce(&mut Outcome)) -> bool {
        // A line of its own where other steps print as well.
        let [before, after] = if output::is_kept() { ["", " …"] } else { ["\n", ""] };
        println!("{before}── {name}{after}");
        let mut outcome = Outcome {
            group: self.group,
            name: name.to_owned(),
            began: Instant::now(),
            took: Duration::ZERO,
            processor: Duration::ZERO,
            count: Count::default(),
            note: None,
            second_tries: Vec::new(),
        };
        body(&mut outcome);
        outcome.took = outcome.began.elapsed();
        let text = output::take();
        let (took, processor) = (outcome.took.as_secs_f64(), outcome.processor.as_secs_f64());
        let mut end = format!("── {name}: {} ({took:.1} s, {processor:.1})", outcome.count);
        if let Some(note) = &outcome.note {
            end += &format!("\n   {note}");
        }
        if text.is_empty() {
            println!("{end}");
        } else {
            println!("\n── {name}\n{}\n{end}\n", text.trim_end());
        }
        let passed = outcome.count.failed == 0;
        self.outcomes.push(outcome);
        passed
    }

    /// Adds the steps of another report.
    pub(crate) fn append(&mut self, other: Report) {
        self.outcomes.extend(other.outcomes);
    }

    /// Returns the sum over all steps.
    pub(crate) fn total(&self) -> Count {
        self.outcomes.iter().map(|one| one.count).sum()
    }

    /// Prints the summary. Returns the exit status: a failure if any step failed.
    pub(crate) fn finish(&self) -> anyhow::Result<ExitCode> {
        self.print();
        Ok(self.status())
    }

    /// Returns the exit status: a failure if any step failed.
    pub(crate) fn status(&self) -> ExitCode {
        if self.total().failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }

    /// Prints every step with its count and time, then the groups, and the total on a line of its
    /// own at the end.
    pub(crate) fn print(&self) {
        println!("\nSteps: seconds, seconds of processors, checks");
        let longest = self.outcomes.iter().map(|one| one.name.chars().count()).max().unwrap_or(0);
        for one in &self.outcomes {
            print_row(&format!("{:longest$}", one.name), one.took, &[one]);
            if let Some(note) = &one.note {
                println!("       {note}");
            }
        }
        let mut groups: Vec<&str> = self.outcomes.iter().map(|one| one.group).collect();
        groups.sort_unstable();
        groups.dedup();
        if groups.len() > 1 {
            println!("\nGroups, side by side: from the first step to the end of the last");
        }
        for group in groups.iter().filter(|_| groups.len() > 1) {
            let steps: Vec<&Outcome> =
                self.outcomes.iter().filter(|one| one.group == *group).collect();
            let began = steps.iter().map(|one| one.began).min();
            let ended = steps.iter().map(|one| one.began + one.took).max();
            let took = began.zip(ended).map_or(Duration::ZERO, |(began, ended)| ended - began);
            print_row(&format!("{group:10}"), took, &steps);
        }
        let processor: Duration = self.outcomes.iter().map(|one| one.processor).sum();
        let (took, processor) = (self.began.elapsed().as_secs_f64(), processor.as_secs_f64());
        println!("  in {took:.0} s, with {processor:.0} s of processors");
        for one in self.outcomes.iter().filter(|one| !one.second_tries.is_empty()) {
            println!("\nPassed at the second try; the first output is above: {}", one.name);
            one.second_tries.iter().for_each(|test| println!("  {test}\n    {}", cause_of(test)));
        }
        println!("\n{}", self.total());
    }
}

/// Prints the sum of some steps.
fn print_row(name: &str, took: Duration, steps: &[&Outcome]) {
    let count: Count = steps.iter().map(|one| one.count).sum();
    let processor: Duration = steps.iter().map(|one| one.processor).sum();
    let mark = if count.failed == 0 { "ok  " } else { "FAIL" };
    let (took, processor) = (took.as_secs_f64(), processor.as_secs_f64());
    println!("  {mark} {name} {took:>7.1} {processor:>7.1}  {count}");
}

/// The tests that passed at the second try in earlier runs: test, date, cause, state.
const SECOND_TRIES: &str = include_str!("../second-tries.txt");

/// Returns what is known about a test that passed at the second try.
fn cause_of(test: &str) -> String {
    let lines = SECOND_TRIES.lines().filter(|line| !line.starts_with('#'));
    let mut rows = lines.map(|line| line.split('\t').collect::<Vec<_>>());
    match rows.find(|row| test.contains(row[0])).as_deref() {
        Some([_, date, cause, state]) => format!("known since {date}: {cause} ({state})"),
        _ => "new: find its cause, and note both in xtask/second-tries.txt".to_owned(),
    }
}

/// Runs a command, showing its lines and counting the tests that it reports.
fn run(
    command: &mut Command,
    kind: Kind,
    out: Option<File>,
    background: bool,
    outcome: &mut Outcome,
) {
    let (mut tests, mut failed) = (Count::default(), Vec::new());
    let mut tried_again: Vec<String> = Vec::new();
    let ended = child::run(command, out, background, &mut |line| {
        output::show(format_args!("{line}"));
        if kind == Kind::Tests {
            tests = [Some(tests), counted(line)].into_iter().flatten().sum();
            failed.extend(failed_test(line).map(str::to_owned));
            tried_again.extend(tried_again_test(line).map(str::to_owned));
        }
    });
    let ended = match ended {
        Ok(ended) => ended,
        Err(error) => {
            let program = command.get_program().display();
            outcome.note = Some(format!("cannot run {program}: {error}"));
            outcome.count = Count::FAIL;
            return;
        }
    };
    // Runners name a failed test where it fails and in their summary.
    for names in [&mut failed, &mut tried_again] {
        names.sort();
        names.dedup();
    }
    tried_again.retain(|test| !failed.contains(test));
    let (count, note) = judge(kind, ended.status.success(), tests);
    let names = (!failed.is_empty()).then(|| format!("failed: {}", failed.join(", ")));
    outcome.note = note.map(|note| note.replace("STATUS", &ended.status.to_string())).or(names);
    (outcome.count, outcome.processor) = (count, ended.processor);
    outcome.second_tries = tried_again;
}

/// Returns the checks of a command that reported `tests` and then succeeded or failed, and a note.
fn judge(kind: Kind, ended_well: bool, tests: Count) -> (Count, Option<&'static str>) {
    match (kind, ended_well) {
        (Kind::Plain, true) => (Count::PASS, None),
        (Kind::Plain, false) => (Count::FAIL, Some("ended with STATUS")),
        (_, true) if tests == Count::default() => {
            (Count::FAIL, Some("it ran no test: set `test = false` for a target without"))
        }
        (_, false) if tests.failed == 0 => (
            Count { failed: 1, ..tests },
            Some("ended with STATUS, though no test failed: did it compile, was it killed?"),
        ),
        _ => (tests, None),
    }
}

/// Reads the line with the counts of a runner:
///
/// ```text
///      Summary [   0.5s] 9 tests run: 6 passed (1 flaky), 2 failed, 1 timed out, 3 skipped
/// test result: FAILED. 3 passed; 1 failed; 0 ignored; …
/// ==== 1 failed, 3 passed, 2 skipped, 1 rerun in 0.52s ====
/// ```
///
/// An error outside of a test of pytest counts as a failure. An indented line of pytest belongs to
/// the message of a failure, whose test has run pytest itself.
fn counted(line: &str) -> Option<Count> {
    let counts = if let Some((_, counts)) = line.split_once("run: ")
        && line.trim_start().starts_with("Summary [")
    {
        counts
    } else if let Some(result) = line.strip_prefix("test result: ") {
        result.split_once(". ")?.1
    } else {
        let (counts, took) = line.trim_end().trim_matches('=').split_once(" in ")?;
        took.split_whitespace().next()?.strip_suffix('s')?.parse::<f64>().ok()?;
        let counts = if line.starts_with('=') { counts.trim_start() } else { counts };
        counts.starts_with(|first: char| first.is_ascii_digit()).then_some(counts)?
    };
    let mut count = Count::default();
    for part in counts.split([',', ';']) {
        let Some((number, words)) = part.trim().split_once(' ') else { continue };
        let Ok(number) = number.parse::<u64>() else { continue };
        match words.split(" (").next()? {
            "passed" | "xfailed" => count.passed += number,
            "failed" | "error" | "errors" | "xpassed" | "timed out" | "exec failed" => {
                count.failed += number;
            }
            _ => {}
        }
    }
    (count != Count::default()).then_some(count)
}

/// Returns the name of a test that has failed for good, from a line of a runner:
///
/// ```text
///   TRY 2 FAIL [   0.001s] ( 3/18) kvmem::it pool::full
/// test pool::full ... FAILED
/// FAILED tests/test_pool.py::test_full[2] - assert 1 == 2
/// ```
fn failed_test(line: &str) -> Option<&str> {
    let line = line.trim_end();
    let of_libtest = || line.strip_prefix("test ")?.strip_suffix(" ... FAILED");
    let of_pytest = || {
        let rest = line.strip_prefix("FAILED ").or_else(|| line.strip_prefix("ERROR "))?;
        rest.contains(".py").then(|| rest.split(" - ").next().unwrap_or(rest))
    };
    let is_last = |state: &str| {
        let goes_on = ["PASS", "LEAK", "SLOW", "TRMNTG", "TERMINATING", "SKIP"];
        !state.starts_with("TRY 1")
            && !state.starts_with("FLAKY")
            && !goes_on.iter().any(|word| state.ends_with(word))
    };
    of_libtest().or_else(of_pytest).or_else(|| of_nextest(line, is_last))
}

/// Returns the name of a test that has run once more.
fn tried_again_test(line: &str) -> Option<&str> {
    let line = line.trim_end();
    let of_pytest = || line.strip_prefix("RERUN ").filter(|rest| rest.contains(".py"));
    of_pytest().or_else(|| of_nextest(line, |state| state.starts_with("FLAKY")))
}

/// Returns the name of a test from a line of nextest whose state is one of those wanted.
fn of_nextest(line: &str, is_wanted: impl Fn(&str) -> bool) -> Option<&str> {
    let (state, rest) = line.trim_start().split_once(" [")?;
    // The number of the test and that of all.
    let test = rest.split_once("] (")?.1.split_once(") ")?.1;
    is_wanted(state).then_some(test)
}

/// Runs a command as a part of a step, and shows its output. Returns whether it succeeded.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    let ended = child::run(command, None, false, &mut |line| output::show(format_args!("{line}")));
    match ended {
        Ok(ended) => ended.status.success(),
        Err(error) => {
            say!("cannot run {}: {error}", command.get_program().display());
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counts_of_all_runners_are_read() {
        let count = |passed, failed| Some(Count { passed, failed });
        for (line, expected) in [
            (
                " Summary [ 0.5s] 9 tests run: 6 passed (1 flaky), 2 failed, 3 skipped\n",
                count(6, 2),
            ),
            (" Summary [ 0.5s] 2/9 tests run: 1 passed, 1 timed out, 3 skipped\n", count(1, 1)),
            ("test result: FAILED. 3 passed; 4 failed; 0 ignored; 0 measured\n", count(3, 4)),
            ("test result: ok. 12 passed; 0 failed; finished in 0.01s\n", count(12, 0)),
            ("75 passed, 2 skipped in 26.67s\n", count(75, 0)),
            (
                "= 1 failed, 3 passed, 1 warning, 2 errors, 1 rerun in 71.52s (0:01:11) =",
                count(3, 3),
            ),
            ("3 passed", None),
            ("tests/test_pool.py ..... [ 50%]", None),
            ("no tests ran in 0.01s", None),
            ("found 3 in 2s", None),
            ("  1 failed, 17 passed in 80.12s", None),
            ("test offset::heap::exact_fit ... ok", None),
        ] {
            assert_eq!(counted(line), expected, "{line}");
        }
    }

    #[test]
    fn failed_and_repeated_tests_are_named() {
        for (line, failed, again) in [
            ("        FAIL [   0.001s] (1/3) kvmem::it a::b", Some("kvmem::it a::b"), None),
            ("  TRY 1 FAIL [   0.001s] (───) kvmem::it a::b", None, None),
            ("  TRY 2 ABRT [   0.001s] (1/3) kvmem a::b", Some("kvmem a::b"), None),
            ("TRY 2 TRMNTG [>600.000s] (───) kvmem a::b", None, None),
            ("     Summary [   0.5s] 9 tests run: 6 passed (1 flaky), 3 skipped", None, None),
            ("   FLAKY 2/2 [   0.001s] (1/3) kvmem a::b", None, Some("kvmem a::b")),
            ("        PASS [   0.001s] (1/3) kvmem a::b", None, None),
            ("test pool::full ... FAILED", Some("pool::full"), None),
            ("test pool::full ... ok", None, None),
            ("FAILED t/test_a.py::test_b[2] - assert 1", Some("t/test_a.py::test_b[2]"), None),
            ("ERROR t/test_a.py - ModuleNotFoundError", Some("t/test_a.py"), None),
            ("RERUN t/test_a.py::test_b", None, Some("t/test_a.py::test_b")),
            ("FAILED (failures=1)", None, None),
        ] {
            assert_eq!((failed_test(line), tried_again_test(line)), (failed, again), "{line}");
        }
    }

    #[test]
    fn steps_are_counted_and_name_what_failed() {
        let mut report = Report::default();
        let shell = |text: &str| {
            let mut shell = Command::new("sh");
            shell.args(["-c", text]);
            shell
        };
        assert!(report.command("plain", Kind::Plain, &mut shell("true")));
        assert!(!report.command("plain", Kind::Plain, &mut shell("false")));
        assert!(report.check("check", || Ok(())));
        assert!(!report.check("check", || anyhow::bail!("broken")));
        let mut missing = Command::new("kvmem-no-such-program");
        assert!(!report.command("missing", Kind::Tests, &mut missing));
        assert_eq!(report.total(), Count { passed: 2, failed: 3 });

        let five = "echo 'test result: ok. 5 passed; 0 failed'";
        let two = "echo 'FAILED a.py::a - no'; echo 'RERUN a.py::a'; echo 'RERUN a.py::b';
                   echo '2 failed, 5 passed in 1s'; exit 1";
        for (text, count, note) in [
            (five.to_owned(), Count { passed: 5, failed: 0 }, None),
            // It breaks after tests that passed.
            (format!("{five}; exit 101"), Count { passed: 5, failed: 1 }, Some("ended with exit")),
            ("true".to_owned(), Count::FAIL, Some("it ran no test")),
            (two.to_owned(), Count { passed: 5, failed: 2 }, Some("failed: a.py::a")),
        ] {
            report.command("tests", Kind::Tests, &mut shell(&text));
            let last = report.outcomes.last().unwrap();
            assert_eq!(last.count, count, "{text}");
            assert!(note.is_none_or(|note| last.note.as_ref().unwrap().starts_with(note)));
        }
        // What failed twice is in no list of second tries.
        assert_eq!(report.outcomes.last().unwrap().second_tries, ["a.py::b"]);
    }

    #[test]
    fn causes_of_second_tries_are_named() {
        for line in SECOND_TRIES.lines().filter(|line| !line.starts_with('#')) {
            let test = line.split('\t').next().unwrap();
            assert_eq!(line.split('\t').count(), 4, "{line}");
            assert!(cause_of(&format!("kvmem::it {test}")).starts_with("known since 20"));
        }
        assert!(cause_of("kvmem::it another").starts_with("new: "));
    }
}
