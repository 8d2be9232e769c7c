//! The logic of the `kvmem-lab` command, which measures and draws, and which no user of kvmem
//! needs: [`args`] has the options, [`run`] carries them out.
//!
//! Benchmarks are in `kvmem-bench`, the replay of traces is in [`replay`], that of recorded
//! allocator calls in [`ops`]. [`snapshot`] reads the state of another allocator. [`pages`] draws
//! what commands of `kvmem` find.

pub mod address_map;
pub mod args;
mod bench_command;
mod html;
pub mod ops;
pub mod pages;
pub mod replay;
mod replay_command;
mod replay_metrics;
pub mod snapshot;
mod snapshot_command;
mod tier_bench;

use args::{Args, Command};
use kvmem_cli::Failure;

/// Runs the subcommand.
///
/// # Errors
/// [`Failure`]: a message for the user and the exit status that goes with it.
pub fn run(args: Args) -> Result<(), Failure> {
    kvmem_cli::log::begin(args.verbose)?;
    match args.command {
        Command::Bench(bench) => bench_command::run(&bench),
        Command::Replay(replay) => replay_command::run(&replay),
        Command::Snapshot(snapshot) => snapshot_command::run(&snapshot),
        Command::Tier(tier) => tier_bench::run(&tier),
        Command::Page(page) => pages::run(&page),
    }
}
