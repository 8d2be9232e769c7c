//! *Suites*: the framework of all benchmarks.
//!
//! A suite is a function. It measures contenders in turns ([`Run::turns`]), which makes a row
//! for each of them: a line of a table, a contender, and its figures. Then it adds its goals, from
//! the rows. The rest is here: the turns, their medians, the tables, the JSON, and the progress
//! bar.

mod report;
mod run;

use std::path::PathBuf;

use clap::Args;

pub use self::report::Report;
pub use self::run::{Figures, Run, Skip, Turns};

/// Whether quick runs take the smallest sizes. The figures of a build without optimization are
/// compared with nothing: its runs only show that every row can be measured.
pub const SMALLEST: bool = cfg!(debug_assertions);

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

/// Defines an enum whose values have names in options and reports, in the order of reports, and the
/// noun for its values. `Display` and `FromStr` use the names.
macro_rules! names {
    (
        $(#[$attribute:meta])*
        pub enum $type:ident ($what:literal) {
            $($(#[$value_attribute:meta])* $value:ident = $name:literal,)+
        }
    ) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
        pub enum $type {
            $($(#[$value_attribute])* $value,)+
        }

        impl $type {
            /// All values, in the order in which reports list them.
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$value),+];

            /// Returns the name.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$value => $name,)+
                }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }

        impl std::str::FromStr for $type {
            type Err = anyhow::Error;

            fn from_str(name: &str) -> anyhow::Result<Self> {
                let found = Self::ALL.into_iter().find(|one| one.name() == name);
                let all = Self::ALL.map(Self::name).join(", ");
                found.ok_or_else(|| anyhow::anyhow!("unknown {} {name:?}: use one of {all}", $what))
            }
        }
    };
}

pub(crate) use names;
