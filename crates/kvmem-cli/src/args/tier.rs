//! Options of `kvmem tier`.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Subcommand};

use super::size;

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
    /// Measure a disk tier in a new file beside plain transfers of the same file
    Bench(TierBenchArgs),
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

    /// Draw what is found as a page of plots and tables in OUT
    #[arg(long, value_name = "OUT")]
    pub html: Option<PathBuf>,
}

/// Options of `kvmem tier verify`.
#[derive(Clone, Debug, ClapArgs)]
pub struct TierVerifyArgs {
    /// The file or block device
    #[arg(value_name = "FILE")]
    pub file: PathBuf,

    /// Transfers in flight at once
    #[arg(
        long, value_name = "N", default_value_t = 32,
        value_parser = clap::value_parser!(u32).range(1..=1024)
    )]
    pub depth: u32,

    /// Then write to the parts that lost what was written, and read them back, three times: those
    /// that hold it are used again. No value is written to
    #[arg(long)]
    pub repair: bool,

    /// Write what is found as JSON to OUT; - for standard output instead of the text
    #[arg(long, value_name = "OUT")]
    pub json: Option<PathBuf>,

    /// Draw what is found as a page of plots and tables in OUT
    #[arg(long, value_name = "OUT")]
    pub html: Option<PathBuf>,
}

/// Options of `kvmem tier bench`.
#[derive(Clone, Debug, ClapArgs)]
pub struct TierBenchArgs {
    /// A file that does not exist; it is removed at the end. With --format, one that exists, or a
    /// block device
    #[arg(value_name = "FILE")]
    pub file: PathBuf,

    /// Bytes to use, half of them for the tier and half for plain transfers
    #[arg(long, value_name = "SIZE", default_value = "2GiB", value_parser = size)]
    pub size: u64,

    /// Sizes of values
    #[arg(
        long, value_name = "SIZE,…", value_delimiter = ',', value_parser = size,
        default_value = "64KiB,1MiB,3274752"
    )]
    pub value_bytes: Vec<u64>,

    /// Values that one call stores or fetches, and transfers in flight at once
    #[arg(
        long, value_name = "N", default_value_t = 32,
        value_parser = clap::value_parser!(u32).range(1..=1024)
    )]
    pub depth: u32,

    /// Seconds for each size of values, at least; a tier and the plain transfers take turns
    #[arg(
        long, value_name = "SECONDS", default_value_t = 5,
        value_parser = clap::value_parser!(u64).range(1..)
    )]
    pub seconds: u64,

    /// Use FILE although it exists: what is in it is lost
    #[arg(long)]
    pub format: bool,

    /// Open the file with O_DSYNC: every write is durable when it is complete, of both sides
    #[arg(long)]
    pub dsync: bool,

    /// Write the rows as JSON to OUT; - for standard output instead of the table
    #[arg(long, value_name = "OUT")]
    pub json: Option<PathBuf>,

    /// Draw the figures as a page of plots and tables in OUT
    #[arg(long, value_name = "OUT")]
    pub html: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Args, Command};

    #[test]
    fn sizes_of_values_are_a_list() {
        let bench = |arguments: &[&str]| {
            let all = [&["kvmem", "tier", "bench", "file"], arguments].concat();
            match Args::try_parse_from(all).unwrap().command {
                Some(Command::Tier(TierArgs { command: TierCommand::Bench(bench) })) => bench,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(bench(&[]).value_bytes, [64 << 10, 1 << 20, 3_274_752]);
        assert_eq!(bench(&["--value-bytes", "1,4KiB"]).value_bytes, [1, 4096]);
    }
}
