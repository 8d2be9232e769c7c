//! *Registering*: a region is registered with devices and given back, and each step is timed.
//!
//! Mapping makes nothing resident here: that is part of registering, by the plan.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use kvmem::arena::{Receipt, RegionBuilder};
use kvmem::register::{
    Devices, MountReport, MountTimings, Phase, Plan, Policy, RegisterError, RegisterProgress,
    RegistrationSet,
};
use kvmem_report::Section;
use serde::Serialize;

use super::page;
use crate::args::MountArgs;
use crate::output::{Failure, HtmlSink, JsonSink, progress_bar};
use crate::output_file::OutputFiles;
use crate::time_line::TimeLine;

/// Maps, plans, registers, gives back, and prints what came of it.
pub(super) fn run(args: &MountArgs, map: &RegionBuilder, devices: &Devices) -> Result<(), Failure> {
    let policy = policy(args)?;
    let mut files = OutputFiles::new();
    let json = JsonSink::open(&mut files, args.json.as_deref())?;
    let html = HtmlSink::open(&mut files, args.html.as_deref())?;
    let registrars = devices.open().map_err(Failure::usage)?;

    let line = Arc::new(TimeLine::new());
    line.begin();
    let (region, mapped) = timed(|| map.map());
    line.whole("this thread", "map", args.size);
    let region = Arc::new(region.map_err(super::failure)?);
    let bars = Arc::new(Bars::default());
    let (shown, drawn) = (Arc::clone(&bars), Arc::clone(&line));
    let names: Vec<String> =
        registrars.iter().map(|registrar| registrar.name().to_owned()).collect();
    let mut builder = RegistrationSet::builder()
        .registrars(registrars)
        .policy(policy)
        .populate(args.populate)
        .progress(move |progress| {
            shown.show(&progress);
            drawn.registering(&names, &progress);
        });
    if let Some(bytes) = args.chunk {
        builder = builder.chunk_bytes(bytes);
    }
    if let Some(seconds) = args.time_budget {
        builder = builder.time_budget(Duration::from_secs(seconds));
    }
    let (plan, planned) = timed(|| builder.plan(&region));
    let plan = plan.map_err(failure)?;
    if args.plan {
        let receipt = region.receipt();
        let planned = Planned { receipt, plan: &plan };
        let sections = || [page::receipt(receipt), Section::new("Plan").literal(plan.to_string())];
        html.write(|| page::page(args.size, sections()))?;
        return json.write(&planned, &planned);
    }

    line.begin();
    let (set, registered) = timed(|| builder.register(Arc::clone(&region)));
    bars.end(set.is_ok());
    let mut set = set.map_err(failure)?;
    let receipt = region.receipt_now().map_err(super::failure)?;
    if args.strict {
        receipt.check_hugepages().map_err(super::failure)?;
    }
    bars.begin("unregister", receipt.usable_bytes as u64 * set.outcome().devices as u64);
    line.begin();
    let (given_back, took) = timed(|| set.deregister());
    bars.end(given_back.is_ok());
    let deregistered = given_back.map_err(failure)?;
    let mounted = MountReport::new(
        receipt,
        set.outcome().clone(),
        deregistered,
        [mapped, planned, registered, took],
    );
    html.write(|| {
        page::page(args.size, [line.section(), section(&mounted), page::receipt(&mounted.receipt)])
    })?;
    json.write(&mounted, &mounted)
}

/// As the option says, or the environment, or else automatic.
fn policy(args: &MountArgs) -> Result<Policy, Failure> {
    match args.policy {
        Some(policy) => Ok(policy),
        None => Policy::from_env().map_err(Failure::usage).map(Option::unwrap_or_default),
    }
}

fn timed<T>(work: impl FnOnce() -> T) -> (T, f64) {
    let start = Instant::now();
    let done = work();
    (done, start.elapsed().as_secs_f64())
}

/// What was asked for was impossible from the start, or it went wrong.
fn failure(error: RegisterError) -> Failure {
    match error {
        RegisterError::NoRegistrars
        | RegisterError::Empty
        | RegisterError::SameName { .. }
        | RegisterError::Limited { .. } => Failure::usage(error),
        _ => Failure::new(error, 1),
    }
}

/// What `--plan` prints.
#[derive(Serialize)]
struct Planned<'a> {
    receipt: &'a Receipt,
    plan: &'a Plan,
}

impl fmt::Display for Planned<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.receipt, self.plan)?;
        writeln!(
            f,
            "nothing was done: the addresses are mapped, no page was made resident, nothing was registered"
        )
    }
}

/// What was done, as part of a page.
fn section(mounted: &MountReport) -> Section {
    let MountTimings { map, plan, populate, register, unregister, .. } = mounted.seconds;
    let steps = [
        ("map", map),
        ("plan", plan),
        ("populate", populate),
        ("register", register),
        ("unregister", unregister),
    ];
    page::steps(steps)
        .literal(mounted.outcome.to_string())
        .text(format!("chosen: {}", mounted.chosen))
}

/// A progress bar for each step, one under the other. Those that are done stay, with their time.
#[derive(Default)]
struct Bars(Mutex<Option<(&'static str, ProgressBar)>>);

impl Bars {
    /// A step begins, and the one before has ended.
    fn begin(&self, step: &'static str, total_bytes: u64) -> ProgressBar {
        let bar = progress_bar(
            Some(total_bytes),
            "{prefix:<10} {elapsed_precise} {wide_bar} {bytes}/{total_bytes} {msg}",
        );
        bar.set_prefix(step);
        let before = self.lock().replace((step, bar.clone()));
        if let Some((_, before)) = before {
            before.finish();
        }
        bar
    }

    fn show(&self, progress: &RegisterProgress) {
        let step = match progress.phase {
            Phase::Populate => "populate",
            Phase::Register => "register",
            Phase::Deregister => "unregister",
        };
        let current =
            self.lock().as_ref().filter(|(now, _)| *now == step).map(|(_, bar)| bar.clone());
        let bar = current.unwrap_or_else(|| self.begin(step, progress.total_bytes));
        bar.set_length(progress.total_bytes);
        bar.set_position(progress.done_bytes);
    }

    /// The last step has ended: it is done, or stands where it was.
    fn end(&self, done: bool) {
        if let Some((_, bar)) = self.lock().take() {
            if done {
                bar.finish();
            } else {
                bar.abandon();
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<(&'static str, ProgressBar)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
