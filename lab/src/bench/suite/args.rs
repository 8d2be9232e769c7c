//! Options of every suite.

use std::path::PathBuf;

use clap::Args;

/// Options of every suite.
#[derive(Clone, Debug, Default, Args)]
pub struct SuiteArgs {
    /// Less memory, shorter and fewer repetitions: seconds instead of minutes
    #[arg(long)]
    pub quick: bool,

    /// Repetitions of each measurement; the median counts
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub reps: Option<u32>,

    /// Only these tables of the report
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    pub table: Vec<String>,

    /// Only these contenders
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    pub contender: Vec<String>,

    /// Write the rows as JSON to FILE; - for standard output instead of the table
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}
