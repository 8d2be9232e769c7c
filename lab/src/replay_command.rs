//! `kvmem replay`: runs a [`replay`] of a trace, or of recorded calls, and prints the report.

use std::path::Path;

use indicatif::ProgressBar;
use kvmem::pool::observe::Exporter;
use kvmem_bench::contender::ContenderId;

use crate::args::{Contenders, ReplayArgs};
use crate::html::HtmlSink;
use crate::ops::format::Recording;
use crate::ops::recorder::Recorder;
use crate::ops::{report, run};
use crate::replay::page::page;
use crate::replay::sampling::ReplaySamples;
use crate::replay::{Options, Progress, ReplayError, Watch, check_contender, replay};
use crate::replay_metrics::ReplayMetrics;
use kvmem_cli::metrics_server::MetricsServer;
use kvmem_cli::output::{Failure, JsonSink, progress_bar, tell};
use kvmem_cli::output_file::OutputFiles;
use kvmem_trace::{TraceError, TraceFile};

/// Replays the trace or the recorded calls, and prints the report.
pub(crate) fn run(args: &ReplayArgs) -> Result<(), Failure> {
    match (&args.ops, &args.trace) {
        (Some(ops), _) => run_ops(args, ops),
        (None, _) if args.verify => Err(Failure::usage(
            "--verify needs --ops FILE: only recorded calls have results to compare with",
        )),
        (None, Some(trace)) => run_trace(args, trace),
        (None, None) => Err(Failure::usage(
            "nothing to replay: name a TRACE, or recorded calls with --ops FILE",
        )),
    }
}

fn run_trace(args: &ReplayArgs, path: &Path) -> Result<(), Failure> {
    let Contenders::One(contender) = args.contender else {
        return Err(Failure::usage(
            "--contender all needs --ops FILE: name one allocator to replay a trace with",
        ));
    };
    let (threads, backed, tier) = (args.threads, args.backed, args.tier());
    check_contender(contender, threads, backed, args.record.is_some(), tier.is_some())
        .map_err(failure)?;
    let server = MetricsServer::start(&args.metrics).map_err(Failure::usage)?;
    if let Some(server) = &server {
        tell(format_args!("kvmem-lab: metrics at http://{}/metrics", server.address()));
    }
    let failed = |error: TraceError| failure(error.into());
    let file = TraceFile::open(path, args.reading.sessions).map_err(failed)?;
    let len_bytes = file.len_bytes();
    let mut files = OutputFiles::new();
    for file in kvmem_trace::files(path).map_err(failed)? {
        files = files.protect("the trace that is replayed", &file);
    }
    let record = args.record.as_deref().map(|path| files.open("--record", path)).transpose()?;
    let json = JsonSink::open(&mut files, args.json.as_deref())?;
    let html = HtmlSink::open(&mut files, args.html.as_deref())?;
    // A pipe may stay empty for long, so the files of the results are open before.
    let mut trace = file.requests(&args.reading.options()).map_err(failed)?;
    let block_tokens = trace.block_tokens().map_err(failed)?;
    let (layout, model) = args.block.layout(block_tokens).map_err(Failure::usage)?;
    let options = Options {
        trace: path.to_owned(),
        layout,
        model,
        contender,
        pool_bytes: args.pool,
        eviction: args.policy.eviction(),
        threads,
        backed,
        tier,
        requests_max: args.requests,
    };
    options.check(args.record.is_some()).map_err(failure)?;
    let mut sampling = args.html.is_some().then(|| ReplaySamples::new(len_bytes));
    let bar = progress_bar(len_bytes, "{elapsed_precise} {wide_bar} {percent:>3} % {msg}");
    let mut watcher = Watcher { server: server.as_ref(), metrics: ReplayMetrics::new(), bar: &bar };
    let report =
        replay(trace, &options, record.map(Recorder::new), sampling.as_mut(), &mut watcher);
    bar.finish_and_clear();
    let report = report.map_err(failure)?;
    if let Some(sampling) = &sampling {
        html.write(|| page(&report, sampling))?;
    }
    json.write(&report, &report)
}

/// Passes the progress of the replay to the bar and to the metrics.
struct Watcher<'a> {
    server: Option<&'a MetricsServer>,
    metrics: ReplayMetrics,
    bar: &'a ProgressBar,
}

impl Watch for Watcher<'_> {
    fn built(&mut self, figures: Exporter) {
        if let Some(server) = self.server {
            server.observe(figures);
        }
    }

    fn served(&mut self, progress: Progress) {
        self.metrics.publish(&progress);
        // The bar takes a lock, so it is updated once every 64 requests.
        if progress.requests.is_multiple_of(64) {
            self.bar.set_position(progress.bytes_read);
        }
    }
}

fn failure(error: ReplayError) -> Failure {
    Failure::new(&error, error.exit_status())
}

fn run_ops(args: &ReplayArgs, path: &Path) -> Result<(), Failure> {
    let recording = Recording::read(path).map_err(Failure::usage)?;
    let mut files = OutputFiles::new().protect("the recording that is replayed", path);
    let json = JsonSink::open(&mut files, args.json.as_deref())?;
    let mut report = report::OpsReport::new(path.display().to_string(), &recording);
    match args.contender {
        Contenders::One(contender) => {
            report.rows.push(run::run(&recording, contender).map_err(Failure::usage)?);
        }
        Contenders::All => {
            let bar = progress_bar(
                Some(ContenderId::ALL.len() as u64),
                "{elapsed_precise} {wide_bar} {msg}",
            );
            for contender in ContenderId::ALL {
                bar.set_message(contender.name());
                match run::run(&recording, contender) {
                    Ok(row) => report.rows.push(row),
                    Err(error) => report.not_run.push(error.to_string()),
                }
                bar.inc(1);
            }
            bar.finish_and_clear();
        }
    }
    json.write(&report, &report)?;
    match report.rows.iter().find(|row| !row.same_decisions) {
        Some(row) if args.verify => Err(Failure::new(row.deviation(&report), 1)),
        _ => Ok(()),
    }
}
