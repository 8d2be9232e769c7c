//! *Retry*: a test that failed runs once more, alone, after all groups have ended.
//!
//! Some tests start other people's engines, send packets and wait with deadlines. Three tasks share
//! two processors, so such a test can miss its deadline without a fault of the code. It runs again
//! when the machine is quiet: in a process of its own, one test at a time. A test that passes then
//! counts as passed, and the summary names it in a list of its own. A test that fails twice fails
//! the run.
//!
//! **What a retry must not hide.** A race in the code also fails once and then passes. The output
//! of the first try therefore stays in the log, the summary names the test, and these rules apply:
//!
//! - Only single tests run again: those of libtest programs and of pytest. A program that crashed,
//!   was killed, did not compile or ran no test names no failed test, and stays failed. So do plain
//!   steps: builds, lints, formats, the rules of prose, attacks, fuzz targets.
//! - Model checks and doc tests do not run again. A model check that fails has found a wrong order
//!   of steps, and the next random orders may miss it. Random tests run again because their seeds
//!   are fixed, and because Hypothesis replays the input that failed.
//! - The second run is a new process of the same command, in the same environment. A broken
//!   environment, a leaked file or a limit that a test left changed makes the second run fail too.
//!   A test that needs a clean machine tests that itself: see the programs named `alone`.
//! - If more than [`MAX_TESTS`] tests failed, none runs again: then something is broken.
//! - The names that a step prints must account for all of its failures, and the second run must
//!   report as many tests as were named. A skipped test stays failed, as does a name that
//!   matches none.

use std::process::Command;

use super::Kind;
use super::count::{self, Count};

/// How many tests of a run may fail at the first try and run again.
pub(crate) const MAX_TESTS: usize = 8;

/// Reads the names of failed tests from the output of a test runner, line by line.
#[derive(Default)]
pub(crate) struct FailedTests {
    names: Vec<String>,
    /// Whether the line before was part of a list of libtest.
    is_in_list: bool,
}

impl FailedTests {
    /// Reads a line of a runner of this kind.
    pub(crate) fn read(&mut self, kind: Kind, line: &str) {
        let line = line.trim_end();
        match kind {
            Kind::Pytest => self.names.extend(count::failed_test(line).map(str::to_owned)),
            // The last list counts: libtest prints the output of the failed tests first, under the
            // same heading, and a test can print anything.
            Kind::Program if line == "failures:" => {
                self.names.clear();
                self.is_in_list = true;
            }
            Kind::Program => match line.strip_prefix("    ") {
                Some(name) if self.is_in_list => self.names.push(name.to_owned()),
                _ => self.is_in_list = false,
            },
            Kind::Plain | Kind::Tests => {}
        }
    }
}

/// The failed tests of a step, and the command that runs them again.
pub(crate) struct Retry {
    kind: Kind,
    command: Command,
    /// Each name once, in the order of the first failure.
    names: Vec<String>,
    first: Count,
}

impl Retry {
    /// Returns how to run the failed tests of a command again; `None` if they must not run again.
    pub(crate) fn new(
        kind: Kind,
        command: &Command,
        first: Count,
        failed: FailedTests,
    ) -> Option<Retry> {
        if failed.names.is_empty() || failed.names.len() as u64 != first.failed {
            return None;
        }
        let names = distinct(failed.names);
        let command = match kind {
            Kind::Program => {
                let mut command = copy(command, |_| true);
                // One thread: the tests run one after the other.
                command.args(["--test-threads=1", "--exact"]).args(&names);
                command
            }
            Kind::Pytest => {
                // The names replace the folder of the tests, which is the last argument.
                let folder = command.get_args().count().checked_sub(1)?;
                let mut command = copy(command, |at| at != folder);
                if command.get_args().any(|argument| argument == "--numprocesses") {
                    // The last one counts: one after the other.
                    command.args(["--numprocesses", "0"]);
                }
                command.args(&names);
                command
            }
            Kind::Plain | Kind::Tests => return None,
        };
        Some(Retry { kind, command, names, first })
    }

    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    /// Returns the command that runs the failed tests alone.
    pub(crate) fn command(&mut self) -> &mut Command {
        &mut self.command
    }

    /// Returns how many tests failed at the first try.
    pub(crate) fn len(&self) -> usize {
        self.names.len()
    }

    /// Returns the names of the tests that failed at the first try.
    pub(crate) fn names(&self) -> &[String] {
        &self.names
    }

