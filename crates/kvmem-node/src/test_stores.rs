//! *Prefixes* of the stores to an index file, for tests: each one must be a valid state.

use std::cell::RefCell;
use std::sync::atomic::AtomicU64;

thread_local! {
    /// The stores of this thread since the recording began, if it did.
    static STORES: RefCell<Option<Vec<(usize, u64)>>> = const { RefCell::new(None) };
}

/// Notes a store, before it is made.
pub(crate) fn note(cell: &AtomicU64, value: u64) {
    STORES.with_borrow_mut(|stores| {
        if let Some(stores) = stores {
            stores.push((std::ptr::from_ref(cell).addr(), value));
        }
    });
}

/// Runs `calls`, and returns the stores that they made: addresses and words.
pub(crate) fn record(calls: impl FnOnce()) -> Vec<(usize, u64)> {
    STORES.set(Some(Vec::new()));
    calls();
    STORES.take().expect("the recording has begun")
}
