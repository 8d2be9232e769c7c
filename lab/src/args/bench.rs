//! Options of `kvmem bench`.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Subcommand};
use kvmem_bench::arena::{self, ArenaContenderId};
use kvmem_bench::beside::Beside;
use kvmem_bench::cache::{CacheContenderId, CacheScenario};
use kvmem_bench::concurrency::{ConcurrencyContenderId, ConcurrencyScenario};
use kvmem_bench::contender::ContenderId;
use kvmem_bench::node::{NodeContenderId, NodeRole};
use kvmem_bench::offset::WorkloadId;
use kvmem_bench::register::{self, RegisterContenderId};
use kvmem_bench::simulate::{self, SimulatedScenario, WayId};
use kvmem_bench::slab::{self, SlabContenderId};
use kvmem_bench::tier::TierContenderId;

use super::{named, size};

/// Options of `kvmem bench`.
#[derive(Clone, Debug, ClapArgs)]
#[command(args_conflicts_with_subcommands = true)]
pub struct BenchArgs {
    /// Fewer operations, less memory: a minute or two instead of many
    #[arg(long)]
    pub quick: bool,

    /// Draw the figures as a page of plots and tables in FILE
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,

    /// The use of hugepages.
    #[command(flatten)]
    pub hugepages: HugepageArgs,

    /// Show the results of earlier runs, written with --json, and measure nothing
    #[arg(
        long, value_name = "FILE,…", value_delimiter = ',',
        conflicts_with_all = ["quick", "borrow_hugepages"]
    )]
    pub from: Vec<PathBuf>,

    /// The suite to measure (default: all).
    #[command(subcommand)]
    pub suite: Option<BenchSuite>,
}

/// The suites.
#[derive(Clone, Debug, Subcommand)]
pub enum BenchSuite {
    /// Memory: time per bump allocation, and how fast pages are made resident
    Arena(BenchArenaArgs),
    /// The allocator of offsets: utilization and time per operation
    Offset(BenchOffsetArgs),
    /// Registering memory with rings and with two simulated machines: seconds to register and to
    /// deregister
    Register(BenchRegisterArgs),
    /// Small blocks of memory: time per allocation and free, beside malloc and g_slice; a build
    /// with the feature `allocators` also meets mimalloc, jemalloc and snmalloc
    Slab(BenchSlabArgs),
    /// One allocator of offsets that several threads share: calls a second, and time per call
    Concurrency(BenchConcurrencyArgs),
    /// The same in virtual time, on simulated cores: what each way to share a space brings, by the
    /// time in which a cache line travels from core to core. Not part of a run of all suites
    Simulate(BenchSimulateArgs),
    /// Keyed blocks that several threads share: time per look-up and per insertion
    Cache(BenchCacheArgs),
    /// Values stored on a disk and fetched again, beside plain reads and writes and a file for each
    /// value: bytes per second, and processor time. Not part of a run of all suites
    Tier(BenchTierArgs),
    /// One pool of memory that several processes share, beside a plain copy: time per call, bytes
    /// per second, and a restart. Not part of a run of all suites
    Node(BenchNodeArgs),
    /// Memory that a GPU copies from and to: time to register it, by pages, pieces and threads, and
    /// the speed of copies. Not part of a run of all suites
    Gpu(BenchGpuArgs),
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

    /// Write the rows as JSON to FILE; - for standard output instead of the table
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// Draw the figures as a page of plots and tables in FILE
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

/// Options of suites that measure several numbers of threads.
#[derive(Clone, Debug, Default, ClapArgs)]
pub struct ThreadArgs {
    /// Numbers of threads to measure, instead of those of the suite (1, 2 and 4; offsets also 16,
    /// small blocks also 3)
    #[arg(
        long, value_name = "N,…", value_delimiter = ',',
        value_parser = clap::value_parser!(u32).range(1..=256)
    )]
    pub threads: Vec<u32>,
}

/// Options of suites with rows that need hugepages.
#[derive(Clone, Copy, Debug, Default, ClapArgs)]
pub struct HugepageArgs {
    /// Add the hugepages that rows of 2 MiB pages lack to the machine's pool (vm.nr_hugepages, as
    /// root) while they are measured. The pool gets its former size back at the end, when the run
    /// is interrupted, or else by the next kvmem bench. Without this option the machine stays as
    /// it is, and rows that lack hugepages are left out
    #[arg(long)]
    pub borrow_hugepages: bool,
}

/// Options of `kvmem bench arena`.
#[derive(Clone, Debug, Default, ClapArgs)]
pub struct BenchArenaArgs {
    /// Only these operations (default: all)
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', value_parser = named::<arena::Op>())]
    pub op: Vec<arena::Op>,

