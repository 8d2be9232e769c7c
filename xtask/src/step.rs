//! *Step*: a command or a function whose output is shown, whose tests are counted, and whose time
//! is kept.
//!
//! A step is either a *test step*, which counts what libtest or pytest report, or a *plain step*,
//! which counts as one check. A test step can fail in two further ways, and each counts as one
//! failure: the command fails without a failed test (it did not compile, or it was killed), or it
//! succeeds without having run a single test.
//!
//! A test that fails can run once more at the end: see [`retry`].
//!
//! A [`Report`] collects the steps of one thread. If the thread keeps its output, a step prints a
//! line when it begins and all its output when it ends.
//!
//! - [`count`] reads the results of test runners,
//! - [`retry`] runs tests that failed once more, alone,
//! - [`child`] runs a command and ends it with this process.

pub(crate) mod child;
mod count;
mod retry;

use std::fs::File;
use std::io;
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use crate::output;
use crate::say;
use count::Count;
use retry::{FailedTests, Retry};

/// Whether a command counts as one check or reports tests of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// One check: it passes when the command succeeds.
    Plain,
    /// Counts the tests that libtest reports.
    Tests,
    /// The same for a test program itself, whose failed tests run once more: see
    /// [`retry`].
    Program,
    /// Counts the tests that pytest reports, whose failed tests run once more. The last argument
    /// of the command is the folder of the tests.
    Pytest,
}

/// What a step gave.
#[derive(Default)]
struct StepResult {
    count: Count,
    note: Option<String>,
    /// The processor time of the commands that were run.
    processor: Duration,
    /// The failed tests that may run once more.
    retry: Option<Retry>,
    /// The tests that failed, and passed at the second try.
    second_tries: Vec<String>,
}

impl StepResult {
    fn failed(note: String) -> StepResult {
        StepResult { count: Count::FAIL, note: Some(note), ..StepResult::default() }
    }
}

