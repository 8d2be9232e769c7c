//! *Report*: all checks of a wish, as data and as a table.

use std::fmt;

use serde::Serialize;

use super::check::{Check, Value, Verdict};
use super::wish::Requirements;

/// What [`Machine::preflight`](super::Machine::preflight) found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// What was wanted.
    pub requirements: Requirements,
    /// The worst verdict of all.
    pub verdict: Verdict,
    /// Every check, in the order of the documentation.
    pub checks: Vec<Check>,
}

/// How often each verdict was given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Tally {
    /// Checks that are fine.
    pub ok: usize,
    /// Checks that will cost something.
    pub warn: usize,
    /// Checks that stand in the way.
    pub fail: usize,
    /// Checks that could not be made.
    pub unknown: usize,
}

impl Report {
    pub(super) fn new(requirements: Requirements, checks: Vec<Check>) -> Self {
        let verdict = checks.iter().map(|check| check.verdict).max().unwrap_or(Verdict::Unknown);
        Report { requirements, verdict, checks }
    }

    /// The check of that name.
    pub fn check(&self, name: &str) -> Option<&Check> {
        self.checks.iter().find(|check| check.name == name)
    }

    /// The checks with that verdict.
    pub fn with(&self, verdict: Verdict) -> impl Iterator<Item = &Check> {
        self.checks.iter().filter(move |check| check.verdict == verdict)
    }

    /// Whether nothing is known to stand in the way. Warnings and unknowns may remain.
    pub fn passes(&self) -> bool {
        self.verdict != Verdict::Fail
    }

    /// How often each verdict was given.
    pub fn tally(&self) -> Tally {
        let count = |verdict| self.with(verdict).count();
        Tally {
            ok: count(Verdict::Ok),
            warn: count(Verdict::Warn),
            fail: count(Verdict::Fail),
            unknown: count(Verdict::Unknown),
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} ok, {} warn, {} fail, {} unknown",
            self.ok, self.warn, self.fail, self.unknown
        )
    }
}

/// A table: a line for each check; under those that are not fine the reason, and what would change
/// it, one way a line.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let need =
            |check: &Check| check.need.as_ref().map_or_else(|| "-".to_owned(), Value::to_string);
        let widest = |text: &dyn Fn(&Check) -> String, title: &str| {
            let widths = self.checks.iter().map(|check| text(check).chars().count());
            widths.chain([title.len()]).max().unwrap_or_default()
        };
        let name_width = widest(&|check| check.name.to_string(), "check");
        let value_width = widest(&|check| check.value.to_string(), "value");
        let need_width = widest(&need, "need");
        let indent = "verdict".len() + 2;
        writeln!(f, "{}\n", self.requirements)?;
        writeln!(f, "{:<7}  {:<name_width$}  {:>value_width$}  need", "verdict", "check", "value")?;
        for check in &self.checks {
            let Check { name, value, verdict, why, fix, .. } = check;
            let need = need(check);
            write!(f, "{verdict:<7}  {name:<name_width$}  {value:>value_width$}  ")?;
            if *verdict == Verdict::Ok {
                writeln!(f, "{need:<need_width$}  {why}")?;
                continue;
            }
            writeln!(f, "{need}\n{:indent$}{why}", "")?;
            for (at, way) in fix.iter().flat_map(|fix| fix.split("; ")).enumerate() {
                writeln!(f, "{:indent$}{:>3}: {way}", "", if at == 0 { "fix" } else { "or" })?;
            }
        }
        writeln!(f, "\n{}", self.tally())
    }
}
