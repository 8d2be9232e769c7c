//! Tests of registration (layer L2).

mod auto;
mod background;
mod batch;
mod contract;
mod cuda;
pub(crate) mod fake;
pub(crate) mod fixed;
mod io_uring;
mod lifetimes;
mod mlock;
mod nixl;
mod pipeline;
mod plan;
mod policy;
mod rollback;
mod verbs;
