#![doc = include_str!("../../../docs/preflight.md")]

mod cgroup;
mod check;
mod checks;
mod coverage;
mod facts;
mod machine;
mod parse;
mod report;
mod requirements;
mod system;

pub use check::{Check, Value, Verdict};
pub use machine::Machine;
pub use report::{Report, VerdictCounts};
pub use requirements::{Requirements, RequirementsError};
pub use system::{FileSystemSpace, Rlimit, System};
