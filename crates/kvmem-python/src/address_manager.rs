//! *AddressManager*: a heap of addresses from 0 on, whose ranges are freed by address and length.
//!
//! Its interface is that of LMCache's class of this name; `docs/distributed/lmcache.md` lists the
//! differences.
//!
//! Addresses and sizes are multiples of the alignment, so the space below is counted in *units* of
//! it: every range is aligned, wherever it lies. Bytes at the end of the heap that do not fill a
//! unit are never allocated.
//!
//! ```text
//!   bytes     0       4096     8192              24576      28672
//!             ├────────┼────────┼─────────────────┼──────────┤
//!   units     │ 1 unit │ 1 unit │ 4 units         │ free     │      the space: kvmem::offset
//!   ranges    0 ──▶ a  1 ──▶ b  2 ──▶ c                             start of each, and its handle
//!
//!   free(4096, 12288) is  ▲─────── b and half of c ──▲
//! ```
//!
//! The caller names a range by its address, and the space by a handle. Therefore [`Ranges`] maps
//! starts to handles. Freeing a range as it was allocated takes one look-up. Freeing several
//! adjacent ranges takes one each, because each ends where the next begins. Only if `address` lies
//! inside a range are all ranges searched. All look-ups come before any change: if there is a gap,
//! nothing is freed.
//!
//! ## Kept ranges
//!
//! A store of chunks of one size frees one chunk to allocate another. Returning such a range to the
//! space and allocating the next one joins it with its neighbours, cuts it off again, and waits for
//! a dozen cache lines without any effect. Therefore, once as many requests in a row as there are
//! ranges had one size, freed ranges of that size are *kept*, at most [`MAX_KEPT`] of them, and the
//! next requests of that size reuse them, the most recent first. To the caller they are free. In
//! the space they are in use, so all of them are returned before the space serves anything else: a
//! request of another size, a batch, a map. A failure is therefore a real one, and a kept range
//! never separates two holes that a request of another size could use as one.
//!
//! Nothing here releases the GIL. No lock is therefore held by another thread when the process
//! forks, and a child continues with its copy.

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

/// State of the heap. All numbers are units.
struct Heap {
    /// None while the heap has no whole unit.
    space: Option<OffsetAllocator>,
    /// Ranges allocated from the space, by start.
    ranges: Ranges,
    /// Units of those ranges.
    allocated: u64,
    kept: KeptRanges,
}

/// Maximum number of kept ranges. A free searches them, in case it frees the same range twice.
const MAX_KEPT: usize = 32;

/// Ranges that are free to the caller, but not returned to the space: they are still in `ranges`.
#[derive(Default)]
struct KeptRanges {
    starts: Vec<u64>,
    /// Length of each of them: the size of the last request.
    units: u64,
    /// Number of consecutive allocations of that size.
    streak: u64,
}

impl KeptRanges {
    /// Records `n` allocations of a size. No ranges of another size are kept at that time.
    #[inline]
    fn record(&mut self, units: u64, n: u64) {
        self.streak = if units == self.units { self.streak + n } else { n };
        self.units = units;
    }

    /// Takes the kept range of this size that was freed last.
    #[inline]
    fn take(&mut self, units: u64) -> Option<u64> {
        if units == self.units { self.starts.pop() } else { None }
    }
}

/// Reason why a range cannot be freed.
enum FreeError {
    /// Nothing is allocated at this unit.
    Gap(u64),
    /// The space cannot cut the range.
    Space(AllocError),
}

impl Heap {
    fn new(units: u64) -> Result<Heap, SpaceError> {
        let mut heap = Heap {
            space: None,
            ranges: Ranges::default(),
            allocated: 0,
            kept: KeptRanges::default(),
        };
        heap.grow(units)?;
        Ok(heap)
    }

    /// Grows the heap to `units` units.
    fn grow(&mut self, units: u64) -> Result<(), SpaceError> {
        match &self.space {
            _ if units == 0 => {}
            Some(space) if space.capacity() == units => {}
            Some(space) => space.grow_to(units)?,
            None => self.space = Some(OffsetAllocator::new(units)?),
        }
        Ok(())
    }

    fn space(&self) -> Result<&OffsetAllocator, AllocError> {
        self.space.as_ref().ok_or(AllocError::OutOfSpace { requested: 0, free: 0, largest_free: 0 })
    }

