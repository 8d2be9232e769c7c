//! *Builder*: the description of a region, and the order of the steps that map it.
//!
//! The order is: map, set the NUMA policy, populate, verify. A policy applies only to pages that do
//! not exist yet, and a receipt contains only what was found afterwards. If a step fails, the span
//! is dropped and nothing remains mapped.

use std::time::Duration;

use super::backing::Backing;
use super::map::{MapOptions, MappedSpan, Mapping, Segment, map_pages, survey};
use super::receipt::Receipt;
use super::region::Region;
use crate::arena::populate::{PopulateRange, populate};
use crate::arena::{
    ArenaError, CancelToken, Ladder, Numa, Populate, Populated, Progress, ProgressOptions,
};
use crate::trace::{event, span};

/// A description of a region to map. See [`Region::builder`].
#[derive(Clone, Debug)]
#[must_use = "nothing is mapped before `map`"]
pub struct RegionBuilder {
    options: MapOptions,
    populate: Populate,
    watch: ProgressOptions,
}

impl Region {
    /// Starts the description of a region of at least `size_bytes` bytes.
    pub fn builder(size_bytes: usize) -> RegionBuilder {
        RegionBuilder::new(size_bytes)
    }
}

impl RegionBuilder {
    pub(crate) fn new(size_bytes: usize) -> RegionBuilder {
        let options = MapOptions {
            requested: size_bytes,
            ladder: Ladder::default(),
            numa: Numa::None,
            backing: Backing::Private,
            readers_only: false,
            growable: false,
            guard_pages: false,
            dont_fork: true,
            dont_dump: true,
            populated: false,
        };
        RegionBuilder { options, populate: Populate::None, watch: ProgressOptions::new() }
    }

    /// Sets the kinds of pages to try. Default: 2 MiB, then THP, then base pages.
    pub fn ladder(mut self, ladder: impl Into<Ladder>) -> RegionBuilder {
        self.options.ladder = ladder.into();
        self
    }

    /// Sets whether mapping fails if the first rung cannot take everything. Default: the ladder's
    /// own setting, which is `false` for most ladders.
    ///
    /// The kernel promises nothing about transparent hugepages, so strictness is checked after
    /// populating: mapping fails if the kernel used base pages for a part and reports it (Linux
    /// 6.7). Without populating there is nothing to check.
    pub fn strict(mut self, strict: bool) -> RegionBuilder {
        self.options.ladder.strict = strict;
        self
    }

    /// Sets the NUMA nodes of the pages. Default: the kernel chooses.
    ///
    /// Pages of a hugetlb pool that are bound to nodes are populated by `map`, whatever
    /// [`populate`](Self::populate) says: the pool promises pages, but not their nodes, and a later
    /// touch could kill the process.
    pub fn numa(mut self, numa: Numa) -> RegionBuilder {
        self.options.numa = numa;
        self
    }

    /// Sets the kind of memory behind the addresses. Default: private memory.
    ///
    /// A shared region consists of pages of one kind: the first rung that can take all of it,
    /// rounded up to whole pages.
    pub fn backing(mut self, backing: Backing) -> RegionBuilder {
        self.options.backing = backing;
        self
    }

    /// Sets whether this mapping of shared memory stays the only one that can write. The file is
    /// sealed against every later mapping for writing (`F_SEAL_FUTURE_WRITE`, Linux 5.1), of all
    /// processes and users. Default: no. Has no effect on private memory.
    ///
    /// This applies to this process too: an engine that maps the descriptor itself can only read,
    /// and [`Region::attach`] fails with [`CallFailed`](ArenaError::CallFailed). The kernel then
    /// removes no page from the file, so [`Region::discard`] fails as well.
    pub fn readers_only(mut self, readers_only: bool) -> RegionBuilder {
        self.options.readers_only = readers_only;
        self
    }

    /// Sets whether an inaccessible base page lies before and after the region. An access beyond
    /// its ends then faults at once. Default: no.
    pub fn guard_pages(mut self, guard_pages: bool) -> RegionBuilder {
        self.options.guard_pages = guard_pages;
        self
    }

    /// Sets whether the region is absent in forked children. Default: yes.
    ///
    /// If a child inherits private memory, the first write of either process copies the page; a
    /// device that received the old page then no longer sees the parent's data. Private pages of a
    /// hugetlb pool are not used if this is off: the pool promises them to the parent alone, and a
    /// child that writes could be killed.
    pub fn dont_fork(mut self, dont_fork: bool) -> RegionBuilder {
        self.options.dont_fork = dont_fork;
        self
    }

