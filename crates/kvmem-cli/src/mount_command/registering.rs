//! *Registering*: registers a region with devices, deregisters it, and times each step.
//!
//! Mapping makes nothing resident here: the plan populates as part of registering.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use kvmem::arena::{Receipt, RegionBuilder};
use kvmem::register::{
    Devices, MountReport, Phase, Plan, Policy, RegisterError, RegisterProgress, RegistrationSet,
};
use serde::Serialize;

use crate::args::MountArgs;
use crate::output::{Failure, JsonSink, progress_bar};
use crate::output_file::OutputFiles;

/// Maps, plans, registers, deregisters, and prints the report.
pub(super) fn run(args: &MountArgs, map: &RegionBuilder, devices: &Devices) -> Result<(), Failure> {
    let policy = policy(args)?;
    let mut files = OutputFiles::new();
    let json = JsonSink::open(&mut files, args.json.as_deref())?;
    let registrars = devices.open().map_err(Failure::usage)?;

    let (region, mapped) = timed(|| map.map());
    let region = Arc::new(region.map_err(super::failure)?);
    let bars = Arc::new(StepBars::default());
    let shown = Arc::clone(&bars);
    let mut builder = RegistrationSet::builder()
        .registrars(registrars)
        .policy(policy)
        .populate(args.populate)
        .progress(move |progress| shown.show(&progress));
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
        return json.write(&planned, &planned);
    }

    let (set, registered) = timed(|| builder.register(Arc::clone(&region)));
    bars.end(set.is_ok());
    let mut set = set.map_err(failure)?;
    let receipt = region.receipt_now().map_err(super::failure)?;
    if args.strict {
        receipt.check_hugepages().map_err(super::failure)?;
    }
    bars.begin("unregister", receipt.usable_bytes as u64 * set.outcome().devices as u64);
    let (returned, took) = timed(|| set.deregister());
    bars.end(returned.is_ok());
    let deregistered = returned.map_err(failure)?;
    let mounted = MountReport::new(
        receipt,
        set.outcome().clone(),
        deregistered,
        [mapped, planned, registered, took],
    );
    json.write(&mounted, &mounted)
}

/// The policy of the option, else of the environment, else automatic.
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

/// Status 2 for a request that was impossible from the start, 1 for one that went wrong.
fn failure(error: RegisterError) -> Failure {
    match error {
        RegisterError::NoRegistrars
        | RegisterError::Empty
        | RegisterError::SameName { .. }
        | RegisterError::Limited { .. } => Failure::usage(error),
        _ => Failure::new(error, 1),
    }
}

/// The output of `--plan`.
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
            "nothing was done: the addresses are mapped, no page was made resident, nothing was \
             registered"
        )
    }
}

/// A progress bar for each step, one below the other. Finished bars stay, with their times.
#[derive(Default)]
struct StepBars(Mutex<Option<(&'static str, ProgressBar)>>);

impl StepBars {
    /// Ends the present step and begins the next.
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

    /// Ends the last step, finished or abandoned.
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
