#![doc = include_str!("../../../docs/preflight.md")]

mod check;
mod checks;
mod coverage;
mod facts;
mod fix_script;
mod machine;
mod report;
mod requirements;
#[cfg(all(test, not(any(loom, miri))))]
mod tests;

pub use super::machine::{FileSystemSpace, Rlimit, System};
pub use check::{Check, Value, Verdict};
pub use machine::Machine;
pub use report::{Report, VerdictCounts};
pub use requirements::{Requirements, RequirementsError};