    /// Returns the count of the step after a second run that reported `second` and named `failed`,
    /// and the names of the tests that passed.
    pub(crate) fn merge(self, second: Count, failed: FailedTests) -> (Count, Vec<String>) {
        let again = distinct(failed.names);
        let is_accounted = second.passed + again.len() as u64 == self.names.len() as u64
            && (second.failed > 0) != again.is_empty();
        if !is_accounted || !again.iter().all(|name| self.names.contains(name)) {
            return (self.first, Vec::new());
        }
        let is_passed = |name: &String| !again.contains(name);
        let passed: Vec<String> = self.names.into_iter().filter(is_passed).collect();
        let all = self.first.passed + passed.len() as u64;
        (Count { passed: all, failed: again.len() as u64 }, passed)
    }
}

/// Removes names that occur before: pytest names a test twice if its teardown fails too.
fn distinct(names: Vec<String>) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for name in names {
        if !all.contains(&name) {
            all.push(name);
        }
    }
    all
}

/// Returns a command with the same program, folder and variables, and with those of the arguments
/// whose position is kept.
fn copy(command: &Command, is_kept: impl Fn(usize) -> bool) -> Command {
    let mut copy = Command::new(command.get_program());
    copy.args(command.get_args().enumerate().filter(|(at, _)| is_kept(*at)).map(|(_, it)| it));
    if let Some(folder) = command.get_current_dir() {
        copy.current_dir(folder);
    }
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => copy.env(name, value),
            None => copy.env_remove(name),
        };
    }
    copy
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tempfile::TempPath;

    use super::*;
    use crate::step::Report;

    const LIBTEST: &str = "running 3 tests
test a::one ... ok
test a::two - should panic ... FAILED
test b ... FAILED

failures:

---- a::two stdout ----
note: test did not panic as expected
---- b stdout ----
failures:
    of_an_inner_program

thread 'b' panicked at src/lib.rs:1:1
failures:
    a::two
    b

