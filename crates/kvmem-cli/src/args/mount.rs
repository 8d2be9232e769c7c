//! Options of `kvmem mount`.

use std::path::PathBuf;

use clap::Args as ClapArgs;
use kvmem::arena::{Ladder, Numa, Populate};
use kvmem::register::{Devices, Policy};

use super::size;

/// Options of `kvmem mount`.
#[derive(Clone, Debug, ClapArgs)]
pub struct MountArgs {
    /// Size in bytes, or with a unit: 8GiB, 1TiB (GiB is 2^30 bytes, GB is 10^9, G is GiB)
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub size: u64,

    /// Kinds of pages to try, in this order: 1G, 2M, thp, 4k
    #[arg(long, value_name = "PAGES,…", default_value = "2M,thp,4k", value_parser = clap::value_parser!(Ladder))]
    pub pages: Ladder,

    /// Fail where the first kind of pages cannot take everything, instead of stepping down;
    /// hugepages of the kernel's choice (thp) are looked at when the memory is resident
    #[arg(long)]
    pub strict: bool,

    /// NUMA nodes: none, bind:0,2-3 or interleave:0-3
    #[arg(long, value_name = "POLICY", default_value = "none", value_parser = clap::value_parser!(Numa))]
    pub numa: Numa,

    /// Who makes the pages resident: auto (measures how many threads pay), a number of threads, or
    /// none (nobody)
    #[arg(long, value_name = "THREADS", default_value = "auto", value_parser = clap::value_parser!(Populate))]
    pub populate: Populate,

    /// Register the memory with these, then give it back: io_uring:N (so many rings), mlock, verbs
    /// (every NIC), verbs:NIC, cuda (every GPU), cuda:N, nixl (an agent with UCX),
    /// nixl:BACKEND
    #[arg(long, value_name = "DEVICE,…", value_parser = clap::value_parser!(Devices))]
    pub devices: Option<Devices>,

    /// How devices are called: auto (measures what is faster), sequential, parallel or parallel:N.
    /// By default what KVMEM_PARALLEL_REGISTER, MC_DISABLE_PARALLEL_REG_MR or
    /// MC_ENABLE_PARALLEL_REG_MR say, else auto
    #[arg(long, value_name = "POLICY", value_parser = clap::value_parser!(Policy), requires = "devices")]
    pub policy: Option<Policy>,

    /// The most bytes for a key: 256MiB; by default as many as the device takes, or takes most
    /// quickly
    #[arg(long, value_name = "SIZE", value_parser = size, requires = "devices")]
    pub chunk: Option<u64>,

    /// Print how it would be registered, and do nothing: addresses are mapped, but no page is made
    /// resident and nothing registered
    #[arg(long, requires = "devices")]
    pub plan: bool,

    /// Give up after so many seconds
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    pub time_budget: Option<u64>,

    /// Write the receipt, and with --devices what came of registering and the seconds, or the
    /// plan, as JSON to FILE; - for standard output instead of the text
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    pub json: Option<PathBuf>,

    /// Draw the receipt, and who was at work when, as a page in FILE
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}