    /// Returns the number of units allocated to the caller.
    fn allocated_to_caller(&self) -> u64 {
        self.allocated - self.kept.starts.len() as u64 * self.kept.units
    }

    /// Returns the number of ranges allocated to the caller.
    fn live(&self) -> usize {
        self.ranges.len() - self.kept.starts.len()
    }

    #[inline]
    fn allocate(&mut self, units: u64) -> Result<u64, AllocError> {
        let at = match self.kept.take(units) {
            Some(at) => at,
            None => {
                self.return_kept();
                let allocation = self.space()?.allocate(units)?;
                let at = allocation.offset();
                self.ranges.insert(allocation);
                self.allocated += units;
                at
            }
        };
        self.kept.record(units, 1);
        Ok(at)
    }

    /// Allocates `n` ranges. Returns their starts in order.
    fn allocate_batch(&mut self, units: u64, n: usize) -> Result<Vec<u64>, AllocError> {
        self.return_kept();
        let batch = self.space()?.allocate_batch(units, n)?;
        let mut starts: Vec<u64> = batch.iter().map(Allocation::offset).collect();
        batch.into_iter().for_each(|allocation| self.ranges.insert(allocation));
        self.allocated += units * n as u64;
        self.kept.record(units, n as u64);
        starts.sort_unstable();
        Ok(starts)
    }

    #[inline]
    fn free(&mut self, part: Range<u64>) -> Result<(), FreeError> {
        let units = part.end - part.start;
        if self.is_reused(units)
            && self.ranges.get(part.start).is_some_and(|whole| whole.len() == units)
        {
            return self.keep(part.start);
        }
        self.return_kept();
        match self.ranges.get(part.start) {
            Some(whole) if whole.len() == units => {
                drop(self.ranges.remove(part.start));
                self.allocated -= units;
                Ok(())
            }
            _ => self.free_others(part),
        }
    }

    /// Returns whether a range of this size is kept when it is freed.
    #[inline]
    fn is_reused(&self, units: u64) -> bool {
        units == self.kept.units && self.kept.streak >= self.ranges.len() as u64
    }

    /// Keeps a range. Fails if it is kept already.
    #[inline]
    fn keep(&mut self, at: u64) -> Result<(), FreeError> {
        if self.kept.starts.contains(&at) {
            return Err(FreeError::Gap(at));
        }
        if self.kept.starts.len() == MAX_KEPT {
            self.return_all_kept();
        }
        self.kept.starts.push(at);
        Ok(())
    }

    /// Returns all kept ranges to the space. Every other use of the space calls this first.
    #[inline]
    fn return_kept(&mut self) {
        if !self.kept.starts.is_empty() {
            self.return_all_kept();
        }
    }

    #[cold]
    fn return_all_kept(&mut self) {
        self.allocated = self.allocated_to_caller();
        let (starts, ranges) = (self.kept.starts.drain(..), &mut self.ranges);
        let whole: Vec<Allocation> = starts.filter_map(|at| ranges.remove(at)).collect();
        if let Some(space) = &self.space {
            space.free_batch(whole);
        }
    }

    /// Frees several ranges, or parts of them.
    #[cold]
    fn free_others(&mut self, part: Range<u64>) -> Result<(), FreeError> {
        let touched = self.touched(&part)?;
        let mut whole = Vec::with_capacity(touched.len());
        // Ranges that have to be cut come first: only a cut can fail, if the maximum number of
        // ranges is reached.
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
                    self.allocated -= units;
                    left.into_iter().chain(right).for_each(|rest| self.ranges.insert(rest));
                }
                Err((allocation, error)) => {
                    whole.push(allocation);
                    whole.into_iter().for_each(|kept| self.ranges.insert(kept));
                    return Err(FreeError::Space(error));
                }
            }
        }
        self.allocated -= whole.iter().map(Allocation::len).sum::<u64>();
        if let Some(space) = &self.space {
            space.free_batch(whole);
        }
        Ok(())
    }

    /// Returns the starts of the ranges that have bytes in `part`, those to be cut first. The
    /// ranges must cover all of `part`.
    fn touched(&self, part: &Range<u64>) -> Result<Vec<u64>, FreeError> {
        let holds = |allocation: &&Allocation| allocation.range().contains(&part.start);
        let first = match self.ranges.get(part.start) {
            Some(_) => part.start,
            None => self.ranges.iter().find(holds).ok_or(FreeError::Gap(part.start))?.offset(),
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
            return Err(FreeError::Gap(reached));
        }
        // If the last range is cut, it moves to the front. The first one is there already.
        if reached > part.end {
            touched.rotate_right(1);
        }
        Ok(touched)
    }

    /// Returns whether the ranges here agree with the space.
    fn is_consistent(&mut self) -> bool {
        self.return_kept();
        let listed =
            self.ranges.iter().all(|allocation| self.ranges.get(allocation.offset()).is_some());
        let sum: u64 = self.ranges.iter().map(Allocation::len).sum();
        let of_space = self.space.as_ref().is_none_or(|space| {
            let metrics = space.metrics();
            metrics.allocated == sum
                && metrics.live == self.ranges.len() as u64
                && space.check().is_ok()
        });
        listed && sum == self.allocated && of_space
    }
}

