//! *Count*: passed and failed checks, and how they are read from the output of test runners.
//!
//! libtest prints `test result: ok. 3 passed; 0 failed; …`, one line per test program and per batch
//! of doc tests; pytest prints `3 passed, 1 skipped in 0.5s`. Both name the tests that failed.

use std::fmt;

/// Passed and failed checks.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Count {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
}

impl Count {
    pub(super) const PASS: Count = Count { passed: 1, failed: 0 };
    pub(super) const FAIL: Count = Count { passed: 0, failed: 1 };

    pub(crate) fn add(&mut self, other: Count) {
        self.passed += other.passed;
        self.failed += other.failed;
    }
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed", self.passed, self.failed)
    }
}

/// Reads `test result: ok. 3 passed; 1 failed; 0 ignored; …`.
pub(super) fn parse_test_result(line: &str) -> Option<Count> {
    let rest = line.trim_start().strip_prefix("test result:")?;
    let number_before = |word: &str| -> Option<u64> {
        let head = rest.split(';').find_map(|part| part.trim_end().strip_suffix(word))?;
        head.split_whitespace().next_back()?.parse().ok()
    };
    Some(Count { passed: number_before("passed")?, failed: number_before("failed")? })
}

/// Reads `==== 1 failed, 3 passed, 2 skipped in 0.52s ====`, with the rule or without. An error
/// outside of a test counts as a failure. A line that is indented belongs to the message of a
/// failure, whose test has run pytest itself.
pub(super) fn parse_pytest_result(line: &str) -> Option<Count> {
    if line.starts_with(char::is_whitespace) {
        return None;
    }
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

/// Returns the name of a failed test: `test a::b ... FAILED`, or `FAILED tests/test_a.py::b - why`.
pub(crate) fn failed_test(line: &str) -> Option<&str> {
    let of_libtest = line.strip_prefix("test ").and_then(|rest| rest.strip_suffix(" ... FAILED"));
    let of_pytest = || {
        let rest = line.strip_prefix("FAILED ").or_else(|| line.strip_prefix("ERROR "))?;
        rest.contains(".py").then(|| rest.split(" - ").next().unwrap_or(rest))
    };
    of_libtest.or_else(of_pytest)
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
            "  1 failed, 17 passed in 80.12s",
        ] {
            assert_eq!(parse_pytest_result(other), None, "{other}");
        }
    }

    #[test]
    fn failed_tests_are_named() {
        assert_eq!(failed_test("test pool::full ... FAILED"), Some("pool::full"));
        assert_eq!(failed_test("test pool::full ... ok"), None);
        let line = "FAILED tests/test_pool.py::test_full[2] - assert 1 == 2";
        assert_eq!(failed_test(line), Some("tests/test_pool.py::test_full[2]"));
        let line = "ERROR tests/test_pool.py - ModuleNotFoundError";
        assert_eq!(failed_test(line), Some("tests/test_pool.py"));
        assert_eq!(failed_test("FAILED (failures=1)"), None);
    }
}
