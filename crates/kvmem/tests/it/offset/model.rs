//! A second oracle, written from the public documentation alone: a sorted map of the used ranges,
//! and nothing else.
//!
//! It shares no code with `kvmem_testkit`'s driver and oracle. It answers every question by reading
//! the whole map. After each call that fails, and after many that do not, it compares the figures,
//! the report and the map of the space with its own.
//!
//! `KVMEM_SOAK_OPS` sets the number of calls, `KVMEM_SOAK_SEED` their sequence.

use std::collections::BTreeMap;
use std::ops::Range;

use kvmem::offset::{
    AllocError, Allocation, OffsetAllocator, Placement, RawError, RawHandle, SpaceError,
};

use kvmem_testkit::random::Random;

use super::soak::setting;

/// Calls on one space before the next is created.
const CALLS_A_SPACE: u64 = 3000;
/// Ranges in use at once, about.
const LIVE: usize = 120;

enum Held {
    Own(Allocation),
    Raw(RawHandle),
}

/// The expected state of the space.
struct SpaceModel {
    capacity: u64,
    boundary: Option<u64>,
    max_ranges: Option<u32>,
    /// Offset → one past the end.
    used: BTreeMap<u64, u64>,
    /// Nothing has been freed, and no gap has been left.
    in_order: bool,
}

impl SpaceModel {
    fn limit(&self) -> u64 {
        self.boundary.unwrap_or(u64::MAX).min(self.capacity)
    }

    fn free(&self) -> u64 {
        self.capacity - self.used.iter().map(|(start, end)| end - start).sum::<u64>()
    }

    /// Returns the free ranges, coalesced.
    fn gaps(&self) -> Vec<Range<u64>> {
        let (mut gaps, mut at) = (Vec::new(), 0);
        for (&start, &end) in &self.used {
            gaps.push(at..start);
            at = end;
        }
        gaps.push(at..self.capacity);
        gaps.retain(|gap| !gap.is_empty());
        gaps
    }

    /// Returns the free ranges, divided at each boundary.
    fn pieces(&self) -> Vec<Range<u64>> {
        let Some(boundary) = self.boundary else { return self.gaps() };
        let mut pieces = Vec::new();
        for mut gap in self.gaps() {
            while !gap.is_empty() {
                let edge = (gap.start / boundary + 1).saturating_mul(boundary).min(gap.end);
                pieces.push(gap.start..edge);
                gap.start = edge;
            }
        }
        pieces
    }

    fn longest(&self) -> u64 {
        self.pieces().iter().map(|piece| piece.end - piece.start).max().unwrap_or(0)
    }

    /// Returns the end of the last range in use.
    fn end_of_last(&self) -> u64 {
        self.used.last_key_value().map_or(0, |(_, &end)| end)
    }

    /// Records an allocated range: it must be free, and within one segment.
    fn grant(&mut self, range: Range<u64>, align: u64) {
        let free =
            self.pieces().iter().any(|piece| piece.start <= range.start && range.end <= piece.end);
        assert!(free && !range.is_empty(), "{range:?} was granted, free are {:?}", self.pieces());
        assert!(range.start.is_multiple_of(align), "{range:?} is not aligned to {align}");
        self.in_order &= range.start == self.end_of_last() && self.gaps().len() == 1;
        self.used.insert(range.start, range.end);
    }

    fn release(&mut self, start: u64) {
        self.in_order = false;
        self.used.remove(&start).expect("the test frees what is in use");
    }

    /// Returns whether the error reports the limit of ranges.
    fn full(&self, error: &AllocError) -> bool {
        matches!((error, self.max_ranges), (AllocError::TooManyRanges { ranges }, Some(most))
            if *ranges <= most.into() && ranges + 4 > most.into())
    }

    /// Returns whether a request may fail with this error. `fits` tells whether it fits into the
    /// free bytes.
    fn may_refuse(
        &self,
        requested: u64,
        limit: u64,
        fits: bool,
        exact: bool,
        error: AllocError,
    ) -> bool {
        match error {
            AllocError::ZeroSize => requested == 0,
            AllocError::TooLarge { requested: said, limit: most } => {
                requested > limit && (said, most) == (requested, limit)
            }
            AllocError::OutOfSpace { requested: said, free, largest_free } => {
                requested > 0
                    && !fits
                    && (said, free) == (requested, self.free())
                    && (self.longest()..=free).contains(&largest_free)
            }
            // Alignment is not considered then.
            error => {
                !(exact && self.boundary.is_none())
                    && requested <= self.longest()
                    && self.full(&error)
            }
        }
    }
}

