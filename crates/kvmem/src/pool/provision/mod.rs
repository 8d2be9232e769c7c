//! *Provision*: makes the memory of a pool ready, at once or part by part.

mod provisioner;
mod provisioning;

pub(super) use provisioner::{Provisioner, add_populated, add_registered, was_cancelled};
pub(super) use provisioning::{Placeholder, ProvisionFigures, Provisioning};
