//! *Builder*: the properties of a simulated machine.

use std::sync::Arc;

use super::memory::SimulatedMemory;
use super::nic_state::NicState;
use super::scheduler::Scheduler;
use super::world::World;
use super::{Costs, NicLimits, SimulatedMachine, SimulatedNic};

/// The largest number of NICs of a machine.
const MAX_NICS: usize = 4096;

/// The properties of a simulated machine. See [`SimulatedMachine::builder`].
#[derive(Clone, Debug)]
#[must_use = "there is no machine before `build`"]
pub struct MachineBuilder {
    costs: Costs,
    cores: usize,
    nics: usize,
    resident: bool,
    memory_bytes: u64,
    limits: NicLimits,
}

impl SimulatedMachine {
    /// Returns a builder for a machine.
    pub fn builder() -> MachineBuilder {
        MachineBuilder::new()
    }
}

impl MachineBuilder {
    fn new() -> MachineBuilder {
        MachineBuilder {
            costs: Costs::default(),
            cores: 64,
            nics: 8,
            resident: false,
            memory_bytes: u64::MAX,
            limits: NicLimits::default(),
        }
    }

    /// Sets the costs of calls. The default is a machine of round numbers.
    pub fn costs(self, costs: Costs) -> MachineBuilder {
        MachineBuilder { costs, ..self }
    }

    /// Sets the number of threads that can run at once; default 64, at least 1. It limits the gain
    /// of populating with many threads. Registering is limited only by callers that ask the machine
    /// for its cores.
    pub fn cores(self, cores: usize) -> MachineBuilder {
        MachineBuilder { cores: cores.max(1), ..self }
    }

    /// Sets the number of NICs; default 8, at most 4096.
    pub fn nics(self, nics: usize) -> MachineBuilder {
        MachineBuilder { nics: nics.min(MAX_NICS), ..self }
    }

    /// Sets whether memory is resident at first. By default it is not, and becomes resident when it
    /// is populated or registered.
    pub fn resident(self, resident: bool) -> MachineBuilder {
        MachineBuilder { resident, ..self }
    }

    /// Sets the number of bytes that can be made resident; unlimited by default.
    pub fn memory_bytes(self, bytes: u64) -> MachineBuilder {
        MachineBuilder { memory_bytes: bytes, ..self }
    }

    /// Sets the limits of each NIC; none by default. See also [`SimulatedNic::set_limits`].
    pub fn limits(self, limits: NicLimits) -> MachineBuilder {
        MachineBuilder { limits, ..self }
    }

    /// Builds the machine.
    pub fn build(&self) -> SimulatedMachine {
        let nics = || NicState::new(self.limits);
        let world = World::new(
            self.costs,
            SimulatedMemory::new(self.resident, self.memory_bytes),
            std::iter::repeat_with(nics).take(self.nics).collect(),
        );
        let scheduler = Arc::new(Scheduler::new(world));
        let nic = |number| {
            Arc::new(SimulatedNic {
                scheduler: Arc::clone(&scheduler),
                name: format!("simulated:{number}"),
                number,
            })
        };
        let nics = (0..self.nics).map(nic).collect();
        SimulatedMachine { scheduler, nics, cores: self.cores }
    }
}
