//! Options of `kvmem tier`.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Subcommand};

/// Options of `kvmem tier`.
#[derive(Clone, Debug, ClapArgs)]
pub struct TierArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: TierCommand,
}

/// What to do with the file of a disk tier.
#[derive(Clone, Debug, Subcommand)]
pub enum TierCommand {
    /// Show what a disk tier holds: its parts, values, journal and free space. Nothing is written;
    /// the tier must not be open
    Inspect(TierInspectArgs),
    /// Read every value and compare it with its checksum; the status is 1 if one is damaged.
    /// Nothing is written without --repair; the tier must not be open
    Verify(TierVerifyArgs),
}

/// Options of `kvmem tier inspect`.
#[derive(Clone, Debug, ClapArgs)]
pub struct TierInspectArgs {
    /// The file or block device
    #[arg(value_name = "FILE")]
    pub file: PathBuf,

    /// Write what is found as JSON to OUT; - for standard output instead of the text
    #[arg(long, value_name = "OUT")]
    pub json: Option<PathBuf>,
}

/// Options of `kvmem tier verify`.
#[derive(Clone, Debug, ClapArgs)]
pub struct TierVerifyArgs {
    /// The file or block device
    #[arg(value_name = "FILE")]
    pub file: PathBuf,

    /// Then decrypt and decompress each value with the keys in PATH, as --tier of kvmem serve takes
    /// it: only then are values found whose bytes were changed together with their checksums
    #[arg(long, value_name = "PATH")]
    pub key_file: Option<PathBuf>,

    /// Then write to the parts that lost what was written, and read them back, three times: those
    /// that hold it are used again. No value is written to
    #[arg(long)]
    pub repair: bool,

    /// Write what is found as JSON to OUT; - for standard output instead of the text
    #[arg(long, value_name = "OUT")]
    pub json: Option<PathBuf>,
}
