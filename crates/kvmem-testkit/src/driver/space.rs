//! One space: its allocator while there is one, its oracle, and what is held of it.

use std::cell::Cell;
use std::collections::HashMap;
use std::rc::Rc;

use anyhow::{Context, Result, bail, ensure};
use kvmem::offset::{RawHandle, SpaceError};

use super::elsewhere::Elsewhere;
use super::face::{Face, Own};
use super::pick_of;
use crate::op::{Amount, Base, Config, Part, Pick};
use crate::oracle::Oracle;

const CAPACITY_MAX: u64 = 1 << 63;
/// Where there are caches, every so many looks at everything include what empties them.
const EMPTYING: u32 = 8;

/// An allocation in one of its two forms.
pub(super) enum Held<F: Face> {
    Own(F::Own),
    Raw(RawHandle),
}

pub(super) struct Space<F: Face> {
    /// `None` once it is an orphan.
    pub(super) allocator: Option<F>,
    /// Where allocations are freed.
    pub(super) elsewhere: Rc<Elsewhere<F::Own>>,
    /// Identity of the allocator, as its raw handles tell it.
    pub(super) id: u64,
    pub(super) oracle: Oracle,
    max_ranges: Option<u32>,
    /// Where each begins, and what it is.
    held: Vec<(u64, Held<F>)>,
    /// Where it begins → place in `held`.
    places: HashMap<u64, usize>,
    /// Looks at everything so far.
    looks: Cell<u32>,
}

/// The allocator's part of a handle.
pub(super) fn allocator_of(handle: RawHandle) -> u64 {
    (handle.to_bits() >> 64) as u64
}

impl<F: Face> Space<F> {
    /// An empty space, and a handle of it that is stale.
    pub(super) fn new(
        config: &Config,
        elsewhere: Rc<Elsewhere<F::Own>>,
    ) -> Result<(Self, RawHandle)> {
        let allocator = F::open(config)?;
        ensure!(allocator.boundary() == config.boundary, "{config:?} became {allocator:?}");
        let first = allocator.allocate_raw(1).context("the first byte of an empty space")?;
        ensure!(allocator.free_raw(first.handle) == Ok(1), "the first byte cannot be freed");
        let space = Space {
            allocator: Some(allocator),
            elsewhere,
            id: allocator_of(first.handle),
            oracle: Oracle::new(config.capacity, config.boundary),
            max_ranges: config.max_ranges,
            held: Vec::new(),
            places: HashMap::new(),
            looks: Cell::new(0),
        };
        Ok((space, first.handle))
    }

    pub(super) fn allocator(&self) -> &F {
        self.allocator.as_ref().expect("an orphan is not asked for its allocator")
    }

    pub(super) fn clone_allocator(&mut self) {
        self.allocator = self.allocator.clone();
    }

    /// Drops the allocator. Raw allocations have nowhere to be freed any more: returns their
    /// handles. Where there are caches, their ranges are freed with the allocator.
    pub(super) fn orphan(&mut self) -> Result<Vec<RawHandle>> {
        self.allocator = None;
        let mut handles = Vec::new();
        for place in (0..self.held.len()).rev() {
            if let Held::Raw(handle) = self.held[place].1 {
                handles.push(handle);
                let (start, _) = self.take(place);
                if F::CACHES {
                    self.oracle.free(start)?;
                }
            }
        }
        Ok(handles)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.held.len()
    }

    pub(super) fn hold(&mut self, start: u64, held: Held<F>) {
        self.places.insert(start, self.held.len());
        self.held.push((start, held));
    }

    /// Takes what is held at a place; another takes its place.
    pub(super) fn take(&mut self, place: usize) -> (u64, Held<F>) {
        let (start, held) = self.held.swap_remove(place);
        self.places.remove(&start);
        if let Some((moved, _)) = self.held.get(place) {
            self.places.insert(*moved, place);
        }
        (start, held)
    }

    /// Takes the RAII allocation that begins at `start`, if there is one.
    pub(super) fn take_own_at(&mut self, start: u64) -> Option<F::Own> {
        let place = *self.places.get(&start)?;
        matches!(self.held[place].1, Held::Own(_)).then(|| match self.take(place).1 {
            Held::Own(allocation) => allocation,
            Held::Raw(_) => unreachable!("looked at before"),
        })
    }

