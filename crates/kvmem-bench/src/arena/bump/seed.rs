//! *SeedArena*: a model of the arena that kvmem's bump allocator came from, the `MmapArena` of
//! Mooncake Store.
//!
//! 1. *What a call does.* It reads the base, the alignment and the size of the pool; rounds the
//!    size up to the alignment; then, until it wins, reads the cursor, rounds the *offset* up,
//!    checks for room, and swaps the cursor for the new end. After that it counts the allocation
//!    and raises the peak by another swap: three atomic read-modify-writes when nobody else is
//!    there.
//! 2. *Where things are.* All seven fields are atomics side by side, 56 bytes. They are put on one
//!    cache line here, so that the cursor, the statistics and the constants that every call reads
//!    share it, as they do wherever the published object does not happen to straddle two.
//! 3. *What a failure does.* It counts, and logs one line as an error. The line carries what the
//!    published one does: severity, date, time, thread, file, then the four figures. It is
//!    formatted into a buffer that is kept, and written by one system call under a lock, here to
//!    `/dev/null`. The published arena writes it to a file and to standard error, and asks the
//!    system for the local time; neither is modelled, so the model's failure is the faster one:
//!    some 0.4 µs, where 4.1 µs were measured of the published arena.
//! 4. *What is left out.* Nothing that would make it slower: the call is inlined into the loop here
//!    and is a call into another file there. The disabled debug line of a successful call costs one
//!    load of a flag at most, as there.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use ::kvmem::arena::Memory;

use super::{ALIGN, Bump};
use crate::arena::MeasureError;
use crate::arena::mapping::Mapping;

/// How much is logged; nothing below errors unless it is 2.
static VERBOSITY: AtomicI32 = AtomicI32::new(0);

/// The model.
#[derive(Debug)]
pub struct SeedArena {
    fields: Fields,
    log: Mutex<Log>,
    _mapping: Mapping,
}

/// The published fields, in their order, on one line.
#[derive(Debug)]
#[repr(C, align(64))]
struct Fields {
    base: AtomicUsize,
    size: AtomicUsize,
    alignment: AtomicUsize,
    cursor: AtomicUsize,
    peak: AtomicUsize,
    allocations: AtomicUsize,
    failed: AtomicUsize,
}

#[derive(Debug)]
struct Log {
    sink: File,
    line: Vec<u8>,
}

impl Bump for SeedArena {
    fn create(capacity: usize) -> Result<Self, MeasureError> {
        let mapping = Mapping::reserve(capacity)?;
        let sink = OpenOptions::new()
            .write(true)
            .open("/dev/null")
            .map_err(|error| MeasureError::Sink(error.to_string()))?;
        Ok(Self {
            fields: Fields {
                base: AtomicUsize::new(mapping.base().as_ptr() as usize),
                size: AtomicUsize::new(mapping.len()),
                alignment: AtomicUsize::new(ALIGN),
                cursor: AtomicUsize::new(0),
                peak: AtomicUsize::new(0),
                allocations: AtomicUsize::new(0),
                failed: AtomicUsize::new(0),
            },
            log: Mutex::new(Log { sink, line: Vec::with_capacity(256) }),
            _mapping: mapping,
        })
    }

    #[inline]
    fn allocate(&self, size: usize, align: usize) -> Option<NonNull<u8>> {
        let fields = &self.fields;
        // Acquire, as published: pairs with the release that publishes the pool, which here is the
        // hand-over of `self`.
        let base = fields.base.load(Ordering::Acquire);
        if base == 0 || size == 0 {
            return None;
        }
        // Relaxed from here on, as published: each value stands for itself, and nothing else is
        // read on its strength.
        let align = fields.alignment.load(Ordering::Relaxed).max(align);
        let Some(rounded) = align_up(size, align) else {
            return self.fail("size overflow", size, 0, 0, 0);
        };
        // Acquire, as published; it pairs as the base does.
        let pool = fields.size.load(Ordering::Acquire);
        let (start, end) = loop {
            let raw = fields.cursor.load(Ordering::Relaxed);
            let Some(start) = align_up(raw, align) else {
                return self.fail("offset overflow", size, rounded, raw, pool);
            };
            let end = start.wrapping_add(rounded);
            if end < start || end > pool {
                return self.fail("OOM", size, rounded, start, pool);
            }
            if fields
                .cursor
                .compare_exchange_weak(raw, end, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
            {
                break (start, end);
            }
        };
        fields.allocations.fetch_add(1, Ordering::Relaxed);
        let mut peak = fields.peak.load(Ordering::Relaxed);
        while end > peak {
            match fields.peak.compare_exchange_weak(peak, end, Ordering::Relaxed, Ordering::Relaxed)
            {
                Ok(_) => break,
                Err(seen) => peak = seen,
            }
        }
        // Relaxed: a flag that nobody sets while the clock runs.
        if VERBOSITY.load(Ordering::Relaxed) >= 2 {
            self.write("allocated", size, rounded, start, pool);
        }
        NonNull::new(std::ptr::with_exposed_provenance_mut(base + start))
    }
}

/// The next multiple of a power of two, unless it overflows.
fn align_up(value: usize, align: usize) -> Option<usize> {
    Some(value.checked_add(align - 1)? & !(align - 1))
}

impl SeedArena {
    #[cold]
    fn fail(
        &self,
        what: &str,
        size: usize,
        rounded: usize,
        start: usize,
        pool: usize,
    ) -> Option<NonNull<u8>> {
        // Relaxed, as published: a counter for statistics.
        self.fields.failed.fetch_add(1, Ordering::Relaxed);
        self.write(what, size, rounded, start, pool);
        None
    }

    fn write(&self, what: &str, size: usize, rounded: usize, start: usize, pool: usize) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let (of_day, micros) = (now.as_secs() % 86_400, now.subsec_micros());
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        let Log { sink, line } = &mut *log;
        line.clear();
        // Neither a write to a vector nor one to /dev/null fails; a log that cannot be written is
        // no concern of the caller.
        let _ = writeln!(
            line,
            "E{:08} {:02}:{:02}:{:02}.{micros:06} {:7} mmap_arena.cpp:157] Arena {what}: requested={size}, \
             aligned_size={rounded}, aligned_offset={start}, pool_size={pool}",
            now.as_secs() / 86_400,
            of_day / 3600,
            of_day / 60 % 60,
            of_day % 60,
            1,
        );
        let _ = sink.write_all(line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_follow_the_calls() {
        let arena = SeedArena::create(4096).unwrap();
        assert!(arena.allocate(0, 1).is_none());
        let first = arena.allocate(1, 1).unwrap();
        let second = arena.allocate(100, 1).unwrap();
        assert_eq!(second.as_ptr() as usize - first.as_ptr() as usize, 64);
        assert!(arena.allocate(4096, 1).is_none());
        assert!(arena.allocate(usize::MAX, 1).is_none());
        let count = |field: &AtomicUsize| field.load(Ordering::Relaxed);
        let Fields { cursor, peak, allocations, failed, .. } = &arena.fields;
        assert_eq!([cursor, peak, allocations, failed].map(count), [192, 192, 2, 2]);
        let line = String::from_utf8(arena.log.lock().unwrap().line.clone()).unwrap();
        assert!(line.contains("size overflow") && line.ends_with('\n'), "{line}");
    }

    #[test]
    fn everything_that_a_call_uses_is_on_one_line() {
        assert_eq!((size_of::<Fields>(), align_of::<Fields>()), (64, 64));
    }
}
