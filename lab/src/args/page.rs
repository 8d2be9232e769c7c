//! Options of `kvmem-lab page`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args as ClapArgs;

/// Options of `kvmem-lab page`.
#[derive(Clone, Debug, ClapArgs)]
pub struct PageArgs {
    /// The page
    #[arg(value_name = "OUT")]
    pub out: PathBuf,

    /// The command whose findings are drawn, with its options: mount, tier inspect, tier verify or
    /// trace curve
    #[arg(
        value_name = "COMMAND",
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    pub command: Vec<OsString>,
}
