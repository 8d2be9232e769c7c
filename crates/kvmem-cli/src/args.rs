//! The command line.

mod metrics;
mod mount;
mod tour;

use std::error::Error;
use std::path::PathBuf;
use std::str::FromStr;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args as ClapArgs, Parser, Subcommand};
use kvmem::arena::preflight::{Requirements, RequirementsError};
use kvmem::arena::{ByteSize, Ladder};
use kvmem::pool::kv_cache::Eviction;
use kvmem_bench::arena::{self, ArenaContenderId};
use kvmem_bench::cache::{CacheContenderId, CacheScenario};
use kvmem_bench::concurrency::{ConcurrencyContenderId, ConcurrencyScenario};
use kvmem_bench::contender::ContenderId;
use kvmem_bench::offset::WorkloadId;
use kvmem_bench::register::{self, RegisterContenderId};
use kvmem_bench::slab::{self, SlabContenderId};

pub use self::metrics::MetricsArgs;
pub use self::mount::MountArgs;
pub use self::tour::TourArgs;
use crate::replay::model::{BlockLayout, LayoutError, Model};

/// The host memory of LLM inference servers: checks a machine, maps and registers memory, replays
/// KV-cache traces, and runs the benchmarks of the kvmem library.
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
    /// Show everything once, in less than two minutes: limits, a pool, a KV cache, the quick
    /// benchmarks, and a page of plots. This is the default
    Tour(TourArgs),
    /// Measure all layers, or one, beside the published figures and other implementations
    #[command(args_conflicts_with_subcommands = true)]
    Bench {
        /// Fewer operations, less memory: a minute or two instead of many
        #[arg(long)]
        quick: bool,

        /// Draw the figures as a page of plots and tables in FILE
        #[arg(long, value_name = "FILE")]
        html: Option<PathBuf>,

        /// Add the hugepages that rows of 2 MiB pages lack to the machine's pool (vm.nr_hugepages,
        /// as root) while they are measured. The pool gets its former size back at the end, when
        /// the run is interrupted, or else by the next kvmem bench. Without this option the
        /// machine stays as it is, and rows that lack hugepages are left out
        #[arg(long)]
        borrow_hugepages: bool,

        /// Show the results of earlier runs, written with --json, and measure nothing
        #[arg(
            long, value_name = "FILE,…", value_delimiter = ',',
            conflicts_with_all = ["quick", "borrow_hugepages"]
        )]
        from: Vec<PathBuf>,

        /// The suite to measure (default: all).
        #[command(subcommand)]
        suite: Option<BenchSuite>,
    },
    /// Check every limit of this machine against the memory you want, with the remedy for each that
    /// prevents it, and list the registrars
    Doctor(DoctorArgs),
    /// Map memory, make its pages resident, register it with devices, and print the receipt and the
    /// times
    Mount(MountArgs),
    /// Replay a KV-cache trace through keyed blocks on a pool, or recorded calls through any
    /// allocator
    Replay(ReplayArgs),
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
    /// Small blocks of memory: time per allocation and free, beside mimalloc, jemalloc, snmalloc,
    /// g_slice and malloc
    Slab(BenchSlabArgs),
    /// One allocator of offsets that several threads share: calls a second, and time per call
    Concurrency(BenchConcurrencyArgs),
    /// Keyed blocks that several threads share: time per look-up and per insertion
    Cache(BenchCacheArgs),
}

/// Options of `kvmem bench arena`.
#[derive(Clone, Debug, Default, ClapArgs)]
pub struct BenchArenaArgs {
    /// Less memory and fewer repetitions: some seconds instead of some minutes
    #[arg(long)]
    pub quick: bool,

    /// Only these operations (default: all)
    #[arg(
        long, value_name = "NAME,…", value_delimiter = ',',
        value_parser = named(arena::Op::ALL, arena::Op::name)
    )]
    pub op: Vec<arena::Op>,

    /// Only these contenders (default: all)
    #[arg(
        long, value_name = "NAME,…", value_delimiter = ',',
        value_parser = named(ArenaContenderId::ALL, ArenaContenderId::name)
    )]
    pub contender: Vec<ArenaContenderId>,

    /// Repetitions of each measurement; the median counts
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub reps: Option<u32>,

    /// Add the hugepages that rows of 2 MiB pages lack to the machine's pool (vm.nr_hugepages, as
    /// root) while they are measured. The pool gets its former size back at the end, when the run
    /// is interrupted, or else by the next kvmem bench. Without this option the machine stays as
    /// it is, and rows that lack hugepages are left out
    #[arg(long)]
    pub borrow_hugepages: bool,

    /// Write the rows as JSON to FILE; - for standard output instead of the table
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// Draw the figures as a page of plots and tables in FILE
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