    /// Only these contenders (default: all)
    #[arg(
        long, value_name = "NAME,…", value_delimiter = ',',
        value_parser = named::<ArenaContenderId>()
    )]
    pub contender: Vec<ArenaContenderId>,

    /// The options of every suite.
    #[command(flatten)]
    pub run: SuiteArgs,

    /// The use of hugepages.
    #[command(flatten)]
    pub hugepages: HugepageArgs,
}

/// Options of `kvmem bench register`.
#[derive(Clone, Debug, Default, ClapArgs)]
pub struct BenchRegisterArgs {
    /// Only these backends (default: all)
    #[arg(
        long, value_name = "NAME,…", value_delimiter = ',',
        value_parser = named::<register::Backend>()
    )]
    pub backend: Vec<register::Backend>,

    /// Only these policies (default: all)
    #[arg(
        long, value_name = "NAME,…", value_delimiter = ',',
        value_parser = named::<RegisterContenderId>()
    )]
    pub policy: Vec<RegisterContenderId>,

    /// Regions of these sizes on io_uring, instead of 1GiB and 8GiB
    #[arg(long, value_name = "SIZE,…", value_delimiter = ',', value_parser = size)]
    pub size: Vec<u64>,

    /// Numbers of contexts to measure, instead of 1, 4 and 8
    #[arg(
        long, value_name = "N,…", value_delimiter = ',',
        value_parser = clap::value_parser!(u32).range(1..=64)
    )]
    pub contexts: Vec<u32>,

    /// The options of every suite.
    #[command(flatten)]
    pub run: SuiteArgs,

    /// The use of hugepages.
    #[command(flatten)]
    pub hugepages: HugepageArgs,
}

/// Options of `kvmem bench slab`.
#[derive(Clone, Debug, Default, ClapArgs)]
pub struct BenchSlabArgs {
    /// Only these patterns (default: all)
    #[arg(
        long, value_name = "NAME,…", value_delimiter = ',',
        value_parser = named::<slab::Pattern>()
    )]
    pub pattern: Vec<slab::Pattern>,

    /// Only these allocators (default: all)
    #[arg(
        long, value_name = "NAME,…", value_delimiter = ',',
        value_parser = named::<SlabContenderId>()
    )]
    pub contender: Vec<SlabContenderId>,

    /// The numbers of threads.
    #[command(flatten)]
    pub threads: ThreadArgs,

    /// The options of every suite.
    #[command(flatten)]
    pub run: SuiteArgs,

    /// Run one measurement in this process; the suite runs each of its own this way
    #[arg(long, value_name = "TASK", hide = true, exclusive = true)]
    pub alone: Option<slab::SlabTask>,
}

/// Options of `kvmem bench concurrency`.
#[derive(Clone, Debug, Default, ClapArgs)]
pub struct BenchConcurrencyArgs {
    /// Only these scenarios (default: all)
    #[arg(
        long, value_name = "NAME,…", value_delimiter = ',',
        value_parser = named::<ConcurrencyScenario>()
    )]
    pub scenario: Vec<ConcurrencyScenario>,

    /// Only these allocators (default: all)
    #[arg(
        long, value_name = "NAME,…", value_delimiter = ',',
        value_parser = named::<ConcurrencyContenderId>()
    )]
    pub contender: Vec<ConcurrencyContenderId>,

    /// The numbers of threads.
    #[command(flatten)]
    pub threads: ThreadArgs,

    /// The options of every suite.
    #[command(flatten)]
    pub run: SuiteArgs,
}

/// Options of `kvmem bench simulate`.
#[derive(Clone, Debug, ClapArgs)]
pub struct BenchSimulateArgs {
    /// Only these scenarios (default: all)
    #[arg(
        long, value_name = "NAME,…", value_delimiter = ',',
        value_parser = named::<SimulatedScenario>()
    )]
    pub scenario: Vec<SimulatedScenario>,

    /// Only these ways to share a space (default: all)
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', value_parser = named::<WayId>())]
    pub way: Vec<WayId>,

    /// Numbers of threads, each on a core of its own
    #[arg(
        long, value_name = "N,…", value_delimiter = ',', default_values_t = simulate::THREADS,
        value_parser = clap::value_parser!(u32).range(1..=256)
    )]
    pub threads: Vec<u32>,

    /// Nanoseconds in which a cache line comes from one core to another
    #[arg(
        long, value_name = "NS,…", value_delimiter = ',', default_values_t = simulate::LINE_NS,
        value_parser = clap::value_parser!(u32).range(0..=100_000)
    )]
    pub line_ns: Vec<u32>,

    /// Cache lines of metadata that travel with the lock
    #[arg(
        long, value_name = "N", default_value_t = simulate::METADATA_LINES,
        value_parser = clap::value_parser!(u32).range(0..=1000)
    )]
    pub metadata_lines: u32,

    /// Scale the recorded times of calls to this mean, to compare machines
    #[arg(long, value_name = "NS", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub call_ns: Option<u32>,

    /// The options of every suite.
    #[command(flatten)]
    pub run: SuiteArgs,
}

