//! *Published*: two measured machines, their figures, and a simulated machine for each.
//!
//! The figures are those of one change to a transfer engine: registering with all NICs concurrently
//! instead of one after another. This is faster on the first machine and slower on the second, and
//! memory that is not resident makes it far worse on both.
//!
//! ## How the costs were derived
//!
//! Each NIC registers all of the memory with one call. With n NICs and the times S and P, of the
//! sequential and the parallel run:
//!
//! | cost | from | first machine | second machine |
//! |---|---|---|---|
//! | one call, resident | S / n | 6.150 s | 3.733 s |
//! | to fault everything in | S untouched − S | 37.732 s | 41.467 s |
//! | contention, resident | P = call × (1 + c (n − 1)) | | 2.961 |
//! | under the driver's lock, resident | P = n × call × share | 0.237 of a call | |
//! | contention, untouched | P untouched − pinning = fault × (1 + c (n − 1)) | 1.583 | 1.025 |
//!
//! One figure cannot distinguish a lock from contention. If the parallel run is faster, a lock
//! explains all of it; if it is slower, there must be contention. A lock alone does not slow down
//! calls that fault pages in, because these calls hardly ever take it. In the last row *pinning* is
//! therefore one call on the first machine, and P on the second.
//!
//! Sizes are published in GB and taken as GiB. The following figures are not published and are
//! assumed. There are 8 NICs and 64 cores on the first machine, and 64 cores on the second (whose 8
//! NICs are published). Each call takes 20 µs on both. Populating with one thread is as fast as
//! faulting in. Populating with many threads is as fast as the allocation of the first machine (500
//! GiB in 3.7 s), and 8 times as fast as with one on the second machine. Deregistering on the
//! second machine has the ratio of the first. Deregistering is slower if all keys were registered
//! concurrently on untouched memory. The reason is not known; a contention is fitted to it.

use super::costs::GIB;
use super::{CallCosts, Costs, PopulateCosts, SimulatedMachine};

/// Measured times in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Seconds {
    /// Registering all memory with all NICs.
    pub register: f64,
    /// Deregistering, if published.
    pub deregister: Option<f64>,
}

/// A machine with published figures. There are two.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Published {
    /// Its name here.
    pub name: &'static str,
    /// Bytes of memory registered with each NIC.
    pub len_bytes: u64,
    /// The number of NICs.
    pub nics: usize,
    /// Resident memory, one NIC after another.
    pub resident_sequential: Seconds,
    /// Resident memory, all NICs concurrently.
    pub resident_parallel: Seconds,
    /// Untouched memory, one NIC after another.
    pub untouched_sequential: Seconds,
    /// Untouched memory, all NICs concurrently.
    pub untouched_parallel: Seconds,
    costs: Costs,
}

impl Published {
    /// The machine on which concurrent registering is 4.2 times as fast.
    pub const PARALLEL_WINS: Published = Published {
        name: "parallel-wins",
        len_bytes: 500 * GIB,
        nics: 8,
        resident_sequential: Seconds { register: 49.198, deregister: Some(11.754) },
        resident_parallel: Seconds { register: 11.662, deregister: Some(1.459) },
        untouched_sequential: Seconds { register: 86.930, deregister: Some(11.498) },
        untouched_parallel: Seconds { register: 461.999, deregister: Some(1.822) },
        costs: Costs {
            register: CallCosts {
                us_per_call: 20.0,
                ms_per_gib: 12.2995,
                untouched_ms_per_gib: 75.464,
                serial_share: 0.237,
                serial_bytes: GIB / 4,
                contention: 0.0,
                untouched_contention: 1.583,
            },
            deregister: CallCosts {
                us_per_call: 20.0,
                ms_per_gib: 2.906,
                untouched_ms_per_gib: 0.04,
                serial_share: 0.0,
                serial_bytes: GIB / 4,
                contention: 0.0,
                untouched_contention: 2.5,
            },
            populate: PopulateCosts { gib_per_s: 13.25, max_gib_per_s: 136.0 },
        },
    };

    /// The machine on which concurrent registering is 2.7 times slower.
    pub const PARALLEL_LOSES: Published = Published {
        name: "parallel-loses",
        len_bytes: 200 * GIB,
        nics: 8,
        resident_sequential: Seconds { register: 29.865, deregister: None },
        resident_parallel: Seconds { register: 81.101, deregister: None },
        untouched_sequential: Seconds { register: 71.332, deregister: None },
        untouched_parallel: Seconds { register: 420.163, deregister: None },
        costs: Costs {
            register: CallCosts {
                us_per_call: 20.0,
                ms_per_gib: 18.6655,
                untouched_ms_per_gib: 207.335,
                serial_share: 0.0,
                serial_bytes: GIB / 4,
                contention: 2.961,
                untouched_contention: 1.0252,
            },
            deregister: CallCosts {
                us_per_call: 20.0,
                ms_per_gib: 4.41,
                untouched_ms_per_gib: 0.06,
                serial_share: 0.0,
                serial_bytes: GIB / 4,
                contention: 0.0,
                untouched_contention: 2.5,
            },
            populate: PopulateCosts { gib_per_s: 4.82, max_gib_per_s: 38.6 },
        },
    };

    /// Both machines.
    pub const ALL: [Published; 2] = [Published::PARALLEL_WINS, Published::PARALLEL_LOSES];

    /// Returns the costs derived for it.
    #[must_use]
    pub fn costs(&self) -> Costs {
        self.costs
    }

    /// Returns a simulated machine with these costs, whose memory is resident at first or not.
    #[must_use]
    pub fn machine(&self, resident: bool) -> SimulatedMachine {
        SimulatedMachine::builder().costs(self.costs).nics(self.nics).resident(resident).build()
    }
}

impl SimulatedMachine {
    /// Returns a machine like the published one on which concurrent registering is faster:
    /// [`Published::PARALLEL_WINS`].
    #[must_use]
    pub fn parallel_wins(resident: bool) -> SimulatedMachine {
        Published::PARALLEL_WINS.machine(resident)
    }

    /// Returns a machine like the published one on which concurrent registering is slower:
    /// [`Published::PARALLEL_LOSES`].
    #[must_use]
    pub fn parallel_loses(resident: bool) -> SimulatedMachine {
        Published::PARALLEL_LOSES.machine(resident)
    }
}
