//! The laboratory: `kvmem-lab` measures kvmem's layers beside other implementations, and replays
//! traces. No user of kvmem needs it, and nothing links it but its own programs.

// Nobody links it.
#![allow(unreachable_pub)]

mod args;
mod bench;
pub mod count;
mod replay;

use std::process::ExitCode;

use clap::Parser;
use kvmem_cli::{Failure, print_clap, print_message};

use self::args::{Args, Command};

/// Does what the command line says; returns the exit status.
pub fn main() -> ExitCode {
    let done = match Args::try_parse() {
        Ok(args) => run(&args).map(|()| 0),
        Err(error) => print_clap(&error),
    };
    ExitCode::from(done.unwrap_or_else(|failure| {
        print_message(format_args!("kvmem-lab: {failure}"));
        failure.exit_status()
    }))
}

fn run(args: &Args) -> Result<(), Failure> {
    kvmem_cli::log::begin(args.verbose)?;
    match &args.command {
        Command::Bench(bench) => bench::command::run(bench),
        Command::Replay(args) => replay::run(args),
    }
}
