//! Fixtures: registrars, their platform and the regions they register. The registrars are rings on
//! this machine or NICs on a simulated one.

use std::sync::Arc;

use anyhow::{Error, Result};
use kvmem::arena::{ArenaError, PageSize, Populate, Region};
use kvmem::register::{IoUring, Memlock, Platform, RegisterLimit, Registrar, SystemPlatform};
use kvmem_testkit::simulated::Published;

use super::plain_ring::PlainRing;
use crate::bench::arena::{Pages, page_size};
use crate::bench::suite::Skip;

/// One page of a [`Ballast`] stays in each range of this length. It is half of the smallest block
/// that is reported, because pages that are adjacent in the region need not be so in memory.
const STRIDE: usize = 1 << 20;
const BASE_PAGE: usize = 4096;

/// The registrars and the platform of one run.
#[derive(Debug)]
pub(super) struct RunFixture {
    /// The library's registrars.
    pub(super) registrars: Vec<Arc<dyn Registrar>>,
    /// The registrars of contenders that do without the library. A simulated machine has only one
    /// kind of NIC.
    pub(super) plain: Vec<Arc<dyn Registrar>>,
    pub(super) host: Arc<dyn Platform>,
}

/// What the lines of one size and kind of pages share.
#[derive(Debug)]
pub(super) enum GroupFixture {
    /// Rings of both kinds, as many as any line needs.
    Rings {
        rings: Vec<Arc<dyn Registrar>>,
        plain: Vec<Arc<dyn Registrar>>,
        region_bytes: usize,
        pages: Pages,
    },
    /// A simulated machine with published figures, and addresses that are never touched.
    Simulated { published: &'static Published, region: Arc<Region> },
}

impl GroupFixture {
    /// Creates the rings.
    pub(super) fn rings(contexts: u32, bytes: u64, pages: Pages) -> Result<Self> {
        let (mut rings, mut plain) = (Vec::new(), Vec::new());
        for index in 0..contexts {
            let ring = IoUring::new(index as usize).map_err(limited)?;
            let other = PlainRing::new(index, bytes, &ring.limits());
            let absent = |error| limited(format_args!("io_uring is not available: {error}"));
            plain.push(Arc::new(other.map_err(absent)?) as _);
            rings.push(Arc::new(ring) as _);
        }
        Ok(GroupFixture::Rings { rings, plain, region_bytes: bytes as usize, pages })
    }

    /// Maps the addresses that a simulated machine registers.
    pub(super) fn simulated(published: &'static Published) -> Result<Self> {
        let addresses = Region::builder(published.len_bytes as usize);
        let addresses = addresses.ladder(PageSize::Thp).populate(Populate::None);
        // A limit on address space says nothing about a contender's speed.
        let region = Arc::new(addresses.map().map_err(limited)?);
        Ok(GroupFixture::Simulated { published, region })
    }

    /// Returns the fixture for a run. Each run gets a new simulated machine.
    pub(super) fn for_run(&self, contexts: u32, resident: bool) -> RunFixture {
        let (mut registrars, mut plain, host) = match self {
            GroupFixture::Rings { rings, plain, .. } => {
                (rings.clone(), plain.clone(), Arc::new(SystemPlatform) as Arc<dyn Platform>)
            }
            GroupFixture::Simulated { published, .. } => {
                let machine = published.machine(resident);
                (machine.nics(), machine.nics(), machine.platform())
            }
        };
        registrars.truncate(contexts as usize);
        plain.truncate(contexts as usize);
        RunFixture { registrars, plain, host }
    }

    /// Returns why this many registrars cannot pin the region, if the limit is known.
    pub(super) fn too_little_memlock(&self, contexts: u32, bytes: u64) -> Option<String> {
        let registrars = self.for_run(contexts, true).registrars;
        let Memlock { account, limit_bytes, used_bytes } = registrars.first()?.limits().memlock?;
        let need_bytes = bytes.saturating_mul(u64::from(contexts));
        let exceeded = RegisterLimit::Memlock { account, limit_bytes, used_bytes, need_bytes };
        (need_bytes > limit_bytes.saturating_sub(used_bytes))
            .then(|| format!("{exceeded}: {}", exceeded.remedy()))
    }

    /// Returns a region of the group's size and pages, resident or not.
    pub(super) fn region(&self, resident: bool) -> Result<Arc<Region>> {
        match self {
            GroupFixture::Simulated { region, .. } => Ok(Arc::clone(region)),
            GroupFixture::Rings { region_bytes, pages, .. } => {
                let populate = if resident { Populate::Auto } else { Populate::None };
                let builder =
                    Region::builder(*region_bytes).ladder(page_size(*pages)).populate(populate);
                builder.map().map(Arc::new).map_err(|error| match error {
                    ArenaError::NoHeadroom { .. }
                    | ArenaError::NoPages { .. }
                    | ArenaError::CallFailed { .. } => limited(error),
                    error => error.into(),
                })
            }
        }
    }
}

/// Returns the error of a limit of this machine, which says nothing about a contender's speed.
fn limited(error: impl std::fmt::Display) -> Error {
    Skip(error.to_string()).into()
}

/// Distinguishes limits of this machine from failures of a contender.
pub(super) fn skip_limits(
    error: impl std::error::Error + Send + Sync + 'static,
    exceeded: Option<&RegisterLimit>,
) -> Error {
    match exceeded {
        Some(RegisterLimit::Memlock { .. } | RegisterLimit::Descriptors) => limited(error),
        _ => error.into(),
    }
}

/// Free memory that the host cannot reclaim: the pages that keep free pages apart.
///
/// A guest reports free memory to its host in blocks of 2 MiB and more, and the host reclaims it.
/// Base pages need no blocks of that size. The ballast therefore makes more memory resident than a
/// run needs and discards all but one page per MiB. The pages in between are free, cannot merge
/// into a block of 2 MiB, and stay backed by the host. Allocations of base pages get them, because
/// the kernel splits no large block while small ones are free.
///
/// This does not work for transparent hugepages, which need such blocks.

#[derive(Debug)]
pub(super) struct Ballast {
    _pages: Region,
}

impl Ballast {
    /// Leaves `bytes` free between pages that stay resident until the ballast is dropped.
    pub(super) fn new(bytes: u64) -> Result<Self, ArenaError> {
        // A single thread gets adjacent pages.
        let builder =
            Region::builder(bytes as usize).ladder(PageSize::Base).populate(Populate::threads(1));
        let pages = builder.map()?;
        for start in (0..pages.len()).step_by(STRIDE) {
            let end = pages.len().min(start + STRIDE);
            if end - start > BASE_PAGE {
                pages.discard(start + BASE_PAGE..end)?;
            }
        }
        Ok(Self { _pages: pages })
    }
}
