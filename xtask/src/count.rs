//! *Count*: instructions and mispredicted branches of the loops over allocators of offsets.
//!
//! Time differs from machine to machine and from hour to hour. What cachegrind counts depends on
//! the code alone: it follows every instruction, and simulates the prediction of branches. Each
//! loop runs with two lengths, and the difference, divided by the operations, is the figure: what
//! the process does before and after the loop cancels. A figure *net* is that without the loop's
//! own work, which contender `null` shows.
//!
//! The class that replaces Mooncake's allocator and the C interface below it run the same loops, as
//! contenders in a library of C++. Their figures are net of the library's contender that places
//! nothing, and are shown over those of the Rust call.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use clap::Args;
use serde_json::{Value, json};

use crate::layout;
use crate::run::{output, succeed};
use crate::setup;
use crate::workspace::{cargo, target_folder};

/// What to count.
#[derive(Args)]
pub(crate) struct CountOptions {
    /// Only these loops (default: all).
    #[arg(value_name = "LOOP", value_parser = LOOPS.map(|(name, ..)| name))]
    loops: Vec<String>,
    /// Write the rows, too.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// The loops: name, operations of the shorter run, and the limits of instructions and mispredicted
/// branches, net, over those of `binned`.
const LOOPS: [(&str, u64, f64, Option<f64>); 13] = [
    ("random", 20_000, 0.85, Some(0.6)),
    ("mix", 21_000, 1.0, Some(1.0)),
    ("paired", 200_000, 1.2, Some(1.0)),
    ("uniform", 20_000, 0.8, None),
    ("churn", 20_000, 1.0, None),
    ("pair", 20_000, 0.9, None),
    ("impossible", 20_000, 1.0, None),
    ("sixteen-75-1000", 20_000, 1.2, None),
    ("sixteen-95-1000", 20_000, 1.2, None),
    ("sixteen-100-1000", 20_000, 1.2, None),
    ("random-75-1000", 20_000, 1.2, None),
    ("random-95-1000", 20_000, 1.2, None),
    ("random-100-1000", 20_000, 1.2, None),
];

/// The contenders. Limits hold for the first.
const CONTENDERS: [&str; 4] = [KVMEM, "kvmem-cached", BINNED, NULL];
const KVMEM: &str = "kvmem";
const BINNED: &str = "binned";
const NULL: &str = "null";

/// The contenders of the library of C++, each with the instructions that an operation may take
/// beyond the Rust call's: some three nanoseconds. The last one places nothing.
const LOADED: [(&str, &str, Option<f64>); 4] = [
    ("drop_in", "C++ drop-in", Some(12.0)),
    ("drop_in_cached", "C++ drop-in with magazines", None),
    ("c_interface", "C interface", Some(12.0)),
    (LOADED_NULL, "nothing", None),
];
const LOADED_NULL: &str = "loaded_null";

/// What one operation costs.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Counts {
    instructions: f64,
    mispredictions: f64,
}

impl Counts {
    /// Returns what an operation costs, from the sums of a run and of one with `ops` more
    /// operations.
    fn between(short: (u64, u64), long: (u64, u64), ops: u64) -> Counts {
        let each = |short: u64, long: u64| (long as f64 - short as f64) / ops as f64;
        Counts { instructions: each(short.0, long.0), mispredictions: each(short.1, long.1) }
    }

    /// Returns the row of a contender in a loop.
    fn row(self, name: &str, contender: &str) -> Value {
        let Counts { instructions, mispredictions } = self;
        json!({
            "loop": name, "contender": contender,
            "instructions": instructions, "mispredictions": mispredictions,
        })
    }
}

/// Counts, prints the figures and the goals, and writes the rows. The exit status is 1 if a goal is
/// missed.
pub(crate) fn run(root: &Path, options: &CountOptions) -> Result<ExitCode> {
    setup::required("valgrind", "valgrind")?;
    let program = build(root)?;
    let loaded = build_loaded(root)?;
    if let Err(missing) = &loaded {
        println!("skipped: the class for C++ and the C interface: {missing}");
    }
    let wanted = |name: &str| options.loops.is_empty() || options.loops.iter().any(|of| of == name);
    let (mut rows, mut missed) = (Vec::new(), 0);
    println!("Instructions and mispredicted branches of an operation");
    for (name, ops, instructions, mispredictions) in LOOPS {
        if !wanted(name) {
            continue;
        }
        let mut counts = BTreeMap::new();
        let measured = |contender: &str, library: Option<&Path>| {
            let each = [ops, 2 * ops].map(|ops| {
                let ops = ops.to_string();
                let library = library.and_then(Path::to_str);
                let args: Vec<_> = [name, contender, &ops].into_iter().chain(library).collect();
                counted(&program, &args)
            });
            let [short, long] = each;
            anyhow::Ok(Counts::between(short?, long?, ops))
        };
        for contender in CONTENDERS {
            let of = measured(contender, None)?;
            let Counts { instructions, mispredictions } = of;
            println!("{name:16} {contender:12} {instructions:9.1} {mispredictions:6.2}");
            counts.insert(contender, of);
            rows.push(of.row(name, contender));
        }
        if let Ok(library) = &loaded {
            let mut faces = BTreeMap::new();
            for (contender, ..) in LOADED {
                let of = measured(contender, Some(library))?;
                faces.insert(contender, of);
                rows.push(of.row(name, contender));
            }
            let rust = net(&counts, KVMEM, |counts| counts.instructions);
            for (contender, what, limit) in LOADED.into_iter().filter(|of| of.0 != LOADED_NULL) {
                let more = faces[contender].instructions - faces[LOADED_NULL].instructions - rust;
                let goal = limit.map_or_else(String::new, |limit| {
                    let met = more <= limit;
                    missed += u32::from(!met);
                    let result = if met { "met" } else { "MISSED" };
                    format!(", at most +{limit}: {result}")
                });
                println!("  {what}, net, over the Rust call: {more:+.1}{goal}");
            }
        }
        let ratio = |of: fn(&Counts) -> f64| net(&counts, KVMEM, of) / net(&counts, BINNED, of);
        let mut goal = |what: &str, figure: f64, limit: f64| {
            let met = figure <= limit;
            missed += u32::from(!met);
            let result = if met { "met" } else { "MISSED" };
            println!("  {what}, net, over binned: {figure:.2}, at most {limit}: {result}");
        };
        goal("instructions", ratio(|counts| counts.instructions), instructions);
        if let Some(limit) = mispredictions {
            goal("mispredictions", ratio(|counts| counts.mispredictions), limit);
        }
    }
    finish("count", rows, options.json.as_deref(), missed)
}

