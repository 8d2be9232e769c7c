//! *AddressManager*: a heap of addresses from 0 on, where a range is given back by its numbers.
//!
//! Its face is that of LMCache's class of this name; what the two have not in common is told in
//! `docs/distributed/lmcache.md`.
//!
//! Addresses and sizes are multiples of the alignment, so the space below is counted in *units* of
//! it: every range that it hands out is aligned, wherever it is put. What is at the end of the heap
//! and not a whole unit long belongs to nobody.
//!
//! ```text
//!   bytes     0       4096     8192              24576      28672
//!             ├────────┼────────┼─────────────────┼──────────┤
//!   units     │ 1 unit │ 1 unit │ 4 units         │ free     │          the space: kvmem::offset
//!   ranges    0 ──▶ a  1 ──▶ b  2 ──▶ c                                 where each begins, and its handle
//!
//!   free(4096, 12288) is  ▲─────── b and half of c ──▲
//! ```
//!
//! The caller names a range by its address, and the space by a handle, so handles are kept in
//! [`Ranges`] by where they begin. What is freed as it was granted is one look there; several that
//! follow each other are as many, for each ends where the next begins. Only if `address` is within
//! a range are they all looked through. All of that comes before anything is changed: if there is a
//! gap, nothing is.
//!
//! ## Kept ranges
//!
//! A store of chunks of one size frees one for another. Whoever gives such a range back to the
//! space and asks for the next has it joined with its neighbours and cut off again, and waits for a
//! dozen cache lines to find out that nothing has changed. So where requests have been of
//! one size for as many times as there are ranges, those that are freed are *kept*, up to [`KEPT`]
//! of them, and the next requests of that size get them, the last one first. To the caller they are
//! free. On the books of the space they are in use, so they are given back, all at once, before
//! anything else is asked of it: a request for another size, a batch, a map. So what is refused is
//! refused rightly, and a kept range keeps no two holes apart that a request of another size could
//! use as one.
//!
//! Nothing here releases the GIL, so that no lock is held by another thread when the process forks:
//! a child goes on with its copy.

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use kvmem::offset::{AllocError, Allocation, OffsetAllocator, SpaceError};
use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;
use pyo3::types::PyInt;

use crate::collect::{Plain, plain};
use crate::error;
use crate::number::Signed;
use crate::ranges::Ranges;

/// The books: all numbers are units.
struct Heap {
    /// None while the heap has no whole unit.
    space: Option<OffsetAllocator>,
    /// What the space has granted, by where it begins.
    ranges: Ranges,
    /// How much that is.
    booked: u64,
    kept: Kept,
}

/// So many free ranges are kept at most: a free looks through them, lest it is the second of the
/// same range.
const KEPT: usize = 32;

/// Ranges that are free, but not given back to the space: they are still on its books and in
/// `ranges`.
#[derive(Default)]
struct Kept {
    starts: Vec<u64>,
    /// How long each of them is: what was granted last.
    units: u64,
    /// Grants of that size in a row.
    streak: u64,
}

impl Kept {
    /// So many ranges of this size have been granted. None are kept of another one.
    #[inline]
    fn record(&mut self, units: u64, n: u64) {
        self.streak = if units == self.units { self.streak + n } else { n };
        self.units = units;
    }

    /// One of this size, the one that was freed last.
    #[inline]
    fn take(&mut self, units: u64) -> Option<u64> {
        if units == self.units { self.starts.pop() } else { None }
    }
}

/// Why a range is not freed.
enum NotFreed {
    /// Here nothing is granted.
    Gap(u64),
    Refused(AllocError),
}

impl Heap {
    fn new(units: u64) -> Result<Heap, SpaceError> {
        let mut heap =
            Heap { space: None, ranges: Ranges::default(), booked: 0, kept: Kept::default() };
        heap.grow(units)?;
        Ok(heap)
    }

    /// The heap is so long afterwards.
    fn grow(&mut self, units: u64) -> Result<(), SpaceError> {
        match &self.space {
            _ if units == 0 => {}
            Some(space) if space.capacity() == units => {}
            Some(space) => space.grow(units)?,
            None => self.space = Some(OffsetAllocator::new(units)?),
        }
        Ok(())
    }

