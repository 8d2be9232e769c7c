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
    #[arg(
        long, value_name = "PAGES,…", default_value = "2M,thp,4k",
        value_parser = clap::value_parser!(Ladder)
    )]
    pub pages: Ladder,

    /// Fail if the first kind of pages cannot hold everything, instead of falling down the ladder;
    /// thp is checked when the memory is resident
    #[arg(long)]
    pub strict: bool,

    /// NUMA nodes: none, bind:0,2-3 or interleave:0-3
    #[arg(
        long, value_name = "POLICY", default_value = "none",
        value_parser = clap::value_parser!(Numa)
    )]
    pub numa: Numa,

    /// How pages are made resident: auto (measures how many threads pay), a number of threads, or
    /// none
    #[arg(
        long, value_name = "THREADS", default_value = "auto",
        value_parser = clap::value_parser!(Populate)
    )]
    pub populate: Populate,

    /// Register the memory with these, then deregister it: io_uring:N (N rings), mlock, verbs
    /// (every NIC), verbs:NIC, cuda (every GPU), cuda:N, nixl (an agent with UCX),
    /// nixl:BACKEND
    #[arg(long, value_name = "DEVICE,…", value_parser = clap::value_parser!(Devices))]
    pub devices: Option<Devices>,

    /// How devices are called: auto (measures which is faster), sequential, parallel or
    /// parallel:N. The default is KVMEM_PARALLEL_REGISTER, MC_DISABLE_PARALLEL_REG_MR or
    /// MC_ENABLE_PARALLEL_REG_MR, else auto
    #[arg(
        long, value_name = "POLICY", value_parser = clap::value_parser!(Policy),
        requires = "devices"
    )]
    pub policy: Option<Policy>,

    /// Maximum bytes of a key, such as 256MiB; the default is the device's maximum, or the size
    /// that it registers fastest
    #[arg(long, value_name = "SIZE", value_parser = size, requires = "devices")]
    pub chunk: Option<u64>,

    /// Print the plan and stop: addresses are mapped, but no page is made resident and nothing is
    /// registered
    #[arg(long, requires = "devices")]
    pub plan: bool,

    /// Give up after this many seconds
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    pub time_budget: Option<u64>,

    /// Write the receipt, with --devices also the registrations and the times, or the plan, as
    /// JSON to FILE; - for standard output instead of the text
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    pub json: Option<PathBuf>,
}
