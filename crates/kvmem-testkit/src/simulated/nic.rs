//! *Nic*: a simulated registrar.

use std::ptr::NonNull;
use std::sync::Arc;

use super::nic_state::REGISTER;
use super::scheduler::Scheduler;
use super::world::{CallRequest, SimulatedCall};
use super::{CallCounts, Fault, NicLimits};
use kvmem::arena::Errno;
use kvmem::register::{Key, Limits, Registrar, RegistrarError};

/// A NIC of a [`SimulatedMachine`](super::SimulatedMachine). It records its keys and never touches
/// the bytes.
#[derive(Debug)]
pub struct SimulatedNic {
    pub(super) scheduler: Arc<Scheduler>,
    pub(super) name: String,
    pub(super) number: usize,
}

impl SimulatedNic {
    /// Changes its limits. Existing keys stay valid.
    pub fn set_limits(&self, limits: NicLimits) {
        self.scheduler.with_state(|state| state.world.nics[self.number].limits = limits);
    }

    /// Makes calls fail. Each of several faults counts calls separately; a call fails if any fault
    /// applies to it.
    pub fn inject(&self, fault: Fault) {
        self.scheduler.with_state(|state| state.world.nics[self.number].inject(fault));
    }

    /// Removes all faults.
    pub fn clear_faults(&self) {
        self.scheduler.with_state(|state| state.world.nics[self.number].clear_faults());
    }

    /// Returns the counts of this NIC.
    #[must_use]
    pub fn counts(&self) -> CallCounts {
        self.scheduler.with_state(|state| state.world.nics[self.number].counts())
    }

    /// Returns the number of valid keys.
    #[must_use]
    pub fn live_keys(&self) -> u64 {
        self.counts().live_keys
    }
}

impl Registrar for SimulatedNic {
    fn name(&self) -> &str {
        &self.name
    }

    fn limits(&self) -> Limits {
        self.scheduler.with_state(|state| state.world.limits(self.number, &self.name))
    }

    unsafe fn register(&self, at: NonNull<u8>, len: usize) -> Result<Key, RegistrarError> {
        let start = at.addr().get();
        let Some(end) = start.checked_add(len) else {
            let remedy = "pass a range that ends within the address space";
            return Err(RegistrarError::new(REGISTER, Errno::EFAULT, remedy));
        };
        let call = self.scheduler.call(SimulatedCall::new(CallRequest::Register {
            nic: self.number,
            range: start..end,
        }));
        call.cause.map_or(Ok(call.key), Err)
    }

    fn deregister(&self, key: Key) -> Result<(), RegistrarError> {
        let call = self
            .scheduler
            .call(SimulatedCall::new(CallRequest::Deregister { nic: self.number, key }));
        call.cause.map_or(Ok(()), Err)
    }
}
