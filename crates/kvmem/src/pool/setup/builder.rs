//! *Pool builder*: all options of a pool.

use std::fmt;
use std::sync::Arc;

use crate::arena::{Backing, CancelToken, Ladder, Numa, Populate, Progress};
use crate::pool::provision::ProvisionOptions;
use crate::pool::{InitOn, PoolSize};
use crate::register::{Platform, Policy, RegisterProgress, Registrar, SystemPlatform};

/// Builds a [`Pool`](crate::pool::Pool). See [`Pool::builder`](crate::pool::Pool::builder).
#[derive(Clone)]
#[must_use = "there is no pool before `build`"]
pub struct PoolBuilder {
    pub(super) size: PoolSize,
    pub(super) max_size: Option<PoolSize>,
    pub(super) ladder: Ladder,
    pub(super) numa: Numa,
    pub(super) backing: Backing,
    pub(super) readers_only: bool,
    pub(super) guard_pages: bool,
    pub(super) provision: ProvisionOptions,
    pub(super) boundary: Option<u64>,
    pub(super) hot_sizes: Vec<u64>,
    pub(super) auto_hot_sizes: bool,
    pub(super) max_cached_bytes: Option<u64>,
    pub(super) in_background: bool,
    pub(super) quarantine: bool,
    pub(super) measure_one_in: u32,
    pub(super) init_on: InitOn,
}

impl PoolBuilder {
    pub(super) fn new(size: PoolSize) -> PoolBuilder {
        let provision = ProvisionOptions {
            name: "pool".into(),
            populate: Populate::Auto,
            registrars: Vec::new(),
            policy: Policy::Auto,
            platform: Arc::new(SystemPlatform),
            cancel: CancelToken::new(),
            on_populate: None,
            on_register: None,
        };
        PoolBuilder {
            size,
            max_size: None,
            ladder: Ladder::default(),
            numa: Numa::None,
            backing: Backing::Private,
            readers_only: false,
            guard_pages: false,
            provision,
            boundary: None,
            hot_sizes: Vec::new(),
            auto_hot_sizes: true,
            max_cached_bytes: None,
            in_background: false,
            quarantine: false,
            measure_one_in: 0,
            init_on: InitOn::Never,
        }
    }

    /// Sets the pool's name in [metrics](crate::pool::observe) and traces. Default: `pool`. Metrics
    /// of pools that share a name are not aggregated; give each pool its own name.
    pub fn name(mut self, name: impl AsRef<str>) -> PoolBuilder {
        self.provision.name = name.as_ref().into();
        self
    }

    /// Sets the size up to which the pool can [grow](crate::pool::Pool::grow_to). Default: the
    /// pool's size. Building takes the addresses for all of it, and pages of a pool of hugepages
    /// too; other memory is taken when the pool grows. The size is then rounded up to whole parts.
    pub fn max_size(mut self, size: impl Into<PoolSize>) -> PoolBuilder {
        self.max_size = Some(size.into());
        self
    }

    /// Sets the kinds of pages to try. Default: 2 MiB, then THP, then base pages.
    pub fn ladder(mut self, ladder: impl Into<Ladder>) -> PoolBuilder {
        self.ladder = ladder.into();
        self
    }

    /// Sets whether building fails if the first rung of the ladder cannot hold all of the pool.
    /// Default: the ladder's own setting, which is no.
    pub fn strict(mut self, strict: bool) -> PoolBuilder {
        self.ladder.strict = strict;
        self
    }

    /// Sets the NUMA placement of pages. Default: the kernel's choice.
    pub fn numa(mut self, numa: Numa) -> PoolBuilder {
        self.numa = numa;
        self
    }

    /// Sets the kind of memory. Default: memory that is private to this process. Other processes
    /// can [attach](crate::pool::AttachedPool) memory with [`Backing::Shared`].
    pub fn backing(mut self, backing: Backing) -> PoolBuilder {
        self.backing = backing;
        self
    }

    /// Sets whether only this pool can write to the memory of a shared pool: see
    /// [`RegionBuilder::readers_only`](crate::arena::RegionBuilder::readers_only). Then
    /// [`Pool::share`](crate::pool::Pool::share) returns a descriptor that can only be mapped for
    /// reading, and [shrinking](crate::pool::Pool::shrink_to) the pool fails. Default: no.
    pub fn readers_only(mut self, readers_only: bool) -> PoolBuilder {
        self.readers_only = readers_only;
        self
    }

    /// Sets whether a page without access lies before and behind the pool. Default: no.
    pub fn guard_pages(mut self, guard_pages: bool) -> PoolBuilder {
        self.guard_pages = guard_pages;
        self
    }

    /// Sets whether pages are made resident before blocks use them, and by how many threads.
    /// Default: [`Populate::Auto`]. With [`Populate::None`] the first touch of a page may find no
    /// memory, which ends the process.
    pub fn populate(mut self, populate: Populate) -> PoolBuilder {
        self.provision.populate = populate;
        self
    }

    /// Adds a registrar: all of the pool is registered with it.
    pub fn registrar(self, registrar: impl Registrar + 'static) -> PoolBuilder {
        self.registrars([Arc::new(registrar) as Arc<dyn Registrar>])
    }

