//! *Namespace*: values whose keys are forgotten together, such as those of a tenant.

/// A namespace as the tier's file stores it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Namespace {
    /// The identity of its name: a keyed hash.
    pub id: [u8; 16],
    /// Random bytes, without which its keys cannot be derived.
    pub seed: [u8; 16],
}

impl Namespace {
    /// Makes a namespace with a new seed; `None` if the system has no random numbers.
    #[must_use]
    pub fn new(id: [u8; 16]) -> Option<Namespace> {
        Some(Namespace { id, seed: super::session::random()? })
    }
}
