//! *Init on*: when the bytes of blocks are set to zero, after the kernel's boot options
//! `init_on_alloc` and `init_on_free`.
//!
//! The extent layer calls the hooks of this file for every range that becomes used or free, by
//! whatever call. Pages cannot be returned to the kernel to get zeros: they are registered, so
//! the devices would go on using the old ones. The processor therefore writes the zeros.

use std::fmt;
use std::ops::Range;
use std::ptr::{self, NonNull};

use super::memory;
use crate::slab::RangeHooks;

/// When a pool sets the bytes of its blocks to zero. Default: never.
///
/// See [what fresh memory holds](crate::pool#what-fresh-memory-holds).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum InitOn {
    /// Never: a new block has the bytes of an earlier block, or zeros. Costs nothing.
    #[default]
    Never,
    /// Before a block is handed out, and before an extended block gets its new bytes. A new block
    /// has zeros, also where a device or another process has written to free memory.
    Alloc,
    /// Before the bytes of a block become free. No byte outlives its block, and a new block has
    /// zeros unless a device or another process has written to free memory.
    Free,
}

impl InitOn {
    /// Returns the hooks that keep the promise; `None` if there is nothing to do.
    pub(in crate::pool) fn hooks(self) -> Option<&'static RangeHooks> {
        match self {
            InitOn::Never => None,
            InitOn::Alloc => Some(&ON_ALLOC),
            InitOn::Free => Some(&ON_FREE),
        }
    }
}

impl fmt::Display for InitOn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            InitOn::Never => "never",
            InitOn::Alloc => "alloc",
            InitOn::Free => "free",
        })
    }
}

static ON_ALLOC: RangeHooks = RangeHooks { allocated: Some(clear_new), freed: None };
static ON_FREE: RangeHooks = RangeHooks { allocated: None, freed: Some(clear_old) };

/// Sets a range to zero that a caller is about to get, who will read or write it next: the zeros
/// belong in the processor's cache.
///
/// # Safety
/// That of a hook of [`RangeHooks`], and memory was [attached](memory::attach) to the
/// space.
unsafe fn clear_new(space: u32, range: Range<u64>) {
    // SAFETY: the condition of this function is that of `bytes`.
    if let Some((at, len)) = unsafe { bytes(space, range) } {
        // SAFETY: `bytes` returned mapped bytes that nothing else uses.
        unsafe { ptr::write_bytes(at.as_ptr(), 0, len) }
    }
}

/// Sets a range to zero that becomes free: nothing reads it soon.
///
/// # Safety
/// That of [`clear_new`].
unsafe fn clear_old(space: u32, range: Range<u64>) {
    // SAFETY: the condition of this function is that of `bytes`.
    if let Some((at, len)) = unsafe { bytes(space, range) } {
        // SAFETY: `bytes` returned mapped bytes that nothing else uses.
        unsafe { clear_uncached(at, len) }
    }
}

/// Returns the address and the length of a range; `None` in a forked child, which has no memory at
/// these addresses.
///
/// # Safety
/// That of [`clear_new`].
unsafe fn bytes(space: u32, range: Range<u64>) -> Option<(NonNull<u8>, usize)> {
    // SAFETY: memory was attached, and the range belongs to a block that exists.
    let memory = unsafe { memory::of(space) };
    if memory.is_forked() {
        return None;
    }
    // SAFETY: a range of a space lies within its memory (`attach`), which is one mapping.
    Some((unsafe { memory.base().add(range.start as usize) }, (range.end - range.start) as usize))
}

/// Shorter ranges are set to zero through the cache. On a two-core EPYC 16 KiB take as long either
/// way, and ranges of 64 KiB to 4 MiB 1.2 to 1.6 times as long through the cache.
#[cfg(target_arch = "x86_64")]
const UNCACHED_BYTES: usize = 64 << 10;

/// Sets bytes to zero, past the cache if they are many: they would only replace others there.
///
/// # Safety
/// The bytes are mapped for writing, and nothing else uses them.
#[cfg(target_arch = "x86_64")]
unsafe fn clear_uncached(at: NonNull<u8>, len: usize) {
    use std::arch::x86_64::{__m128i, _mm_setzero_si128, _mm_sfence, _mm_stream_si128};
    const LINE: usize = 64;

    let head = at.align_offset(LINE);
    if len < UNCACHED_BYTES || head > len {
        // SAFETY: the condition of this function.
        return unsafe { ptr::write_bytes(at.as_ptr(), 0, len) };
    }
    let lines = (len - head) / LINE;
    let tail = len - head - lines * LINE;
    // SAFETY: `head`, `lines` and `tail` divide the bytes, all of which the condition of this
    // function covers. The lines begin at a multiple of 64. Every x86-64 has SSE2.
    unsafe {
        ptr::write_bytes(at.as_ptr(), 0, head);
        let first = at.as_ptr().add(head);
        for line in 0..lines {
            let line: *mut __m128i = first.add(line * LINE).cast();
            for part in 0..LINE / size_of::<__m128i>() {
                _mm_stream_si128(line.add(part), _mm_setzero_si128());
            }
        }
        // Streaming stores are not ordered by the release that frees the range.
        _mm_sfence();
        ptr::write_bytes(first.add(lines * LINE), 0, tail);
    }
}

/// Sets bytes to zero.
///
/// # Safety
/// The bytes are mapped for writing, and nothing else uses them.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn clear_uncached(at: NonNull<u8>, len: usize) {
    // SAFETY: the condition of this function.
    unsafe { ptr::write_bytes(at.as_ptr(), 0, len) }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn zeros_end_where_the_range_does() {
        const AROUND: usize = 70;
        for len in [0, 1, 63, 64, 65, UNCACHED - 1, UNCACHED, UNCACHED + 1, UNCACHED + 127] {
            for start in 0..AROUND {
                let mut bytes = vec![0xa5u8; start + len + AROUND];
                let at = NonNull::from(&mut bytes[start..start + len]).cast::<u8>();
                // SAFETY: the bytes lie in the vector, which nothing else uses.
                unsafe { clear_uncached(at, len) };
                let wrong = bytes.iter().enumerate().position(|(index, byte)| {
                    *byte != if (start..start + len).contains(&index) { 0 } else { 0xa5 }
                });
                assert_eq!(wrong, None, "{len} bytes from {start} on");
            }
        }
    }

    #[cfg(target_arch = "x86_64")]
    const UNCACHED: usize = UNCACHED_BYTES;
    #[cfg(not(target_arch = "x86_64"))]
    const UNCACHED: usize = 64 << 10;
}
