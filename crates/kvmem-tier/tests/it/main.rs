//! Tests of the disk tier.

mod damage;
mod files;
mod histories;
mod simulated;
mod store;