/// Writes the rows, if a file is named. Returns a failure if goals are missed.
pub(crate) fn finish(
    suite: &str,
    rows: Vec<Value>,
    file: Option<&Path>,
    missed: u32,
) -> Result<ExitCode> {
    if let Some(file) = file {
        let text = serde_json::to_string_pretty(&json!({"suite": suite, "rows": rows}))?;
        std::fs::write(file, text + "\n")
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(if missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Builds the program of the loops as the benchmarks are built; returns its path.
pub(crate) fn build(root: &Path) -> Result<PathBuf> {
    let args = ["build", "--profile", "bench", "--locked", "-p", "kvmem-lab", "--example", "count"];
    let mut build = Command::new(cargo());
    succeed(build.current_dir(root).args(args))?;
    // Cargo's folder of the profile `bench`.
    Ok(target_folder(root)?.join("release/examples/count"))
}

/// Builds the library of contenders in C++ on the built C library; returns its path, or what is
/// missing.
pub(crate) fn build_loaded(root: &Path) -> Result<Result<PathBuf, String>> {
    const COMPILER: &str = "c++";
    if !setup::works(COMPILER, &["--version"]) {
        return Ok(Err(format!("no C++ compiler `{COMPILER}`: {}", setup::by_hand("g++"))));
    }
    let mut build = Command::new(cargo());
    build.current_dir(root).args(["build", "--profile", "bench", "--locked", "-p", "kvmem-capi"]);
    succeed(&mut build)?;
    let built = target_folder(root)?.join("release");
    let prefix = built.join("count");
    let include = root.join("crates/kvmem-capi/include");
    layout::install_into(&prefix, &built, &include, "0.0.0", layout::Parts::Shipped)
        .with_context(|| format!("cannot write {}", prefix.display()))?;
    let (lib, library) = (prefix.join("lib"), prefix.join("libcontenders.so"));
    let mut compiler = Command::new(COMPILER);
    compiler.args(["-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-I"]);
    compiler.arg(prefix.join("include"));
    compiler.arg(root.join("lab/examples/count/contenders.cpp"));
    compiler.arg("-o").arg(&library).arg("-L").arg(&lib).arg("-lkvmem");
    output(compiler.arg(format!("-Wl,-rpath,{}", lib.display())))?;
    Ok(Ok(library))
}

/// Runs the program under cachegrind; returns its instructions and mispredicted branches.
fn counted(program: &Path, args: &[&str]) -> Result<(u64, u64)> {
    let out = std::env::temp_dir().join(format!("kvmem-count-{}", std::process::id()));
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--tool=cachegrind", "--cache-sim=no", "--branch-sim=yes", "--quiet"]);
    valgrind.arg(format!("--cachegrind-out-file={}", out.display()));
    output(valgrind.arg(program).args(args)).with_context(|| args.join(" "))?;
    let file = std::fs::read_to_string(&out);
    // Best effort: the file lies in the folder of temporary files.
    let _ = std::fs::remove_file(&out);
    summary(&file.context("cachegrind wrote no file")?)
}

/// Reads cachegrind's file: `events:` has the names of the columns, `summary:` the sums.
fn summary(file: &str) -> Result<(u64, u64)> {
    let words = |start: &str| {
        let line = file.lines().find_map(|line| line.strip_prefix(start));
        line.map(|line| line.split_whitespace().collect::<Vec<_>>())
            .with_context(|| format!("cachegrind's file has no line {start}"))
    };
    let (events, sums) = (words("events:")?, words("summary:")?);
    let sum = |event: &str| -> Result<u64> {
        let at = events.iter().position(|name| *name == event);
        let word = at.and_then(|at| sums.get(at));
        word.with_context(|| format!("cachegrind counts no {event}"))?
            .parse()
            .with_context(|| format!("{event} is no number"))
    };
    // Conditional branches, and indirect ones.
    Ok((sum("Ir")?, sum("Bcm")? + sum("Bim")?))
}

/// Returns what a contender costs more than the loop alone.
fn net(counts: &BTreeMap<&str, Counts>, contender: &str, of: fn(&Counts) -> f64) -> f64 {
    of(&counts[contender]) - of(&counts[NULL])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sums_are_read_by_the_names_of_the_columns() {
        let file = "desc: I1\nevents: Ir Bc Bcm Bi Bim\nfn=main\n1 7 1 1 1 1\n\
                    summary: 700 90 8 10 3\n";
        assert_eq!(summary(file).unwrap(), (700, 11));
        let error = summary("events: Ir\nsummary: 700\n").unwrap_err();
        assert!(error.to_string().contains("Bcm"), "{error}");
        assert!(summary("events: Ir Bcm Bim\n").unwrap_err().to_string().contains("summary:"));
    }
}
