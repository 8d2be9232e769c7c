//! *Provision*: makes the memory of a pool ready, at once or part by part.

mod listener;
mod provisioner;
mod provisioning;

pub(super) use listener::{is_listening, listening};
pub(super) use provisioner::{ProvisionOptions, Provisioner, add_populated, add_registered};
pub(super) use provisioning::{Placeholder, ProvisionFigures, Provisioning};