struct Test {
    space: OffsetAllocator,
    model: SpaceModel,
    held: Vec<(u64, Held)>,
    stale: Vec<RawHandle>,
    random: Random,
    failures: u64,
}

impl Test {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let capacity = [1 << 10, 4097, 1 << 20, (1 << 20) - 1, 1 << 63][random.below(5) as usize];
        let boundary = match random.below(3) {
            0 => Some(capacity / (1 + random.below(40)) + random.below(3))
                .filter(|&boundary| boundary > 0),
            _ => None,
        };
        let max_ranges = (random.below(3) == 0).then(|| 16 + random.below(100) as u32);
        let placement = [Placement::Renewal, Placement::BestFit][random.below(2) as usize];
        let mut builder = OffsetAllocator::builder(capacity).placement(placement);
        builder = boundary.map_or(builder.clone(), |boundary| builder.boundary(boundary));
        builder = max_ranges.map_or(builder.clone(), |most| builder.max_ranges(most));
        let model =
            SpaceModel { capacity, boundary, max_ranges, used: BTreeMap::new(), in_order: true };
        let space = builder.build().unwrap();
        Test { space, model, held: Vec::new(), stale: Vec::new(), random, failures: 0 }
    }

    fn one_of(&mut self, n: usize) -> usize {
        self.random.below(n.max(1) as u64) as usize
    }

    /// Returns a size that is special now: that of a free or used range, or of the whole space, or
    /// one byte more or less.
    fn size(&mut self) -> u64 {
        let pieces = self.model.pieces();
        let piece =
            pieces.get(self.one_of(pieces.len())).map_or(1, |piece| piece.end - piece.start);
        let place = self.one_of(self.model.used.len());
        let used = self.model.used.iter().nth(place);
        let used = used.map_or(1, |(start, end)| end - start);
        let small = 1 + self.random.below(64);
        let part = 1 + self.random.below((self.model.limit() / 32).max(1));
        let base = match self.random.below(16) {
            0 => self.model.limit(),
            1 => self.model.free(),
            2 => self.model.longest(),
            3 => piece,
            4 => used,
            5 => u64::MAX,
            6 => self.model.capacity,
            7..10 => small,
            _ => part,
        };
        match self.random.below(8) {
            0 => base.saturating_add(1),
            1 => base.saturating_sub(1),
            _ => base,
        }
    }

    fn hold(&mut self, allocation: Allocation) {
        let start = allocation.offset();
        if self.random.below(3) == 0 {
            self.held.push((start, Held::Raw(allocation.into_raw())));
        } else {
            self.held.push((start, Held::Own(allocation)));
        }
    }

    /// Checks that a call that failed changed nothing.
    fn check_failure(&mut self, what: &str, right: bool, error: &dyn std::fmt::Debug) {
        let SpaceModel { capacity, boundary, max_ranges, .. } = self.model;
        let space = (capacity, boundary, max_ranges);
        assert!(right, "{what} of {space:?}: {error:?}, but used are {:?}", self.model.used);
        self.failures += 1;
        self.compare();
    }

    fn compare(&self) {
        let metrics = self.space.metrics();
        let (model, longest) = (&self.model, self.model.longest());
        assert_eq!(
            (metrics.capacity, metrics.free, metrics.allocated, metrics.live, metrics.largest_free),
            (
                model.capacity,
                model.free(),
                model.capacity - model.free(),
                model.used.len() as u64,
                longest
            )
        );
        assert!(
            self.space.largest_free_hint() >= longest && self.space.capacity() == model.capacity
        );
        let map = self.space.map();
        let used = map.iter().filter(|range| range.used);
        assert!(
            used.map(|range| (range.offset, range.offset + range.size))
                .eq(model.used.iter().map(|(s, e)| (*s, *e)))
        );
        let free = map.iter().filter(|range| !range.used);
        assert_eq!(metrics.free_ranges, free.clone().count() as u64);
        let mut gaps: Vec<Range<u64>> = Vec::new();
        for range in free {
            let end = range.offset + range.size;
            match gaps.last_mut() {
                // Free ranges may be apart at a boundary.
                Some(last) if last.end == range.offset && model.boundary.is_some() => {
                    last.end = end;
                }
                _ => gaps.push(range.offset..end),
            }
        }
        assert_eq!(gaps, model.gaps());
        assert_eq!(self.space.bins().iter().map(|bin| bin.bytes).sum::<u64>(), model.free());
        if let Some(most) = model.max_ranges {
            assert!(metrics.live + metrics.free_ranges <= most.into(), "{metrics:?}");
        }
    }

    fn allocate(&mut self) {
        let size = self.size();
        let bad = [0, 3, u64::MAX];
        let align = match self.random.below(4) {
            0 => 1 << self.random.below(64),
            1 if self.random.below(8) == 0 => bad[self.one_of(3)],
            _ => 1,
        };
        let ordered = self.model.in_order && align == 1 && self.model.boundary.is_none();
        let granted = match align {
            1 => self.space.allocate(size),
            _ => self.space.allocate_aligned(size, align),
        };
        let start = |piece: &Range<u64>| piece.start.checked_next_multiple_of(align);
        match granted {
            Ok(granted) => {
                assert_eq!(granted.len(), size);
                assert!(!ordered || granted.offset() == self.model.end_of_last(), "{granted:?}");
                self.model.grant(granted.range(), align);
                self.hold(granted);
            }
            Err(AllocError::BadAlign { align: said }) => {
                self.check_failure("aligned", said == align && !align.is_power_of_two(), &align);
            }
            Err(error) => {
                let fits = align.is_power_of_two()
                    && self.model.pieces().iter().any(|piece| {
                        start(piece)
                            .is_some_and(|start| start <= piece.end && piece.end - start >= size)
                    });
                let exact = align.is_power_of_two()
                    && self.model.pieces().iter().any(|piece| {
                        piece.end - piece.start == size && start(piece) == Some(piece.start)
                    });
                let right = self.model.may_refuse(size, self.model.limit(), fits, exact, error);
                self.check_failure(&format!("{size} at {align}"), right, &error);
            }
        }
    }

    fn batch(&mut self) {
        let size = self.size();
        let there: u64 = match size {
            0 => 0,
            _ => self.model.pieces().iter().map(|piece| (piece.end - piece.start) / size).sum(),
        };
        let n = match self.random.below(3) {
            0 => there.min(100),
            // Of many ranges the space would allocate all but one before it fails.
            1 if there < 1000 || there > u32::MAX.into() => there.saturating_add(1),
            _ => 1 + self.random.below(6),
        };
        match self.space.allocate_batch(size, n as usize) {
            Ok(batch) => {
                assert_eq!(batch.len() as u64, n);
                for granted in batch {
                    assert_eq!(granted.len(), size);
                    self.model.grant(granted.range(), 1);
                    self.hold(granted);
                }
            }
            Err(error) => {
                let limit = self.model.limit();
                let right = match error {
                    AllocError::TooManyRanges { .. } => {
                        let ranges =
                            self.model.used.len() as u64 + self.model.pieces().len() as u64;
                        let most = self.model.max_ranges.unwrap_or(u32::MAX);
                        n.saturating_mul(2).saturating_add(ranges + 4) > most.into()
                    }
                    AllocError::OutOfSpace { .. } => {
                        let all = size.saturating_mul(n);
                        size <= limit
                            && self.model.may_refuse(all, u64::MAX, there >= n, false, error)
                    }
                    _ => self.model.may_refuse(size, limit, there >= n, false, error),
                };
                self.check_failure(&format!("{n} × {size}"), right, &error);
            }
        }
    }

    fn scattered(&mut self) {
        let (total, most) = (self.size(), self.one_of(9));
        let mut lengths: Vec<u64> =
            self.model.pieces().iter().map(|piece| piece.end - piece.start).collect();
        lengths.sort_unstable();
        let fits = lengths.iter().rev().take(most).sum::<u64>() >= total;
        match self.space.allocate_scattered(total, most) {
            Ok(parts) => {
                assert!(fits && (1..=most).contains(&parts.len()), "{total} in {most}: {parts:?}");
                assert_eq!(parts.iter().map(Allocation::len).sum::<u64>(), total);
                for part in parts {
                    self.model.grant(part.range(), 1);
                    self.hold(part);
                }
            }
            Err(AllocError::NoRanges { requested }) => {
                self.check_failure("0 ranges", most == 0 && requested == total, &most)
            }
            Err(error) => {
                let full = matches!(error, AllocError::TooManyRanges { .. })
                    && self.model.max_ranges.is_some_and(|limit| {
                        let ranges =
                            (self.model.used.len() + self.model.pieces().len() + 2 * most) as u64;
                        ranges + 4 > limit.into()
                    });
                let right =
                    full || self.model.may_refuse(total, self.model.capacity, fits, false, error);
                self.check_failure(&format!("{total} in {most}"), right, &error);
            }
        }
    }

    fn free_one(&mut self) {
        let place = self.one_of(self.held.len());
        let (start, held) = self.held.swap_remove(place);
        let size = self.model.used[&start] - start;
        match held {
            Held::Own(allocation) => {
                assert_eq!(allocation.range(), start..start + size);
                drop(allocation);
            }
            Held::Raw(handle) => {
                assert_eq!(self.space.resolve_raw(handle), Ok(start..start + size));
                assert_eq!(self.space.free_raw(handle), Ok(size));
                self.stale.push(handle);
            }
        }
        self.model.release(start);
    }

    fn free_several(&mut self) {
        let mut run = Vec::new();
        for _ in 0..1 + self.random.below(30) {
            let place = self.one_of(self.held.len());
            if let Some((_, Held::Own(_))) = self.held.get(place) {
                let (start, Held::Own(allocation)) = self.held.swap_remove(place) else {
                    unreachable!()
                };
                self.model.release(start);
                run.push(allocation);
            }
        }
        if self.random.below(2) == 0 {
            run.sort_unstable_by_key(Allocation::offset);
        }
        self.space.free_batch(run);
    }

    /// Checks that every call rejects a handle that was freed.
    fn misuse(&mut self) {
        let place = self.one_of(self.stale.len());
        let Some(&handle) = self.stale.get(place) else { return };
        let errors = [
            self.space.free_raw(handle).map(drop),
            self.space.resolve_raw(handle).map(drop),
            self.space.shrink_raw(handle, 1),
            self.space.extend_raw(handle, 1 << 40),
        ];
        let right = errors.iter().all(|error| matches!(error, Err(RawError::Stale { .. })));
        self.check_failure("a stale handle", right, &errors);
    }

    fn resize(&mut self) {
        let place = self.one_of(self.held.len());
        let start = self.held[place].0;
        let range = start..self.model.used[&start];
        let size = range.end - start;
        let room =
            self.model.pieces().iter().find(|piece| piece.start == range.end).map_or(0, |piece| {
                let edge =
                    self.model.boundary.is_some_and(|boundary| range.end.is_multiple_of(boundary));
                if edge { 0 } else { piece.end - piece.start }
            });
        let requested = match self.random.below(4) {
            0 => size + room,
            1 => (size + room).saturating_add(1),
            2 => self.size(),
            _ => 1 + self.random.below(size),
        };
        let (grow, limit) = (self.random.below(2) == 0, self.model.limit());
        let changed = match (&mut self.held[place].1, grow) {
            (Held::Own(allocation), true) => allocation.extend(requested),
            (Held::Own(allocation), false) => allocation.shrink(requested),
            (Held::Raw(handle), grow) => {
                let changed = if grow {
                    self.space.extend_raw(*handle, requested)
                } else {
                    self.space.shrink_raw(*handle, requested)
                };
                changed.map_err(|error| match error {
                    RawError::Failed(error) => error,
                    error => panic!("{error}"),
                })
            }
        };
        let right = match (grow, changed) {
            (true, Ok(())) => (size..=size + room).contains(&requested),
            (false, Ok(())) => (1..=size).contains(&requested),
            (true, Err(AllocError::TooLarge { requested: said, limit: most })) => {
                requested > limit && (said, most) == (requested, limit)
            }
            (true, Err(AllocError::CannotExtend { requested: said, max })) => {
                requested > size + room
                    && requested <= limit
                    && (said, max) == (requested, size + room)
            }
            (false, Err(AllocError::ZeroSize)) => requested == 0,
            (
                _,
                Err(AllocError::OutOfBounds { allocation_start, allocation_end, start: from, end }),
            ) => {
                let wrong = if grow { requested < size } else { requested > size };
                wrong
                    && (allocation_start, allocation_end, from) == (range.start, range.end, start)
                    && end == start.saturating_add(requested)
            }
            (false, Err(error)) => requested < size && self.model.full(&error),
            (true, Err(_)) => false,
        };
        let what = format!("{range:?} to {requested} bytes, grow {grow}, room {room}");
        match changed {
            Ok(()) => {
                assert!(right, "{what}");
                self.model.in_order &= requested >= size;
                self.model.used.insert(start, start + requested);
            }
            Err(error) => self.check_failure(&what, right, &error),
        }
    }

    fn free_part(&mut self) {
        let place = self.one_of(self.held.len());
        let (start, held) = self.held.swap_remove(place);
        let Held::Own(allocation) = held else { return self.held.push((start, held)) };
        let end = self.model.used[&start];
        let (a, b) = (
            start + self.random.below(end - start + 1),
            start + self.random.below(end - start + 1),
        );
        let part = match self.random.below(6) {
            0 => start..end,
            1 => start..b,
            2 => a..end,
            3 => a.min(b)..end + 1,
            _ => a.min(b)..a.max(b),
        };
        match allocation.free_range(part.clone()) {
            Ok((left, right)) => {
                assert!(part.start < part.end && part.start >= start && part.end <= end);
                self.model.release(start);
                for (rest, range) in [(left, start..part.start), (right, part.end..end)] {
                    assert_eq!(
                        rest.as_ref().map(Allocation::range),
                        (!range.is_empty()).then_some(range)
                    );
                    if let Some(rest) = rest {
                        self.model.used.insert(rest.offset(), rest.range().end);
                        self.held.push((rest.offset(), Held::Own(rest)));
                    }
                }
            }
            Err((allocation, error)) => {
                assert_eq!(allocation.range(), start..end);
                self.held.push((start, Held::Own(allocation)));
                let right = match error {
                    AllocError::OutOfBounds {
                        start: from,
                        end: to,
                        allocation_start,
                        allocation_end,
                    } => {
                        (part.is_empty() || part.end > end)
                            && (from, to, allocation_start, allocation_end)
                                == (part.start, part.end, start, end)
                    }
                    error => part != (start..end) && self.model.full(&error),
                };
                self.check_failure(&format!("{part:?} of {start}..{end}"), right, &error);
            }
        }
    }

    /// Moves the end of the space. Alignment and boundary are as they were.
    fn move_end(&mut self) {
        let (capacity, last) = (self.model.capacity, self.model.end_of_last());
        let to = match self.random.below(6) {
            0 => last,
            1 => last.saturating_sub(1),
            2 => last + self.random.below(capacity - last + 1),
            3 => capacity.saturating_add(self.random.below(5000)),
            4 => {
                self.model.boundary.map_or(capacity, |boundary| capacity.next_multiple_of(boundary))
            }
            _ => [0, 1, u64::MAX, 1 << 63][self.one_of(4)],
        };
        // With a boundary, the model reads every segment.
        if self.model.boundary.is_some_and(|boundary| to / boundary > 200) {
            return;
        }
        let grow = self.random.below(2) == 0;
        let moved = if grow { self.space.grow_to(to) } else { self.space.shrink_to(to) };
        let right = match moved {
            Ok(()) => {
                (1..=1 << 63).contains(&to)
                    && if grow { to >= capacity } else { last <= to && to <= capacity }
            }
            Err(SpaceError::Capacity { requested, limit }) => {
                requested == to && limit == 1 << 63 && !(1..=1 << 63).contains(&to)
            }
            Err(SpaceError::WrongDirection { capacity: is, requested }) => {
                (is, requested) == (capacity, to)
                    && if grow { to < capacity } else { to > capacity }
            }
            Err(SpaceError::InUse { requested, end_of_last }) => {
                !grow && (requested, end_of_last) == (to, last) && to < last
            }
            Err(SpaceError::TooManyRanges { ranges }) => {
                grow && self.model.full(&AllocError::TooManyRanges { ranges })
            }
            Err(_) => false,
        };
        match moved {
            Ok(()) => {
                assert!(right, "the end was moved from {capacity} to {to}");
                self.model.capacity = to;
            }
            Err(error) => {
                self.check_failure(&format!("{capacity} to {to}, grow {grow}"), right, &error)
            }
        }
    }

    fn step(&mut self) {
        let crowded = self.held.len() > LIVE;
        match self.random.below(20) {
            _ if crowded && self.random.below(2) == 0 => self.free_several(),
            0..7 => self.allocate(),
            7 => self.batch(),
            8 => self.scattered(),
            9 => self.misuse(),
            10 => self.move_end(),
            _ if self.held.is_empty() => self.allocate(),
            11..14 => self.free_one(),
            14 => self.free_several(),
            15..18 => self.resize(),
            _ => self.free_part(),
        }
    }

    fn finish(mut self) -> u64 {
        while !self.held.is_empty() {
            self.free_one();
        }
        self.compare();
        self.space.check().unwrap();
        let limit = self.model.limit();
        assert_eq!(self.space.allocate(limit).map(|all| all.len()), Ok(limit));
        self.failures
    }
}

#[test]
fn soak_against_a_plain_map() {
    let (calls, seed) = (setting("KVMEM_SOAK_OPS", 30_000), setting("KVMEM_SOAK_SEED", 1));
    let mut failures = 0;
    for round in 0..calls.div_ceil(CALLS_A_SPACE) {
        let mut test = Test::new(seed.wrapping_mul(1_000_003).wrapping_add(round));
        for step in 0..CALLS_A_SPACE {
            test.step();
            if step % 5 == 0 {
                test.compare();
            }
            if step % 100 == 0 {
                test.space.check().unwrap();
            }
        }
        failures += test.finish();
    }
    assert!(failures * 10 > calls, "only {failures} of {calls} calls failed");
}
