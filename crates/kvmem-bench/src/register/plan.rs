//! *Plan*: what a run consists of: cells in groups that share their memory, and how long each may
//! take.

use std::fmt;
use std::time::Duration;

use kvmem::register::IoUring;

use super::bed::simulated;
use super::{Backend, ContenderId, Options, Pages, Row, Skipped};
use crate::arena::system;

/// Contexts that register a region.
const CONTEXTS: [u32; 3] = [1, 4, 8];
/// Sizes of a region on io_uring.
const SIZES: [u64; 2] = [1 << 30, 8 << 30];
/// Larger regions that are not resident are registered with the most contexts only.
const LARGE: u64 = 2 << 30;
/// Registering less than this says nothing.
const LEAST: u64 = 4 << 20;
const GIB: u64 = 1 << 30;

/// How long the measurements are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Effort {
    /// Rounds that count, at least.
    pub(super) reps: u32,
    /// Contenders of the round that does not count.
    pub(super) warm: usize,
    /// Rounds that count, at most.
    pub(super) most_reps: u32,
    /// A cell gets more rounds than the fewest only within this time.
    pub(super) budget: Duration,
}

impl Effort {
    pub(super) fn of(options: &Options) -> Self {
        let mut effort = if options.quick {
            Self { reps: 3, warm: 1, most_reps: 31, budget: Duration::from_millis(300) }
        } else {
            Self { reps: 5, warm: usize::MAX, most_reps: 101, budget: Duration::from_secs(2) }
        };
        if let Some(reps) = options.reps {
            (effort.reps, effort.most_reps) = (reps.max(1), reps.max(1));
        }
        effort
    }
}

/// A region and its contexts: what all contenders meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cell {
    pub(super) backend: Backend,
    pub(super) region_bytes: u64,
    pub(super) contexts: u32,
    pub(super) pages: Option<Pages>,
    pub(super) resident: bool,
}

impl Cell {
    pub(super) fn of(row: &Row) -> Self {
        let Row { backend, region_bytes, contexts, pages, resident, .. } = *row;
        Self { backend, region_bytes, contexts, pages, resident }
    }

    /// About how many milliseconds a run takes.
    fn run_units(&self) -> u64 {
        let each = match (self.backend, self.pages, self.resident) {
            (Backend::IoUring, Some(Pages::Base), false) => 600,
            (Backend::IoUring, _, false) => 400,
            (Backend::IoUring, Some(Pages::Base), true) => 30 * u64::from(self.contexts),
            (Backend::IoUring, _, true) => 3 * u64::from(self.contexts),
            _ => 0,
        };
        self.region_bytes * each / GIB + 1
    }

    /// About how many milliseconds so many contenders take, thrown-away round included.
    pub(super) fn units(&self, contenders: usize, effort: &Effort) -> u64 {
        self.run_units() * contenders as u64 * (u64::from(effort.reps) + 1)
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pages = self.pages.map_or_else(String::new, |pages| format!(" {pages}"));
        let not = if self.resident { "" } else { "not " };
        let many = if self.contexts == 1 { "" } else { "s" };
        let (backend, size, contexts) = (self.backend, size(self.region_bytes), self.contexts);
        write!(f, "{backend}, {size}{pages}, {not}resident, {contexts} context{many}")
    }
}

/// Bytes for people, in the largest unit in which they are a whole number.
pub(super) fn size(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let unit = (bytes.max(1).trailing_zeros() as usize / 10).min(units.len() - 1);
    format!("{} {}", bytes >> (10 * unit), units[unit])
}

/// Cells with the same size and pages.
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub(super) backend: Backend,
    pub(super) region_bytes: u64,
    pub(super) pages: Option<Pages>,
    pub(super) cells: Vec<Cell>,
}

impl Group {
    fn new(backend: Backend, region_bytes: u64, pages: Option<Pages>, contexts: &[u32]) -> Self {
        let most = contexts.iter().copied().max();
        let cell = |resident, contexts| Cell { backend, region_bytes, contexts, pages, resident };
        let large = |contexts| {
            backend == Backend::IoUring && region_bytes > LARGE && Some(contexts) != most
        };
        let resident = contexts.iter().map(|&contexts| cell(true, contexts));
        let rest = contexts
            .iter()
            .filter(|&&contexts| !large(contexts))
            .map(|&contexts| cell(false, contexts));
        Self { backend, region_bytes, pages, cells: resident.chain(rest).collect() }
    }

