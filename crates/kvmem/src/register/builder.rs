//! *Registration builder*: the registrars of a region and the options for registering it.

use std::sync::Arc;
use std::time::Duration;

use super::background::Background;
use super::engine::{Engine, RunOptions};
use super::plan::MemoryLayout;
use super::{
    Limits, Plan, PlanOptions, Platform, Policy, RegisterError, RegisterProgress, Registrar,
    RegistrationSet, SystemPlatform,
};
use crate::arena::{CancelToken, Populate, Region};

/// The options of a registration. See [`RegistrationSet::builder`].
#[derive(Clone, Debug)]
#[must_use = "nothing is registered before `register`"]
pub struct RegistrationBuilder {
    registrars: Vec<Arc<dyn Registrar>>,
    policy: Policy,
    populate: Populate,
    chunk_bytes: Option<u64>,
    by_range: bool,
    options: RunOptions,
    host: Arc<dyn Platform>,
}

impl RegistrationSet {
    /// Returns a builder that registers regions with the registrars that it receives.
    #[must_use = "nothing is registered before `register`"]
    pub fn builder() -> RegistrationBuilder {
        RegistrationBuilder::new()
    }
}

impl RegistrationBuilder {
    fn new() -> RegistrationBuilder {
        RegistrationBuilder {
            registrars: Vec::new(),
            policy: Policy::Auto,
            populate: Populate::Auto,
            chunk_bytes: None,
            by_range: false,
            options: RunOptions::default(),
            host: Arc::new(SystemPlatform),
        }
    }

    /// Adds a registrar.
    pub fn registrar(self, registrar: impl Registrar + 'static) -> RegistrationBuilder {
        self.registrars([Arc::new(registrar) as Arc<dyn Registrar>])
    }

    /// Adds several registrars.
    pub fn registrars(
        mut self,
        registrars: impl IntoIterator<Item = Arc<dyn Registrar>>,
    ) -> RegistrationBuilder {
        self.registrars.extend(registrars);
        self
    }

    /// Sets how registrars are called. Default: [`Policy::Auto`].
    pub fn policy(mut self, policy: Policy) -> RegistrationBuilder {
        self.policy = policy;
        self
    }

    /// Sets how missing pages are populated before they are registered. Default:
    /// [`Populate::Auto`]. With [`Populate::None`] nothing populates them beforehand: the first
    /// registrar faults them in and is called alone, whatever the policy.
    /// [`Policy::Sequential`] always works like this.
    pub fn populate(mut self, populate: Populate) -> RegistrationBuilder {
        self.populate = populate;
        self
    }

    /// Sets the largest number of bytes per key. Default: the registrars' preferred length, and the
    /// whole region for registrars that [copy by address](Limits::copies_by_address). A caller that
    /// sets a length lets no transfer of theirs cross an edge between two keys.
    pub fn chunk_bytes(mut self, bytes: u64) -> RegistrationBuilder {
        self.chunk_bytes = Some(bytes);
        self
    }

    /// Sets whether each chunk is populated and registered before the next one, in order of
    /// addresses, which makes the beginning usable early. Default: `false`, which registers
    /// chunks while later ones are populated, or, where registering may use every core, after all
    /// are.
    pub fn by_range(mut self, by_range: bool) -> RegistrationBuilder {
        self.by_range = by_range;
        self
    }

    /// Sets a listener for progress. The working threads call it after each chunk, one call at a
    /// time. A panic in it stops the work, deregisters everything, and is propagated.
    pub fn progress(
        mut self,
        listener: impl Fn(RegisterProgress) + Send + Sync + 'static,
    ) -> RegistrationBuilder {
        self.options.listener = Some(Arc::new(listener));
        self
    }

    /// Sets a token that cancels registering; nothing is registered then.
    pub fn cancel(mut self, cancel: CancelToken) -> RegistrationBuilder {
        self.options.budget.cancel = cancel;
        self
    }

    /// Limits the time for registering; if it runs out, nothing is registered.
    pub fn time_budget(mut self, budget: Duration) -> RegistrationBuilder {
        self.options.budget.time = Some(budget);
        self
    }

    /// Sets the machine under the registrars. Default: [`SystemPlatform`].
    pub fn platform(mut self, host: Arc<dyn Platform>) -> RegistrationBuilder {
        self.host = host;
        self
    }

    /// Returns what [`register`](Self::register) would do with the pages that are resident now. Has
    /// no side effects.
    ///
    /// # Errors
    /// The errors of [`plan`](super::plan), and [`Populate`](RegisterError::Populate) if the
    /// resident pages cannot be determined.
    pub fn plan(&self, region: &Region) -> Result<Plan, RegisterError> {
        let limits: Vec<Limits> =
            self.registrars.iter().map(|registrar| registrar.limits()).collect();
        MemoryLayout::current(region, &*self.host)?.plan(&limits, &self.plan_options())
    }

    /// Registers a region: all of it with all registrars, or nothing.
    ///
    /// The set keeps the region; pass a clone of an `Arc` to keep access to it.
    ///
    /// # Errors
    /// [`RegisterError`] names the registrar and the call that failed, why, which limit was hit,
    /// and what to do. Nothing is registered then.
    pub fn register(
        &self,
        region: impl Into<Arc<Region>>,
    ) -> Result<RegistrationSet, RegisterError> {
        let mut sets = self.register_batch([region.into()])?;
        sets.pop().ok_or(RegisterError::Empty)
    }

    /// Registers several regions, all of them or none, with one team of threads, as if they were
    /// one region after the other. Adjacent parts of a region are populated together. For no
    /// regions it returns no sets.
    ///
    /// # Errors
    /// The errors of [`register`](Self::register).
    pub fn register_batch(
        &self,
        regions: impl IntoIterator<Item = Arc<Region>>,
    ) -> Result<Vec<RegistrationSet>, RegisterError> {
        let regions: Vec<Arc<Region>> = regions.into_iter().collect();
        if regions.is_empty() {
            return Ok(Vec::new());
        }
        RegistrationSet::run(&self.engine(regions)?)
    }

    /// Starts registering a region in a background thread. The thread populates and registers chunk
    /// by chunk, in order of addresses; the beginning can be used while it works on the rest.
    ///
    /// # Errors
    /// The errors of [`register`](Self::register) that are known before the work starts, and
    /// [`NoThread`](RegisterError::NoThread) if the thread cannot be created.
    pub fn register_in_background(
        &self,
        region: impl Into<Arc<Region>>,
    ) -> Result<Background, RegisterError> {
        // Dropping the handle cancels a child token, not everything that uses the user's token.
        let builder = self.clone().by_range(true).cancel(self.options.budget.cancel.child());
        Background::begin(builder.engine(vec![region.into()])?)
    }

    fn engine(&self, regions: Vec<Arc<Region>>) -> Result<Engine, RegisterError> {
        let (host, registrars) = (Arc::clone(&self.host), self.registrars.clone());
        Engine::new(host, registrars, regions, &self.plan_options(), self.options.clone())
    }

    fn plan_options(&self) -> PlanOptions {
        PlanOptions {
            policy: self.policy,
            cores: self.host.cores(),
            populate: self.populate,
            chunk_bytes: self.chunk_bytes,
            by_range: self.by_range,
        }
    }
}