    fn space(&self) -> Result<&OffsetAllocator, AllocError> {
        self.space.as_ref().ok_or(AllocError::OutOfSpace { requested: 0, free: 0, largest_free: 0 })
    }

    /// What is granted to the caller.
    fn granted(&self) -> u64 {
        self.booked - self.kept.starts.len() as u64 * self.kept.units
    }

    /// How many ranges that is.
    fn live(&self) -> usize {
        self.ranges.len() - self.kept.starts.len()
    }

    #[inline]
    fn allocate(&mut self, units: u64) -> Result<u64, AllocError> {
        let at = match self.kept.take(units) {
            Some(at) => at,
            None => {
                self.settle();
                let allocation = self.space()?.allocate(units)?;
                let at = allocation.offset();
                self.ranges.insert(allocation);
                self.booked += units;
                at
            }
        };
        self.kept.record(units, 1);
        Ok(at)
    }

    /// As many ranges, in order of addresses.
    fn allocate_batch(&mut self, units: u64, n: usize) -> Result<Vec<u64>, AllocError> {
        self.settle();
        let batch = self.space()?.allocate_batch(units, n)?;
        let mut starts: Vec<u64> = batch.iter().map(Allocation::offset).collect();
        batch.into_iter().for_each(|allocation| self.ranges.insert(allocation));
        self.booked += units * n as u64;
        self.kept.record(units, n as u64);
        starts.sort_unstable();
        Ok(starts)
    }

    #[inline]
    fn free(&mut self, part: Range<u64>) -> Result<(), NotFreed> {
        let units = part.end - part.start;
        if self.is_reused(units)
            && self.ranges.get(part.start).is_some_and(|whole| whole.size() == units)
        {
            return self.keep(part.start);
        }
        self.settle();
        match self.ranges.get(part.start) {
            Some(whole) if whole.size() == units => {
                drop(self.ranges.remove(part.start));
                self.booked -= units;
                Ok(())
            }
            _ => self.free_others(part),
        }
    }

    /// Whether a range of this size is kept when it is freed.
    #[inline]
    fn is_reused(&self, units: u64) -> bool {
        units == self.kept.units && self.kept.streak >= self.ranges.len() as u64
    }

    /// Keeps a range that is granted, or kept already.
    #[inline]
    fn keep(&mut self, at: u64) -> Result<(), NotFreed> {
        if self.kept.starts.contains(&at) {
            return Err(NotFreed::Gap(at));
        }
        if self.kept.starts.len() == KEPT {
            self.give_back();
        }
        self.kept.starts.push(at);
        Ok(())
    }

    /// Gives the ranges that are kept back to the space. Whatever goes there, or asks it, comes by
    /// here first.
    #[inline]
    fn settle(&mut self) {
        if !self.kept.starts.is_empty() {
            self.give_back();
        }
    }

    #[cold]
    fn give_back(&mut self) {
        self.booked = self.granted();
        let (starts, ranges) = (self.kept.starts.drain(..), &mut self.ranges);
        let whole: Vec<Allocation> = starts.filter_map(|at| ranges.remove(at)).collect();
        if let Some(space) = &self.space {
            space.free_batch(whole);
        }
    }

    /// Several ranges, or parts of them.
    #[cold]
    fn free_others(&mut self, part: Range<u64>) -> Result<(), NotFreed> {
        let touched = self.touched(&part)?;
        let mut whole = Vec::with_capacity(touched.len());
        // Those that are cut come first: only to cut can be refused, if there are as many ranges as
        // can have names.
        for at in touched {
            let Some(allocation) = self.ranges.remove(at) else { continue };
            let range = allocation.range();
            let cut = range.start.max(part.start)..range.end.min(part.end);
            if cut == range {
                whole.push(allocation);
                continue;
            }
            let units = cut.end - cut.start;
            match allocation.free_range(cut) {
                Ok((left, right)) => {
                    self.booked -= units;
                    left.into_iter().chain(right).for_each(|rest| self.ranges.insert(rest));
                }
                Err((allocation, refused)) => {
                    whole.push(allocation);
                    whole.into_iter().for_each(|kept| self.ranges.insert(kept));
                    return Err(NotFreed::Refused(refused));
                }
            }
        }
        self.booked -= whole.iter().map(Allocation::len).sum::<u64>();
        if let Some(space) = &self.space {
            space.free_batch(whole);
        }
        Ok(())
    }

