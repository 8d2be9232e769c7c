//! *Bed*: registrars, their host, and regions for them: rings on this machine, or NICs on a
//! simulated one.

use std::sync::Arc;

use kvmem::arena::{ArenaError, PageSize, Populate, Region};
use kvmem::register::simulated::Published;
use kvmem::register::{IoUring, Memlock, Platform, RegisterLimit, Registrar, SystemPlatform};

use super::plain_ring::PlainRing;
use super::plan::{Cell, Group};
use super::{Backend, MeasureError, Pages};
use crate::arena::region::page_size;

/// What a contender works with in one run.
#[derive(Debug)]
pub(super) struct Bed {
    /// The library's.
    pub(super) registrars: Vec<Arc<dyn Registrar>>,
    /// What those work with who do without the library; on a simulated machine there is only one
    /// kind of NICs.
    pub(super) plain: Vec<Arc<dyn Registrar>>,
    pub(super) host: Arc<dyn Platform>,
}

/// What the cells of a group have in common.
#[derive(Debug)]
pub(super) enum Ground {
    /// As many rings of both kinds as the cell with the most needs, and regions of this size and
    /// pages.
    Rings {
        rings: Vec<Arc<dyn Registrar>>,
        plain: Vec<Arc<dyn Registrar>>,
        region_bytes: usize,
        pages: Pages,
    },
    /// A machine that was published, and addresses that are never touched.
    Simulated { published: &'static Published, region: Arc<Region> },
}

impl Ground {
    /// Makes the rings, or maps the addresses.
    pub(super) fn open(group: &Group) -> Result<Self, MeasureError> {
        let region_bytes = group.region_bytes as usize;
        match (simulated(group.backend), group.pages) {
            (Some(published), _) => {
                let addresses =
                    Region::builder(region_bytes).ladder(PageSize::Thp).populate(Populate::None);
                // A limit on addresses says nothing about anyone's speed.
                let region = addresses.map().map_err(limited)?;
                Ok(Ground::Simulated { published, region: Arc::new(region) })
            }
            (None, pages) => {
                let most = group.cells.iter().map(|cell| cell.contexts).max().unwrap_or(0);
                let (mut rings, mut plain) = (Vec::new(), Vec::new());
                for index in 0..most {
                    let ring = IoUring::new(index as usize).map_err(limited)?;
                    let like = ring.limits();
                    let other =
                        PlainRing::new(index, group.region_bytes, &like).map_err(|error| {
                            limited(format_args!("io_uring is not available: {error}"))
                        })?;
                    plain.push(Arc::new(other) as _);
                    rings.push(Arc::new(ring) as _);
                }
                Ok(Ground::Rings {
                    rings,
                    plain,
                    region_bytes,
                    pages: pages.unwrap_or(Pages::Base),
                })
            }
        }
    }

    /// What a run of `cell` works with. Simulated machines are new each time.
    pub(super) fn bed(&self, cell: &Cell) -> Bed {
        let (mut registrars, mut plain, host) = match self {
            Ground::Rings { rings, plain, .. } => {
                (rings.clone(), plain.clone(), Arc::new(SystemPlatform) as Arc<dyn Platform>)
            }
            Ground::Simulated { published, .. } => {
                let machine = published.machine(cell.resident);
                (machine.nics(), machine.nics(), machine.host())
            }
        };
        registrars.truncate(cell.contexts as usize);
        plain.truncate(cell.contexts as usize);
        Bed { registrars, plain, host }
    }

    /// Why the registrars of `cell` cannot pin so much, if it is known.
    pub(super) fn too_little_memlock(&self, cell: &Cell) -> Option<String> {
        let registrars = self.bed(cell).registrars;
        let Memlock { account, limit_bytes, used_bytes } = registrars.first()?.limits().memlock?;
        let need_bytes = cell.region_bytes.saturating_mul(u64::from(cell.contexts));
        let exceeded = RegisterLimit::Memlock { account, limit_bytes, used_bytes, need_bytes };
        (need_bytes > limit_bytes.saturating_sub(used_bytes))
            .then(|| format!("{exceeded}: {}", exceeded.remedy()))
    }

    /// A region of this size and pages, resident or not.
    pub(super) fn region(&self, resident: bool) -> Result<Arc<Region>, MeasureError> {
        match self {
            Ground::Simulated { region, .. } => Ok(Arc::clone(region)),
            Ground::Rings { region_bytes, pages, .. } => {
                let who = if resident { Populate::Auto } else { Populate::None };
                let builder =
                    Region::builder(*region_bytes).ladder(page_size(*pages)).populate(who);
                builder.map().map(Arc::new).map_err(|error| match error {
                    ArenaError::NoHeadroom { .. }
                    | ArenaError::NoPages { .. }
                    | ArenaError::Refused { .. } => MeasureError::Limited(error.to_string()),
                    error => MeasureError::Library(error.to_string()),
                })
            }
        }
    }
}

fn limited(error: impl std::fmt::Display) -> MeasureError {
    MeasureError::Limited(error.to_string())
}

/// The published machine that a backend is like.
pub(super) fn simulated(backend: Backend) -> Option<&'static Published> {
    match backend {
        Backend::IoUring => None,
        Backend::ParallelWins => Some(&Published::PARALLEL_WINS),
        Backend::ParallelLoses => Some(&Published::PARALLEL_LOSES),
    }
}
