//! *Costs*: the durations of calls.
//!
//! ```text
//!  call = pin work × (1 + contention × others)
//!       + fault work × (1 + untouched_contention × others)
//!
//!  pin work   = per call + bytes × per byte     a part, serial_share, holds the driver's lock
//!  fault work = bytes not resident × per byte
//! ```
//!
//! *Others* are the calls in flight when this one begins, including those that begin at the same
//! moment. Other calls do not slow down the work under the lock; they can only wait for the lock.
//! The lock is taken for a part of the bytes at a time. A call for many bytes therefore meets
//! others as often as many calls for few bytes: the chunk length does not change the overlap.

/// Bytes in a GiB.
pub(super) const GIB: u64 = 1 << 30;
/// The largest number of times that a call takes the lock.
const MAX_TURNS: u64 = 4096;

/// The costs of a simulated machine. The default is a machine of round numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// Registering.
    pub register: CallCosts,
    /// Deregistering. Its untouched bytes are those that became resident when the key was
    /// registered.
    pub deregister: CallCosts,
    /// Making pages resident without registering them.
    pub populate: PopulateCosts,
}

impl Default for Costs {
    fn default() -> Costs {
        let deregister =
            CallCosts { ms_per_gib: 2.5, untouched_ms_per_gib: 0.0, ..CallCosts::default() };
        Costs { register: CallCosts::default(), deregister, populate: PopulateCosts::default() }
    }
}

/// The cost of a call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CallCosts {
    /// Microseconds for each call.
    pub us_per_call: f64,
    /// Milliseconds for each GiB.
    pub ms_per_gib: f64,
    /// Additional milliseconds for each GiB that is not resident yet: one thread makes it resident
    /// within the call.
    pub untouched_ms_per_gib: f64,
    /// The share of the first two costs that holds one lock for all NICs, 0 to 1.
    pub serial_share: f64,
    /// The lock is released and taken again after this many bytes, but at most 4096 times in a
    /// call.
    pub serial_bytes: u64,
    /// The slowdown of the work outside of the lock by each other call in flight: 0.5 means 1.5
    /// times as long.
    pub contention: f64,
    /// The slowdown of making pages resident by each other call in flight.
    pub untouched_contention: f64,
}

impl Default for CallCosts {
    fn default() -> CallCosts {
        CallCosts {
            us_per_call: 20.0,
            ms_per_gib: 10.0,
            untouched_ms_per_gib: 100.0,
            serial_share: 0.0,
            serial_bytes: GIB / 4,
            contention: 0.0,
            untouched_contention: 1.0,
        }
    }
}

/// The speed of populating.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PopulateCosts {
    /// GiB/s of one thread.
    pub gib_per_s: f64,
    /// GiB/s at which more threads gain nothing. Concurrent populating calls share it.
    pub max_gib_per_s: f64,
}

impl Default for PopulateCosts {
    fn default() -> PopulateCosts {
        PopulateCosts { gib_per_s: 10.0, max_gib_per_s: 80.0 }
    }
}

/// The work of one call, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CallWork {
    /// Work outside of the lock.
    free: u64,
    /// Work under the lock.
    serial: u64,
    /// The number of times that the lock is taken.
    turns: u64,
}

impl CallWork {
    /// Returns the work before the lock is taken for the `turn`th time, from 0. No work follows the
    /// last time.
    pub(super) fn free_before(&self, turn: u64) -> u64 {
        part(self.free, turn, self.turns)
    }

    /// Returns the work under the lock taken for the `turn`th time.
    pub(super) fn serial_at(&self, turn: u64) -> u64 {
        part(self.serial, turn, self.turns)
    }

    /// Returns how often the lock is taken. A call that does not need it has one turn of length 0.
    pub(super) fn turns(&self) -> u64 {
        self.turns
    }

    pub(super) fn needs_lock(&self) -> bool {
        self.serial > 0
    }
}

/// Returns the `n`th of `of` parts of a number of nanoseconds. The parts are as even as possible
/// and add up to the number.
fn part(whole: u64, n: u64, of: u64) -> u64 {
    let until = |n: u64| (u128::from(whole) * u128::from(n) / u128::from(of)) as u64;
    until(n + 1) - until(n)
}

impl CallCosts {
    /// Returns the work of a call for `bytes` bytes, of which `untouched` are not resident, with
    /// `others` other calls in flight.
    pub(super) fn work(&self, bytes: u64, untouched: u64, others: usize) -> CallWork {
        let gib = |bytes: u64| bytes as f64 / GIB as f64;
        let pin = self.us_per_call * 1e3 + self.ms_per_gib * 1e6 * gib(bytes);
        let fault = self.untouched_ms_per_gib * 1e6 * gib(untouched);
        let others = others as f64;
        let free = pin * (1.0 - self.serial_share) * (1.0 + self.contention * others)
            + fault * (1.0 + self.untouched_contention * others);
        let serial = (pin * self.serial_share).round() as u64;
        let turns = match serial {
            0 => 1,
            _ => bytes.div_ceil(self.serial_bytes.max(1)).clamp(1, MAX_TURNS),
        };
        CallWork { free: free.round() as u64, serial, turns }
    }

    /// Returns the work of a call that fails before it has touched a byte.
    pub(super) fn failed(&self) -> CallWork {
        self.work(0, 0, 0)
    }
}

impl PopulateCosts {
    /// Returns the number of threads that suffice, at most `cores`.
    pub(super) fn useful_threads(&self, cores: usize) -> usize {
        ((self.max_gib_per_s / self.gib_per_s).ceil() as usize).clamp(1, cores)
    }

    /// Returns the nanoseconds that `threads` threads need for this many bytes while `others` other
    /// calls populate.
    pub(super) fn nanoseconds(&self, bytes: u64, threads: usize, others: usize) -> u64 {
        let max = self.max_gib_per_s / (others + 1) as f64;
        let speed = (self.gib_per_s * threads as f64).min(max);
        (bytes as f64 / GIB as f64 / speed * 1e9).round() as u64
    }
}
