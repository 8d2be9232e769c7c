//! The `kvmem` command.

use std::process::ExitCode;

use clap::Parser;
use kvmem_cli::args::Args;

fn main() -> ExitCode {
    match kvmem_cli::run(Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("kvmem: {failure}");
            ExitCode::from(failure.exit_status())
        }
    }
}