#[doc = doc!("AddressManager")]
#[pyclass(name = "AddressManager", module = "kvmem.lmcache", frozen, weakref)]
pub(crate) struct PyAddressManager {
    /// With the length of the heap in bytes, which may end within a unit.
    heap: Mutex<(Heap, u64)>,
    /// Number of address bits within a unit.
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
                let message = format!("raw_size is {raw_size}: give a size below 2**63");
                Err(error::bad_number(py, message, raw_size, i64::MAX - below))
            }
        }
    }

    /// Returns the number of units that hold `bytes` bytes. If there are too many bytes, the number
    /// is larger than every heap's.
    fn units(&self, bytes: HeapBytes) -> u64 {
        bytes.0.map_or(u64::MAX, |bytes| bytes.div_ceil(self.align()))
    }

    #[cold]
    fn full(&self, py: Python<'_>, n: usize, size: &Bound<'_, PyAny>, error: &AllocError) -> PyErr {
        let free = |units: u64| units << self.shift;
        let metrics = self.lock().0.space.as_ref().map(OffsetAllocator::metrics);
        let (whole, largest) = metrics.map_or((0, 0), |it| (free(it.free), free(it.largest_free)));
        let ranges = match error {
            AllocError::TooManyRanges { ranges } => Some(*ranges),
            _ => None,
        };
        error::heap_full(py, n, size, (whole, largest), ranges)
    }
}

/// A number of bytes above 0. None: longer than every heap.
#[derive(Clone, Copy)]
struct HeapBytes(Option<u64>);

impl HeapBytes {
    #[inline]
    fn above_zero(name: &str, given: &Bound<'_, PyAny>) -> PyResult<HeapBytes> {
        match signed(given)? {
            Some(bytes) if bytes > 0 => Ok(HeapBytes(Some(bytes.unsigned_abs()))),
            None if given.gt(0)? => Ok(HeapBytes(None)),
            _ => Err(error::bad_number(
                given.py(),
                format!("{name} is {given}: give more than 0"),
                given,
                1,
            )),
        }
    }
}

