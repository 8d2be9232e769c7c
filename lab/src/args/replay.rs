//! Options of `kvmem replay`.

use std::path::PathBuf;

use clap::Args as ClapArgs;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use kvmem_bench::contender::ContenderId;

use crate::replay::tiered::TierPlace;
use kvmem_cli::args::{BlockArgs, MetricsArgs, Policy, TraceReadingArgs, size};

/// Options of `kvmem replay`.
#[derive(Clone, Debug, ClapArgs)]
pub struct ReplayArgs {
    /// The trace: Mooncake's JSON lines, whose hash ids stand for blocks of 512 tokens, sessions of
    /// kv-cache-tester in a file or a folder, or a CSV file of Azure; - for standard input
    #[arg(value_name = "TRACE", required_unless_present = "ops")]
    pub trace: Option<PathBuf>,

    /// How the trace is read.
    #[command(flatten)]
    pub reading: TraceReadingArgs,

    /// Replay allocator calls that --record has written, instead of a trace
    #[arg(
        long, value_name = "FILE",
        conflicts_with_all = [
            "trace", "pool", "model", "object_bytes", "page_tokens", "policy", "threads",
            "backed", "requests", "record", "html", "tier", "format", "block_tokens",
            "sessions"
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

    /// The objects of a block.
    #[command(flatten)]
    pub block: BlockArgs,

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

    /// Put a disk tier in FILE below the cache: objects that are evicted go there, and come back.
    /// A tier of an earlier replay is used again. Needs --backed
    #[arg(long, value_name = "FILE", requires = "backed", conflicts_with = "record")]
    pub tier: Option<PathBuf>,

    /// Bytes of a new tier, instead of four times the pool
    #[arg(long, value_name = "SIZE", value_parser = size, requires = "tier")]
    pub tier_size: Option<u64>,

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

impl ReplayArgs {
    /// Returns where evicted objects go.
    pub fn tier(&self) -> Option<TierPlace> {
        let path = self.tier.clone()?;
        Some(TierPlace { path, bytes: self.tier_size.unwrap_or(self.pool.saturating_mul(4)) })
    }
}

/// Parses the name of an allocator, or "all".
fn contenders() -> impl TypedValueParser<Value = Contenders> {
    let names = ContenderId::ALL.map(ContenderId::name).into_iter().chain(["all"]);
    PossibleValuesParser::new(names).try_map(|name| match name.as_str() {
        "all" => Ok(Contenders::All),
        name => name.parse().map(Contenders::One),
    })
}
