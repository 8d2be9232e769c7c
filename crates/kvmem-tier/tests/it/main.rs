//! Tests of the disk tier.

mod damage;
mod files;
mod histories;
mod lower_tier;
mod simulated;
mod store;
