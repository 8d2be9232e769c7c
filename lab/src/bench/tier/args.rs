//! Options of `bench tier`.

use std::path::PathBuf;

use clap::Args;
use kvmem_cli::args::size;

use crate::bench::beside::Beside;
use crate::bench::suite::SuiteArgs;

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
