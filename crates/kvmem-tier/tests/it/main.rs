//! Tests of the disk tier.

mod chain;
mod checkpoint;
mod damage;
mod device;
mod endurance;
mod failures;
mod files;
mod fixed;
mod hints;
mod histories;
mod inspection;
mod journal_damage;
mod loads_first;
mod lower_tier;
mod metrics;
mod ownership;
mod power_cut;
mod read_only;
mod scattered;
mod seccomp;
mod simulated;
mod store;
mod surroundings;
mod tier_set;
mod unchanged;
mod until;
