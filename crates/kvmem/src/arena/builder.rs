//! *Builder*: what is wished for, and the order in which it is done.
//!
//! Map, then policy, then populate, then look: a policy decides only about pages that are not there
//! yet, and a receipt says only what was found. Whatever fails, the span is dropped and nothing is
//! left.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::lay::{Laid, lay};
use super::mapping::{self, Mapping};
use super::populate::{Part, Populated, populate};
use super::{
    ArenaError, CancelToken, Ladder, Numa, PageSize, Populate, Progress, ProgressOptions, Receipt,
    Region,
};
use crate::trace::{event, span};

/// What is behind the addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Backing {
    /// Memory of this process alone.
    #[default]
    Private,
    /// A sealed memory file that other processes can attach.
    Shared,
}

impl fmt::Display for Backing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Backing::Private => "private",
            Backing::Shared => "shared",
        })
    }
}

/// What laying needs to know.
#[derive(Clone, Debug)]
pub(crate) struct Wish {
    pub(crate) requested: usize,
    pub(crate) ladder: Ladder,
    pub(crate) numa: Numa,
    pub(crate) backing: Backing,
    /// Nobody else maps a shared region for writing.
    pub(crate) readers_only: bool,
    pub(crate) guard_pages: bool,
    pub(crate) dont_fork: bool,
    pub(crate) dont_dump: bool,
    /// All of it will be populated, now or later, before it is used.
    pub(crate) populated: bool,
}

impl Wish {
    /// Whether hugepages of shared memory may come by collapsing: not those of a small region,
    /// which would be rounded up to one, and not where pages are dealt out to nodes, since a
    /// hugepage lies where its first page lay, and those are often dealt to the same node.
    pub(crate) fn can_collapse(&self) -> bool {
        self.populated
            && self.requested >= PageSize::Thp.bytes()
            && !matches!(self.numa, Numa::Interleave(_))
    }
}

/// A region to be. See [`Region::builder`].
#[derive(Clone, Debug)]
#[must_use = "nothing is mapped before `map`"]
pub struct RegionBuilder {
    wish: Wish,
    populate: Populate,
    watch: ProgressOptions,
}

impl RegionBuilder {
    pub(crate) fn new(size_bytes: usize) -> RegionBuilder {
        let wish = Wish {
            requested: size_bytes,
            ladder: Ladder::default(),
            numa: Numa::None,
            backing: Backing::Private,
            readers_only: false,
            guard_pages: false,
            dont_fork: true,
            dont_dump: true,
            populated: false,
        };
        RegionBuilder { wish, populate: Populate::None, watch: ProgressOptions::new() }
    }

    /// Kinds of pages to try. Default: 2 MiB, then THP, then base pages.
    pub fn ladder(mut self, ladder: impl Into<Ladder>) -> RegionBuilder {
        self.wish.ladder = ladder.into();
        self
    }

    /// Whether to fail if the first rung cannot take everything. Default: as the ladder says, which
    /// is no.
    ///
    /// Of transparent hugepages nothing is promised, so strictness is checked after populating: if
    /// the kernel used base pages for a part, and tells so (Linux 6.7), mapping fails. Without
    /// populating there is nothing to check.
    pub fn strict(mut self, strict: bool) -> RegionBuilder {
        self.wish.ladder.strict = strict;
        self
    }

    /// Where pages are to lie. Default: wherever the kernel puts them.
    ///
    /// Pages of a pool that are bound to nodes are populated when they are mapped, whatever
    /// [`populate`](Self::populate) says: the pool promises pages, but not where they are, and
    /// a later touch could kill the process.
    pub fn numa(mut self, numa: Numa) -> RegionBuilder {
        self.wish.numa = numa;
        self
    }

    /// What is to be behind the addresses. Default: private memory.
    ///
    /// A shared region consists of pages of one kind: the first rung that can take all of it,
    /// rounded up to whole pages.
    pub fn backing(mut self, backing: Backing) -> RegionBuilder {
        self.wish.backing = backing;
        self
    }

    /// `true` is [`Backing::Shared`], `false` is [`Backing::Private`].
    pub fn memfd(self, memfd: bool) -> RegionBuilder {
        self.backing(if memfd { Backing::Shared } else { Backing::Private })
    }

    /// Whether nobody but this region writes to shared memory, ever: the file is sealed against
    /// every later mapping for writing (`F_SEAL_FUTURE_WRITE`, Linux 5.1), of whichever process and
    /// user. Default: no. Private memory is not concerned.
    ///
    /// That holds for this process too: an engine that maps the descriptor by itself can only read,
    /// and [`Region::attach`] fails with [`Refused`](ArenaError::Refused). The kernel then takes no
    /// page out of the file, so [`Region::discard`] fails as well.
    pub fn readers_only(mut self, readers_only: bool) -> RegionBuilder {
        self.wish.readers_only = readers_only;
        self
    }

