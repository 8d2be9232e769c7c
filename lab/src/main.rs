//! The `kvmem-lab` command.

use std::process::ExitCode;

use clap::Parser;
use kvmem_cli::{print_clap, tell};
use kvmem_lab::args::Args;

fn main() -> ExitCode {
    let done = match Args::try_parse() {
        Ok(args) => kvmem_lab::run(args).map(|()| 0),
        Err(error) => print_clap(&error),
    };
    ExitCode::from(done.unwrap_or_else(|failure| {
        tell(format_args!("kvmem-lab: {failure}"));
        failure.exit_status()
    }))
}
