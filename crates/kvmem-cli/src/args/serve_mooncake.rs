//! Arguments of `kvmem serve-mooncake`.

use std::ffi::OsString;

use clap::Args as ClapArgs;

/// Arguments of `kvmem serve-mooncake`: all of them belong to the program that it starts.
#[derive(Clone, Debug, ClapArgs)]
pub struct ServeMooncakeArgs {
    /// Options, passed on as they are; --help lists them
    #[arg(value_name = "OPTION", trailing_var_arg = true, allow_hyphen_values = true)]
    pub options: Vec<OsString>,
}
