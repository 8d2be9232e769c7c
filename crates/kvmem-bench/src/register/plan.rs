//! *Plan* of a run: cells in groups that share their memory, and the time limits of each.

use std::time::Duration;

use kvmem::register::IoUring;

use super::cell::{Cell, RegisterGroup, size};
use super::fixture::simulated;
use super::memory::RegisterFixture;
use super::{
    Backend, Pages, RegisterContenderId, RegisterDetails, RegisterOptions, RegisterSkipped,
    RegisterSuite,
};
use crate::limits;
use crate::suite::plan::{Group, Order, Shuffled, Turn};
use crate::suite::{Plan, chosen};

/// Contexts that register a region.
const CONTEXTS: [u32; 3] = [1, 4, 8];
/// Sizes of a region on io_uring.
const SIZES: [u64; 2] = [1 << 30, 8 << 30];
/// The smallest region that is worth registering.
const MIN_REGION: u64 = 4 << 20;
/// Seed of the order in which contenders take turns.
const SEED: u64 = 1;

/// Lengths of the measurements.
#[derive(Clone, Copy, Debug)]
struct RegisterEffort {
    /// The smallest number of rounds that count.
    reps: u32,
    /// Contenders in the round that does not count.
    warm: usize,
    /// The largest number of rounds that count.
    max_reps: u32,
    /// A cell gets more than `reps` rounds only within this time.
    budget: Duration,
}

impl RegisterEffort {
    fn of(options: &RegisterOptions) -> Self {
        let mut effort = if options.quick {
            Self { reps: 3, warm: 1, max_reps: 31, budget: Duration::from_millis(300) }
        } else {
            Self { reps: 5, warm: usize::MAX, max_reps: 101, budget: Duration::from_secs(2) }
        };
        if let Some(reps) = options.reps {
            (effort.reps, effort.max_reps) = (reps.max(1), reps.max(1));
        }
        effort
    }
}

/// One contender in one cell.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RegisterTask {
    /// The number of the cell's group.
    pub(super) group: usize,
    pub(super) cell: Cell,
    pub(super) contender: RegisterContenderId,
}

/// Returns the plan that `options` select: the contenders of a cell take turns.
pub(super) fn plan(options: &RegisterOptions) -> Plan<RegisterSuite> {
    let effort = RegisterEffort::of(options);
    let (cells, skipped) = groups(options, &Resources::here());
    let contenders = chosen(&options.contenders);
    let turns = |group: usize, cell: Cell| {
        let shuffled = Shuffled {
            seed: SEED,
            warm: effort.warm,
            max_reps: if cell.backend.is_simulated() { effort.reps } else { effort.max_reps },
            budget: effort.budget,
        };
        let turn = |&contender| {
            let task = RegisterTask { group, cell, contender };
            Turn { task, reps: effort.reps, units: cell.run_units() }
        };
        Group { turns: contenders.iter().map(turn).collect(), order: Order::Shuffled(shuffled) }
    };
    let groups = cells.iter().enumerate();
    let groups = groups.flat_map(|(at, group)| group.cells.iter().map(move |&cell| (at, cell)));
    Plan {
        quick: options.quick,
        groups: groups.map(|(at, cell)| turns(at, cell)).collect(),
        skipped,
        fixture: RegisterFixture::new(cells, options.borrow_hugepages),
        details: RegisterDetails { reps: effort.reps, plan_ms: None },
    }
}

/// The resources of this machine.
#[derive(Debug)]
struct Resources {
    /// Bytes that can be made resident, if known.
    available: Option<u64>,
    /// Why no ring can be created, if none can.
    no_rings: Option<String>,
}

impl Resources {
    fn here() -> Self {
        let no_rings = IoUring::available().err().map(|reason| reason.to_string());
        Self { available: limits::available_bytes(), no_rings }
    }
}