    /// Whether a base page without access lies before and behind the region, so that running over
    /// its end is a fault at once. Default: no.
    pub fn guard_pages(mut self, guard_pages: bool) -> RegionBuilder {
        self.wish.guard_pages = guard_pages;
        self
    }

    /// Whether a forked child has nothing at these addresses. Default: yes.
    ///
    /// If it does inherit private memory, writes of either process are paid with a copy of the
    /// page: then a device that was given the old page sees the parent's data no more. Private
    /// pages of a pool are not used if this is off: the pool promises them to the parent alone,
    /// and a child that writes could be killed.
    pub fn dont_fork(mut self, dont_fork: bool) -> RegionBuilder {
        self.wish.dont_fork = dont_fork;
        self
    }

    /// Whether core dumps leave the region out. Default: yes.
    pub fn dont_dump(mut self, dont_dump: bool) -> RegionBuilder {
        self.wish.dont_dump = dont_dump;
        self
    }

    /// Whether, and by how many threads, all pages are made resident before the region is returned.
    /// Default: not at all.
    pub fn populate(mut self, populate: Populate) -> RegionBuilder {
        self.populate = populate;
        self.wish.populated = populate != Populate::None;
        self
    }

    /// As [`populate`](Self::populate), but later: by [`Region::populate`], part by part, and all
    /// of it before it is used.
    pub(crate) fn populate_later(mut self) -> RegionBuilder {
        self.populate = Populate::None;
        self.wish.populated = true;
        self
    }

    /// Who is told how far populating has come; see [`ProgressOptions::progress`].
    pub fn progress(
        mut self,
        listener: impl Fn(Progress) + Send + Sync + 'static,
    ) -> RegionBuilder {
        self.watch = self.watch.progress(listener);
        self
    }

    /// A token that ends populating early: then nothing is mapped.
    pub fn cancel(mut self, cancel: CancelToken) -> RegionBuilder {
        self.watch = self.watch.cancel(cancel);
        self
    }

    /// How long populating may take: if that is not enough, nothing is mapped.
    pub fn time_budget(mut self, budget: Duration) -> RegionBuilder {
        self.watch = self.watch.time_budget(budget);
        self
    }

    /// Maps the region, whole or not at all.
    ///
    /// Without populating this takes some ten system calls, however large the region is. Populating
    /// takes as long as the kernel needs to clear that much memory.
    ///
    /// # Errors
    /// [`ArenaError`] says what was refused, which limit was hit, and what to do. Nothing is left
    /// mapped.
    pub fn map(&self) -> Result<Region, ArenaError> {
        let wish = &self.wish;
        span!(INFO, "map", bytes = wish.requested);
        let laid = lay(wish)?;
        for piece in &laid.pieces {
            for reason in &piece.fallbacks {
                event!(WARN, range = ?piece.range, got = %piece.got, %reason, "a rung of the ladder was passed");
                let _ = reason;
            }
        }
        let parts = mapping::parts(&laid);
        let done = if self.populate == Populate::None {
            self.keep_promises(&parts)?
        } else {
            populate(&parts, self.populate, &self.watch, 0)?.into_iter().map(Some).collect()
        };
        let receipt = self.receipt(&laid, &done)?;
        Ok(Region::whole(Mapping::own(laid, wish.backing, wish.numa.clone(), receipt)))
    }

    /// Populates what would not be safe to touch later: pages of a pool that are bound to nodes.
    fn keep_promises(&self, parts: &[Part]) -> Result<Vec<Option<Populated>>, ArenaError> {
        let bound = matches!(self.wish.numa, Numa::Bind(_));
        let promised = |part: &&Part| bound && part.page.is_pooled();
        let urgent: Vec<Part> = parts.iter().filter(promised).cloned().collect();
        let mut done = populate(&urgent, Populate::Auto, &self.watch, 0)?.into_iter();
        Ok(parts.iter().map(|part| if promised(&part) { done.next() } else { None }).collect())
    }

    fn receipt(&self, laid: &Laid, done: &[Option<Populated>]) -> Result<Receipt, ArenaError> {
        let mut ranges = mapping::ranges(laid);
        for (range, done) in ranges.iter_mut().zip(done) {
            if let Some(done) = done {
                range.seconds = done.seconds;
                range.gib_per_s = done.gib_per_s();
                mapping::verify(range, &self.wish.numa, self.wish.ladder.strict)?;
            }
        }
        Ok(Receipt {
            requested_bytes: self.wish.requested,
            mapped_bytes: laid.span.outer_len(),
            usable_bytes: laid.span.len(),
            backing: Some(self.wish.backing),
            policy_verified: laid.policy_verified,
            threads: done.iter().flatten().map(|done| done.threads).max().unwrap_or(0),
            ranges,
        })
    }
}
