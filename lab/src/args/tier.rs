//! Options of `kvmem-lab tier`.

use std::path::PathBuf;

use clap::Args as ClapArgs;

use super::size;

/// Options of `kvmem-lab tier`.
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

    use crate::args::{Args, Command};

    #[test]
    fn sizes_of_values_are_a_list() {
        let bench = |arguments: &[&str]| {
            let all = [&["kvmem-lab", "tier", "file"], arguments].concat();
            match Args::try_parse_from(all).unwrap().command {
                Command::Tier(bench) => bench,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(bench(&[]).value_bytes, [64 << 10, 1 << 20, 3_274_752]);
        assert_eq!(bench(&["--value-bytes", "1,4KiB"]).value_bytes, [1, 4096]);
    }
}