    /// Sets whether core dumps omit the region. Default: yes.
    pub fn dont_dump(mut self, dont_dump: bool) -> RegionBuilder {
        self.options.dont_dump = dont_dump;
        self
    }

    /// Sets whether `map` makes all pages resident, and with how many threads. Default: not at all.
    pub fn populate(mut self, populate: Populate) -> RegionBuilder {
        self.populate = populate;
        self.options.populated = populate != Populate::None;
        self
    }

    /// Sets whether the file of shared memory may become longer: then it has no `F_SEAL_GROW`, and
    /// others map its front by [`Region::attach_front`]. This region keeps its length. Default: no.
    pub fn growable(mut self, growable: bool) -> RegionBuilder {
        self.options.growable = growable;
        self
    }

    /// Prepares for populating later by [`Region::populate`], part by part. The caller populates
    /// each page before its first use.
    #[doc(hidden)]
    pub fn populate_later(mut self) -> RegionBuilder {
        self.populate = Populate::None;
        self.options.populated = true;
        self
    }

    /// Sets a callback for the progress of populating; see [`ProgressOptions::progress`].
    pub fn progress(
        mut self,
        listener: impl Fn(Progress) + Send + Sync + 'static,
    ) -> RegionBuilder {
        self.watch = self.watch.progress(listener);
        self
    }

    /// Sets a token that ends populating early: `map` then fails and leaves nothing mapped.
    pub fn cancel(mut self, cancel: CancelToken) -> RegionBuilder {
        self.watch = self.watch.cancel(cancel);
        self
    }

    /// Sets the time limit of populating: if populating takes longer, `map` fails and leaves
    /// nothing mapped.
    pub fn time_budget(mut self, budget: Duration) -> RegionBuilder {
        self.watch = self.watch.time_budget(budget);
        self
    }

    /// Maps the region, all of it or nothing.
    ///
    /// Without populating this takes about ten system calls, whatever the size. Populating takes as
    /// long as the kernel needs to clear that much memory.
    ///
    /// # Errors
    /// [`ArenaError`] names the failed step, the limit that was reached, and the remedy. Nothing
    /// remains mapped.
    pub fn map(&self) -> Result<Region, ArenaError> {
        let options = &self.options;
        span!(INFO, "map", bytes = options.requested);
        let mapped = map_pages(options)?;
        for segment in &mapped.segments {
            for reason in &segment.fallbacks {
                let Segment { range, obtained, .. } = segment;
                event!(WARN, ?range, got = %obtained, %reason, "a rung of the ladder was passed");
                let _ = (range, obtained, reason);
            }
        }
        let parts = mapped.populate_ranges();
        let done = match self.populate {
            Populate::None if self.options.populated => vec![None; parts.len()],
            Populate::None => self.keep_promises(&parts)?,
            how => populate(&parts, how, &self.watch, 0)?.into_iter().map(Some).collect(),
        };
        let receipt = self.receipt(&mapped, &done)?;
        Ok(Region::whole(Mapping::from_span(
            mapped,
            options.backing,
            options.numa.clone(),
            receipt,
        )))
    }

    /// Populates the pages that a later touch could not safely make: hugetlb pages that are bound
    /// to nodes.
    fn keep_promises(&self, parts: &[PopulateRange]) -> Result<Vec<Option<Populated>>, ArenaError> {
        let bound = matches!(self.options.numa, Numa::Bind(_));
        let promised = |part: &&PopulateRange| part.page.is_pooled() && bound;
        let urgent: Vec<PopulateRange> = parts.iter().filter(promised).cloned().collect();
        let mut done = populate(&urgent, Populate::Auto, &self.watch, 0)?.into_iter();
        Ok(parts.iter().map(|part| if promised(&part) { done.next() } else { None }).collect())
    }

    fn receipt(
        &self,
        mapped: &MappedSpan,
        done: &[Option<Populated>],
    ) -> Result<Receipt, ArenaError> {
        let mut ranges = survey::ranges(mapped);
        for (range, done) in ranges.iter_mut().zip(done) {
            if let Some(done) = done {
                range.seconds = done.seconds;
                range.gib_per_s = done.gib_per_s();
                survey::verify(range, &self.options.numa, self.options.ladder.strict)?;
            }
        }
        Ok(Receipt {
            requested_bytes: self.options.requested,
            mapped_bytes: mapped.span.outer_len(),
            usable_bytes: mapped.span.len(),
            backing: Some(self.options.backing),
            policy_verified: mapped.policy_verified,
            threads: done.iter().flatten().map(|done| done.threads).max().unwrap_or(0),
            ranges,
        })
    }
}
