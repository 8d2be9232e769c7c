//! *Report*: all checks, as data and as a table.

use std::borrow::Cow;
use std::fmt;

use serde::Serialize;

use super::check::{Check, Value, Verdict};
use super::checks::source;
use super::requirements::Requirements;

/// The result of [`Machine::preflight`](super::Machine::preflight).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// The requirements.
    pub requirements: Requirements,
    /// The worst verdict of all checks.
    pub verdict: Verdict,
    /// All checks, in the order of the documentation.
    pub checks: Vec<Check>,
}

/// The number of checks per verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct VerdictCounts {
    /// Checks with the verdict `ok`.
    pub ok: usize,
    /// Checks with the verdict `warn`.
    pub warn: usize,
    /// Checks with the verdict `fail`.
    pub fail: usize,
    /// Checks with the verdict `unknown`.
    pub unknown: usize,
}

impl Report {
    pub(super) fn new(requirements: Requirements, checks: Vec<Check>) -> Self {
        let verdict = checks.iter().map(|check| check.verdict).max().unwrap_or(Verdict::Unknown);
        Report { requirements, verdict, checks }
    }

    /// Adds checks of another part, such as a disk tier.
    pub fn add(&mut self, checks: impl IntoIterator<Item = Check>) {
        self.checks.extend(checks.into_iter().map(|check| {
            let source = check.source.clone().or_else(|| source(&check.name).map(Cow::Borrowed));
            Check { source, ..check }
        }));
        self.verdict = self.checks.iter().map(|check| check.verdict).max().unwrap_or(self.verdict);
    }

    /// Returns the check with this name.
    #[must_use]
    pub fn check(&self, name: &str) -> Option<&Check> {
        self.checks.iter().find(|check| check.name == name)
    }

    /// Returns the checks with this verdict.
    pub fn with(&self, verdict: Verdict) -> impl Iterator<Item = &Check> {
        self.checks.iter().filter(move |check| check.verdict == verdict)
    }

    /// Returns whether no check fails. Warnings and unknown limits may remain.
    #[must_use]
    pub fn passes(&self) -> bool {
        self.verdict != Verdict::Fail
    }

    /// Counts the checks per verdict.
    #[must_use]
    pub fn tally(&self) -> VerdictCounts {
        let count = |verdict| self.with(verdict).count();
        VerdictCounts {
            ok: count(Verdict::Ok),
            warn: count(Verdict::Warn),
            fail: count(Verdict::Fail),
            unknown: count(Verdict::Unknown),
        }
    }
}

impl fmt::Display for VerdictCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} ok, {} warn, {} fail, {} unknown",
            self.ok, self.warn, self.fail, self.unknown
        )
    }
}

/// A table with one line per check. A check that is not `ok` adds its reason, the ways to change
/// it, one per line, and the source of its claims.
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
            let Check { name, value, verdict, why, fix, source, .. } = check;
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
            if let Some(source) = source.as_ref().filter(|_| fix.is_some()) {
                writeln!(f, "{:indent$}see: {source}", "")?;
            }
        }
        writeln!(f, "\n{}", self.tally())
    }
}