/// Options of `kvmem bench register`.
#[derive(Clone, Debug, Default, ClapArgs)]
pub struct BenchRegisterArgs {
    /// One size, fewer contexts and rounds: half a minute instead of some minutes
    #[arg(long)]
    pub quick: bool,

    /// Only these backends (default: all)
    #[arg(
        long, value_name = "NAME,…", value_delimiter = ',',
        value_parser = named(register::Backend::ALL, register::Backend::name)
    )]
    pub backend: Vec<register::Backend>,

    /// Only these policies (default: all)
    #[arg(
        long, value_name = "NAME,…", value_delimiter = ',',
        value_parser = named(RegisterContenderId::ALL, RegisterContenderId::name)
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

    /// Measured rounds; the median counts
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub reps: Option<u32>,

    /// Add the hugepages that rows of 2 MiB pages lack to the machine's pool (vm.nr_hugepages, as
    /// root) while they are measured. The pool gets its former size back at the end, when the run
    /// is interrupted, or else by the next kvmem bench. Without this option the machine stays as
    /// it is, and rows that lack hugepages are left out
    #[arg(long)]
    pub borrow_hugepages: bool,

    /// Write the rows as JSON to FILE; - for standard output instead of the table
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// Draw the figures as a page of plots and tables in FILE
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

/// Options of `kvmem bench slab`.
#[derive(Clone, Debug, Default, ClapArgs)]
pub struct BenchSlabArgs {
    /// Shorter and fewer repetitions: some seconds instead of some minutes
    #[arg(long)]
    pub quick: bool,

    /// Only these patterns (default: all)
    #[arg(
        long, value_name = "NAME,…", value_delimiter = ',',
        value_parser = named(slab::Pattern::ALL, slab::Pattern::name)
    )]
    pub pattern: Vec<slab::Pattern>,

    /// Only these allocators (default: all)
    #[arg(
        long, value_name = "NAME,…", value_delimiter = ',',
        value_parser = named(SlabContenderId::ALL, SlabContenderId::name)
    )]
    pub contender: Vec<SlabContenderId>,

    /// Numbers of threads to measure, instead of 1, 2, 3 and 4
    #[arg(
        long, value_name = "N,…", value_delimiter = ',',
        value_parser = clap::value_parser!(u32).range(1..=256)
    )]
    pub threads: Vec<u32>,

    /// Repetitions of each measurement; the median counts
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub reps: Option<u32>,

    /// Write the rows as JSON to FILE; - for standard output instead of the table
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// Draw the figures as a page of plots and tables in FILE
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,

    /// Run one measurement in this process; the suite runs each of its own this way
    #[arg(long, value_name = "TASK", hide = true, exclusive = true)]
    pub alone: Option<slab::Task>,
}

/// Options of `kvmem bench concurrency`.
#[derive(Clone, Debug, Default, ClapArgs)]
pub struct BenchConcurrencyArgs {
    /// Shorter and fewer repetitions: some seconds instead of some minutes
    #[arg(long)]
    pub quick: bool,

    /// Only these scenarios (default: all)
    #[arg(
        long, value_name = "NAME,…", value_delimiter = ',',
        value_parser = named(ConcurrencyScenario::ALL, ConcurrencyScenario::name)
    )]
    pub scenario: Vec<ConcurrencyScenario>,

    /// Only these allocators (default: all)
    #[arg(
        long, value_name = "NAME,…", value_delimiter = ',',
        value_parser = named(ConcurrencyContenderId::ALL, ConcurrencyContenderId::name)
    )]
    pub contender: Vec<ConcurrencyContenderId>,

    /// Numbers of threads to measure, instead of 1, 2, 4 and 16
    #[arg(
        long, value_name = "N,…", value_delimiter = ',',
        value_parser = clap::value_parser!(u32).range(1..=256)
    )]
    pub threads: Vec<u32>,

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

    /// Shorter and fewer repetitions: some seconds instead of a minute
    #[arg(long)]
    pub quick: bool,

    /// Only these scenarios (default: all)
    #[arg(
        long, value_name = "NAME,…", value_delimiter = ',',
        value_parser = named(CacheScenario::ALL, CacheScenario::name)
    )]
    pub scenario: Vec<CacheScenario>,

    /// Only these caches (default: all)
    #[arg(
        long, value_name = "NAME,…", value_delimiter = ',',
        value_parser = named(CacheContenderId::ALL, CacheContenderId::name)
    )]
    pub contender: Vec<CacheContenderId>,

    /// Numbers of threads to measure, instead of 1, 2 and 4
    #[arg(
        long, value_name = "N,…", value_delimiter = ',',
        value_parser = clap::value_parser!(u32).range(1..=256)
    )]
    pub threads: Vec<u32>,

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