    /// Where the ranges begin that have bytes in `part`, the ones to be cut first. They must cover
    /// all of it.
    fn touched(&self, part: &Range<u64>) -> Result<Vec<u64>, NotFreed> {
        let holds = |allocation: &&Allocation| allocation.range().contains(&part.start);
        let first = match self.ranges.get(part.start) {
            Some(_) => part.start,
            None => self.ranges.iter().find(holds).ok_or(NotFreed::Gap(part.start))?.offset(),
        };
        let mut touched = Vec::new();
        let mut reached = first;
        while reached < part.end
            && let Some(allocation) = self.ranges.get(reached)
        {
            touched.push(reached);
            reached = allocation.range().end;
        }
        if reached < part.end {
            return Err(NotFreed::Gap(reached));
        }
        // The last one, if it is cut, goes to the front; the first one is there.
        if reached > part.end {
            touched.rotate_right(1);
        }
        Ok(touched)
    }

    /// Whether both books say the same.
    fn is_consistent(&mut self) -> bool {
        self.settle();
        let listed =
            self.ranges.iter().all(|allocation| self.ranges.get(allocation.offset()).is_some());
        let sum: u64 = self.ranges.iter().map(Allocation::len).sum();
        let of_space = self.space.as_ref().is_none_or(|space| {
            let metrics = space.metrics();
            metrics.allocated == sum
                && metrics.live == self.ranges.len() as u64
                && space.check().is_ok()
        });
        listed && sum == self.booked && of_space
    }
}

/// A heap of addresses from 0 on, with the face of LMCache's class of this name: see
/// :mod:`kvmem.lmcache`.
///
/// ``align_bytes``, a power of two: what addresses and sizes are multiples of. Goes on in a
/// forked child, as a copy.
#[pyclass(name = "AddressManager", module = "kvmem.lmcache", frozen, weakref)]
pub(crate) struct PyAddressManager {
    /// With the length of the heap in bytes, which need not be a whole number of units.
    heap: Mutex<(Heap, u64)>,
    /// Bits of an address within a unit.
    shift: u32,
}

impl Plain for Mutex<(Heap, u64)> {}

plain!(PyAddressManager { heap, shift });

impl PyAddressManager {
    fn lock(&self) -> MutexGuard<'_, (Heap, u64)> {
        self.heap.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn align(&self) -> u64 {
        1 << self.shift
    }

    fn aligned(&self, py: Python<'_>, raw_size: i64) -> PyResult<i64> {
        let below = (1 << self.shift) - 1;
        match raw_size.checked_add(below) {
            Some(size) => Ok(size & !below),
            None => {
                let message = format!("raw_size is {raw_size}: no heap is so long");
                Err(error::bad_number(py, message, raw_size, i64::MAX - below))
            }
        }
    }

    /// How many units hold so many bytes. A number that no heap has, if they are too many.
    fn units(&self, bytes: Bytes) -> u64 {
        bytes.0.map_or(u64::MAX, |bytes| bytes.div_ceil(self.align()))
    }

    #[cold]
    fn full(
        &self,
        py: Python<'_>,
        n: usize,
        size: &Bound<'_, PyAny>,
        refused: &AllocError,
    ) -> PyErr {
        let free = |units: u64| units << self.shift;
        let metrics = self.lock().0.space.as_ref().map(OffsetAllocator::metrics);
        let (whole, largest) = metrics.map_or((0, 0), |it| (free(it.free), free(it.largest_free)));
        let ranges = match refused {
            AllocError::TooManyRanges { ranges } => Some(*ranges),
            _ => None,
        };
        error::heap_full(py, n, size, (whole, largest), ranges)
    }
}

/// A number of bytes that is not below 1. None: more than any heap has.
#[derive(Clone, Copy)]
struct Bytes(Option<u64>);

