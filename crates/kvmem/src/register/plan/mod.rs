//! *Plan*: what is registered, with which registrar, in which chunks and by how many threads.

mod costs;
mod layout;
#[allow(clippy::module_inception)]
mod plan;
mod policy;

pub(super) use layout::MemoryLayout;
pub(crate) use plan::admit;
pub(super) use plan::{CallStrategy, check_keys, check_memlock};

pub use plan::{CalibrationPlan, DevicePlan, Estimate, Plan, PlanOptions, plan};
pub use policy::{ParsePolicyError, Policy, PolicyError};