/// Options of `kvmem bench offset`.
#[derive(Clone, Debug, ClapArgs)]
pub struct BenchOffsetArgs {
    /// Fewer operations: well under a minute instead of minutes
    #[arg(long)]
    pub quick: bool,

    /// Seed of every random choice
    #[arg(long, value_name = "N", default_value_t = kvmem_bench::offset::DEFAULT_SEED)]
    pub seed: u64,

    /// Only these workloads (default: all)
    #[arg(
        long, value_name = "NAME,…", value_delimiter = ',',
        value_parser = named(WorkloadId::ALL, WorkloadId::name)
    )]
    pub workload: Vec<WorkloadId>,

    /// Only these allocators (default: all)
    #[arg(
        long, value_name = "NAME,…", value_delimiter = ',',
        value_parser = named(ContenderId::ALL, ContenderId::name)
    )]
    pub contender: Vec<ContenderId>,

    /// Repetitions of each timed loop; the median counts
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub reps: Option<u32>,

    /// Write the rows as JSON to FILE; - for standard output instead of the table
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// Draw the figures as a page of plots and tables in FILE
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

impl Default for BenchOffsetArgs {
    fn default() -> Self {
        BenchOffsetArgs {
            quick: false,
            seed: kvmem_bench::offset::DEFAULT_SEED,
            workload: Vec::new(),
            contender: Vec::new(),
            reps: None,
            json: None,
            html: None,
        }
    }
}

/// Options of `kvmem replay`.
#[derive(Clone, Debug, ClapArgs)]
pub struct ReplayArgs {
    /// The trace: one JSON object a line with timestamp, input_length, output_length and hash_ids,
    /// where each hash id stands for a block of 512 tokens; - for standard input
    #[arg(value_name = "TRACE", required_unless_present = "ops")]
    pub trace: Option<PathBuf>,

    /// Replay allocator calls that --record has written, instead of a trace
    #[arg(
        long, value_name = "FILE",
        conflicts_with_all = [
            "trace", "pool", "model", "object_bytes", "page_tokens", "policy", "threads",
            "backed", "requests", "record", "html"
        ]
    )]
    pub ops: Option<PathBuf>,

    /// With --ops: fail unless every call has the recorded result
    #[arg(long)]
    pub verify: bool,

    /// Size of the pool in bytes, or with a unit: 64GiB, 1TiB (GiB is 2^30 bytes, GB is 10^9, G is
    /// GiB)
    #[arg(long, value_name = "SIZE", default_value = "1TiB", value_parser = size)]
    pub pool: u64,

    /// The model whose KV cache the blocks are
    #[arg(long, value_enum, default_value = "glm-5.1-dsa")]
    pub model: Model,

    /// The sizes of the objects that hold a page of --page-tokens tokens, instead of a model
    #[arg(
        long, value_name = "SIZE,…", value_delimiter = ',', value_parser = size,
        conflicts_with = "model"
    )]
    pub object_bytes: Option<Vec<u64>>,

    /// Tokens of a page; a block of 512 tokens is 512 / N pages
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub page_tokens: u64,

    /// The allocator: kvmem is a pool, kvmem-cached a pool whose threads cache hot sizes; the
    /// others only place objects. With --ops also "all", side by side
    #[arg(long, value_name = "NAME", default_value = "kvmem", value_parser = contenders())]
    pub contender: Contenders,

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

    /// Write all calls of the allocator to FILE, for --ops
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,

    /// Stop after the first N requests
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub requests: Option<u64>,

    /// Write the report as JSON to FILE; - for standard output instead of the text
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// Sample the pool during the replay, and draw the samples as a page in FILE
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,

    /// Where metrics are served.
    #[command(flatten)]
    pub metrics: MetricsArgs,
}

/// One allocator, or all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contenders {
    /// One allocator.
    One(ContenderId),
    /// All of them, one after the other.
    All,
}

