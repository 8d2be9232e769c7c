//! A model of the arena that kvmem's bump allocator descends from: `MmapArena` of Mooncake Store.
//!
//! 1. *A call.* It reads the base, the alignment and the size of the pool and rounds the size up to
//!    the alignment. Then it reads the cursor, rounds the *offset* up, checks the remaining space,
//!    and swaps the cursor for the new end, until the swap succeeds. Afterwards it counts the
//!    allocation and raises the peak by another swap: three atomic read-modify-writes without
//!    contention.
//! 2. *Memory layout.* All seven fields are adjacent atomics, 56 bytes. The model places them on
//!    one cache line, so the cursor, the statistics and the constants that every call reads share
//!    it. The published object does the same unless it happens to straddle two lines.
//! 3. *A failure.* It counts, and logs one line as an error. The line has the published contents:
//!    severity, date, time, thread, file, then the four figures. The model formats it into a buffer
//!    that is reused, and writes it with one system call under a lock, to `/dev/null`. The
//!    published arena writes to a file and to standard error, and asks the system for the local
//!    time. The model omits both, so its failure is faster: about 0.4 µs, against 4.1 µs measured
//!    for the published arena.
//! 4. *Not modelled.* Nothing that would make the model slower. Its call is inlined into the loop;
//!    the published one is a call into another file. The disabled debug line of a successful call
//!    costs at most one load of a flag in both.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use kvmem::arena::Memory;

use super::{ALIGN, Bump};
use crate::bench::arena::mapping::Mapping;

/// The log level. Only level 2 logs anything below an error.
static VERBOSITY: AtomicI32 = AtomicI32::new(0);

/// The model of the published arena.
#[derive(Debug)]
pub struct PublishedArena {
    fields: Fields,
    log: Mutex<Log>,
    _mapping: Mapping,
}

/// The published fields, in their order, on one cache line.
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

impl Bump for PublishedArena {
    fn create(capacity: usize) -> Result<Self> {
        let mapping = Mapping::reserve(capacity)?;
        let sink = OpenOptions::new().write(true).open("/dev/null").context("/dev/null")?;
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
        // Acquire, as published: pairs with the release store that publishes the pool. In the model
        // the caller receives `self` after construction, which orders the two.
        let base = fields.base.load(Ordering::Acquire);
        if base == 0 || size == 0 {
            return None;
        }
        // Relaxed from here on, as published: each value is used by itself, and no other data
        // depends on it.
        let align = fields.alignment.load(Ordering::Relaxed).max(align);
        let Some(rounded) = align_up(size, align) else {
            return self.fail("size overflow", size, 0, 0, 0);
        };
        // Acquire, as published: pairs like the load of the base.
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
        // Relaxed: no thread changes the flag while the clock runs.
        if VERBOSITY.load(Ordering::Relaxed) >= 2 {
            self.write("allocated", size, rounded, start, pool);
        }
        NonNull::new(std::ptr::with_exposed_provenance_mut(base + start))
    }
}

/// Rounds up to a multiple of a power of two; `None` on overflow.
fn align_up(value: usize, align: usize) -> Option<usize> {
    Some(value.checked_add(align - 1)? & !(align - 1))
}

impl PublishedArena {
    #[cold]
    fn fail(
        &self,
        what: &str,
        size: usize,
        rounded: usize,
        start: usize,
        pool: usize,
    ) -> Option<NonNull<u8>> {
        // Relaxed, as published: a statistics counter.
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
        // Writes to a vector and to /dev/null do not fail, and the caller does not depend on the
        // log.
        let _ = writeln!(
            line,
            "E{:08} {:02}:{:02}:{:02}.{micros:06} {:7} mmap_arena.cpp:157] \
             Arena {what}: requested={size}, aligned_size={rounded}, \
             aligned_offset={start}, pool_size={pool}",
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
        let arena = PublishedArena::create(4096).unwrap();
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
}
