//! *Nic*: a simulated registrar.

use std::ptr::NonNull;
use std::sync::Arc;

use super::books::REGISTER;
use super::stage::Stage;
use super::world::{Call, Request};
use super::{Counts, Fault, NicLimits};
use crate::arena::Errno;
use crate::register::{Key, Limits, Registrar, RegistrarError};

/// A NIC of a [`Machine`](super::Machine). It keeps books of its keys, and never touches the bytes.
#[derive(Debug)]
pub struct Nic {
    pub(super) stage: Arc<Stage>,
    pub(super) name: String,
    pub(super) number: usize,
}

impl Nic {
    /// Its number, from 0.
    #[must_use]
    pub fn number(&self) -> usize {
        self.number
    }

    /// Changes what it can take. Keys that stand stay.
    pub fn set_limits(&self, limits: NicLimits) {
        self.stage.look(|state| state.world.nics[self.number].limits = limits);
    }

    /// Lets calls fail. Several faults count each for itself; a call fails if one of them says so.
    pub fn inject(&self, fault: Fault) {
        self.stage.look(|state| state.world.nics[self.number].inject(fault));
    }

    /// Nothing fails any more.
    pub fn clear_faults(&self) {
        self.stage.look(|state| state.world.nics[self.number].clear_faults());
    }

    /// What has been called. [`most_in_flight`](Counts::most_in_flight) above 1 is a breach of the
    /// rules of [`Registrar`].
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.stage.look(|state| state.world.nics[self.number].counts())
    }

    /// Keys that stand.
    #[must_use]
    pub fn live_keys(&self) -> u64 {
        self.counts().live_keys
    }
}

impl Registrar for Nic {
    fn name(&self) -> &str {
        &self.name
    }

    fn limits(&self) -> Limits {
        self.stage.look(|state| state.world.limits(self.number, &self.name))
    }

    unsafe fn register(&self, at: NonNull<u8>, len: usize) -> Result<Key, RegistrarError> {
        let start = at.addr().get();
        let Some(end) = start.checked_add(len) else {
            return Err(RegistrarError::new(
                REGISTER,
                Errno::EFAULT,
                "name bytes that have addresses",
            ));
        };
        let call =
            self.stage.call(Call::new(Request::Register { nic: self.number, range: start..end }));
        call.refusal.map_or(Ok(call.key), Err)
    }

    fn deregister(&self, key: Key) -> Result<(), RegistrarError> {
        let call = self.stage.call(Call::new(Request::Deregister { nic: self.number, key }));
        call.refusal.map_or(Ok(()), Err)
    }
}
