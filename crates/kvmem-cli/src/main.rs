//! The `kvmem` command.

use std::process::ExitCode;

use clap::Parser;
use kvmem_cli::args::Args;

fn main() -> ExitCode {
    let done = match Args::try_parse() {
        Ok(args) => kvmem_cli::run(args).map(|()| 0),
        Err(error) => kvmem_cli::print_clap(&error),
    };
    ExitCode::from(done.unwrap_or_else(|failure| {
        kvmem_cli::print_message(format_args!("kvmem: {failure}"));
        failure.exit_status()
    }))
}