impl Bytes {
    #[inline]
    fn above_zero(name: &str, given: &Bound<'_, PyAny>) -> PyResult<Bytes> {
        match signed(given)? {
            Some(bytes) if bytes > 0 => Ok(Bytes(Some(bytes.unsigned_abs()))),
            None if given.gt(0)? => Ok(Bytes(None)),
            _ => Err(error::bad_number(
                given.py(),
                format!("{name} is {given}: say more than 0"),
                given,
                1,
            )),
        }
    }
}

/// An integer of Python. None: one beyond ±2^63.
#[inline]
fn signed(given: &Bound<'_, PyAny>) -> PyResult<Option<i64>> {
    match given.extract::<i64>() {
        Ok(number) => Ok(Some(number)),
        Err(error) if error.is_instance_of::<PyOverflowError>(given.py()) => Ok(None),
        Err(error) => Err(error),
    }
}

#[pymethods]
impl PyAddressManager {
    /// What addresses and sizes are multiples of, unless something else is said.
    #[classattr]
    const ALIGN_BYTES: i64 = 4096;

    #[new]
    #[pyo3(signature = (size, align_bytes=Signed(4096)), text_signature = "(size, align_bytes=4096)")]
    fn create(py: Python<'_>, size: Signed, align_bytes: Signed) -> PyResult<PyAddressManager> {
        let (Signed(size), Signed(align_bytes)) = (size, align_bytes);
        if align_bytes <= 0 || !align_bytes.unsigned_abs().is_power_of_two() {
            let message = format!("align_bytes is {align_bytes}: say a power of two");
            return Err(error::bad_number(py, message, align_bytes, 1));
        }
        let Ok(size) = u64::try_from(size) else {
            return Err(error::bad_number(py, format!("size is {size}: say 0 or more"), size, 0));
        };
        let shift = align_bytes.trailing_zeros();
        let heap = Heap::new(size >> shift).map_err(|refused| error::space(py, &refused))?;
        Ok(PyAddressManager { heap: Mutex::new((heap, size)), shift })
    }

    /// ``raw_size``, rounded up to a multiple of the alignment.
    fn compute_aligned_size(&self, py: Python<'_>, raw_size: Signed) -> PyResult<i64> {
        self.aligned(py, raw_size.0)
    }

