//! Runs a loop with a contender, and prints the figure. `cargo xtask count` runs it under
//! cachegrind, `cargo xtask drop-in` by itself.
//!
//! - `count LOOP CONTENDER OPERATIONS [LIBRARY]` prints the processor time of an operation in
//!   nanoseconds.
//! - `count SCENARIO CONTENDER THREADS MILLISECONDS [LIBRARY]` prints the million calls per second
//!   of all threads together.
//!
//! With a library, the contender is one of `contenders.cpp`, from which the library was built, or
//! `model`: the model of the published allocator behind the same functions. With `--neighbour` in
//! front, a process streams through memory on another processor meanwhile.

mod loaded;
mod model;

use std::error::Error;
use std::process::Command;
use std::time::Duration;

use kvmem_bench::concurrency::{ConcurrencyScenario, rate};
use kvmem_bench::contender::ContenderId;
use kvmem_bench::loops::counted::CountedLoop;
use kvmem_bench::neighbour::{self, Neighbour};

/// Starts this program as the neighbour of a measurement.
const STREAM: &str = "stream";

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (beside, arguments) = match &arguments[..] {
        [first, rest @ ..] if first == "--neighbour" => (true, rest),
        all => (false, all),
    };
    if let [first, processor] = arguments
        && first == STREAM
    {
        return Ok(neighbour::stream(processor.parse()?)?);
    }
    let neighbour = if beside { Some(Neighbour::start(streaming)?) } else { None };
    let figure = measure(arguments)?;
    if let Some(neighbour) = neighbour {
        neighbour.end()?;
    }
    println!("{figure}");
    Ok(())
}

fn measure(arguments: &[String]) -> Result<f64, Box<dyn Error>> {
    match arguments {
        [which, contender, ops] => {
            let (which, contender): (CountedLoop, ContenderId) =
                (which.parse()?, contender.parse()?);
            Ok(which.run(contender, ops.parse()?)?)
        }
        [which, contender, ops, library] => {
            let which: CountedLoop = which.parse()?;
            loaded::load(library, contender)?;
            Ok(which.run_with::<loaded::Loaded>(ops.parse()?)?)
        }
        [scenario, contender, threads, milliseconds, library] => {
            let scenario: ConcurrencyScenario = scenario.parse()?;
            let time = Duration::from_millis(milliseconds.parse()?);
            loaded::load(library, contender)?;
            Ok(rate::<loaded::Loaded>(scenario, threads.parse()?, time)?)
        }
        _ => Err("usage: count [--neighbour] LOOP CONTENDER OPERATIONS [LIBRARY] | \
                  count [--neighbour] SCENARIO CONTENDER THREADS MILLISECONDS LIBRARY"
            .into()),
    }
}

/// Returns the command of a neighbour on a processor.
fn streaming(processor: usize) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.args([STREAM, &processor.to_string()]);
    command
}