/// Options of `kvmem bench cache`.
#[derive(Clone, Debug, Default, ClapArgs)]
pub struct BenchCacheArgs {
    /// Measure hit rates instead of times: each eviction policy beside S3-FIFO, ARC and the
    /// offline optimum, on prefix traces
    #[arg(long, conflicts_with_all = ["scenario", "contender", "threads", "reps"])]
    pub policy: bool,

    /// With --policy: also measure on this trace, one JSON object a line with hash_ids; repeatable
    #[arg(long, value_name = "FILE", requires = "policy")]
    pub trace: Vec<PathBuf>,

    /// Only these scenarios (default: all)
    #[arg(
        long, value_name = "NAME,…", value_delimiter = ',',
        value_parser = named::<CacheScenario>()
    )]
    pub scenario: Vec<CacheScenario>,

    /// Only these caches (default: all)
    #[arg(
        long, value_name = "NAME,…", value_delimiter = ',',
        value_parser = named::<CacheContenderId>()
    )]
    pub contender: Vec<CacheContenderId>,

    /// The numbers of threads.
    #[command(flatten)]
    pub threads: ThreadArgs,

    /// The options of every suite.
    #[command(flatten)]
    pub run: SuiteArgs,
}

/// Options of `kvmem bench tier`.
#[derive(Clone, Debug, Default, ClapArgs)]
pub struct BenchTierArgs {
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

    /// Only these of the contenders in this program (default: all)
    #[arg(
        long, value_name = "NAME,…", value_delimiter = ',',
        value_parser = named::<TierContenderId>()
    )]
    pub contender: Vec<TierContenderId>,

    /// A program that takes part, under a name; repeatable. The documentation of kvmem-bench has
    /// its protocol
    #[arg(long, value_name = "NAME=PROGRAM")]
    pub beside: Vec<Beside>,

    /// The options of every suite.
    #[command(flatten)]
    pub run: SuiteArgs,
}

/// Options of `kvmem bench node`.
#[derive(Clone, Debug, Default, ClapArgs)]
pub struct BenchNodeArgs {
    /// Only these of the contenders in this program (default: all)
    #[arg(
        long, value_name = "NAME,…", value_delimiter = ',',
        value_parser = named::<NodeContenderId>()
    )]
    pub contender: Vec<NodeContenderId>,

    /// A program that takes part, under a name; repeatable. The documentation of kvmem-bench has
    /// its protocol
    #[arg(long, value_name = "NAME=PROGRAM")]
    pub beside: Vec<Beside>,

    /// The options of every suite.
    #[command(flatten)]
    pub run: SuiteArgs,

    /// Be the server or a client of a measurement; the suite starts its processes this way
    #[arg(long, value_name = "ROLE", hide = true, exclusive = true)]
    pub role: Option<NodeRole>,
}

/// Options of `kvmem bench gpu`.
#[derive(Clone, Debug, Default, ClapArgs)]
pub struct BenchGpuArgs {
    /// Bytes of the regions that are registered, in whole pages of 2MiB, instead of 8GiB, or 1GiB
    /// with --quick
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub size: Option<u64>,

    /// The options of suites with rows that need hugepages.
    #[command(flatten)]
    pub hugepages: HugepageArgs,

    /// The options of every suite.
    #[command(flatten)]
    pub run: SuiteArgs,
}

/// Options of `kvmem bench offset`.
#[derive(Clone, Debug, ClapArgs)]
pub struct BenchOffsetArgs {
    /// Seed of every random choice
    #[arg(long, value_name = "N", default_value_t = kvmem_bench::offset::DEFAULT_SEED)]
    pub seed: u64,

    /// Only these workloads (default: all)
    #[arg(
        long, value_name = "NAME,…", value_delimiter = ',',
        value_parser = named::<WorkloadId>()
    )]
    pub workload: Vec<WorkloadId>,

    /// Only these allocators (default: all)
    #[arg(
        long, value_name = "NAME,…", value_delimiter = ',',
        value_parser = named::<ContenderId>()
    )]
    pub contender: Vec<ContenderId>,

    /// Measure beside a process that streams through 64 MiB of memory on another processor
    #[arg(long)]
    pub neighbour: bool,

    /// The options of every suite.
    #[command(flatten)]
    pub run: SuiteArgs,

    /// Stream through memory on this processor until the standard input ends; the suite starts its
    /// neighbour this way
    #[arg(long, value_name = "PROCESSOR", hide = true, exclusive = true)]
    pub stream: Option<usize>,
}

impl Default for BenchOffsetArgs {
    fn default() -> Self {
        BenchOffsetArgs {
            seed: kvmem_bench::offset::DEFAULT_SEED,
            workload: Vec::new(),
            contender: Vec::new(),
            neighbour: false,
            run: SuiteArgs::default(),
            stream: None,
        }
    }
}
