//! L2: keys.

mod background;
mod batch;
mod fake;
mod lifetimes;
mod plan;
mod policy;
mod rollback;
