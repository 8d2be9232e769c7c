//! The command line.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Parser, Subcommand};
use kvmem_cli::args::{BlockArgs, Policy, TraceReadingArgs, size};

use crate::bench::args::BenchArgs;

/// The laboratory of kvmem: measures its layers beside other implementations, and replays traces.
#[derive(Clone, Debug, Parser)]
#[command(name = "kvmem-lab", version)]
pub struct Args {
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
    /// Replay a KV-cache trace through keyed blocks on a pool
    Replay(ReplayArgs),
}

/// Options of `replay`.
#[derive(Clone, Debug, ClapArgs)]
pub struct ReplayArgs {
    /// The trace: Mooncake's JSON lines, whose hash ids stand for blocks of 512 tokens, sessions of
    /// kv-cache-tester in a file or a folder, or a CSV file of Azure; - for standard input
    #[arg(value_name = "TRACE")]
    pub trace: PathBuf,

    #[command(flatten)]
    pub reading: TraceReadingArgs,

    /// Size of the pool in bytes, or with a unit: 64GiB, 1TiB (GiB is 2^30 bytes, GB is 10^9, G is
    /// GiB)
    #[arg(long, value_name = "SIZE", default_value = "1TiB", value_parser = size)]
    pub pool: u64,

    #[command(flatten)]
    pub block: BlockArgs,

    /// Which objects are evicted first
    #[arg(long, value_enum, default_value = "lru")]
    pub policy: Policy,

    /// Threads that serve requests; each takes the next request of the trace
    #[arg(
        long, value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=256)
    )]
    pub threads: u32,

    /// Put real memory behind the pool, write every block, verify its checksum on every hit, and
    /// compare with a plain copy of the same bytes
    #[arg(long)]
    pub backed: bool,

    /// Put a disk tier in FILE below the cache: objects that are evicted go there, and come back.
    /// A tier of an earlier replay is used again. Needs --backed
    #[arg(long, value_name = "FILE", requires = "backed")]
    pub tier: Option<PathBuf>,

    /// Bytes of a new tier, instead of four times the pool
    #[arg(long, value_name = "SIZE", value_parser = size, requires = "tier")]
    pub tier_size: Option<u64>,

    /// Stop after the first N requests
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub requests: Option<u64>,

    /// Write the report as JSON to FILE; - for standard output instead of the text
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
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