/// Converts a Python integer. None: beyond ±2^63.
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
    /// Default alignment.
    #[classattr]
    const ALIGN_BYTES: i64 = 4096;

    #[new]
    #[pyo3(
        signature = (size, align_bytes=Signed(4096)),
        text_signature = "(size, align_bytes=4096)"
    )]
    fn create(py: Python<'_>, size: Signed, align_bytes: Signed) -> PyResult<PyAddressManager> {
        let (Signed(size), Signed(align_bytes)) = (size, align_bytes);
        if align_bytes <= 0 || !align_bytes.unsigned_abs().is_power_of_two() {
            let message = format!("align_bytes is {align_bytes}: give a power of two");
            return Err(error::bad_number(py, message, align_bytes, 1));
        }
        let Ok(size) = u64::try_from(size) else {
            return Err(error::bad_number(py, format!("size is {size}: give 0 or more"), size, 0));
        };
        let shift = align_bytes.trailing_zeros();
        let heap = Heap::new(size >> shift).map_err(|error| error::space(py, &error))?;
        Ok(PyAddressManager { heap: Mutex::new((heap, size)), shift })
    }

    #[doc = doc!("AddressManager.compute_aligned_size")]
    fn compute_aligned_size(&self, py: Python<'_>, raw_size: Signed) -> PyResult<i64> {
        self.aligned(py, raw_size.0)
    }

    #[doc = doc!("AddressManager.allocate")]
    fn allocate<'py>(&self, size: &Bound<'py, PyAny>) -> PyResult<(u64, Bound<'py, PyAny>)> {
        let requested = HeapBytes::above_zero("size", size)?;
        let units = self.units(requested);
        let allocated = self.lock().0.allocate(units);
        match allocated {
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
            Err(error) => Err(self.full(size.py(), 1, size, &error)),
        }
    }

    #[doc = doc!("AddressManager.batched_allocate")]
    fn batched_allocate(
        &self,
        size: &Bound<'_, PyAny>,
        batch_size: &Bound<'_, PyAny>,
    ) -> PyResult<Vec<(u64, u64)>> {
        let py = size.py();
        let units = self.units(HeapBytes::above_zero("size", size)?);
        let n = match signed(batch_size)? {
            Some(0) => return Ok(Vec::new()),
            Some(n) if n > 0 => usize::try_from(n).unwrap_or(usize::MAX),
            None if batch_size.gt(0)? => usize::MAX,
            _ => return Err(error::bad_batch(py, batch_size)),
        };
        let allocated = self.lock().0.allocate_batch(units, n);
        match allocated {
            Ok(starts) => {
                Ok(starts.into_iter().map(|at| (at << self.shift, units << self.shift)).collect())
            }
            Err(error) => Err(self.full(py, n, size, &error)),
        }
    }

    #[doc = doc!("AddressManager.free")]
    fn free(&self, py: Python<'_>, address: Signed, size: Signed) -> PyResult<()> {
        let (Signed(address), Signed(size)) = (address, size);
        let below = (1 << self.shift) - 1;
        let end = address
            .checked_add(size)
            .filter(|_| address >= 0 && size > 0 && (address | size) & below == 0);
        let Some(end) = end else {
            let message = format!(
                "cannot free {size} bytes at {address}: give an address that this heap allocated \
                 and a size above 0, both multiples of {}",
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
        freed.map_err(|error| match error {
            FreeError::Space(error) => error::alloc(py, &error),
            FreeError::Gap(at) => {
                let at = at << self.shift;
                let message = format!(
                    "cannot free {size} bytes at {address}: nothing is allocated at {at}, so \
                     nothing was freed; was it freed before?"
                );
                error::bad_number(py, message, address, at)
            }
        })
    }

    #[doc = doc!("AddressManager.sbrk")]
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
            Some(grown) => grown.map_err(|error| error::space(py, &error)),
            None => {
                let message = format!("the heap cannot grow by {size} bytes: give 0 or more");
                Err(error::bad_number(py, message, size, 0))
            }
        }
    }

    #[doc = doc!("AddressManager.get_heap_size")]
    fn get_heap_size(&self) -> u64 {
        self.lock().1
    }

    #[doc = doc!("AddressManager.get_free_size")]
    fn get_free_size(&self) -> u64 {
        let (heap, bytes) = &*self.lock();
        bytes - (heap.allocated_to_caller() << self.shift)
    }

    #[doc = doc!("AddressManager.total_allocated_size")]
    #[getter]
    fn total_allocated_size(&self) -> u64 {
        self.lock().0.allocated_to_caller() << self.shift
    }

    #[doc = doc!("AddressManager.check_consistency")]
    fn check_consistency(&self) -> bool {
        self.lock().0.is_consistent()
    }

    #[doc = doc!("AddressManager.map")]
    fn map(&self) -> Vec<(u64, u64, bool)> {
        let heap = &mut self.lock().0;
        heap.return_kept();
        let map = heap.space.as_ref().map(OffsetAllocator::map).unwrap_or_default();
        map.into_iter()
            .map(|it| (it.offset << self.shift, it.size << self.shift, it.used))
            .collect()
    }

    fn __repr__(&self) -> String {
        let (heap, bytes) = &*self.lock();
        format!(
            "<kvmem.lmcache.AddressManager of {bytes} bytes, {} allocated in {} ranges>",
            heap.allocated_to_caller() << self.shift,
            heap.live()
        )
    }
}
