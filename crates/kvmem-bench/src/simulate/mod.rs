//! What each way to share one space of offsets brings on many cores, in virtual time.
//!
//! A machine with two cores cannot show how 64 threads share a lock. This suite records what the
//! library's calls cost on one thread, and lets simulated cores make them.
//!
//! 1. *What is recorded.* The real library runs a scenario of [`concurrency`](crate::concurrency)
//!    for 64 logical threads on one real thread. The recording has the kind, the size and the time
//!    of each call. In [`SimulatedScenario::Fragmented`] all sizes differ. In
//!    [`SimulatedScenario::HighWater`] there are three, and one request in twenty fails.
//! 2. *The machine.* A simulated core runs one thread and has a clock of its own. An event moves
//!    the core with the smallest clock: a discrete-event simulation. A call takes its recorded time
//!    where the metadata are in the core's cache.
//! 3. *Lines.* The parameter is the time `T` in which a cache line comes from one core to another.
//!    A core fetches, one after another: the line of the lock if another core had it or waits for
//!    it; the lines of metadata that every call changes, if another core made the last call; the
//!    line of a slot. Nothing else differs between the ways.
//! 4. *The lines of metadata* were counted: the addresses of 3,000 calls (valgrind's lackey), dealt
//!    to `n` cores in turns. A call touched 42 lines; `4 + 21 (1 − 1/n)` of them were written by
//!    another core last (fragmented; 2 and 20 in the other scenario). The first 4 are changed by
//!    every call, and travel with the lock. The 21 are spread over the metadata of all ranges. At
//!    130,000 ranges and holes these are larger than a core's own caches, so they come from farther
//!    for one thread too, and are in the recorded time.
//! 5. *The race.* A waiting thread asks for the line of the lock once in `T`. The last holder comes
//!    back after the loop's time `L` between two calls. A waiting thread is first with probability
//!    `min(1, L / T)`. With `k` of them it is one of these with `1 − (1 − L / T)^k`. Waiting
//!    threads spin, then yield, then sleep, as those of the library do.
//!
//! On two real cores the model of the combining mutex is within 13 % of the measured rates. The two
//! locks are bounds: the real one is between them (bench/README.md has the figures).
//!
//! | way | who works on the metadata |
//! |---|---|
//! | [`WayId::QueueLock`] | each thread; the lock goes to the thread that waits longest |
//! | [`WayId::SpinLock`] | each thread; the lock goes to the thread that is first (the library before decision 0070) |
//! | [`WayId::Combining`] | the owner; 16 slots with a request and two frees without an answer each (the library) |
//! | [`WayId::Combining64`] | the same with a slot for each core |
//! | [`WayId::Shards2`], 8, 32 | as `combining`, in several spaces; a thread has a home, where it frees what it allocated |
//! | [`WayId::Magazines`] | as `combining`, below magazines for sizes that come again, with the library's default bound |
//!
//! **Not modelled.** Bandwidth and topology: all transfers take `T`, and different cores' transfers
//! do not delay each other, except on lines that one core needs. Several threads on a core.
//! Transfers that overlap. Frees by another thread than the one that allocated. What shards cost in
//! placement: a space can be full while others are not. Magazines do not grow or shrink.

mod costs;
mod machine;
mod magazines;
mod space;
mod suite;
#[cfg(test)]
mod tests;
mod way;

pub use self::suite::{SimulateDetails, SimulateRow, SimulateSuite};
pub use self::way::{UnknownWayError, WayId};
use crate::concurrency::{ConcurrencyMeasureError, ConcurrencyScenario};
use crate::progress::Progress;
use crate::suite::{BenchError, Report, names};

/// Threads that are simulated unless others are named.
pub const THREADS: [u32; 7] = [1, 2, 4, 8, 16, 32, 64];
/// Nanoseconds of a transfer unless others are named. 45 and 175 are what it took on the machine of
/// decision 0070, in different minutes.
pub const LINE_NS: [u32; 3] = [45, 100, 175];
/// Lines of metadata that travel with the lock unless another number is named.
pub const METADATA_LINES: u32 = 4;

/// The result of a run.
pub type SimulateReport = Report<SimulateSuite>;
/// The error that ended a run early.
pub type SimulateError = BenchError<ConcurrencyMeasureError>;

/// The options of a run.
#[derive(Clone, Debug)]
pub struct SimulateOptions {
    /// Whether to simulate fewer calls.
    pub quick: bool,
    /// Replays of each recorded scenario, whose medians count; 7 unless set.
    pub reps: Option<u32>,
    /// Only these scenarios; all when empty.
    pub scenarios: Vec<SimulatedScenario>,
    /// Only these ways; all when empty.
    pub ways: Vec<WayId>,
    /// Numbers of threads, each on a core of its own; [`THREADS`] when empty.
    pub threads: Vec<u32>,
    /// Nanoseconds of a transfer; [`LINE_NS`] when empty.
    pub line_ns: Vec<u32>,
    /// Lines of metadata that travel with the lock.
    pub metadata_lines: u32,
    /// The mean nanoseconds to which the recorded times are scaled; as recorded unless set.
    pub call_ns: Option<u32>,
}

impl Default for SimulateOptions {
    /// Returns the options of a full run of everything.
    fn default() -> Self {
        let (scenarios, ways, threads, line_ns) = Default::default();
        let metadata_lines = METADATA_LINES;
        SimulateOptions {
            quick: false,
            reps: None,
            scenarios,
            ways,
            threads,
            line_ns,
            metadata_lines,
            call_ns: None,
        }
    }
}

/// Simulates what `options` select.
///
/// # Errors
/// [`SimulateError`] if a scenario cannot be recorded.
pub fn run(
    options: &SimulateOptions,
    progress: &mut dyn Progress<SimulateRow>,
) -> Result<SimulateReport, SimulateError> {
    crate::suite::run(options, progress)
}

names! {
    /// The recorded scenarios by name.
    pub enum SimulatedScenario ("scenario", UnknownSimulatedScenarioError) {
        /// Half in use, fragmented, sizes that are all different.
        Fragmented = "fragmented",
        /// Nine tenths in use, three sizes, one request in twenty fails.
        HighWater = "high-water",
    }
}

impl SimulatedScenario {
    fn recorded(self) -> ConcurrencyScenario {
        match self {
            Self::Fragmented => ConcurrencyScenario::Fragmented,
            Self::HighWater => ConcurrencyScenario::HighWater,
        }
    }
}