/// Returns the groups that `options` select, in order, and the rows that this machine must skip.
fn groups(
    options: &RegisterOptions,
    resources: &Resources,
) -> (Vec<RegisterGroup>, Vec<RegisterSkipped>) {
    let wanted = |backend| options.backends.is_empty() || options.backends.contains(&backend);
    let mut groups = Vec::new();
    let mut skipped = Vec::new();
    let mut contexts = match options.contexts.as_slice() {
        [] if options.quick => vec![8],
        [] => CONTEXTS.to_vec(),
        some => some.to_vec(),
    };
    contexts.retain(|&contexts| contexts > 0);
    if let (true, Some(reason)) = (wanted(Backend::IoUring), &resources.no_rings) {
        skipped.push(no_rows(None, reason.clone()));
    } else if wanted(Backend::IoUring) {
        for region_bytes in sizes(options, resources.available, &mut skipped) {
            for pages in Pages::PRIVATE {
                let group =
                    RegisterGroup::new(Backend::IoUring, region_bytes, Some(pages), &contexts);
                match (pages, limits::thp_missing()) {
                    (Pages::Thp, Some(reason)) => skipped.push(group.skipped(None, reason)),
                    _ => groups.push(group),
                }
            }
        }
    }
    for backend in Backend::ALL.into_iter().filter(|&backend| wanted(backend)) {
        let Some(published) = simulated(backend) else { continue };
        // A simulated run takes almost no time, so none is left out. NICs are limited.
        let all = if options.contexts.is_empty() { CONTEXTS.to_vec() } else { contexts.clone() };
        let there = |&contexts: &u32| contexts as usize <= published.nics;
        let (contexts, lacking): (Vec<u32>, Vec<u32>) = all.into_iter().partition(there);
        let group = RegisterGroup::new(backend, published.len_bytes, None, &contexts);
        let reason = || format!("the machine has {} NICs", published.nics);
        skipped.extend(lacking.into_iter().map(|contexts| group.skipped(Some(contexts), reason())));
        groups.push(group);
    }
    (groups, skipped)
}

/// Skips the rows of io_uring with this size, or with any.
fn no_rows(region_bytes: Option<u64>, reason: String) -> RegisterSkipped {
    RegisterSkipped { backend: Backend::IoUring, region_bytes, pages: None, contexts: None, reason }
}

/// Returns the sizes that take at most half of the available memory, largest last.
fn sizes(
    options: &RegisterOptions,
    available: Option<u64>,
    skipped: &mut Vec<RegisterSkipped>,
) -> Vec<u64> {
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
            let instead = if fit < MIN_REGION {
                "too little".to_owned()
            } else {
                format!("{} instead", size(fit))
            };
            let reason = format!(
                "{available} of memory are available, and a run uses half of it: {instead}"
            );
            skipped.push(no_rows(Some(bytes), reason));
        }
        if fit >= MIN_REGION && !sizes.contains(&fit) {
            sizes.push(fit);
        }
    }
    sizes.sort_unstable();
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(available: Option<u64>) -> Resources {
        Resources { available, no_rings: None }
    }

    fn cells(groups: &[RegisterGroup], backend: Backend, resident: bool) -> usize {
        let of = groups.iter().filter(|group| group.backend == backend);
        of.flat_map(|group| &group.cells).filter(|cell| cell.resident == resident).count()
    }

    #[test]
    fn every_cell_is_planned_except_redundant_large_ones() {
        let (groups, skipped) = groups(&RegisterOptions::default(), &with(None));
        let kinds = 3 - skipped.len() / SIZES.len();
        assert_eq!(cells(&groups, Backend::IoUring, true), kinds * SIZES.len() * CONTEXTS.len());
        assert_eq!(cells(&groups, Backend::IoUring, false), kinds * (CONTEXTS.len() + 1));
        assert_eq!(cells(&groups, Backend::ParallelWins, false), 3);
        assert_eq!(cells(&groups, Backend::ParallelLoses, true), 3);
    }

    #[test]
    fn options_restrict_the_plan() {
        let options = RegisterOptions {
            backends: vec![Backend::IoUring],
            region_bytes: vec![64 << 20, 64 << 20],
            contexts: vec![2, 0],
            ..RegisterOptions::default()
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
    }

    #[test]
    fn regions_are_fit_to_the_memory_and_reported() {
        let io_uring =
            RegisterOptions { backends: vec![Backend::IoUring], ..RegisterOptions::default() };
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
    fn without_rings_only_simulated_machines_remain() {
        let means = Resources { available: None, no_rings: Some("seccomp".to_owned()) };
        let (groups, skipped) = groups(&RegisterOptions::default(), &means);
        assert!(groups.len() == 2 && groups.iter().all(|group| group.backend.is_simulated()));
        let reasons: Vec<_> =
            skipped.iter().map(|skip| (skip.backend, skip.reason.as_str())).collect();
        assert_eq!(reasons, [(Backend::IoUring, "seccomp")]);
    }
}
