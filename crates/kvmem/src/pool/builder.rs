//! *Pool builder*: everything that a pool is to be, in one place.

use std::fmt;
use std::sync::Arc;

use super::build::build;
use super::{Pool, PoolError, PoolSize};
use crate::arena::{Backing, CancelToken, Ladder, Numa, Populate, Progress};
use crate::register::{Policy, RegisterProgress, Registrar};

/// A pool to be. See [`Pool::builder`].
#[derive(Clone)]
#[must_use = "there is no pool before `build`"]
pub struct PoolBuilder {
    pub(super) name: Arc<str>,
    pub(super) size: PoolSize,
    pub(super) max_size: Option<PoolSize>,
    pub(super) ladder: Ladder,
    pub(super) numa: Numa,
    pub(super) backing: Backing,
    pub(super) readers_only: bool,
    pub(super) guard_pages: bool,
    pub(super) populate: Populate,
    pub(super) registrars: Vec<Arc<dyn Registrar>>,
    pub(super) policy: Policy,
    pub(super) boundary: Option<u64>,
    pub(super) hot_sizes: Vec<u64>,
    pub(super) learns: bool,
    pub(super) max_cached_bytes: Option<u64>,
    pub(super) in_background: bool,
    pub(super) quarantine: bool,
    pub(super) measured: u32,
    pub(super) cancel: CancelToken,
    pub(super) on_populate: Option<Arc<dyn Fn(Progress) + Send + Sync>>,
    pub(super) on_register: Option<Arc<dyn Fn(RegisterProgress) + Send + Sync>>,
}

impl PoolBuilder {
    pub(super) fn new(size: PoolSize) -> PoolBuilder {
        PoolBuilder {
            name: "pool".into(),
            size,
            max_size: None,
            ladder: Ladder::default(),
            numa: Numa::None,
            backing: Backing::Private,
            readers_only: false,
            guard_pages: false,
            populate: Populate::Auto,
            registrars: Vec::new(),
            policy: Policy::Auto,
            boundary: None,
            hot_sizes: Vec::new(),
            learns: true,
            max_cached_bytes: None,
            in_background: false,
            quarantine: false,
            measured: 0,
            cancel: CancelToken::new(),
            on_populate: None,
            on_register: None,
        }
    }

    /// What it is called in [metrics](super::observe) and traces. Default: `pool`. Pools of one
    /// name are added up by nobody: give each its own.
    pub fn name(mut self, name: impl AsRef<str>) -> PoolBuilder {
        self.name = name.as_ref().into();
        self
    }

    /// The most that the pool can [grow](Pool::grow_to) to. Default: its size. Addresses for all of
    /// it are taken at once, and so are pages of a pool of hugepages; other memory is not,
    /// before the pool grows. The size is then rounded up to whole parts.
    pub fn max_size(mut self, size: impl Into<PoolSize>) -> PoolBuilder {
        self.max_size = Some(size.into());
        self
    }

    /// Kinds of pages to try. Default: 2 MiB, then THP, then base pages.
    pub fn ladder(mut self, ladder: impl Into<Ladder>) -> PoolBuilder {
        self.ladder = ladder.into();
        self
    }

    /// Whether to fail if the first rung of the ladder cannot take everything. Default: as the
    /// ladder says, which is no.
    pub fn strict(mut self, strict: bool) -> PoolBuilder {
        self.ladder.strict = strict;
        self
    }

    /// Where pages are to lie. Default: wherever the kernel puts them.
    pub fn numa(mut self, numa: Numa) -> PoolBuilder {
        self.numa = numa;
        self
    }

    /// What is behind the addresses. Default: memory of this process alone. [`Backing::Shared`] can
    /// be [attached](super::AttachedPool) by other processes.
    pub fn backing(mut self, backing: Backing) -> PoolBuilder {
        self.backing = backing;
        self
    }

    /// Whether nobody but this pool writes to a shared pool's memory: see
    /// [`RegionBuilder::readers_only`](crate::arena::RegionBuilder::readers_only). Then
    /// [`Pool::share`](super::Pool::share) gives a descriptor that can only be mapped for reading,
    /// and a pool that [shrinks](super::Pool::shrink_to) fails. Default: no.
    pub fn readers_only(mut self, readers_only: bool) -> PoolBuilder {
        self.readers_only = readers_only;
        self
    }

    /// Whether a page without access lies before and behind the pool. Default: no.
    pub fn guard_pages(mut self, guard_pages: bool) -> PoolBuilder {
        self.guard_pages = guard_pages;
        self
    }

    /// Whether, and by how many threads, pages are made resident before they are handed out.
    /// Default: [`Populate::Auto`]. With [`Populate::None`] a first touch can find no memory,
    /// which ends the process.
    pub fn populate(mut self, populate: Populate) -> PoolBuilder {
        self.populate = populate;
        self
    }