    /// Adds registrars, such as those that [`Devices::open`](crate::register::Devices::open)
    /// returns.
    pub fn registrars(
        mut self,
        registrars: impl IntoIterator<Item = Arc<dyn Registrar>>,
    ) -> PoolBuilder {
        self.provision.registrars.extend(registrars);
        self
    }

    /// Sets how registrars are called: one after the other, or in parallel. Default:
    /// [`Policy::Auto`].
    pub fn policy(mut self, policy: Policy) -> PoolBuilder {
        self.provision.policy = policy;
        self
    }

    /// Sets the machine under the registrars, which populates the memory of a pool that has some.
    /// Default: [`SystemPlatform`].
    pub fn platform(mut self, platform: Arc<dyn Platform>) -> PoolBuilder {
        self.provision.platform = platform;
        self
    }

    /// Divides the pool into parts of at most `bytes`, in whole pages. No block straddles the edge
    /// of two parts, so no block is longer than a part. Default: the size that the registrars
    /// prefer; without a preference 1 GiB if the pool can grow or becomes ready part by part;
    /// otherwise one part.
    pub fn boundary(mut self, bytes: u64) -> PoolBuilder {
        self.boundary = Some(bytes);
        self
    }

    /// Adds sizes, in bytes, that each thread's own magazines serve from the beginning; see
    /// [`ExtentBuilder::hot_sizes`](crate::slab::ExtentBuilder::hot_sizes).
    pub fn hot_sizes(mut self, sizes: impl IntoIterator<Item = u64>) -> PoolBuilder {
        self.hot_sizes.extend(sizes);
        self
    }

    /// Sets whether further sizes become hot if they are requested repeatedly. Default: yes.
    pub fn auto_hot_sizes(mut self, enabled: bool) -> PoolBuilder {
        self.auto_hot_sizes = enabled;
        self
    }

    /// Limits the bytes that all caches of hot sizes hold together. Default: a 32nd part of the
    /// pool.
    pub fn max_cached_bytes(mut self, bytes: u64) -> PoolBuilder {
        self.max_cached_bytes = Some(bytes);
        self
    }

    /// Sets whether [`build`](Self::build) returns as soon as the memory is mapped, and a thread
    /// then provisions it part by part, in order of addresses. Blocks come only from parts that
    /// are ready. Parts that fail are [quarantined](Self::quarantine). Default: no.
    pub fn in_background(mut self, in_background: bool) -> PoolBuilder {
        self.in_background = in_background;
        self
    }

    /// Sets whether parts that cannot be populated or registered are withheld from use and
    /// reported, while the pool serves the rest. Default: no; the build then fails if any part
    /// fails. With quarantine [`build`](Self::build) still fails if no part becomes ready.
    pub fn quarantine(mut self, quarantine: bool) -> PoolBuilder {
        self.quarantine = quarantine;
        self
    }

    /// Measures the duration of about one call of [`Pool::allocate`](crate::pool::Pool::allocate)
    /// in every `one_in`, in the calling thread. 0 measures none, which is the default and costs
    /// nothing. 1000 costs each request less than a nanosecond. See
    /// [`Pool::latency`](crate::pool::Pool::latency).
    pub fn measure_latency(mut self, one_in: u32) -> PoolBuilder {
        self.measure_one_in = one_in;
        self
    }

    /// Sets when the bytes of blocks are set to zero: before a block is handed out, before its
    /// bytes become free, or never, which is the default. See
    /// [what fresh memory holds](crate::pool#what-fresh-memory-holds).
    pub fn init_on(mut self, init_on: InitOn) -> PoolBuilder {
        self.init_on = init_on;
        self
    }

    /// Sets a token that cancels building: [`build`](Self::build) then returns an error. In the
    /// background, no further part becomes ready. After the token is used the pool cannot grow.
    pub fn cancel(mut self, cancel: CancelToken) -> PoolBuilder {
        self.provision.cancel = cancel;
        self
    }

    /// Sets a listener for the progress of populating. If parts become ready one by one, the
    /// progress is that of each part.
    pub fn on_populate(
        mut self,
        listener: impl Fn(Progress) + Send + Sync + 'static,
    ) -> PoolBuilder {
        self.provision.on_populate = Some(Arc::new(listener));
        self
    }

    /// Sets a listener for the progress of registering. If parts become ready one by one, the
    /// progress is that of each part.
    pub fn on_register(
        mut self,
        listener: impl Fn(RegisterProgress) + Send + Sync + 'static,
    ) -> PoolBuilder {
        self.provision.on_register = Some(Arc::new(listener));
        self
    }
}

impl fmt::Debug for PoolBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolBuilder")
            .field("name", &self.provision.name)
            .field("size", &self.size)
            .field("max_size", &self.max_size)
            .field("ladder", &self.ladder)
            .field("numa", &self.numa)
            .field("backing", &self.backing)
            .field("readers_only", &self.readers_only)
            .field("populate", &self.provision.populate)
            .field("registrars", &self.provision.registrars)
            .field("policy", &self.provision.policy)
            .field("boundary", &self.boundary)
            .field("hot_sizes", &self.hot_sizes)
            .field("in_background", &self.in_background)
            .field("quarantine", &self.quarantine)
            .field("init_on", &self.init_on)
            .finish_non_exhaustive()
    }
}