    pub(super) fn pick(&self, pick: Pick) -> Option<usize> {
        pick_of(pick, self.held.len())
    }

    pub(super) fn start_of(&self, place: usize) -> u64 {
        self.held[place].0
    }

    /// A raw handle alive, the one picked or the next.
    pub(super) fn raw_from(&self, pick: Pick) -> Option<RawHandle> {
        let (before, behind) = self.held.split_at(self.pick(pick)?);
        behind.iter().chain(before).find_map(|(_, held)| match held {
            Held::Raw(handle) => Some(*handle),
            Held::Own(_) => None,
        })
    }

    pub(super) fn is_raw_alive(&self, handle: RawHandle) -> bool {
        self.held.iter().any(|(_, held)| matches!(held, Held::Raw(alive) if *alive == handle))
    }

    /// How many bytes an amount is now.
    pub(super) fn amount(&self, Amount { base, part }: Amount) -> u64 {
        let oracle = &self.oracle;
        part.of(match base {
            Base::Bytes(bytes) => bytes,
            Base::Capacity => oracle.capacity(),
            Base::Limit => oracle.limit(),
            Base::Free => oracle.free_bytes(),
            Base::Largest => oracle.largest_free(),
            Base::EndOfLast => oracle.end_of_last(),
            Base::Hole(pick) => {
                let at = Part { share: pick, off: 0 }.of(oracle.end_of_last());
                oracle.free_from(at).map_or(0, |hole| hole.end - hole.start)
            }
            Base::Held(pick) => {
                let range = self.pick(pick).and_then(|place| oracle.used_at(self.start_of(place)));
                range.map_or(0, |range| range.end - range.start)
            }
        })
    }

    pub(super) fn expect_capacity(&self, to: u64) -> Result<(), SpaceError> {
        match to {
            1..=CAPACITY_MAX => Ok(()),
            _ => Err(SpaceError::Capacity { requested: to, limit: CAPACITY_MAX }),
        }
    }

    pub(super) fn expect_grow(&self, to: u64) -> Result<(), SpaceError> {
        let capacity = self.oracle.capacity();
        if to < capacity {
            Err(SpaceError::WrongDirection { capacity, requested: to })
        } else {
            Ok(())
        }
    }

    pub(super) fn expect_shrink_to(&self, to: u64) -> Result<(), SpaceError> {
        let (capacity, end_of_last) = (self.oracle.capacity(), self.oracle.end_of_last());
        if to > capacity {
            return Err(SpaceError::WrongDirection { capacity, requested: to });
        }
        if to < end_of_last {
            Err(SpaceError::InUse { requested: to, end_of_last })
        } else {
            Ok(())
        }
    }

    /// Whether the books may be as full as a refusal of one change says. They are not while a
    /// cached range stands on them.
    pub(super) fn may_be_full(&self, ranges: u64) -> bool {
        if self.allocator.as_ref().is_some_and(|allocator| allocator.cached().0 > 0) {
            return false;
        }
        self.max_ranges.is_some_and(|most| ranges <= most.into() && ranges + 4 > most.into())
    }

    /// Whether `n` more ranges may be too many: each may leave a free one beside it.
    pub(super) fn may_be_too_many(&self, n: usize) -> bool {
        let (live, free) = (self.oracle.live() as u128, self.oracle.free_pieces());
        self.max_ranges.is_some_and(|most| live + free + 2 * n as u128 + 4 > most.into())
    }

    pub(super) fn compare_hint(&self) -> Result<()> {
        let (hint, largest_free) =
            (self.allocator().largest_free_hint(), self.oracle.largest_free());
        ensure!(
            hint >= largest_free,
            "the hint is {hint}, but {largest_free} bytes are free in one piece"
        );
        Ok(())
    }