    /// One more registrar: all of the pool is registered with it.
    pub fn registrar(self, registrar: impl Registrar + 'static) -> PoolBuilder {
        self.registrars([Arc::new(registrar) as Arc<dyn Registrar>])
    }

    /// Some more registrars, such as those that [`Devices::open`](crate::register::Devices::open)
    /// gives.
    pub fn registrars(
        mut self,
        registrars: impl IntoIterator<Item = Arc<dyn Registrar>>,
    ) -> PoolBuilder {
        self.registrars.extend(registrars);
        self
    }

    /// In which way registrars are called. Default: [`Policy::Auto`].
    pub fn policy(mut self, policy: Policy) -> PoolBuilder {
        self.policy = policy;
        self
    }

    /// Cuts the pool into parts of at most so many bytes, in whole pages; no block straddles the
    /// edge of two, nor is longer. Default: as the registrars take it best, or, if the pool can
    /// grow or becomes ready range by range, 1 GiB, or else no cut.
    pub fn boundary(mut self, bytes: u64) -> PoolBuilder {
        self.boundary = Some(bytes);
        self
    }

    /// These sizes, in bytes, are served from each thread's own magazines from the beginning; see
    /// [`ExtentBuilder::hot_sizes`](crate::slab::ExtentBuilder::hot_sizes).
    pub fn hot_sizes(mut self, sizes: impl IntoIterator<Item = u64>) -> PoolBuilder {
        self.hot_sizes.extend(sizes);
        self
    }

    /// Whether further sizes become hot that are asked for again and again. Default: yes.
    pub fn auto_hot_sizes(mut self, learns: bool) -> PoolBuilder {
        self.learns = learns;
        self
    }

    /// All caches together strand at most so many bytes. Default: a 32nd part of the pool.
    pub fn max_cached_bytes(mut self, bytes: u64) -> PoolBuilder {
        self.max_cached_bytes = Some(bytes);
        self
    }

    /// Whether [`build`](Self::build) returns as soon as the memory is mapped, and a thread makes
    /// it ready part by part, in order of addresses. Blocks come only from parts that are
    /// ready. Parts that fail are [quarantined](Self::quarantine). Default: no.
    pub fn in_background(mut self, in_background: bool) -> PoolBuilder {
        self.in_background = in_background;
        self
    }

    /// Whether parts that cannot be populated or registered are kept from use and reported, while
    /// the rest serves on. Default: no; then a pool is whole or it is not built. With it
    /// [`build`](Self::build) still fails if no part at all could be made ready.
    pub fn quarantine(mut self, quarantine: bool) -> PoolBuilder {
        self.quarantine = quarantine;
        self
    }

    /// How long calls of [`Pool::allocate`] take is measured, of one in about so many; 0: of none,
    /// which is the default and costs nothing. Measured is from the thread that asks; 1000
    /// costs each request less than a nanosecond. See [`Pool::latency`].
    pub fn measure_latency(mut self, one_in: u32) -> PoolBuilder {
        self.measured = one_in;
        self
    }

    /// A token that ends building early: then there is no pool. In the background: no further part
    /// is made ready. Once it is used the pool cannot grow.
    pub fn cancel(mut self, cancel: CancelToken) -> PoolBuilder {
        self.cancel = cancel;
        self
    }

    /// Sets a listener for the progress of populating; if parts become ready one by one, of each
    /// part.
    pub fn on_populate(
        mut self,
        listener: impl Fn(Progress) + Send + Sync + 'static,
    ) -> PoolBuilder {
        self.on_populate = Some(Arc::new(listener));
        self
    }

    /// Sets a listener for the progress of registering; if parts become ready one by one, of each
    /// part.
    pub fn on_register(
        mut self,
        listener: impl Fn(RegisterProgress) + Send + Sync + 'static,
    ) -> PoolBuilder {
        self.on_register = Some(Arc::new(listener));
        self
    }

    /// Builds the pool: maps, populates, registers, in that order. Takes as long as the kernel
    /// needs to clear and pin that much memory; in the background some ten system calls.
    ///
    /// # Errors
    /// [`PoolError`] says which layer refused what, why, and what to do. Nothing is left behind.
    pub fn build(self) -> Result<Pool, PoolError> {
        build(&self)
    }
}

impl fmt::Debug for PoolBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolBuilder")
            .field("name", &self.name)
            .field("size", &self.size)
            .field("max_size", &self.max_size)
            .field("ladder", &self.ladder)
            .field("numa", &self.numa)
            .field("backing", &self.backing)
            .field("readers_only", &self.readers_only)
            .field("populate", &self.populate)
            .field("registrars", &self.registrars)
            .field("policy", &self.policy)
            .field("boundary", &self.boundary)
            .field("hot_sizes", &self.hot_sizes)
            .field("in_background", &self.in_background)
            .field("quarantine", &self.quarantine)
            .finish_non_exhaustive()
    }
}
