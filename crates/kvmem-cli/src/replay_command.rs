//! `kvmem replay`: from the options to a [`replay`] with the chosen contender, and its report out again.

use indicatif::ProgressBar;
use kvmem_bench::contender::{Contender, Visitor};

use crate::args::ReplayArgs;
use crate::metrics_server::{MetricsServer, ReplayMetrics};
use crate::output::{Failure, HtmlSink, JsonSink, progress_bar};
use crate::replay::page::page;
use crate::replay::report::Report;
use crate::replay::sampling::Sampling;
use crate::replay::trace::Trace;
use crate::replay::{Options, ReplayError, replay};

/// Replays a trace and prints the report.
pub(crate) fn run(args: &ReplayArgs) -> Result<(), Failure> {
    let (layout, model) = args.layout().map_err(Failure::usage)?;
    let options = Options {
        trace: args.trace.clone(),
        layout,
        model,
        pool_bytes: args.pool,
        backed: args.backed,
        requests_max: args.requests,
    };
    options.check().map_err(failure)?;
    let server = MetricsServer::start(&args.metrics).map_err(Failure::usage)?;
    if let Some(server) = &server {
        eprintln!("kvmem: metrics at http://{}/metrics", server.address());
    }
    let (trace, len_bytes) = Trace::open(&args.trace).map_err(|error| failure(error.into()))?;
    let (json, html) = (JsonSink::open(args.json.as_deref())?, HtmlSink::open(args.html.as_deref())?);
    let mut sampling = args.html.is_some().then(|| Sampling::new(len_bytes));
    let bar = progress_bar(len_bytes, "{elapsed_precise} {wide_bar} {percent:>3} % {msg}");
    let report =
        args.contender.visit(Replay { trace, options: &options, sampling: sampling.as_mut(), bar: &bar });
    bar.finish_and_clear();
    let report = report.map_err(failure)?;
    if let Some(sampling) = &sampling {
        html.write(|| page(&report, sampling))?;
    }
    json.write(&report, &report)
}

fn failure(error: ReplayError) -> Failure {
    Failure::new(&error, error.exit_status())
}

/// The replay, still without its contender.
struct Replay<'a, R> {
    trace: Trace<R>,
    options: &'a Options,
    sampling: Option<&'a mut Sampling>,
    bar: &'a ProgressBar,
}

impl<R: std::io::BufRead> Visitor for Replay<'_, R> {
    type Output = Result<Report, ReplayError>;

    fn visit<C: Contender>(self) -> Self::Output {
        let metrics = ReplayMetrics::new();
        replay::<C, R>(self.trace, self.options, self.sampling, |progress| {
            metrics.publish(&progress);
            // The bar takes a lock, so it hears of every 64th request only.
            if progress.requests % 64 == 0 {
                self.bar.set_position(progress.bytes_read);
            }
        })
    }
}
