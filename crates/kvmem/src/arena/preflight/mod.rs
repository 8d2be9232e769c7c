#![doc = include_str!("../../../docs/preflight.md")]

mod cgroup;
mod check;
mod checks;
mod cover;
mod facts;
mod machine;
mod parse;
mod report;
mod system;
mod wish;

pub use check::{Check, Value, Verdict};
pub use machine::Machine;
pub use report::{Report, Tally};
pub use system::{Limit, Space, System};
pub use wish::{Requirements, RequirementsError};