    pub(super) fn units(&self, contenders: usize, effort: &Effort) -> u64 {
        self.cells.iter().map(|cell| cell.units(contenders, effort)).sum()
    }

    pub(super) fn skipped(&self, contexts: Option<u32>, reason: String) -> Skipped {
        Skipped {
            backend: self.backend,
            region_bytes: Some(self.region_bytes),
            pages: self.pages,
            contexts,
            reason,
        }
    }
}

/// The contenders that `options` name.
pub(super) fn contenders(options: &Options) -> Vec<ContenderId> {
    let wanted =
        |id: &ContenderId| options.contenders.is_empty() || options.contenders.contains(id);
    ContenderId::ALL.into_iter().filter(wanted).collect()
}

/// What this machine has to give.
#[derive(Debug)]
pub(super) struct Means {
    /// Bytes that can be made resident, where that is known.
    pub(super) available: Option<u64>,
    /// Why there can be no rings, if there can be none.
    pub(super) no_rings: Option<String>,
}

impl Means {
    pub(super) fn here() -> Self {
        let no_rings = IoUring::available().err().map(|reason| reason.to_string());
        Self { available: system::available_bytes(), no_rings }
    }
}

/// Everything that `options` ask for, in order; and what of it this machine cannot do.
pub(super) fn groups(options: &Options, means: &Means) -> (Vec<Group>, Vec<Skipped>) {
    let wanted = |backend| options.backends.is_empty() || options.backends.contains(&backend);
    let mut groups = Vec::new();
    let mut skipped = Vec::new();
    let mut contexts = match options.contexts.as_slice() {
        [] if options.quick => vec![8],
        [] => CONTEXTS.to_vec(),
        some => some.to_vec(),
    };
    contexts.retain(|&contexts| contexts > 0);
    if let (true, Some(reason)) = (wanted(Backend::IoUring), &means.no_rings) {
        skipped.push(no_rows(None, reason.clone()));
    } else if wanted(Backend::IoUring) {
        for region_bytes in sizes(options, means.available, &mut skipped) {
            for pages in Pages::PRIVATE {
                let group = Group::new(Backend::IoUring, region_bytes, Some(pages), &contexts);
                match (pages, system::thp_missing()) {
                    (Pages::Thp, Some(reason)) => skipped.push(group.skipped(None, reason)),
                    _ => groups.push(group),
                }
            }
        }
    }
    for backend in Backend::ALL.into_iter().filter(|&backend| wanted(backend)) {
        let Some(published) = simulated(backend) else { continue };
        // A simulated run takes no time worth saving. There are only so many NICs.
        let all = if options.contexts.is_empty() { CONTEXTS.to_vec() } else { contexts.clone() };
        let there = |&contexts: &u32| contexts as usize <= published.nics;
        let (contexts, lacking): (Vec<u32>, Vec<u32>) = all.into_iter().partition(there);
        let group = Group::new(backend, published.len_bytes, None, &contexts);
        let reason = || format!("the machine has {} NICs", published.nics);
        skipped.extend(lacking.into_iter().map(|contexts| group.skipped(Some(contexts), reason())));
        groups.push(group);
    }
    (groups, skipped)
}

/// No rows of io_uring with this size, or with any.
fn no_rows(region_bytes: Option<u64>, reason: String) -> Skipped {
    Skipped { backend: Backend::IoUring, region_bytes, pages: None, contexts: None, reason }
}

