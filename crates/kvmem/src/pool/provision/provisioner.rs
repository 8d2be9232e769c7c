//! *Provisioner*: makes ranges of the memory ready for use: populates them and registers them.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use super::listener::listening;
use crate::arena::{
    ArenaError, CancelToken, Populate, Populated, Progress, ProgressOptions, Region,
};
use crate::pool::blocks::Part;
use crate::pool::observe::{self, SetUp};
use crate::pool::{Cause, PoolError};
use crate::register::{
    Outcome, Policy, RegisterError, RegisterProgress, Registrar, RegistrationBuilder,
    RegistrationSet,
};

/// The options of a pool that concern populating and registering.
#[derive(Clone)]
pub(in crate::pool) struct ProvisionOptions {
    /// The name of the pool.
    pub(in crate::pool) name: Arc<str>,
    pub(in crate::pool) populate: Populate,
    pub(in crate::pool) registrars: Vec<Arc<dyn Registrar>>,
    pub(in crate::pool) policy: Policy,
    pub(in crate::pool) cancel: CancelToken,
    pub(in crate::pool) on_populate: Option<Arc<dyn Fn(Progress) + Send + Sync>>,
    pub(in crate::pool) on_register: Option<Arc<dyn Fn(RegisterProgress) + Send + Sync>>,
}

impl ProvisionOptions {
    /// Counts a failure to set up the pool, unless the caller cancelled the work. Returns the
    /// error.
    pub(in crate::pool) fn failed(&self, error: impl Into<PoolError>) -> PoolError {
        count_failure(&self.name, error.into())
    }
}

/// Populates and registers ranges of one pool.
pub(in crate::pool) struct Provisioner {
    /// The name of the pool.
    pub(in crate::pool) name: Arc<str>,
    /// The time that setting up has taken so far.
    pub(in crate::pool) set_up: Arc<SetUp>,
    populate_mode: Populate,
    progress_options: ProgressOptions,
    /// A child of the builder's token.
    cancel: CancelToken,
    /// `None`: the pool has no registrar.
    registration: Option<RegistrationBuilder>,
    /// The policy that calibration chose for the first part serves the others too.
    policy: Mutex<Policy>,
}

impl Provisioner {
    pub(in crate::pool) fn new(options: &ProvisionOptions, part_bytes: usize) -> Provisioner {
        let cancel = options.cancel.child();
        let mut progress_options = ProgressOptions::new().cancel(cancel.clone());
        if let Some(listener) = options.on_populate.clone() {
            progress_options =
                progress_options.progress(move |progress| listening(|| listener(progress)));
        }
        let set_up = Arc::new(SetUp::new(
            options.registrars.iter().map(|registrar| registrar.name().to_owned()),
        ));
        let registration = (!options.registrars.is_empty()).then(|| {
            let (seen, listener) = (Arc::clone(&set_up), options.on_register.clone());
            RegistrationSet::builder()
                .registrars(options.registrars.iter().cloned())
                .populate(options.populate)
                .chunk_bytes(part_bytes as u64)
                .cancel(cancel.clone())
                .progress(move |progress| {
                    seen.registered(&progress);
                    if let Some(listener) = &listener {
                        listening(|| listener(progress));
                    }
                })
        });
        let name = Arc::clone(&options.name);
        Provisioner {
            name,
            set_up,
            populate_mode: options.populate,
            progress_options,
            cancel,
            registration,
            policy: Mutex::new(options.policy),
        }
    }

    /// Cancels the current work and all later work.
    pub(in crate::pool) fn cancel(&self) {
        self.cancel.cancel();
    }

    pub(in crate::pool) fn is_cancelled(&self) -> bool {
        self.cancel.is_cancelled()
    }

    /// Makes a range resident, unless the pool is not to be populated.
    pub(in crate::pool) fn populate(
        &self,
        region: &Region,
        range: Range<usize>,
    ) -> Result<Option<Populated>, PoolError> {
        match self.populate_mode {
            Populate::None => Ok(None),
            mode => match region.populate(range, mode, &self.progress_options) {
                Ok(done) => {
                    self.set_up.populated(&done);
                    Ok(Some(done))
                }
                Err(error) => Err(count_failure(&self.name, error.into())),
            },
        }
    }

