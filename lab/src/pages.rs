//! *Pages*: runs commands of `kvmem`, and draws what they find.

mod hit_curve;
mod mount;
mod tier_inspect;
mod tier_verify;
mod time_line;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use clap::Parser;
use kvmem::arena::Progress;
use kvmem::register::RegisterProgress;
use kvmem_cli::Failure;
use kvmem_cli::args::{Args, Command, TierCommand, TraceCommand};
use kvmem_cli::findings::{Findings, Mounted, Verified};
use kvmem_cli::output_file::OutputFiles;
use kvmem_cli::reuse::curve::HitCurve;
use kvmem_cli::tier_command::inspect::InspectReport;
use kvmem_report::Page;
use kvmem_tier::Contents;

use self::time_line::TimeLine;
use crate::args::PageArgs;
use crate::html::HtmlSink;

/// Runs the command that `args` name, which prints its results as always, and draws the page.
pub(crate) fn run(args: &PageArgs) -> Result<(), Failure> {
    let program = std::iter::once("kvmem".into());
    let command = Args::try_parse_from(program.chain(args.command.iter().cloned()))
        .map_err(|error| Failure::usage(error.render()))?;
    let Some(read) = read_by(&command)? else {
        return Err(Failure::usage(format_args!(
            "{} has no page: name mount, tier inspect, tier verify or trace curve",
            args.command[0].display()
        )));
    };
    let mut files = OutputFiles::new();
    for file in read {
        files = files.protect("a file that is read", &file);
    }
    let html = HtmlSink::open(&mut files, Some(&args.out))?;
    let drawing = Drawing { html: Mutex::new(Some(html)), line: TimeLine::new() };
    kvmem_cli::run_with(command, &(Arc::new(drawing) as _))
}

/// Returns the files that a command reads. `None` if the command has no page.
fn read_by(args: &Args) -> Result<Option<Vec<PathBuf>>, Failure> {
    Ok(match &args.command {
        Some(Command::Mount(_)) => Some(Vec::new()),
        Some(Command::Tier(tier)) => Some(vec![match &tier.command {
            TierCommand::Inspect(inspect) => inspect.file.clone(),
            TierCommand::Verify(verify) => verify.file.clone(),
        }]),
        Some(Command::Trace(trace)) => match &trace.command {
            TraceCommand::Curve(curve) => {
                Some(kvmem_trace::files(&curve.file).map_err(Failure::usage)?)
            }
            TraceCommand::Info(_) => None,
        },
        _ => None,
    })
}

/// Draws findings on a page.
struct Drawing {
    /// Taken by the first findings.
    html: Mutex<Option<HtmlSink>>,
    line: TimeLine,
}

impl Drawing {
    fn draw(&self, page: impl FnOnce() -> Page) -> Result<(), Failure> {
        let html = self.html.lock().unwrap_or_else(PoisonError::into_inner).take();
        html.map_or(Ok(()), |html| html.write(page))
    }
}

impl Findings for Drawing {
    fn curve(&self, curve: &HitCurve) -> Result<(), Failure> {
        self.draw(|| hit_curve::page(curve))
    }

    fn inspected(
        &self,
        report: &InspectReport,
        contents: Option<&Contents>,
    ) -> Result<(), Failure> {
        self.draw(|| tier_inspect::page(report, contents))
    }

    fn verified(&self, verified: &Verified<'_>) -> Result<(), Failure> {
        self.draw(|| tier_verify::page(verified))
    }

    fn step_begins(&self) {
        self.line.begin();
    }

    fn mapped(&self, bytes: u64) {
        self.line.whole("this thread", "map", bytes);
    }

    fn populated(&self, progress: &Progress) {
        let &Progress { piece, done_bytes, .. } = progress;
        self.line.piece(format!("thread {}", piece.worker), "populate", piece, done_bytes);
    }

    fn registering(&self, names: &[String], progress: &RegisterProgress) {
        self.line.registering(names, progress);
    }

    fn mounted(&self, mounted: &Mounted<'_>) -> Result<(), Failure> {
        self.draw(|| mount::page(mounted, &self.line))
    }
}
