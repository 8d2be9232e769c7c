//! *Pool builder*: everything that a pool is to be, in one place.

use super::memory::{self, Memory};
use super::{Pool, PoolError, PoolReport, PoolSize};
use crate::arena::{Backing, Ladder, Numa, Populate, Region};
use crate::offset::OffsetAllocator;
use crate::slab::ExtentCache;
use std::sync::Arc;

/// A pool to be. See [`Pool::builder`].
#[derive(Clone, Debug)]
#[must_use = "there is no pool before `build`"]
pub struct PoolBuilder {
    size: PoolSize,
    ladder: Ladder,
    numa: Numa,
    backing: Backing,
    populate: Populate,
    hot_sizes: Vec<u64>,
    learns: bool,
    stranded: Option<u64>,
}

impl PoolBuilder {
    pub(super) fn new(size: PoolSize) -> PoolBuilder {
        PoolBuilder {
            size,
            ladder: Ladder::default(),
            numa: Numa::None,
            backing: Backing::Private,
            populate: Populate::Auto,
            hot_sizes: Vec::new(),
            learns: true,
            stranded: None,
        }
    }

    /// Kinds of pages to try. Default: 2 MiB, then THP, then base pages.
    pub fn ladder(mut self, ladder: impl Into<Ladder>) -> PoolBuilder {
        self.ladder = ladder.into();
        self
    }

    /// Where pages are to lie. Default: wherever the kernel puts them.
    pub fn numa(mut self, numa: Numa) -> PoolBuilder {
        self.numa = numa;
        self
    }

    /// What is behind the addresses. Default: memory of this process alone.
    pub fn backing(mut self, backing: Backing) -> PoolBuilder {
        self.backing = backing;
        self
    }

    /// Whether, and by how many threads, all pages are made resident. Default: [`Populate::Auto`].
    pub fn populate(mut self, populate: Populate) -> PoolBuilder {
        self.populate = populate;
        self
    }

    /// These sizes, in bytes, are served from each thread's own magazines from the beginning; see
    /// [`ExtentBuilder::hot_sizes`](crate::slab::ExtentBuilder::hot_sizes).
    pub fn hot_sizes(mut self, sizes: impl IntoIterator<Item = u64>) -> PoolBuilder {
        self.hot_sizes.extend(sizes);
        self
    }

    /// Whether further sizes become hot that are asked for again and again. Default: yes.
    pub fn learn(mut self, learns: bool) -> PoolBuilder {
        self.learns = learns;
        self
    }

    /// All caches together strand at most so many bytes. Default: a 32nd part of the pool.
    pub fn stranded(mut self, bytes: u64) -> PoolBuilder {
        self.stranded = Some(bytes);
        self
    }

    /// Builds the pool: maps, populates, registers.
    ///
    /// # Errors
    /// [`PoolError`] says which layer refused what, why, and what to do. Nothing is left behind.
    pub fn build(&self) -> Result<(Pool, PoolReport), PoolError> {
        let asked = self.size.bytes()?;
        let region = Region::builder(asked)
            .ladder(self.ladder.clone())
            .numa(self.numa.clone())
            .backing(self.backing)
            .populate(self.populate)
            .map()?;
        let report = PoolReport {
            asked_bytes: asked as u64,
            capacity_bytes: region.len() as u64,
            receipt: region.receipt().clone(),
        };
        let len = region.len();
        let memory = Arc::new(Memory::new(region, len)?);
        let mut space = ExtentCache::builder(OffsetAllocator::builder(len as u64))
            .hot_sizes(self.hot_sizes.iter().copied())
            .learn(self.learns);
        if let Some(bytes) = self.stranded {
            space = space.stranded(bytes);
        }
        let space = space.build()?;
        memory::place(space.number(), &memory);
        space.keep(Box::new(Arc::clone(&memory)));
        Ok((Pool::new(space, memory), report))
    }
}
