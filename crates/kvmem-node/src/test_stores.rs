//! *Stores* to memory that outlives a process, for tests: each prefix of them must be a valid
//! state.
//!
//! The stores to the index file go through [`note`]. The words of rings and of sessions are the
//! atomics of this module, whose stores are noted in the same order.

use std::cell::RefCell;
use std::sync::atomic::{self, Ordering};

/// An effect of this thread on other processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// A word of the index file became `after`.
    Index { address: usize, before: u64, after: u64 },
    /// A word of a session or a ring, of `bytes` bytes, became `after`.
    Word { address: usize, bytes: usize, before: u64, after: u64 },
    /// Bytes of the memory changed, which were these before.
    Memory { address: usize, before: Box<[u8]> },
    /// A packet was sent by the simulated socket of this number.
    Packet { socket: u64 },
}

impl Effect {
    /// Returns whether it is a store of the value that the word had.
    #[cfg(not(loom))]
    pub(crate) fn changes_nothing(&self) -> bool {
        match self {
            Effect::Index { before, after, .. } | Effect::Word { before, after, .. } => {
                before == after
            }
            Effect::Memory { .. } | Effect::Packet { .. } => false,
        }
    }
}

thread_local! {
    /// The effects of this thread since the recording began, if it did.
    static EFFECTS: RefCell<Option<Vec<Effect>>> = const { RefCell::new(None) };
}

/// Adds an effect to those of this thread, before it happens.
pub(crate) fn add(effect: impl FnOnce() -> Effect) {
    EFFECTS.with_borrow_mut(|effects| {
        if let Some(effects) = effects {
            effects.push(effect());
        }
    });
}

/// Notes a store to the index file, before it is made.
pub(crate) fn note(cell: &atomic::AtomicU64, value: u64) {
    add(|| Effect::Index {
        address: std::ptr::from_ref(cell).addr(),
        before: cell.load(Ordering::Relaxed),
        after: value,
    });
}

/// Notes a change of bytes, before it is made.
///
/// # Safety
/// The bytes can be read.
pub(crate) unsafe fn note_bytes(first: *const u8, len: usize) {
    add(|| {
        // SAFETY: the caller says that the bytes can be read.
        let before = unsafe { std::slice::from_raw_parts(first, len) };
        Effect::Memory { address: first.expose_provenance(), before: before.into() }
    });
}

/// Runs `calls`, and returns the effects that they had.
pub(crate) fn effects_of<R>(calls: impl FnOnce() -> R) -> (R, Vec<Effect>) {
    let outer = EFFECTS.replace(Some(Vec::new()));
    let result = calls();
    (result, EFFECTS.replace(outer).expect("the recording has begun"))
}

/// Runs `calls`, and returns the stores to the files that they made: addresses and words.
pub(crate) fn record(calls: impl FnOnce()) -> Vec<(usize, u64)> {
    let ((), effects) = effects_of(calls);
    let store = |effect| match effect {
        Effect::Index { address, after, .. } | Effect::Word { address, after, .. } => {
            Some((address, after))
        }
        Effect::Memory { .. } | Effect::Packet { .. } => None,
    };
    effects.into_iter().filter_map(store).collect()
}

macro_rules! noted {
    ($name:ident, $number:ty) => {
        /// The standard atomic, whose stores are noted.
        #[derive(Debug, Default)]
        #[repr(transparent)]
        pub(crate) struct $name(atomic::$name);

        impl $name {
            pub(crate) fn load(&self, order: Ordering) -> $number {
                self.0.load(order)
            }

            pub(crate) fn store(&self, value: $number, order: Ordering) {
                self.note(value);
                self.0.store(value, order);
            }

            fn note(&self, value: $number) {
                add(|| Effect::Word {
                    address: std::ptr::from_ref(self).addr(),
                    bytes: size_of::<$number>(),
                    before: self.load(Ordering::Relaxed).into(),
                    after: value.into(),
                });
            }
        }
    };
}

noted!(AtomicU32, u32);
noted!(AtomicU64, u64);

impl AtomicU32 {
    pub(crate) fn swap(&self, value: u32, order: Ordering) -> u32 {
        self.note(value);
        self.0.swap(value, order)
    }
}

impl AtomicU64 {
    pub(crate) const fn new(value: u64) -> AtomicU64 {
        AtomicU64(atomic::AtomicU64::new(value))
    }
}
