//! Limits of simulated machines, and of this one.

mod any_files;
mod cgroups;
mod devices;
mod fix_script;
mod here;
mod pages;
mod process;
mod traps;
mod tree;

use kvmem::arena::Ladder;
use kvmem::arena::preflight::{Check, Report, Requirements, Value, Verdict};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

fn requirements(size_bytes: u64, ladder: &str) -> Requirements {
    Requirements::new(size_bytes, ladder.parse::<Ladder>().expect("a ladder"))
        .expect("valid requirements")
}

/// Compares the value and the verdict of a check, and returns the check.
#[track_caller]
fn expect<'a>(report: &'a Report, name: &str, value: Value, verdict: Verdict) -> &'a Check {
    let check = report.check(name).unwrap_or_else(|| panic!("no check {name} in\n{report}"));
    assert_eq!((&check.value, check.verdict), (&value, verdict), "{check:?}");
    assert!(!check.why.is_empty(), "{check:?}");
    if matches!(verdict, Verdict::Warn | Verdict::Fail) {
        assert!(check.fix.as_ref().is_some_and(|fix| !fix.is_empty()), "{check:?}");
    }
    check
}

/// Asserts that the fix has these alternatives.
#[track_caller]
fn assert_fixes(check: &Check, ways: &[&str]) {
    let fix = check.fix.as_deref().unwrap_or_default();
    for way in ways {
        assert!(fix.split("; ").any(|fix| fix == *way), "{way:?} is not in {fix:?}");
    }
}
