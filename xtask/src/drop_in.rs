//! *Drop-in*: time of the class for C++ that replaces Mooncake's allocator, beside a model of that
//! allocator behind the same functions.
//!
//! Each figure is a process of its own, and the contenders take turns, so other load on the machine
//! affects both. The loops of one thread are timed by the thread's processor time; the scenarios of
//! several threads have a rate. Medians are compared.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use clap::Args;
use serde_json::json;

use crate::count;
use crate::run::output;

/// How to measure.
#[derive(Args)]
pub(crate) struct DropInOptions {
    /// Measurements of each figure; the median counts.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    reps: u32,
    /// Write the rows, too.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// The loops of one thread, with the operations of a measurement.
const LOOPS: [(&str, &str); 8] = [
    ("pair", "2000000"),
    ("churn", "1000000"),
    ("impossible", "20000000"),
    ("random", "1000000"),
    ("mix", "1400000"),
    ("paired", "500000"),
    ("uniform", "1000000"),
    ("uniform-many", "1000000"),
];
/// Operations of a measurement of a loop over a space at a constant fill.
const FILLED_OPS: &str = "300000";
/// The scenarios of several threads.
const SCENARIOS: [&str; 4] = ["impossible", "too-fragmented", "high-water", "pair-4k"];
const THREADS: [&str; 3] = ["1", "2", "4"];
/// Milliseconds of a measurement of a scenario.
const MILLISECONDS: &str = "300";
/// Time of the class, over that of the model, at most; and its rate, at least.
const TIME_LIMIT: f64 = 0.8;
const RATE_LIMIT: f64 = 1.2;
/// Time of the class over that of the model in a space at a constant fill, at most.
const FILLED_LIMIT: f64 = 1.2;
/// Time of the class with magazines over that without, in a space at a constant fill, at most.
const MAGAZINES_LIMIT: f64 = 1.05;
/// Nanoseconds of a request that fails, at most: both contenders refuse it after one load.
const IMPOSSIBLE_NS: f64 = 5.0;

/// The model, and the class as its two factories make it, and with the other placement.
const CONTENDERS: [(&str, &str); 4] = [
    ("model", "model"),
    ("drop_in", "drop-in"),
    ("drop_in_cached", "with magazines"),
    ("drop_in_best_fit", "best fit"),
];

/// Measures, prints the figures and the goals, and writes the rows. The exit status is 1 if a goal
/// is missed.
pub(crate) fn run(root: &Path, options: &DropInOptions) -> Result<ExitCode> {
    let program = count::build(root)?;
    let library = match count::build_loaded(root)? {
        Ok(library) => library,
        Err(missing) => {
            println!("skipped: {missing}");
            return Ok(ExitCode::SUCCESS);
        }
    };
    let library = library.to_str().context("the path of the library is no text")?;
    let (mut rows, mut missed) = (Vec::new(), 0);
    let mut report = |name: &str, threads: Option<&str>, words: &[&str]| -> Result<()> {
        let mut figures = [const { Vec::new() }; CONTENDERS.len()];
        for _ in 0..options.reps {
            for ((contender, _), figures) in CONTENDERS.iter().zip(&mut figures) {
                let mut args = vec![name, contender];
                args.extend(words);
                args.push(library);
                figures.push(measured(&program, &args)?);
            }
        }
        let figures = figures.map(median);
        let [model, ours, cached, _] = figures;
        let met = match threads {
            None if name == "impossible" => ours <= IMPOSSIBLE_NS,
            None if words == [FILLED_OPS] => {
                ours / model <= FILLED_LIMIT && cached / ours <= MAGAZINES_LIMIT
            }
            None => ours / model <= TIME_LIMIT,
            // Both refuse these after one load.
            Some(_) if matches!(name, "impossible" | "too-fragmented") => true,
            Some(_) => ours / model >= RATE_LIMIT,
        };
        missed += u32::from(!met);
        let of = threads.map_or(String::new(), |threads| format!(", {threads} thread(s)"));
        let (ratio, result) = (ours / model, if met { "" } else { "MISSED" });
        println!("{:28} {figures:8.1?} {ratio:6.2} × {result}", format!("{name}{of}"));
        for ((contender, _), figure) in CONTENDERS.iter().zip(figures) {
            let unit = if threads.is_some() { "mops" } else { "ns" };
            let threads = threads.and_then(|threads| threads.parse::<u32>().ok()).unwrap_or(1);
            rows.push(
                json!({"row": name, "contender": contender, "threads": threads, unit: figure}),
            );
        }
        Ok(())
    };
    println!("{:?}, and the second over the first", CONTENDERS.map(|(_, name)| name));
    println!("\nns of processor time per operation, one thread");
    for (name, ops) in LOOPS {
        report(name, None, &[ops])?;
    }
    println!("\nns of processor time per exchange in a space at a constant fill, one thread");
    for sizes in ["sixteen", "random"] {
        for percent in [75, 95, 100] {
            for live in [1_000, 10_000, 100_000] {
                report(&format!("{sizes}-{percent}-{live}"), None, &[FILLED_OPS])?;
            }
        }
    }
    println!("\nmillion calls per second, all threads together");
    for name in SCENARIOS {
        for threads in THREADS {
            report(name, Some(threads), &[threads, MILLISECONDS])?;
        }
    }
    println!(
        "\nlimits: time over the model's {TIME_LIMIT}, at a constant fill {FILLED_LIMIT}, there \
         with magazines over without {MAGAZINES_LIMIT}, rate over the model's {RATE_LIMIT}, a \
         request that fails {IMPOSSIBLE_NS} ns: {missed} missed"
    );
    count::finish("drop-in", rows, options.json.as_deref(), missed)
}

/// Runs the program once; returns the figure that it prints.
fn measured(program: &Path, args: &[&str]) -> Result<f64> {
    let text = output(Command::new(program).args(args)).with_context(|| args.join(" "))?;
    text.trim().parse().with_context(|| format!("{} printed {text:?}", args.join(" ")))
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_unstable_by(f64::total_cmp);
    figures[(figures.len() - 1) / 2]
}