/// Which objects are evicted first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Policy {
    /// The least recently used
    Lru,
    /// Those of least worth, learned from how often and how long ago blocks were used; more hits
    /// than lru on long traces (with scans 43.9 % for 41.3 %, documents 44.1 % for 33.2 %), up to
    /// 0.12 points fewer on short ones
    ScanResistant,
}

impl Policy {
    /// The cache's name for the policy.
    pub fn eviction(self) -> Eviction {
        match self {
            Policy::Lru => Eviction::Lru,
            Policy::ScanResistant => Eviction::ScanResistant,
        }
    }
}

/// Options of `kvmem doctor`.
#[derive(Clone, Debug, ClapArgs)]
pub struct DoctorArgs {
    /// Size of the memory in bytes, or with a unit: 64GiB, 1TiB (GiB is 2^30 bytes, GB is
    /// 10^9, G is GiB)
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = size)]
    pub size: u64,

    /// The page sizes to try, in this order: 1G, 2M, thp, 4k; a single one means that or nothing
    #[arg(long, value_name = "PAGES,…", default_value = "2M,thp,4k")]
    pub pages: Ladder,

    /// The NUMA nodes that the memory must come from, in even shares (default: any)
    #[arg(long, value_name = "NODE,…", value_delimiter = ',')]
    pub nodes: Vec<u32>,

    /// The memory is for other processes to attach
    #[arg(long)]
    pub shared: bool,

    /// The memory will not be pinned: it is registered with no device
    #[arg(long)]
    pub no_pin: bool,

    /// Write the checks as JSON to standard output instead of the table, or to FILE
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    pub json: Option<PathBuf>,
}

impl DoctorArgs {
    /// Returns the memory to check for.
    ///
    /// # Errors
    /// [`RequirementsError`] if no such memory can exist.
    pub fn requirements(&self) -> Result<Requirements, RequirementsError> {
        let requirements = Requirements::new(self.size, self.pages.clone())?;
        Ok(requirements.shared(self.shared).pinned(!self.no_pin).nodes(self.nodes.iter().copied()))
    }
}

impl ReplayArgs {
    /// Returns the layout of a block, and its name.
    ///
    /// # Errors
    /// [`LayoutError`] if no such block can exist.
    pub fn layout(&self) -> Result<(BlockLayout, String), LayoutError> {
        match &self.object_bytes {
            Some(sizes) => Ok((BlockLayout::of_objects(sizes, self.page_tokens)?, "custom".into())),
            None => Ok((BlockLayout::of_model(self.model, self.page_tokens)?, self.model.name())),
        }
    }
}

/// Parses a name; help and errors list all names.
fn named<T, const N: usize>(
    all: [T; N],
    name: fn(T) -> &'static str,
) -> impl TypedValueParser<Value = T>
where
    T: FromStr<Err: Error + Send + Sync + 'static> + Clone + Send + Sync + 'static,
{
    PossibleValuesParser::new(all.map(name)).try_map(|name| name.parse::<T>())
}

/// Parses the name of an allocator, or "all".
fn contenders() -> impl TypedValueParser<Value = Contenders> {
    let names = ContenderId::ALL.map(ContenderId::name).into_iter().chain(["all"]);
    PossibleValuesParser::new(names).try_map(|name| match name.as_str() {
        "all" => Ok(Contenders::All),
        name => name.parse().map(Contenders::One),
    })
}

/// Parses a size as all of kvmem does.
fn size(text: &str) -> Result<u64, String> {
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
        let tour = Args::try_parse_from(["kvmem", "tour", "--pool", "64MiB", "--no-bench"])
            .unwrap()
            .command;
        let Some(Command::Tour(tour)) = tour else { panic!("{tour:?}") };
        assert_eq!((tour.pool, tour.no_bench, tour.html), (Some(64 << 20), true, None));
        assert_eq!(tour.seconds, TourArgs::default().seconds);
    }

    #[test]
    fn blocks_come_from_the_model_or_from_object_sizes() {
        let layout = |args: &[&str]| {
            let args = [&["kvmem", "replay", "t"], args].concat();
            match Args::try_parse_from(args).unwrap().command {
                Some(Command::Replay(replay)) => replay.layout().unwrap(),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(layout(&[]).1, "glm-5.1-dsa");
        assert_eq!(layout(&["--model", "llama-3.1-8b"]).0.objects(), [8 << 20; 8]);
        let (custom, name) = layout(&["--object-bytes", "4KiB,100", "--page-tokens", "256"]);
        assert_eq!(
            (custom.objects(), name.as_str()),
            ([4096, 4096, 100, 100].as_slice(), "custom")
        );
    }
}
