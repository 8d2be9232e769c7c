//! The command line.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Parser, Subcommand};
use kvmem_cli::args::{BlockArgs, Policy, TraceReadingArgs, size};

use crate::bench::beside::Beside;
use crate::bench::node::NodeRole;
use crate::bench::slab::SlabTask;

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

/// Options of `bench`.
#[derive(Clone, Debug, ClapArgs)]
#[command(args_conflicts_with_subcommands = true)]
pub struct BenchArgs {
    /// Fewer operations, less memory: a minute or two instead of many
    #[arg(long)]
    pub quick: bool,

    /// The suite to measure (default: arena, register, offset, slab, concurrency and cache)
    #[command(subcommand)]
    pub suite: Option<Suite>,
}

/// The suites.
#[derive(Clone, Debug, Subcommand)]
pub enum Suite {
    /// Memory: time per bump allocation, and how fast pages are made resident
    Arena(SuiteArgs),
    /// The allocator of offsets: utilization and time per operation
    Offset(SuiteArgs),
    /// Registering memory with rings and with two simulated machines
    Register(SuiteArgs),
    /// Small blocks of memory: time per allocation and free, beside malloc and g_slice; a build
    /// with the feature `allocators` also meets mimalloc, jemalloc and snmalloc
    Slab(SuiteArgs),
    /// One allocator of offsets that several threads share: calls a second, and time per call
    Concurrency(SuiteArgs),
    /// Keyed blocks that several threads share: time per look-up and per insertion
    Cache(CacheArgs),
    /// Values stored on a disk and fetched again, beside plain reads and writes and a file for each
    /// value: bytes per second, and processor time
    Tier(TierArgs),
    /// One pool of memory that several processes share, beside a plain copy: time per call, bytes
    /// per second, and a restart
    Node(NodeArgs),
    /// Memory that a GPU copies from and to: time to register it, by pages, pieces and threads, and
    /// the speed of copies
    Gpu(GpuArgs),
    /// Measure a heap in this process; the suite `slab` starts its processes this way
    #[command(hide = true)]
    SlabTask { task: SlabTask },
    /// Be the server or a client; the suite `node` starts its processes this way
    #[command(hide = true)]
    NodeRole { role: NodeRole },
}

/// Options of every suite.
#[derive(Clone, Debug, Default, ClapArgs)]
pub struct SuiteArgs {
    /// Less memory, shorter and fewer repetitions: seconds instead of minutes
    #[arg(long)]
    pub quick: bool,

    /// Repetitions of each measurement; the median counts
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub reps: Option<u32>,

    /// Only these tables of the report
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    pub table: Vec<String>,

    /// Only these contenders
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    pub contender: Vec<String>,

    /// Write the rows as JSON to FILE; - for standard output instead of the table
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Options of `bench cache`.
#[derive(Clone, Debug, Default, ClapArgs)]
pub struct CacheArgs {
    #[command(flatten)]
    pub run: SuiteArgs,

    /// Measure hit rates instead of times: each eviction policy beside S3-FIFO, ARC and the
    /// offline optimum, on prefix traces
    #[arg(long)]
    pub policy: bool,

    /// With --policy: also measure on this trace; repeatable
    #[arg(long, value_name = "FILE", requires = "policy")]
    pub trace: Vec<PathBuf>,
}

/// Options of `bench tier`.
#[derive(Clone, Debug, Default, ClapArgs)]
pub struct TierArgs {
    #[command(flatten)]
    pub run: SuiteArgs,

    /// A directory on the device to measure (default: the one for temporary files). The files of
    /// the run take --size for each contender, and are removed at the end
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,

    /// Bytes that each contender may store, instead of 4GiB, or 512MiB with --quick
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub size: Option<u64>,

    /// Bytes of the values, instead of 64KiB, 1MiB and 3274752
    #[arg(long, value_name = "SIZE,…", value_delimiter = ',', value_parser = size)]
    pub value_bytes: Vec<u64>,

    /// Transfers in flight, instead of 32
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub depth: Option<u32>,

    /// A program that takes part, under a name; repeatable. The head of lab/src/bench/tier has its
    /// protocol
    #[arg(long, value_name = "NAME=PROGRAM")]
    pub beside: Vec<Beside>,
}

/// Options of `bench node`.
#[derive(Clone, Debug, Default, ClapArgs)]
pub struct NodeArgs {
    #[command(flatten)]
    pub run: SuiteArgs,

    /// A program that takes part, under a name; repeatable. The head of lab/src/bench/node has its
    /// protocol
    #[arg(long, value_name = "NAME=PROGRAM")]
    pub beside: Vec<Beside>,
}

/// Options of `bench gpu`.
#[derive(Clone, Debug, Default, ClapArgs)]
pub struct GpuArgs {
    #[command(flatten)]
    pub run: SuiteArgs,

    /// Bytes of the regions that are registered, in whole pages of 2MiB, instead of 8GiB, or 1GiB
    /// with --quick
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub size: Option<u64>,
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
