//! Options of `kvmem snapshot`.

use std::path::PathBuf;

use clap::Args as ClapArgs;

/// Options of `kvmem snapshot`.
#[derive(Clone, Debug, ClapArgs)]
pub struct SnapshotArgs {
    /// The bytes that `serialize_to` of Mooncake's offset allocator wrote
    #[arg(value_name = "FILE")]
    pub file: PathBuf,

    /// Write what is found, with all ranges in use, as JSON to OUT; - for standard output instead
    /// of the text
    #[arg(long, value_name = "OUT")]
    pub json: Option<PathBuf>,
}
