//! *Threads*: long work that several threads do together. Populating and registering both use it.
//!
//! | what | where |
//! |---|---|
//! | threads that begin together and wait awake between two runs | `team.rs` |
//! | how many of them are fastest | `calibration.rs` |
//! | reports, and the options for them | `progress.rs` |
//! | a token that ends work early, a limit of its time | `cancel.rs`, `budget.rs` |
//! | the counts behind the reports | `tracker.rs` |
//! | the time | `clock.rs` |
//!
//! [`arena`](crate::arena) re-exports the public types.

mod budget;
mod calibration;
mod cancel;
mod clock;
mod progress;
mod team;
mod tracker;

pub(crate) use budget::{Interruption, WorkBudget};
pub(crate) use calibration::{
    ROUNDS, ThreadProbe, WindowedWork, choose_threads, do_windows, ladder,
};
pub(crate) use clock::{now, seconds};
pub(crate) use team::{RealTime, TeamHost, TeamRun, ThreadTeam, with_team};
pub(crate) use tracker::WorkTracker;

pub use cancel::CancelToken;
pub use progress::{Progress, ProgressOptions, WorkUnit};
