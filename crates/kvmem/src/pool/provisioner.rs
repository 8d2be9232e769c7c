//! *Provisioner*: makes ranges of the memory ready for use: populates them and registers them.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use super::memory::Part;
use super::observe::{self, SetUp};
use super::owner::listening;
use super::report::Cause;
use super::{PoolBuilder, PoolError};
use crate::arena::{ArenaError, CancelToken, Populate, Populated, ProgressOptions, Region};
use crate::register::{Outcome, Policy, RegisterError, RegistrationBuilder, RegistrationSet};

/// Populates and registers ranges of one pool.
pub(super) struct Provisioner {
    /// The name of the pool.
    pub(super) name: Arc<str>,
    /// The time that setting up has taken so far.
    pub(super) set_up: Arc<SetUp>,
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
    pub(super) fn new(options: &PoolBuilder, part_bytes: usize) -> Provisioner {
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
    pub(super) fn cancel(&self) {
        self.cancel.cancel();
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.cancel.is_cancelled()
    }

    /// Makes a range resident, unless the pool is not to be populated.
    pub(super) fn populate(
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
                Err(error) => Err(self.failed(error.into())),
            },
        }
    }

    /// Registers parts, all of them or none. Returns the outcome; `None` without registrars.
    pub(super) fn register(&self, parts: &[Part]) -> Result<Option<Outcome>, PoolError> {
        let Some(builder) = &self.registration else { return Ok(None) };
        let mut policy = self.policy.lock().unwrap_or_else(PoisonError::into_inner);
        let regions: Vec<Arc<Region>> = parts.iter().map(|part| Arc::clone(&part.region)).collect();
        let sets = builder.clone().policy(*policy).register_batch(regions);
        let sets = sets.map_err(|error| self.failed(error.into()))?;
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

    /// Counts a failure, unless the caller cancelled the work. Returns the error.
    fn failed(&self, error: PoolError) -> PoolError {
        if !was_cancelled(&error) {
            observe::failed(&self.name, &error);
        }
        error
    }

    /// Populates and registers one part. An error comes with the step that failed.
    pub(super) fn provision(
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

fn cause(error: &PoolError) -> Cause {
    match error {
        PoolError::Register(error) if matches!(**error, RegisterError::Populate(_)) => {
            Cause::Populate
        }
        _ => Cause::Register,
    }
}

/// Returns whether an error says that the work was cancelled.
pub(super) fn was_cancelled(error: &PoolError) -> bool {
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
pub(super) fn add_populated(sum: &mut Option<Populated>, one: Option<Populated>) {
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
pub(super) fn add_registered(sum: &mut Option<Outcome>, one: Option<Outcome>) {
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
