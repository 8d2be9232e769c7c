//! The command line of `bench`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use kvmem_cli::args::size;
use serde::de::DeserializeOwned;

use super::beside::Beside;
use super::node::NodeRole;
use super::slab::SlabTask;
use super::suite::SuiteArgs;

/// Options of `bench`.
#[derive(Clone, Debug, Args)]
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
    /// The loops of threads on 1 to 64 simulated cores, in virtual time; needs the build of `cargo
    /// xtask bench simulate`
    Simulate(SimulateArgs),
    /// Values stored on a disk and fetched again, beside plain reads and writes and a file for each
    /// value: bytes per second, and processor time
    Tier(TierArgs),
    /// The codec of KV blocks, beside other compressors: bytes per second, and shares of the size;
    /// a build with the feature `compressors` also meets zstd, lz4 and a model of ZipNN
    Codec(CodecArgs),
    /// One pool of memory that several processes share, beside a plain copy: time per call, bytes
    /// per second, and a restart
    Node(NodeArgs),
    /// Memory that a GPU copies from and to: time to register it, by pages, pieces and threads, and
    /// the speed of copies
    Gpu(GpuArgs),
    /// Measure a heap in this process; the suite `slab` starts its processes this way
    #[command(hide = true)]
    SlabTask {
        #[arg(value_parser = json::<SlabTask>)]
        task: SlabTask,
    },
    /// Be the server or a client; the suite `node` starts its processes this way
    #[command(hide = true)]
    NodeRole {
        #[arg(value_parser = json::<NodeRole>)]
        role: NodeRole,
    },
}

fn json<T: DeserializeOwned>(text: &str) -> serde_json::Result<T> {
    serde_json::from_str(text)
}

/// Options of `bench cache`.
#[derive(Clone, Debug, Default, Args)]
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

/// Options of `bench simulate`.
#[derive(Clone, Debug, Default, Args)]
pub struct SimulateArgs {
    #[command(flatten)]
    pub run: SuiteArgs,

    /// Also show, for each loop, the N places of the code at which calls wait longest for lines of
    /// memory that other cores have, and how many lines
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub places: usize,
}

/// Options of `bench node`.
#[derive(Clone, Debug, Default, Args)]
pub struct NodeArgs {
    #[command(flatten)]
    pub run: SuiteArgs,

    /// A program that takes part, under a name; repeatable. The head of lab/src/bench/node has its
    /// protocol
    #[arg(long, value_name = "NAME=PROGRAM")]
    pub beside: Vec<Beside>,
}

/// Options of `bench gpu`.
#[derive(Clone, Debug, Default, Args)]
pub struct GpuArgs {
    #[command(flatten)]
    pub run: SuiteArgs,

    /// Bytes of the regions that are registered, in whole pages of 2MiB, instead of 8GiB, or 1GiB
    /// with --quick
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub size: Option<u64>,
}

/// Options of `bench codec`.
#[derive(Clone, Debug, Default, Args)]
pub struct CodecArgs {
    #[command(flatten)]
    pub run: SuiteArgs,

    /// A file of float32, instead of keys and values of random weights: lab/kv/trained.py makes one
    #[arg(long, value_name = "FILE")]
    pub values: Option<PathBuf>,
}

/// Options of `bench tier`.
#[derive(Clone, Debug, Default, Args)]
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