    /// Registers parts, all of them or none. Returns the outcome; `None` without registrars.
    pub(in crate::pool) fn register(&self, parts: &[Part]) -> Result<Option<Outcome>, PoolError> {
        let Some(builder) = &self.registration else { return Ok(None) };
        let mut policy = self.policy.lock().unwrap_or_else(PoisonError::into_inner);
        let regions: Vec<Arc<Region>> = parts.iter().map(|part| Arc::clone(&part.region)).collect();
        let sets = builder.clone().policy(*policy).register_batch(regions);
        let sets = sets.map_err(|error| count_failure(&self.name, error.into()))?;
        let outcome = sets.first().map(|set| set.outcome().clone());
        if let Some(outcome) = &outcome {
            self.set_up.populated(&outcome.populated);
        }
        if let Some(outcome) = &outcome
            && *policy == Policy::Auto
            && outcome.calibration.is_some()
        {
            *policy = if outcome.threads > 1 {
                Policy::parallel(outcome.threads)
            } else {
                Policy::Sequential
            };
        }
        for (part, set) in parts.iter().zip(sets) {
            *part.set_mut() = Some(set);
        }
        Ok(outcome)
    }

    /// Populates and registers one part. An error comes with the step that failed.
    pub(in crate::pool) fn provision(
        &self,
        part: &Part,
    ) -> Result<(Option<Populated>, Option<Outcome>), (Cause, PoolError)> {
        let whole = 0..part.region.len();
        let populated =
            self.populate(&part.region, whole).map_err(|error| (Cause::Populate, error))?;
        let registered =
            self.register(std::slice::from_ref(part)).map_err(|error| (cause(&error), error))?;
        Ok((populated, registered))
    }
}

/// Counts a failure, unless the caller cancelled the work. Returns the error.
fn count_failure(pool: &str, error: PoolError) -> PoolError {
    if !was_cancelled(&error) {
        observe::failed(pool, &error);
    }
    error
}

fn cause(error: &PoolError) -> Cause {
    match error {
        PoolError::Register(error) if matches!(**error, RegisterError::Populate(_)) => {
            Cause::Populate
        }
        _ => Cause::Register,
    }
}

/// Returns whether an error says that the work was cancelled.
pub(in crate::pool) fn was_cancelled(error: &PoolError) -> bool {
    match error {
        PoolError::Memory(error) => matches!(**error, ArenaError::Cancelled { .. }),
        PoolError::Register(error) => matches!(
            **error,
            RegisterError::Cancelled { .. } | RegisterError::Populate(ArenaError::Cancelled { .. })
        ),
        _ => false,
    }
}

/// Adds the figures of one population to a sum.
pub(in crate::pool) fn add_populated(sum: &mut Option<Populated>, one: Option<Populated>) {
    match (sum.as_mut(), one) {
        (Some(sum), Some(one)) => {
            sum.bytes += one.bytes;
            sum.seconds += one.seconds;
            sum.threads = sum.threads.max(one.threads);
        }
        (None, one) => *sum = one,
        (Some(_), None) => {}
    }
}

/// Adds the outcome of one registration to a sum.
pub(in crate::pool) fn add_registered(sum: &mut Option<Outcome>, one: Option<Outcome>) {
    match (sum.as_mut(), one) {
        (Some(sum), Some(one)) => {
            sum.len_bytes += one.len_bytes;
            sum.resident_bytes += one.resident_bytes;
            sum.register_seconds += one.register_seconds;
            sum.keys += one.keys;
            sum.threads = sum.threads.max(one.threads);
            sum.calibration = sum.calibration.or(one.calibration);
            let mut populated = Some(sum.populated);
            add_populated(&mut populated, Some(one.populated));
            sum.populated = populated.unwrap_or_default();
        }
        (None, one) => *sum = one,
        (Some(_), None) => {}
    }
}