    /// A range of at least ``size`` bytes: where it begins, and how long it is. O(1).
    ///
    /// Raises :class:`BadValueError` below 1, and :class:`HeapFullError`, which is a
    /// ``RuntimeError``.
    fn allocate<'py>(&self, size: &Bound<'py, PyAny>) -> PyResult<(u64, Bound<'py, PyAny>)> {
        let requested = Bytes::above_zero("size", size)?;
        let units = self.units(requested);
        let granted = self.lock().0.allocate(units);
        match granted {
            Ok(at) => {
                let length = units << self.shift;
                let length = if requested.0 == Some(length) && size.is_exact_instance_of::<PyInt>()
                {
                    size.clone()
                } else {
                    length.into_pyobject(size.py())?.into_any()
                };
                Ok((at << self.shift, length))
            }
            Err(refused) => Err(self.full(size.py(), 1, size, &refused)),
        }
    }

    /// ``batch_size`` ranges of at least ``size`` bytes each, all of them or none, in order of
    /// addresses.
    ///
    /// Raises as ``allocate``, and :class:`BadBatchError`, which is a ``RuntimeError``, below 0 of
    /// them.
    fn batched_allocate(
        &self,
        size: &Bound<'_, PyAny>,
        batch_size: &Bound<'_, PyAny>,
    ) -> PyResult<Vec<(u64, u64)>> {
        let py = size.py();
        let units = self.units(Bytes::above_zero("size", size)?);
        let n = match signed(batch_size)? {
            Some(0) => return Ok(Vec::new()),
            Some(n) if n > 0 => usize::try_from(n).unwrap_or(usize::MAX),
            None if batch_size.gt(0)? => usize::MAX,
            _ => return Err(error::bad_batch(py, batch_size)),
        };
        let granted = self.lock().0.allocate_batch(units, n);
        match granted {
            Ok(starts) => {
                Ok(starts.into_iter().map(|at| (at << self.shift, units << self.shift)).collect())
            }
            Err(refused) => Err(self.full(py, n, size, &refused)),
        }
    }

    /// Gives ``size`` bytes from ``address`` on back: one range, several that follow each other,
    /// or a part.
    ///
    /// O(1) for each; O(ranges) if ``address`` is within a range. Raises :class:`BadValueError` if
    /// not all of it is allocated, or not aligned; nothing is freed then.
    fn free(&self, py: Python<'_>, address: Signed, size: Signed) -> PyResult<()> {
        let (Signed(address), Signed(size)) = (address, size);
        let below = (1 << self.shift) - 1;
        let end = address
            .checked_add(size)
            .filter(|_| address >= 0 && size > 0 && (address | size) & below == 0);
        let Some(end) = end else {
            let message = format!(
                "{size} bytes at {address} are no range of this heap: say an address that it gave, and a size that is more than 0, both \
                 multiples of {}",
                self.align()
            );
            let (value, limit) = match (address, size) {
                (..0, _) => (address, 0),
                (_, ..=0) => (size, 1),
                _ if address & below != 0 => (address, below + 1),
                _ if size & below != 0 => (size, below + 1),
                _ => (size, i64::MAX - address),
            };
            return Err(error::bad_number(py, message, value, limit));
        };
        let part = address.unsigned_abs() >> self.shift..end.unsigned_abs() >> self.shift;
        let freed = self.lock().0.free(part);
        freed.map_err(|wrong| match wrong {
            NotFreed::Refused(refused) => error::alloc(py, &refused),
            NotFreed::Gap(at) => {
                let at = at << self.shift;
                let message = format!(
                    "{size} bytes at {address} cannot be freed, and none are: at {at} nothing is allocated; was it freed before?"
                );
                error::bad_number(py, message, address, at)
            }
        })
    }

    /// Moves the end of the heap up by ``size`` bytes, rounded up to a multiple of the
    /// alignment.
    fn sbrk(&self, py: Python<'_>, size: Signed) -> PyResult<()> {
        let Signed(size) = size;
        let more = self.aligned(py, size)?;
        let grown = {
            let (heap, bytes) = &mut *self.lock();
            let longer = u64::try_from(more).ok().and_then(|more| bytes.checked_add(more));
            longer
                .filter(|_| size >= 0)
                .map(|longer| heap.grow(longer >> self.shift).map(|()| *bytes = longer))
        };
        match grown {
            Some(grown) => grown.map_err(|refused| error::space(py, &refused)),
            None => {
                let message = format!("the heap cannot grow by {size} bytes: say 0 or more");
                Err(error::bad_number(py, message, size, 0))
            }
        }
    }

    /// Length of the heap in bytes.
    fn get_heap_size(&self) -> u64 {
        self.lock().1
    }

    /// Bytes that are not allocated.
    fn get_free_size(&self) -> u64 {
        let (heap, bytes) = &*self.lock();
        bytes - (heap.granted() << self.shift)
    }

    /// Bytes that are allocated.
    #[getter]
    fn total_allocated_size(&self) -> u64 {
        self.lock().0.granted() << self.shift
    }

    /// Whether the books agree with each other: for tests. O(ranges).
    fn check_consistency(&self) -> bool {
        self.lock().0.is_consistent()
    }

    /// The whole heap in order of addresses: address, size, whether it is used.
    fn map(&self) -> Vec<(u64, u64, bool)> {
        let heap = &mut self.lock().0;
        heap.settle();
        let map = heap.space.as_ref().map(OffsetAllocator::map).unwrap_or_default();
        map.into_iter()
            .map(|it| (it.offset << self.shift, it.size << self.shift, it.used))
            .collect()
    }

    fn __repr__(&self) -> String {
        let (heap, bytes) = &*self.lock();
        format!(
            "<kvmem.lmcache.AddressManager of {bytes} bytes, {} allocated in {} ranges>",
            heap.granted() << self.shift,
            heap.live()
        )
    }
}
