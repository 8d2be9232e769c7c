//! *Registration builder*: with whom a region is to be registered, and in which way.

use std::sync::Arc;
use std::time::Duration;

use super::background::Background;
use super::engine::{Engine, Job};
use super::ground::Ground;
use super::plan::Way;
use super::watching::Wishes;
use super::{
    Limits, Plan, PlanOptions, Platform, Policy, RegisterError, RegisterProgress, Registrar,
    RegistrationSet, SystemPlatform,
};
use crate::arena::{CancelToken, Populate, Region};

/// A registration to be. See [`RegistrationSet::builder`].
#[derive(Clone, Debug)]
#[must_use = "nothing is registered before `register`"]
pub struct RegistrationBuilder {
    registrars: Vec<Arc<dyn Registrar>>,
    policy: Policy,
    populate: Populate,
    chunk_bytes: Option<u64>,
    by_range: bool,
    wishes: Wishes,
    host: Arc<dyn Platform>,
}

impl RegistrationBuilder {
    pub(super) fn new() -> RegistrationBuilder {
        RegistrationBuilder {
            registrars: Vec::new(),
            policy: Policy::Auto,
            populate: Populate::Auto,
            chunk_bytes: None,
            by_range: false,
            wishes: Wishes::default(),
            host: Arc::new(SystemPlatform),
        }
    }

    /// One more registrar.
    pub fn registrar(self, registrar: impl Registrar + 'static) -> RegistrationBuilder {
        self.registrars([Arc::new(registrar) as Arc<dyn Registrar>])
    }

    /// Some more registrars.
    pub fn registrars(
        mut self,
        registrars: impl IntoIterator<Item = Arc<dyn Registrar>>,
    ) -> RegistrationBuilder {
        self.registrars.extend(registrars);
        self
    }

    /// In which way they are called. Default: [`Policy::Auto`].
    pub fn policy(mut self, policy: Policy) -> RegistrationBuilder {
        self.policy = policy;
        self
    }

    /// Who makes resident what is not, before it is registered. Default: [`Populate::Auto`].
    /// [`Populate::None`]: nobody; then the first registrar does, and it does so alone,
    /// whatever the policy. With [`Policy::Sequential`] that is always so.
    pub fn populate(mut self, populate: Populate) -> RegistrationBuilder {
        self.populate = populate;
        self
    }

    /// The most bytes that one key is to cover. Default: as the registrars like it best.
    pub fn chunk_bytes(mut self, bytes: u64) -> RegistrationBuilder {
        self.chunk_bytes = Some(bytes);
        self
    }

    /// Whether each chunk is populated and registered before the next is, in order of addresses, so
    /// that there is something to be used early. Default: no; all is populated, then all is
    /// registered.
    pub fn by_range(mut self, by_range: bool) -> RegistrationBuilder {
        self.by_range = by_range;
        self
    }

    /// Who is told how far it has come: after each chunk, by the threads that work, one call at a
    /// time. A panic in it ends the work, gives everything back, and is passed on.
    pub fn progress(
        mut self,
        listener: impl Fn(RegisterProgress) + Send + Sync + 'static,
    ) -> RegistrationBuilder {
        self.wishes.listener = Some(Arc::new(listener));
        self
    }

    /// A token that ends it early: then nothing is registered.
    pub fn cancel(mut self, cancel: CancelToken) -> RegistrationBuilder {
        self.wishes.cancel = cancel;
        self
    }

    /// How long it may take: if that is not enough, nothing is registered.
    pub fn time_budget(mut self, budget: Duration) -> RegistrationBuilder {
        self.wishes.budget = Some(budget);
        self
    }

    /// The machine under the registrars. Default: this one.
    pub fn host(mut self, host: Arc<dyn Platform>) -> RegistrationBuilder {
        self.host = host;
        self
    }

