//! *Plan options*: what a plan is made for.

use super::policy::Policy;
use crate::arena::Populate;

/// The user's options for a plan, and the machine's cores.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanOptions {
    /// How registrars are called.
    pub policy: Policy,
    /// The number of threads that can run at once.
    pub cores: usize,
    /// How missing pages are populated; with [`Populate::None`] the first registrar, called alone,
    /// faults them in.
    pub populate: Populate,
    /// The largest chunk in bytes; `None`: the registrars' preferred length, and the whole region
    /// for registrars that [copy by address](crate::register::Limits::copies_by_address).
    pub chunk_bytes: Option<u64>,
    /// Whether each range is populated and registered before the next one, in order of addresses.
    pub by_range: bool,
}

impl PlanOptions {
    /// Returns options with this policy and number of cores, and defaults for the rest.
    #[must_use]
    pub fn new(policy: Policy, cores: usize) -> PlanOptions {
        PlanOptions { policy, cores, populate: Populate::Auto, chunk_bytes: None, by_range: false }
    }
}
