//! The command line.

mod doctor;
mod kv_events;
mod metrics;
mod mooncake;
mod mount;
mod node;
mod policy;
mod serve;
mod serve_mooncake;
mod serve_tier;
mod tier;
mod tour;
mod trace;

use clap::{Parser, Subcommand};
use kvmem::arena::ByteSize;

pub use self::doctor::DoctorArgs;
pub use self::kv_events::KvEventsArgs;
pub use self::metrics::MetricsArgs;
pub use self::mooncake::{ServeMooncake, ServeMooncakeError};
pub use self::mount::MountArgs;
pub use self::node::{
    DropArgs, EvictArgs, LsArgs, ReclaimArgs, ResizeArgs, ServerArgs, StatArgs, TopArgs,
};
pub use self::policy::Policy;
pub use self::serve::{
    GroupRule, HolderArgs, NamespaceAccess, NamespaceQuota, RetainBy, ServeArgs,
};
pub use self::serve_mooncake::ServeMooncakeArgs;
pub use self::serve_tier::{ServeTier, ServeTierError};
pub use self::tier::{TierArgs, TierCommand, TierInspectArgs, TierVerifyArgs};
pub use self::tour::TourArgs;
pub use self::trace::{
    BlockArgs, SamplingArgs, TraceArgs, TraceCommand, TraceCurveArgs, TraceInfoArgs,
    TraceReadingArgs,
};

/// The host memory of LLM inference servers: checks a machine, maps and registers memory, serves
/// one pool to all engines of a host, and looks into its disk tiers and its traces.
#[derive(Clone, Debug, Parser)]
#[command(name = "kvmem", version)]
pub struct Args {
    /// The subcommand; without one, the tour.
    #[command(subcommand)]
    pub command: Option<Command>,

    /// Print the steps of setting up on standard error, with their times; -vv prints those of each
    /// thread too. KVMEM_LOG sets the same: off, error, warn, info, debug or trace
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
}

/// The subcommands.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Show everything once, in less than half a minute: limits, a pool, a KV cache, a disk, three
    /// figures, and a node whose processes are killed. This is the default
    Tour(TourArgs),
    /// Check every limit of this machine against the memory you want, with the remedy for each that
    /// prevents it, and list the registrars
    Doctor(DoctorArgs),
    /// Map memory, make its pages resident, register it with devices, and print the receipt and the
    /// times
    Mount(MountArgs),
    /// Report what a KV-cache trace contains, and the hit rate for every size of a pool: how much
    /// memory to buy
    Trace(TraceArgs),
    /// Look into the file of a disk tier, or verify its values
    Tier(TierArgs),
    /// Serve one pool of KV cache memory to all engines of this host, until a signal arrives. The
    /// values survive the server
    Serve(Box<ServeArgs>),
    /// List the values, the clients, or the last misses of a server
    Ls(LsArgs),
    /// Show the statistics of a server
    Stat(StatArgs),
    /// Show which namespaces use the memory of a server, why keys have no values, and what other
    /// memories would bring; again and again, on one screen
    Top(TopArgs),
    /// Evict values of a server, in the usual order
    Evict(EvictArgs),
    /// Drop all values of a namespace of a server, or of all; pinned ones end with their pins
    Drop(DropArgs),
    /// End the pins of a process that no longer reads; its client learns it at once
    Reclaim(ReclaimArgs),
    /// Make the memory of a server smaller or larger while it serves; what is too much is evicted
    /// in the usual order
    Resize(ResizeArgs),
    /// Hold the memory of a server while it does not run; `kvmem serve` starts one itself
    Holder(HolderArgs),
    /// Lend memory of this host to a Mooncake cluster, until a signal arrives; needs the Python
    /// package
    #[command(disable_help_flag = true)]
    ServeMooncake(ServeMooncakeArgs),
}

/// Parses a size as all of kvmem does.
///
/// # Errors
/// The text is no size; the error says so.
pub fn size(text: &str) -> Result<u64, String> {
    text.parse::<ByteSize>().map(|size| size.0).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn nothing_need_be_named() {
        assert!(Args::try_parse_from(["kvmem"]).unwrap().command.is_none());
        let tour = Args::try_parse_from(["kvmem", "tour", "--pool", "64MiB", "--no-figures"])
            .unwrap()
            .command;
        let Some(Command::Tour(tour)) = tour else { panic!("{tour:?}") };
        assert_eq!((tour.pool, tour.no_figures), (Some(64 << 20), true));
        assert_eq!(tour.seconds, TourArgs::default().seconds);
    }
}
