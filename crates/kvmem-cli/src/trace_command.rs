//! `kvmem trace`: reports what traces contain, and the hit rate for every size of a pool.

use std::fmt;
use std::path::Path;

use crate::args::{
    BlockArgs, SamplingArgs, TraceArgs, TraceCommand, TraceCurveArgs, TraceInfoArgs,
    TraceReadingArgs,
};
use crate::output::{Failure, JsonSink, progress_bar};
use crate::output_file::OutputFiles;
use crate::reuse::curve::HitCurve;
use crate::reuse::summary::{ReuseError, TraceSummary, summarize};
use kvmem_trace::TraceFile;
use kvmem_trace::reuse::distances::ReuseDistances;

/// Carries out the subcommand.
pub(crate) fn run(args: &TraceArgs) -> Result<(), Failure> {
    match &args.command {
        TraceCommand::Info(args) => info(args),
        TraceCommand::Curve(args) => curve(args),
    }
}

fn info(args: &TraceInfoArgs) -> Result<(), Failure> {
    let mut files = OutputFiles::new();
    for path in &args.files {
        files = protect(files, path)?;
    }
    let json = JsonSink::open(&mut files, args.json.as_deref())?;
    let mut summaries = Vec::new();
    for path in &args.files {
        let (summary, _) = read(path, &args.reading, &args.block, args.sampling)?;
        summaries.push(summary);
    }
    json.write(Listed(&summaries), &summaries)
}

fn curve(args: &TraceCurveArgs) -> Result<(), Failure> {
    let mut files = protect(OutputFiles::new(), &args.file)?;
    let json = JsonSink::open(&mut files, args.json.as_deref())?;
    let (summary, distances) = read(&args.file, &args.reading, &args.block, args.sampling)?;
    let curve = HitCurve::new(summary, &distances, args.pools.as_deref());
    json.write(&curve, &curve)
}

/// Protects the files of a trace from being replaced.
fn protect(mut files: OutputFiles, path: &Path) -> Result<OutputFiles, Failure> {
    for file in kvmem_trace::files(path).map_err(Failure::usage)? {
        files = files.protect("the trace that is read", &file);
    }
    Ok(files)
}

/// Reads a trace to its end.
fn read(
    path: &Path,
    reading: &TraceReadingArgs,
    block: &BlockArgs,
    sampling: SamplingArgs,
) -> Result<(TraceSummary, ReuseDistances), Failure> {
    let file = TraceFile::open(path, reading.sessions).map_err(Failure::usage)?;
    let len_bytes = file.len_bytes();
    let trace = file.requests(&reading.options()).map_err(Failure::usage)?;
    let rate = sampling.sample_rate.unwrap_or(1.0);
    let mut distances = ReuseDistances::new(sampling.max_blocks, rate);
    let bar = progress_bar(len_bytes, "{elapsed_precise} {wide_bar} {percent:>3} % {msg}");
    let mut requests = 0u64;
    let summary = summarize(trace, path, block, &mut distances, |position| {
        // The bar takes a lock, so it is updated once every 64 requests.
        requests += 1;
        if requests.is_multiple_of(64) {
            bar.set_position(position);
        }
    });
    bar.finish_and_clear();
    summary.map(|summary| (summary, distances)).map_err(|error: ReuseError| Failure::usage(error))
}

/// Summaries, with a blank line between two.
struct Listed<'a>(&'a [TraceSummary]);

impl fmt::Display for Listed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().enumerate().try_for_each(|(number, summary)| {
            let between = if number > 0 { "\n" } else { "" };
            write!(f, "{between}{summary}")
        })
    }
}
