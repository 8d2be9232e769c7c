//! The logic of the `kvmem` command: [`args`] has the options, [`run`] carries them out. Without a
//! subcommand it is the tour.
//!
//! The command itself is thin: `kvmem-trace` reads traces, [`reuse`] has their hit rates for all
//! sizes of a pool at once, and `kvmem-tier` and `kvmem-node` have the rest.

pub mod args;
mod doctor_command;
mod holder_command;
pub mod log;
pub mod metrics_server;
mod mount_command;
mod node_command;
pub mod output;
pub mod output_file;
pub mod reuse;
mod serve_command;
mod serve_mooncake_command;
mod tier_command;
mod tour_command;
mod trace_command;
pub mod workload;

use args::{Args, Command, TourArgs};
pub use output::{Failure, print_clap, print_message};

/// Runs the subcommand.
///
/// # Errors
/// [`Failure`]: a message for the user and the exit status that goes with it.
pub fn run(args: Args) -> Result<(), Failure> {
    log::begin(args.verbose)?;
    match args.command.unwrap_or_else(|| Command::Tour(TourArgs::default())) {
        Command::Tour(tour) => tour_command::run(&tour),
        Command::Doctor(doctor) => doctor_command::run(&doctor),
        Command::Mount(mount) => mount_command::run(&mount),
        Command::Trace(trace) => trace_command::run(&trace),
        Command::Tier(tier) => tier_command::run(&tier),
        Command::Serve(serve) => serve_command::run(&serve),
        Command::Ls(ls) => node_command::list::run(&ls),
        Command::Stat(stat) => node_command::stat::run(&stat),
        Command::Top(top) => node_command::top::run(&top),
        Command::Evict(evict) => node_command::evict(&evict),
        Command::Drop(drop) => node_command::drop_values(&drop),
        Command::Reclaim(reclaim) => node_command::reclaim(&reclaim),
        Command::Resize(resize) => node_command::resize(&resize),
        Command::Holder(holder) => holder_command::run(&holder),
        Command::ServeMooncake(serve) => serve_mooncake_command::run(&serve),
    }
}

/// The examples of the README and of the how-tos, which must compile and run like any other.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../../../README.md")]
    struct FrontPage;

    #[doc = include_str!("../../../docs/how-to/monitoring.md")]
    struct Monitoring;

    #[doc = include_str!("../../../docs/how-to/pin-with-my-nics.md")]
    struct PinWithMyNics;

    #[doc = include_str!("../../../docs/how-to/replace-mooncakes-allocator.md")]
    struct ReplaceMooncakesAllocator;

    #[doc = include_str!("../../../docs/how-to/share-a-pool-between-processes.md")]
    struct ShareAPoolBetweenProcesses;
}