test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out
";

    fn read(kind: Kind, text: &str) -> FailedTests {
        let mut failed = FailedTests::default();
        text.lines().for_each(|line| failed.read(kind, line));
        failed
    }

    fn arguments(command: &Command) -> Vec<&str> {
        command.get_args().filter_map(|argument| argument.to_str()).collect()
    }

    #[test]
    fn the_last_list_of_libtest_has_the_names() {
        assert_eq!(read(Kind::Program, LIBTEST).names, ["a::two", "b"]);
        assert_eq!(read(Kind::Tests, LIBTEST).names, [""; 0]);
        let passed = "test a ... ok\n\ntest result: ok. 1 passed; 0 failed; 0 ignored\n";
        assert_eq!(read(Kind::Program, passed).names, [""; 0]);
    }

    #[test]
    fn pytest_names_failures_and_errors() {
        let text = "FAILED t/test_a.py::test_b[2] - assert 1\nERROR t/test_a.py::test_b[2] - gone\n\
                    SKIPPED [1] t/test_a.py:3: no\n1 failed, 1 error in 0.1s";
        let failed = read(Kind::Pytest, text);
        assert_eq!(failed.names, ["t/test_a.py::test_b[2]"; 2]);
        let command = Command::new("python");
        // Without arguments there is no folder that the names could replace.
        let first = Count { passed: 0, failed: 2 };
        assert!(Retry::new(Kind::Pytest, &command, first, failed).is_none());
    }

    #[test]
    fn the_second_command_runs_the_failed_tests_alone() {
        let mut command = Command::new("program");
        command.current_dir("/").env("A", "1").env_remove("B").arg("--quiet");
        let first = Count { passed: 1, failed: 2 };
        let mut retry =
            Retry::new(Kind::Program, &command, first, read(Kind::Program, LIBTEST)).unwrap();
        assert_eq!(retry.names(), ["a::two", "b"]);
        let second = retry.command();
        assert_eq!(arguments(second), ["--quiet", "--test-threads=1", "--exact", "a::two", "b"]);
        assert_eq!(second.get_current_dir(), command.get_current_dir());
        assert!(second.get_envs().eq(command.get_envs()));

        let mut pytest = Command::new("python");
        pytest.args(["-m", "pytest", "tests"]);
        let failed = read(Kind::Pytest, "FAILED t/test_a.py::test_b - no\n");
        let first = Count { passed: 0, failed: 1 };
        let mut retry = Retry::new(Kind::Pytest, &pytest, first, failed).unwrap();
        assert_eq!(arguments(retry.command()), ["-m", "pytest", "t/test_a.py::test_b"]);
    }

    #[test]
    fn what_names_not_all_failures_is_not_run_again() {
        let command = Command::new("program");
        for failed in [1, 3] {
            let first = Count { passed: 1, failed };
            let names = read(Kind::Program, LIBTEST);
            assert!(Retry::new(Kind::Program, &command, first, names).is_none(), "{failed}");
        }
        let none = FailedTests::default();
        assert!(Retry::new(Kind::Program, &command, Count::default(), none).is_none());
    }

    #[test]
    fn a_second_run_must_report_every_test() {
        let first = Count { passed: 1, failed: 2 };
        let merge = |passed, failed, names: &[&str]| {
            let retry = Retry::new(
                Kind::Program,
                &Command::new("program"),
                first,
                read(Kind::Program, LIBTEST),
            );
            let names = names.iter().map(|name| (*name).to_owned()).collect();
            let again = FailedTests { names, is_in_list: false };
            retry.unwrap().merge(Count { passed, failed }, again)
        };
        let named = |names: &[&str]| names.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>();
        assert_eq!(merge(2, 0, &[]), (Count { passed: 3, failed: 0 }, named(&["a::two", "b"])));
        assert_eq!(merge(1, 1, &["b"]), (Count { passed: 2, failed: 1 }, named(&["a::two"])));
        // One was skipped; a crash named nothing; another test failed; the command failed.
        for other in [merge(1, 0, &[]), merge(0, 0, &[]), merge(1, 1, &["c"]), merge(2, 1, &[])] {
            assert_eq!(other, (first, named(&[])));
        }
    }

    /// A test program: its test `always` fails, and `once` fails until the file is there.
    fn program(always: bool) -> (TempPath, Command) {
        let unmade = tempfile::Builder::new().make(|_| Ok(()));
        let file = unmade.unwrap().into_temp_path();
        let text = r#"
            failed=""
            [ -e "$1" ] || failed="once"
            : > "$1"
            [ "$2" = true ] && failed="$failed always"
            set -- $failed
            if [ $# = 0 ]; then echo "test result: ok. 1 passed; 0 failed;"; exit 0; fi
            echo failures:
            for name in "$@"; do echo "    $name"; done
            echo
            echo "test result: FAILED. 0 passed; $# failed;"
            exit 101"#;
        let mut command = Command::new("sh");
        command.args(["-c", text, "sh"]).arg(&file).arg(always.to_string());
        (file, command)
    }

    #[test]
    fn a_test_that_fails_once_passes_and_is_named() {
        let (_file, mut command) = program(false);
        let mut report = Report::default();
        assert!(!report.command("tests", Kind::Program, &mut command));
        assert_eq!(report.total(), Count { passed: 0, failed: 1 });
        report.retry();
        assert_eq!(report.total(), Count { passed: 1, failed: 0 });
        assert_eq!(report.second_tries(), ["tests: once"]);
        // It is not run a third time.
        report.retry();
        assert_eq!(report.second_tries(), ["tests: once"]);
    }

    #[test]
    fn a_test_that_fails_twice_fails_the_run() {
        let (_file, mut command) = program(true);
        let mut report = Report::default();
        report.command("tests", Kind::Program, &mut command);
        report.check("a check", || anyhow::bail!("not a test"));
        assert_eq!(report.total(), Count { passed: 0, failed: 3 });
        report.retry();
        // The second run reports one of two tests, as one that is skipped would.
        assert_eq!(report.total(), Count { passed: 0, failed: 3 });
        assert_eq!(report.second_tries(), [""; 0]);

        let (file, mut command) = program(true);
        fs::write(&file, "").unwrap();
        let mut report = Report::default();
        report.command("tests", Kind::Program, &mut command);
        report.retry();
        assert_eq!(report.total(), Count { passed: 0, failed: 1 });
        assert_eq!(report.second_tries(), [""; 0]);
    }

    #[test]
    fn after_many_failures_nothing_runs_again() {
        let mut report = Report::default();
        let _files: Vec<TempPath> = (0..=MAX_TESTS)
            .map(|_| {
                let (file, mut command) = program(false);
                report.command("tests", Kind::Program, &mut command);
                file
            })
            .collect();
        report.retry();
        assert_eq!(report.total().failed, MAX_TESTS as u64 + 1);
        assert_eq!(report.second_tries(), [""; 0]);
    }
}
