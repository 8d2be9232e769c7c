//! Options of `kvmem doctor`.

use std::path::PathBuf;

use clap::Args as ClapArgs;
use kvmem::arena::Ladder;
use kvmem::arena::preflight::{Requirements, RequirementsError};

use super::size;

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

    /// Also check whether PATH can be a disk tier: a file that may not exist yet, or a block device
    #[arg(long, value_name = "PATH")]
    pub tier: Option<PathBuf>,

    /// Size of the disk tier
    #[arg(
        long, value_name = "SIZE", default_value = "1GiB", value_parser = size, requires = "tier"
    )]
    pub tier_size: u64,

    /// Write the checks as JSON to standard output instead of the table, or to FILE
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    pub json: Option<PathBuf>,

    /// Print one shell script with all remedies, to read and to run as root, instead of the table;
    /// nothing is run
    #[arg(long, conflicts_with = "json")]
    pub fix: bool,

    /// Print the schema of the JSON that `--json` writes, and check nothing
    #[arg(long, conflicts_with_all = ["json", "fix", "tier"])]
    pub schema: bool,
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