/// The result of one step.
struct Outcome {
    group: &'static str,
    name: String,
    began: Instant,
    took: Duration,
    result: StepResult,
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
        self.step(name, || run(command, kind, out, background))
    }

    /// Runs `check` as the step `name`; it counts as one check. Returns whether it passed.
    pub(crate) fn check(&mut self, name: &str, check: impl FnOnce() -> anyhow::Result<()>) -> bool {
        self.step(name, || match check() {
            Ok(()) => StepResult { count: Count::PASS, ..StepResult::default() },
            Err(error) => StepResult::failed(format!("{error:#}")),
        })
    }

    fn step(&mut self, name: &str, body: impl FnOnce() -> StepResult) -> bool {
        // A line of its own where other steps print as well.
        println!("{}── {name}{}", before(), if output::is_kept() { " …" } else { "" });
        let began = Instant::now();
        let result = body();
        let took = began.elapsed();
        let text = output::take();
        let mut end = format!("── {name}: {} ({:.1} s)", result.count, took.as_secs_f64());
        if let Some(note) = &result.note {
            end += &format!("\n   {note}");
        }
        if text.is_empty() {
            println!("{end}");
        } else {
            println!("\n── {name}\n{}\n{end}\n", text.trim_end());
        }
        let passed = result.count.failed == 0;
        let (group, name) = (self.group, name.to_owned());
        self.outcomes.push(Outcome { group, name, began, took, result });
        passed
    }

    /// Adds the steps of another report.
    pub(crate) fn append(&mut self, other: Report) {
        self.outcomes.extend(other.outcomes);
    }

    /// Runs the tests that failed once more, alone. Those that pass count as passed.
    pub(crate) fn retry(&mut self) {
        let failed = |outcome: &Outcome| outcome.result.retry.as_ref().map_or(0, Retry::len);
        let failed: usize = self.outcomes.iter().map(failed).sum();
        if failed > retry::MAX_TESTS {
            println!("\n{failed} tests failed, so none runs again (limit: {})", retry::MAX_TESTS);
            return;
        }
        for outcome in &mut self.outcomes {
            let Some(mut retry) = outcome.result.retry.take() else { continue };
            println!("\n── {}, once more: {}", outcome.name, retry.names().join(", "));
            let kind = retry.kind();
            let ran = run_tests(retry.command(), kind, None, false);
            let result = &mut outcome.result;
            match ran {
                Ok(ran) => {
                    result.processor += ran.processor;
                    (result.count, result.second_tries) = retry.merge(ran.tests, ran.failed_tests);
                    if result.count.failed == 0 {
                        result.note = None;
                    }
                }
                Err(error) => result.note = Some(format!("cannot run again: {error}")),
            }
            println!("── {}, once more: {}", outcome.name, result.count);
        }
    }

    /// Returns the step and the name of each test that passed at the second try.
    pub(crate) fn second_tries(&self) -> Vec<String> {
        let of = |outcome: &Outcome| {
            let name = |test: &String| format!("{}: {test}", outcome.name);
            outcome.result.second_tries.iter().map(name).collect::<Vec<_>>()
        };
        self.outcomes.iter().flat_map(of).collect()
    }

    /// Returns the sum over all steps.
    pub(crate) fn total(&self) -> Count {
        total(&self.outcomes.iter().collect::<Vec<_>>())
    }

    /// Prints every step with its count and time, then the groups, and the total on a line of its
    /// own at the end.
    pub(crate) fn print(&self) {
        println!("\nSteps: seconds, seconds of processors, checks");
        let width = |names: &mut dyn Iterator<Item = usize>| names.max().unwrap_or(0);
        let longest = width(&mut self.outcomes.iter().map(|one| one.name.chars().count()));
        for Outcome { name, took, result, .. } in &self.outcomes {
            let mark = if result.count.failed == 0 { "ok  " } else { "FAIL" };
            let (took, processor) = (took.as_secs_f64(), result.processor.as_secs_f64());
            println!("  {mark} {name:longest$} {took:>7.1} {processor:>7.1}  {}", result.count);
            if let Some(note) = &result.note {
                println!("       {note}");
            }
        }
        let mut groups: Vec<&str> = Vec::new();
        for outcome in &self.outcomes {
            if !groups.contains(&outcome.group) {
                groups.push(outcome.group);
            }
        }
        if groups.len() > 1 {
            println!("\nGroups, side by side: from the first step to the end of the last");
            for group in groups {
                self.print_group(group);
            }
        }
        let processor: Duration = self.outcomes.iter().map(|one| one.result.processor).sum();
        println!(
            "  in {:.0} s, with {:.0} s of processors",
            self.began.elapsed().as_secs_f64(),
            processor.as_secs_f64()
        );
        let second_tries = self.second_tries();
        if !second_tries.is_empty() {
            println!("\nPassed at the second try, alone on the machine; the first output is above");
            second_tries.iter().for_each(|test| println!("  {test}\n    {}", cause_of(test)));
        }
        println!("\n{}", self.total());
    }

    fn print_group(&self, group: &str) {
        let steps: Vec<&Outcome> = self.outcomes.iter().filter(|one| one.group == group).collect();
        let began = steps.iter().map(|step| step.began).min();
        let ended = steps.iter().map(|step| step.began + step.took).max();
        let took = began.zip(ended).map_or(Duration::ZERO, |(began, ended)| ended - began);
        let processor: Duration = steps.iter().map(|step| step.result.processor).sum();
        let count = total(&steps);
        println!(
            "  {} {group:10} {:>7.1} {:>7.1}  {count}",
            if count.failed == 0 { "ok  " } else { "FAIL" },
            took.as_secs_f64(),
            processor.as_secs_f64()
        );
    }
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

/// A free line before a step whose output follows it.
fn before() -> &'static str {
    if output::is_kept() { "" } else { "\n" }
}

fn total(outcomes: &[&Outcome]) -> Count {
    let mut total = Count::default();
    for outcome in outcomes {
        total.add(outcome.result.count);
    }
    total
}

/// How a command ended, and what it reported.
struct Ran {
    status: ExitStatus,
    processor: Duration,
    tests: Count,
    /// The failed tests, for readers.
    failed: Vec<String>,
    /// The failed tests by the names under which they run again.
    failed_tests: FailedTests,
}