/// The sizes that take no more than half of what is available, largest last.
fn sizes(options: &Options, available: Option<u64>, skipped: &mut Vec<Skipped>) -> Vec<u64> {
    let requested = match options.region_bytes.as_slice() {
        [] if options.quick => SIZES[..1].to_vec(),
        [] => SIZES.to_vec(),
        some => some.to_vec(),
    };
    let mut sizes = Vec::new();
    for bytes in requested {
        let mut fit = bytes;
        while available.is_some_and(|available| fit > available / 2) {
            fit /= 2;
        }
        if fit != bytes {
            let available = size(available.unwrap_or(0) >> 20 << 20);
            let instead = if fit < LEAST {
                "too little".to_owned()
            } else {
                format!("{} instead", size(fit))
            };
            let reason =
                format!("{available} of memory are available, and half of it is used: {instead}");
            skipped.push(no_rows(Some(bytes), reason));
        }
        if fit >= LEAST && !sizes.contains(&fit) {
            sizes.push(fit);
        }
    }
    sizes.sort_unstable();
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(available: Option<u64>) -> Means {
        Means { available, no_rings: None }
    }

    fn cells(groups: &[Group], backend: Backend, resident: bool) -> usize {
        let of = groups.iter().filter(|group| group.backend == backend);
        of.flat_map(|group| &group.cells).filter(|cell| cell.resident == resident).count()
    }

    #[test]
    fn every_cell_is_planned_but_large_ones_that_say_nothing_new() {
        let (groups, skipped) = groups(&Options::default(), &with(None));
        let kinds = 3 - skipped.len() / SIZES.len();
        assert_eq!(cells(&groups, Backend::IoUring, true), kinds * SIZES.len() * CONTEXTS.len());
        assert_eq!(cells(&groups, Backend::IoUring, false), kinds * (CONTEXTS.len() + 1));
        assert_eq!(cells(&groups, Backend::ParallelWins, false), 3);
        assert_eq!(cells(&groups, Backend::ParallelLoses, true), 3);
        assert_eq!(contenders(&Options::default()), ContenderId::ALL);
    }

    #[test]
    fn options_leave_only_what_they_name() {
        let options = Options {
            backends: vec![Backend::IoUring],
            contenders: vec![ContenderId::Auto],
            region_bytes: vec![64 << 20, 64 << 20],
            contexts: vec![2, 0],
            ..Options::default()
        };
        let (groups, _) = groups(&options, &with(None));
        assert!(!groups.is_empty() && groups.len() <= 3);
        for group in groups {
            assert_eq!(
                (group.backend, group.region_bytes, group.cells.len()),
                (Backend::IoUring, 64 << 20, 2)
            );
            assert!(group.cells.iter().all(|cell| cell.contexts == 2));
        }
        assert_eq!(contenders(&options), [ContenderId::Auto]);
    }

    #[test]
    fn regions_are_fit_to_the_memory_and_that_is_said() {
        let io_uring = Options { backends: vec![Backend::IoUring], ..Options::default() };
        let planned = |available| {
            let (groups, skipped) = groups(&io_uring, &with(Some(available)));
            let mut sizes: Vec<u64> = groups.iter().map(|group| group.region_bytes).collect();
            sizes.dedup();
            let said = skipped.iter().filter(|skip| skip.pages.is_none()).count();
            (sizes, said)
        };
        assert_eq!(planned(16 << 30), (vec![1 << 30, 8 << 30], 0));
        assert_eq!(planned(15 << 30), (vec![1 << 30, 4 << 30], 1));
        assert_eq!(planned(3 << 30), (vec![1 << 30], 1));
        assert_eq!(planned(6 << 20), (vec![], 2));
    }

    #[test]
    fn without_rings_the_simulated_machines_are_left() {
        let means = Means { available: None, no_rings: Some("seccomp".to_owned()) };
        let (groups, skipped) = groups(&Options::default(), &means);
        assert!(groups.len() == 2 && groups.iter().all(|group| group.backend.is_simulated()));
        let reasons: Vec<_> =
            skipped.iter().map(|skip| (skip.backend, skip.reason.as_str())).collect();
        assert_eq!(reasons, [(Backend::IoUring, "seccomp")]);
    }

    #[test]
    fn cells_and_sizes_have_names() {
        let cell = Cell {
            backend: Backend::IoUring,
            region_bytes: 3 << 29,
            contexts: 1,
            pages: Some(Pages::Huge),
            resident: false,
        };
        assert_eq!(cell.to_string(), "io_uring, 1536 MiB 2m, not resident, 1 context");
        assert_eq!(
            (size(0), size(4096), size(1 << 50)),
            ("0 B".into(), "4 KiB".into(), "1024 TiB".into())
        );
    }
}
