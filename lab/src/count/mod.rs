//! *Count*: runs a loop with a contender, and prints the figure. `cargo xtask count` runs the
//! program of this module under cachegrind, `cargo xtask drop-in` by itself.
//!
//! - `count LOOP CONTENDER OPERATIONS [LIBRARY]` prints the processor time of an operation in
//!   nanoseconds. `LOOP` is a `CountedLoop` or a `Filled`.
//! - `count SCENARIO CONTENDER THREADS MILLISECONDS LIBRARY` prints the million calls per second of
//!   all threads together.
//!
//! With a library, the contender is one of `contenders.cpp`, from which the library was built, or
//! `model`: the model of the published allocator behind the same functions.

mod loaded;
mod model;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};

use crate::bench::concurrency::{ConcurrencyScenario, rate};
use crate::bench::contender::{Contender, ContenderId, with_contender};
use crate::bench::loops::counted::{self, CountedLoop};
use crate::bench::loops::filled::{self, Filled};

/// Does what the arguments say; returns the exit status.
pub fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match measure(&arguments) {
        Ok(figure) => {
            println!("{figure}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("count: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn measure(arguments: &[String]) -> Result<f64> {
    match arguments {
        [which, contender, ops] => {
            let (contender, ops): (ContenderId, u64) = (contender.parse()?, ops.parse()?);
            with_contender!(contender, C => run_loop::<C>(which, ops))
        }
        [which, contender, ops, library] => {
            load(library, contender)?;
            run_loop::<loaded::Loaded>(which, ops.parse()?)
        }
        [scenario, contender, threads, milliseconds, library] => {
            let scenario: ConcurrencyScenario = scenario.parse()?;
            let time = Duration::from_millis(milliseconds.parse()?);
            load(library, contender)?;
            rate::<loaded::Loaded>(scenario, threads.parse()?, time)
        }
        _ => bail!(
            "usage: count LOOP CONTENDER OPERATIONS [LIBRARY] | \
             count SCENARIO CONTENDER THREADS MILLISECONDS LIBRARY"
        ),
    }
}

/// Runs a loop by its name, the [`Filled`] ones among them.
fn run_loop<C: Contender>(name: &str, ops: u64) -> Result<f64> {
    match name.parse::<Filled>() {
        Ok(filled) => filled::run::<C>(counted::SEED, filled, ops).map(|outcome| outcome.ns_per_op),
        Err(_) => name.parse::<CountedLoop>()?.run::<C>(ops),
    }
}

/// Loads the contender `name` of a library, or the model.
fn load(library: &str, name: &str) -> Result<()> {
    loaded::load(if name == model::NAME { model::MODEL } else { loaded::find(library, name)? })
}