/// Runs a command, showing its lines and reading the tests that it reports.
fn run_tests(
    command: &mut Command,
    kind: Kind,
    out: Option<File>,
    background: bool,
) -> io::Result<Ran> {
    let (mut tests, mut failed) = (Count::default(), Vec::new());
    let mut failed_tests = FailedTests::default();
    let ended = child::run(command, out, background, &mut |line| {
        output::show(format_args!("{line}"));
        let count = match kind {
            Kind::Pytest => count::parse_pytest_result(line),
            Kind::Plain | Kind::Tests | Kind::Program => count::parse_test_result(line),
        };
        if let Some(count) = count {
            tests.add(count);
        }
        if kind != Kind::Plain {
            failed.extend(count::failed_test(line.trim_end()).map(str::to_owned));
        }
        failed_tests.read(kind, line);
    })?;
    Ok(Ran { status: ended.status, processor: ended.processor, tests, failed, failed_tests })
}

/// Runs a command, showing its lines and counting the tests that it reports.
fn run(command: &mut Command, kind: Kind, out: Option<File>, background: bool) -> StepResult {
    let ran = match run_tests(command, kind, out, background) {
        Ok(ran) => ran,
        Err(error) => {
            let program = command.get_program().display();
            return StepResult::failed(format!("cannot run {program}: {error}"));
        }
    };
    let (count, note) = judge(kind, ran.status.success(), ran.tests);
    let note = note.map(|note| note.replace("STATUS", &ran.status.to_string()));
    let names = (!ran.failed.is_empty()).then(|| format!("failed: {}", ran.failed.join(", ")));
    let retry = Retry::new(kind, command, ran.tests, ran.failed_tests);
    let (note, processor) = (note.or(names), ran.processor);
    StepResult { count, note, processor, retry, second_tries: Vec::new() }
}

/// Returns the checks of a command that reported `tests` and then succeeded or failed, and a note.
fn judge(kind: Kind, ended_well: bool, tests: Count) -> (Count, Option<String>) {
    match (kind, ended_well) {
        (Kind::Plain, true) => (Count::PASS, None),
        (Kind::Plain, false) => (Count::FAIL, Some("ended with STATUS".into())),
        (_, true) if tests == Count::default() => {
            (Count::FAIL, Some("it ran no test: set `test = false` for a target without".into()))
        }
        (_, true) => (tests, None),
        (_, false) if tests.failed > 0 => (tests, None),
        (_, false) => (
            Count { failed: 1, ..tests },
            Some("ended with STATUS, though no test failed: did it compile, was it killed?".into()),
        ),
    }
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
        assert!(report.command("true", Kind::Plain, &mut Command::new("true")));
        assert!(!report.command("false", Kind::Plain, &mut Command::new("false")));
        report.command("missing", Kind::Plain, &mut Command::new("kvmem-no-such-program"));
        let mut echo = Command::new("echo");
        echo.arg("test result: ok. 7 passed; 0 failed; 0 ignored");
        report.command("tests", Kind::Tests, &mut echo);
        assert!(report.check("check", || Ok(())));
        assert!(!report.check("broken check", || anyhow::bail!("broken")));
        assert_eq!(report.total(), Count { passed: 9, failed: 3 });
    }

    #[test]
    fn a_failed_test_is_named_in_the_note() {
        let mut report = Report::default();
        let mut shell = Command::new("sh");
        let text = "echo 'test a::b ... FAILED'; echo 'test result: FAILED. 1 passed; 1 failed;'";
        report.command("tests", Kind::Tests, shell.args(["-c", &format!("{text}; exit 101")]));
        assert_eq!(report.total(), Count { passed: 1, failed: 1 });
        assert_eq!(report.outcomes[0].result.note.as_deref(), Some("failed: a::b"));
    }

    #[test]
    fn causes_of_second_tries_are_named() {
        for line in SECOND_TRIES.lines().filter(|line| !line.starts_with('#')) {
            let test = line.split('\t').next().unwrap();
            assert_eq!(line.split('\t').count(), 4, "{line}");
            assert!(cause_of(&format!("test: kvmem it: {test}")).starts_with("known since 20"));
        }
        assert!(cause_of("test: kvmem it: another").starts_with("new: "));
    }

    #[test]
    fn reports_are_joined() {
        let (mut one, mut other) = (Report::default(), Report::default());
        one.check("one", || Ok(()));
        other.check("other", || Ok(()));
        one.append(other);
        assert_eq!(one.total(), Count { passed: 2, failed: 0 });
        let names: Vec<&str> = one.outcomes.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(names, ["one", "other"]);
    }
}
