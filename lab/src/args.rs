//! The command line.

mod bench;
mod page;
mod replay;
mod snapshot;
mod tier;

use std::error::Error;
use std::str::FromStr;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Parser, Subcommand};
use kvmem_bench::suite::Named;
use kvmem_cli::args::size;

pub use self::bench::{
    BenchArenaArgs, BenchArgs, BenchCacheArgs, BenchConcurrencyArgs, BenchGpuArgs, BenchNodeArgs,
    BenchOffsetArgs, BenchRegisterArgs, BenchSimulateArgs, BenchSlabArgs, BenchSuite,
    BenchTierArgs, HugepageArgs, SuiteArgs, ThreadArgs,
};
pub use self::page::PageArgs;
pub use self::replay::{Contenders, ReplayArgs};
pub use self::snapshot::SnapshotArgs;
pub use self::tier::TierBenchArgs;

/// The laboratory of kvmem: measures its layers beside other implementations, replays traces, and
/// draws pages of plots.
#[derive(Clone, Debug, Parser)]
#[command(name = "kvmem-lab", version)]
pub struct Args {
    /// The subcommand.
    #[command(subcommand)]
    pub command: Command,

    /// Print the steps of setting up on standard error, with their times; -vv prints those of each
    /// thread too. KVMEM_LOG sets the same: off, error, warn, info, debug or trace
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
}

/// The subcommands.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Measure all layers, or one, beside the published figures and other implementations
    Bench(BenchArgs),
    /// Replay a KV-cache trace through keyed blocks on a pool, or recorded calls through any
    /// allocator
    Replay(ReplayArgs),
    /// Check a snapshot of Mooncake's offset allocator, and import its ranges into kvmem's; the
    /// status is 1 if something is wrong with it
    Snapshot(SnapshotArgs),
    /// Measure a disk tier in a new file beside plain transfers of the same file
    Tier(TierBenchArgs),
    /// Run a command of kvmem, and draw what it finds as a page of plots and tables
    Page(PageArgs),
}

/// Parses a name; help and errors list all names.
fn named<T>() -> impl TypedValueParser<Value = T>
where
    T: Named + FromStr<Err: Error + Send + Sync + 'static> + Send + Sync,
{
    let names = T::ALL.iter().map(|value| value.name());
    PossibleValuesParser::new(names).try_map(|name| name.parse::<T>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }
}