    pub(super) fn compare_figures(&self) -> Result<()> {
        let (allocator, oracle) = (self.allocator(), &self.oracle);
        let metrics = allocator.metrics();
        ensure!(
            metrics.largest_free <= oracle.largest_free(),
            "the longest free range is in {metrics:?}"
        );
        // The longest that are told may be parts of a longer one.
        let cached = F::CACHES && allocator.cached().0 > 0;
        let largest_free = if cached { oracle.largest_free() } else { metrics.largest_free };
        let got = (metrics.capacity, metrics.allocated, metrics.free, metrics.live, largest_free);
        let expected = (
            oracle.capacity(),
            oracle.allocated(),
            oracle.free_bytes(),
            oracle.live() as u64,
            oracle.largest_free(),
        );
        ensure!(
            got == expected,
            "(capacity, allocated, free, live, largest free) are {got:?} instead of {expected:?}"
        );
        ensure!(
            allocator.capacity() == oracle.capacity(),
            "the capacity is {}",
            allocator.capacity()
        );
        Ok(())
    }

    pub(super) fn compare_everything(&self) -> Result<()> {
        self.allocator().check()?;
        self.compare_map()?;
        self.looks.set(self.looks.get() + 1);
        if !F::CACHES || self.looks.get().is_multiple_of(EMPTYING) {
            self.compare_bins()?;
            ensure!(
                self.allocator().cached().0 == 0,
                "the bins were looked at, and something is cached"
            );
            self.compare_figures()?;
        }
        self.compare_held()
    }

    fn compare_map(&self) -> Result<()> {
        let mut map: Vec<(u64, u64, bool)> = Vec::new();
        for (offset, size, used) in self.allocator().map() {
            match map.last_mut() {
                Some((start, length, false))
                    if !used && F::CACHES && *start + *length == offset =>
                {
                    *length += size;
                }
                _ => map.push((offset, size, used)),
            }
        }
        let expected = self.oracle.map();
        ensure!(map.len() == expected.len(), "the map is {map:?} instead of {expected:?}");
        for (got, expected) in map.iter().zip(&expected) {
            ensure!(got == expected, "the map has {got:?} instead of {expected:?}");
        }
        Ok(())
    }

    fn compare_bins(&self) -> Result<()> {
        let (allocator, oracle) = (self.allocator(), &self.oracle);
        let bins = allocator.bins();
        let free_ranges = allocator.metrics().free_ranges;
        let (mut bytes, mut ranges, mut above) = (0, 0, 0);
        for bin in &bins {
            ensure!(
                bin.size_min >= above && bin.size_max >= bin.size_min,
                "bins are out of order: {bins:?}"
            );
            let fits = |bytes: u64| u128::from(bytes) * u128::from(bin.ranges);
            ensure!(
                bin.ranges > 0
                    && (fits(bin.size_min)..=fits(bin.size_max)).contains(&u128::from(bin.bytes)),
                "not a possible bin: {bin:?}"
            );
            above = bin.size_max.saturating_add(1);
            bytes += bin.bytes;
            ranges += bin.ranges;
        }
        ensure!(
            bytes == oracle.free_bytes(),
            "{bytes} bytes in bins, {} are free",
            oracle.free_bytes()
        );
        ensure!(ranges == free_ranges, "{ranges} ranges in bins, metrics say {free_ranges}");
        // One range held back may stand apart from those on both sides of it.
        let (least, most) = (oracle.free_ranges() as u128, oracle.free_pieces() + 2);
        ensure!(
            (least..=most).contains(&u128::from(free_ranges)),
            "{free_ranges} free ranges on the books; there are {least}, {most} at most"
        );
        Ok(())
    }

    /// Whether free ranges stand apart that could be joined.
    pub(super) fn holds_back(&self) -> bool {
        self.oracle.boundary().is_none()
            && self.allocator().metrics().free_ranges > self.oracle.free_ranges() as u64
    }

    /// Whether everything held still says what it is.
    pub(super) fn compare_held(&self) -> Result<()> {
        for (start, held) in &self.held {
            let Some(expected) = self.oracle.used_at(*start) else {
                bail!("the test is wrong: nothing is in use at {start}");
            };
            match held {
                Held::Own(allocation) => {
                    let got = (allocation.offset(), allocation.size(), allocation.range());
                    ensure!(
                        got == (*start, expected.end - start, expected.clone()),
                        "{expected:?} says it is {got:?}"
                    );
                }
                Held::Raw(handle) => {
                    let got = self.allocator().resolve_raw(*handle);
                    ensure!(got == Ok(expected.clone()), "{expected:?} resolves to {got:?}");
                }
            }
        }
        Ok(())
    }
}
