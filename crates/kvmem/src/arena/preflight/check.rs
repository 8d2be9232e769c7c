//! *Check*: one limit with its value, the requirement, and the way to change it.

use std::borrow::Cow;
use std::fmt;

use serde::Serialize;

use crate::arena::HumanBytes;
use crate::arena::machine::{Read, Unread};

/// One limit, compared with the requirements.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Check {
    /// A stable name, such as `rlimit.memlock` or `hugepages.2M.node0`.
    pub name: Cow<'static, str>,
    /// The value of the limit; for limits that get used up, the remaining part.
    pub value: Value,
    /// The required part; `None` if nothing is required.
    pub need: Option<Value>,
    /// Whether the value suffices.
    pub verdict: Verdict,
    /// The reason for the verdict, in a sentence or two.
    pub why: String,
    /// Commands or settings that would change the verdict; semicolons separate alternatives.
    pub fix: Option<String>,
    /// Where the claims can be read: pages of manuals, and reports as `owner/name#N`.
    pub source: Option<Cow<'static, str>>,
}

/// Whether a limit allows the requirements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It allows them.
    Ok,
    /// It could not be read.
    Unknown,
    /// It allows them, but with smaller pages, later or slower.
    Warn,
    /// It does not allow them.
    Fail,
}

/// An amount or a setting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Value {
    /// Bytes.
    Bytes(u64),
    /// A number of pages, mappings or processors.
    Count(u64),
    /// A setting or a version.
    Text(String),
    /// There is no limit.
    Unlimited,
    /// It could not be read.
    Unknown,
}

impl Check {
    /// Makes a check without a requirement, with the verdict `ok`: for checks of other parts that
    /// [join](super::Report::add) a report.
    #[must_use]
    pub fn new(name: impl Into<Cow<'static, str>>, value: Value) -> Self {
        Check {
            name: name.into(),
            value,
            need: None,
            verdict: Verdict::Ok,
            why: String::new(),
            fix: None,
            source: None,
        }
    }

    /// Makes a check of a limit that could not be read.
    pub(super) fn unknown(
        name: impl Into<Cow<'static, str>>,
        need: Option<Value>,
        unread: &Unread,
    ) -> Self {
        let check = Check::new(name, Value::Unknown).judge(Verdict::Unknown, unread.why());
        Check { need, ..check }
    }

    /// Returns a check with its requirement, or one that says why it could not be made.
    pub(super) fn or_unknown(
        name: impl Into<Cow<'static, str>>,
        need: Option<Value>,
        check: Read<Check>,
    ) -> Self {
        match check {
            Ok(check) => Check { need: check.need.or(need), ..check },
            Err(unread) => Check::unknown(name, need, &unread),
        }
    }

    /// Sets the required part.
    #[must_use]
    pub fn need(self, need: Value) -> Self {
        Check { need: Some(need), ..self }
    }

    /// Sets the verdict and its reason.
    #[must_use]
    pub fn judge(self, verdict: Verdict, why: impl Into<String>) -> Self {
        Check { verdict, why: why.into(), ..self }
    }

    /// Sets what would change the verdict; semicolons separate alternatives.
    #[must_use]
    pub fn fix(self, fix: impl Into<String>) -> Self {
        Check { fix: Some(fix.into()), ..self }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Verdict::Ok => "ok",
            Verdict::Unknown => "unknown",
            Verdict::Warn => "warn",
            Verdict::Fail => "fail",
        })
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Bytes(bytes) => f.pad(&human_bytes(*bytes)),
            Value::Count(count) => f.pad(&count.to_string()),
            Value::Text(text) => f.pad(text),
            Value::Unlimited => f.pad("no limit"),
            Value::Unknown => f.pad("?"),
        }
    }
}

/// Formats bytes for people: `64 GiB`, `23.4 MiB`, `12 B`.
pub(super) fn human_bytes(bytes: u64) -> String {
    HumanBytes(bytes).to_string()
}

/// Formats bytes for a setting, rounded up to whole GiB or, below 1 GiB, to whole MiB: `64Gi`,
/// `64g`.
pub(super) fn setting_ceil(bytes: u64, gib: &str, mib: &str) -> String {
    if bytes >= 1 << 30 {
        format!("{}{gib}", bytes.div_ceil(1 << 30))
    } else {
        format!("{}{mib}", bytes.div_ceil(1 << 20).max(1))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn settings_are_never_too_small() {
        assert_eq!(setting_ceil(64 << 30, "Gi", "Mi"), "64Gi");
        assert_eq!(setting_ceil((64 << 30) + 1, "g", "m"), "65g");
        assert_eq!(setting_ceil(3, "g", "m"), "1m");
        assert_eq!(setting_ceil(u64::MAX, "g", "m"), "17179869184g");
    }
}