    /// What [`register`](Self::register) would do, with what is resident now. Does nothing.
    ///
    /// # Errors
    /// As [`plan`](super::plan), and [`Populate`](RegisterError::Populate) if it cannot be known
    /// what is resident.
    pub fn plan(&self, region: &Region) -> Result<Plan, RegisterError> {
        Ground::now(region, &*self.host)?.plan(&self.limits(), &self.terms())
    }

    /// Registers a region, all of it with all registrars, or nothing.
    ///
    /// The region is kept by the registration; hand over a clone of an `Arc` to have it too.
    ///
    /// # Errors
    /// [`RegisterError`] says who refused what, why, which limit was hit, and what to do. Nothing
    /// is registered then.
    pub fn register(
        &self,
        region: impl Into<Arc<Region>>,
    ) -> Result<RegistrationSet, RegisterError> {
        let mut sets = self.register_batch([region.into()])?;
        sets.pop().ok_or(RegisterError::Empty)
    }

    /// Registers several regions, all of them or none, with one budget of threads: first all are
    /// populated, then all are registered. No regions are no registrations.
    ///
    /// # Errors
    /// As [`register`](Self::register).
    pub fn register_batch(
        &self,
        regions: impl IntoIterator<Item = Arc<Region>>,
    ) -> Result<Vec<RegistrationSet>, RegisterError> {
        let regions: Vec<Arc<Region>> = regions.into_iter().collect();
        if regions.is_empty() {
            return Ok(Vec::new());
        }
        self.engine(regions)?.run()
    }

    /// Begins to register a region, and goes on in a thread of its own: chunk by chunk, in order of
    /// addresses, each populated and then registered, so that the beginning can be used while
    /// the rest is worked on.
    ///
    /// # Errors
    /// As [`register`](Self::register) where that can be known at once, and
    /// [`NoThread`](RegisterError::NoThread).
    pub fn register_in_background(
        &self,
        region: impl Into<Arc<Region>>,
    ) -> Result<Background, RegisterError> {
        // A token of its own: dropping it must not end what else the user's token is for.
        let builder = self.clone().by_range(true).cancel(self.wishes.cancel.child());
        Background::begin(builder.engine(vec![region.into()])?)
    }

    fn engine(&self, regions: Vec<Arc<Region>>) -> Result<Engine, RegisterError> {
        let (limits, terms) = (self.limits(), self.terms());
        let job = |region: Arc<Region>| {
            let ground = Ground::now(&region, &*self.host)?;
            let plan = ground.plan(&limits, &terms)?;
            let faulted = if plan.populate.is_empty() { ground.ordinary_absent() } else { 0 };
            Ok((ground.slice_min(), Job { region, plan, faulted }))
        };
        let jobs = regions.into_iter().map(job).collect::<Result<Vec<_>, RegisterError>>()?;
        let (slices, jobs): (Vec<u64>, Vec<Job>) = jobs.into_iter().unzip();
        let lanes: Vec<_> = jobs.iter().map(|job| &job.plan.lanes[..]).collect();
        let untouched = jobs.iter().any(|job| {
            job.plan.populate.is_empty() && job.plan.resident_bytes < job.plan.len_bytes
        });
        let len = jobs.iter().map(|job| job.plan.len_bytes).sum();
        let (way, _) =
            Way::find(&terms, &lanes, len, untouched, slices.first().copied().unwrap_or(1));
        let (host, registrars) = (Arc::clone(&self.host), self.registrars.clone());
        Engine::new(host, registrars, &limits, jobs, way, self.populate, self.wishes.clone())
    }

    fn limits(&self) -> Vec<Limits> {
        self.registrars.iter().map(|registrar| registrar.limits()).collect()
    }

    fn terms(&self) -> PlanOptions {
        PlanOptions {
            policy: self.policy,
            cores: self.host.cores(),
            populate: self.populate,
            chunk_bytes: self.chunk_bytes,
            by_range: self.by_range,
        }
    }
}
