//! *Core*: one instance of the magazine layer. It does not know which thread runs.
//!
//! Functions receive the cache of the calling thread, or `None`.
//!
//! | file | what it does |
//! |---|---|
//! | `state.rs` | the state of an instance; caches of threads begin and end |
//! | `exchange.rs` | a magazine is empty or full: the algorithm of *Magazines and Vmem* |
//! | `batch.rs` | many rounds at once |
//! | `trim.rs`, `reclaim.rs` | everything cached returns to the source |
//! | `moves.rs`, `transfers.rs`, and `holders.rs` beside this folder | counters that show whether anything is cached |
//! | `bound.rs`, `share.rs`, `bypass.rs` | how much is cached |
//! | `fork.rs`, `report.rs` | forks, statistics |
//!
//! ## Lock order
//!
//! trims → (registry of threads) → list of caches → owners → depots. No code allocates from the
//! global allocator under the last four, and no code calls the source under them.

mod batch;
mod bound;
mod bypass;
mod exchange;
mod fork;
mod moves;
mod reclaim;
mod report;
mod share;
mod state;
mod transfers;
mod trim;

pub(crate) use state::MagazineCore;
