//! *Prefetch*: a cache line is fetched before it is read, so that several misses overlap.

/// Starts to fetch the cache line at an address. A hint: any address is safe, and nothing is read.
#[inline(always)]
pub(crate) fn prefetch<T>(at: *const T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: the instruction reads nothing and never faults, whatever the address is, and
        // every processor of this architecture has it.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) };
    }
    #[cfg(any(not(target_arch = "x86_64"), miri))]
    let _ = at;
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::prefetch;

    #[test]
    fn any_address_is_safe() {
        prefetch(&1u64);
        prefetch(std::ptr::null::<u64>());
        prefetch(std::ptr::without_provenance::<u8>(usize::MAX));
    }
}
