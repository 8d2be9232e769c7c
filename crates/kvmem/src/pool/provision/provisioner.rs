//! *Provisioner*: makes ranges of the memory ready for use: populates them and registers them.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use super::listener::listening;
use crate::arena::{ArenaError, CancelToken, Populate, Populated, Progress, ProgressOptions};
use crate::pool::blocks::{Part, PoolMemory};
use crate::pool::observe::{self, SetUp};
use crate::pool::{Cause, PoolError};
use crate::register::{
    Outcome, Platform, Policy, RegisterError, RegisterProgress, Registrar, RegistrationBuilder,
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
    pub(in crate::pool) platform: Arc<dyn Platform>,
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
    /// `None`: the pool has no registrar. Otherwise registering populates what is not resident.
    registration: Option<RegistrationBuilder>,
    /// The requested policy.
    policy: Policy,
    /// The policy that calibration chose for the first part serves the others too. Memory of a pool
    /// is populated first, also if registrars are then called one after another.
    chosen_policy: Mutex<Policy>,
}

impl Provisioner {
    pub(in crate::pool) fn new(options: &ProvisionOptions, part_bytes: usize) -> Provisioner {
        let cancel = options.cancel.child();
        let mut progress_options = ProgressOptions::new().cancel(cancel.clone());
        let on_populate = options.on_populate.clone();
        if let Some(listener) = on_populate.clone() {
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
                .platform(Arc::clone(&options.platform))
                .chunk_bytes(part_bytes as u64)
                .cancel(cancel.clone())
                .progress(move |progress| {
                    seen.registered(&progress);
                    match (progress.populating(), &on_populate, &listener) {
                        (Some(progress), Some(listener), _) => listening(|| listener(progress)),
                        (None, _, Some(listener)) => listening(|| listener(progress)),
                        _ => {}
                    }
                })
        });
        let chosen_policy = match options.policy {
            Policy::Sequential if options.populate != Populate::None => Policy::parallel(1),
            policy => policy,
        };
        let name = Arc::clone(&options.name);
        Provisioner {
            name,
            set_up,
            populate_mode: options.populate,
            progress_options,
            cancel,
            registration,
            policy: options.policy,
            chosen_policy: Mutex::new(chosen_policy),
        }
    }

    /// Cancels the current work and all later work.
    pub(in crate::pool) fn cancel(&self) {
        self.cancel.cancel();
    }

    pub(in crate::pool) fn is_cancelled(&self) -> bool {
        self.cancel.is_cancelled()
    }

    /// Populates a range of the memory and registers it, all of it or nothing. Registrars register
    /// chunks while later ones are populated, and populating is then in the second figure. The
    /// error comes with the step that failed.
    pub(in crate::pool) fn provision(
        &self,
        memory: &PoolMemory,
        range: Range<usize>,
    ) -> Result<(Option<Populated>, Option<Outcome>), (Cause, PoolError)> {
        let provisioned = match &self.registration {
            Some(builder) => {
                let outcome = self.register(builder, memory.parts_in(range));
                outcome.map(|outcome| (None, outcome))
            }
            None => self.populate(memory, range).map(|populated| (populated, None)),
        };
        provisioned.map_err(|error| {
            let error = count_failure(&self.name, error);
            let is_memory = matches!(error, PoolError::Memory(_));
            (if is_memory { Cause::Populate } else { Cause::Register }, error)
        })
    }

    /// Makes a range resident, unless the pool is not to be populated.
    fn populate(
        &self,
        memory: &PoolMemory,
        range: Range<usize>,
    ) -> Result<Option<Populated>, PoolError> {
        let mut sum = None;
        if self.populate_mode != Populate::None {
            memory.each_in(range, |region, within| {
                let done = region.populate(within, self.populate_mode, &self.progress_options)?;
                self.set_up.populated(&done);
                add_populated(&mut sum, Some(done));
                Ok::<_, PoolError>(())
            })?;
        }
        Ok(sum)
    }

    /// Registers parts, and populates what is not resident. Returns the outcome.
    fn register(
        &self,
        builder: &RegistrationBuilder,
        parts: &[Part],
    ) -> Result<Option<Outcome>, PoolError> {
        let mut policy = self.chosen_policy.lock().unwrap_or_else(PoisonError::into_inner);
        let regions = parts.iter().map(|part| Arc::clone(&part.region));
        let sets = builder.clone().policy(*policy).register_batch(regions).map_err(of_memory)?;
        let Some(mut outcome) = sets.first().map(|set| set.outcome().clone()) else {
            return Ok(None);
        };
        self.set_up.populated(&outcome.populated);
        if outcome.calibration.is_some() {
            *policy = Policy::parallel(outcome.threads);
        }
        outcome.policy = self.policy;
        for (part, set) in parts.iter().zip(sets) {
            *part.set_mut() = Some(set);
        }
        Ok(Some(outcome))
    }
}

/// Returns the error of registering a pool: memory that cannot be populated is an error of the
/// memory, with or without registrars.
fn of_memory(error: RegisterError) -> PoolError {
    match error {
        RegisterError::Populate(error) => error.into(),
        error => error.into(),
    }
}

/// Counts a failure, unless the caller cancelled the work. Returns the error.
fn count_failure(pool: &str, error: PoolError) -> PoolError {
    if !was_cancelled(&error) {
        observe::failed(pool, &error);
    }
    error
}

/// Returns whether an error says that the work was cancelled.
pub(in crate::pool) fn was_cancelled(error: &PoolError) -> bool {
    match error {
        PoolError::Memory(error) => matches!(**error, ArenaError::Cancelled { .. }),
        PoolError::Register(error) => matches!(**error, RegisterError::Cancelled { .. }),
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
            sum.seconds += one.seconds;
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
