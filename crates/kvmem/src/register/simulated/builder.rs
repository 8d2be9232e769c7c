//! *Builder*: what a simulated machine is to be like.

use std::sync::Arc;
use std::time::Duration;

use super::books::Books;
use super::memory::Memory;
use super::stage::Stage;
use super::world::World;
use super::{CostError, Costs, Machine, Nic, NicLimits};

/// The most NICs of a machine.
const MOST_NICS: usize = 4096;

/// A simulated machine to be. See [`Machine::builder`].
#[derive(Clone, Debug)]
#[must_use = "there is no machine before `build`"]
pub struct Builder {
    pub(super) costs: Costs,
    pub(super) cores: usize,
    pub(super) nics: usize,
    pub(super) resident: bool,
    pub(super) memory_bytes: u64,
    pub(super) limits: NicLimits,
    pub(super) patience: Duration,
}

impl Builder {
    pub(super) fn new() -> Builder {
        Builder {
            costs: Costs::default(),
            cores: 64,
            nics: 8,
            resident: false,
            memory_bytes: u64::MAX,
            limits: NicLimits::default(),
            patience: Duration::from_secs(30),
        }
    }

    /// What things cost. The default is a machine of round numbers.
    pub fn costs(self, costs: Costs) -> Builder {
        Builder { costs, ..self }
    }

    /// How many threads can run at once: 64, and at least 1. It bounds what populating gains;
    /// registering is bounded by whoever asks the machine how many it has.
    pub fn cores(self, cores: usize) -> Builder {
        Builder { cores: cores.max(1), ..self }
    }

    /// How many NICs it has: 8, at most 4096.
    pub fn nics(self, nics: usize) -> Builder {
        Builder { nics: nics.min(MOST_NICS), ..self }
    }

    /// Whether memory is resident at first. If not, which is the default, it becomes so when it is
    /// populated or registered.
    pub fn resident(self, resident: bool) -> Builder {
        Builder { resident, ..self }
    }

    /// How many more bytes can be made resident: without end.
    pub fn memory_bytes(self, bytes: u64) -> Builder {
        Builder { memory_bytes: bytes, ..self }
    }

    /// What each NIC can take: anything. See also [`Nic::set_limits`].
    pub fn limits(self, limits: NicLimits) -> Builder {
        Builder { limits, ..self }
    }

    /// How long, in real time, the threads of a gathering wait for one that does not come: 30 s.
    /// With a panic or a deadlock this is when the others go on.
    pub fn patience(self, patience: Duration) -> Builder {
        Builder { patience, ..self }
    }

    /// The machine.
    ///
    /// # Errors
    /// [`CostError`] names the figure that no machine can have.
    pub fn build(self) -> Result<Machine, CostError> {
        self.costs.check()?;
        Ok(self.build_unchecked())
    }

    /// The machine, of costs that are known to be fine.
    pub(super) fn build_unchecked(self) -> Machine {
        let books = || Books::new(self.limits);
        let world = World::new(
            self.costs,
            Memory::new(self.resident, self.memory_bytes),
            std::iter::repeat_with(books).take(self.nics).collect(),
        );
        let stage = Arc::new(Stage::new(world, self.patience));
        let nic = |number| {
            Arc::new(Nic { stage: Arc::clone(&stage), name: format!("simulated:{number}"), number })
        };
        let nics = (0..self.nics).map(nic).collect();
        Machine { stage, nics, cores: self.cores }
    }
}
