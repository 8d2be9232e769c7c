//! *Table*: the objects of one type, found by handles that may be any bits.
//!
//! A caller may pass NULL, a destroyed handle, a handle of another type, or any other bits. A
//! handle is therefore not an address but a number in the type of a pointer:
//!
//! ```text
//!   63 62 | 61       60     | 59..56 | 55..24     | 23..0
//!    1  1 | poisoned closed | kind   | generation | slot
//! ```
//!
//! Its bits 63 and 61 differ, so no processor accepts it as an address: a program that dereferences
//! it faults at once. The slot is looked up in an [append-only table](kvmem::Stable), which is
//! never unmapped. A slot stores the handle of its object, or 0. Finding an object is therefore a
//! bounds check, a load and a compare, without a lock and without a store. The two upper flags
//! never occur in a handle, only in a slot's word: the handle then does not compare equal, and the
//! slow path determines the reason. Both flags together say that the object belongs to the process
//! that this one was [forked](crate::fork) from.
//!
//! Free slots form a stack. Each free slot stores the next one. One word stores the top and the
//! number of changes, so a delayed thread cannot mistake an old top for the current one. There is
//! no lock: a program may fork while another thread makes or destroys objects, and the child's
//! table is consistent, except that the slot of that thread may be lost.
//!
//! A generation is reused after 2^32 objects in one slot.
//!
//! The caller must not destroy an object while another thread uses it, as with `free`. If two
//! threads destroy the same object, one of them gets KVMEM_ERR_BAD_HANDLE.

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use kvmem::{AppendOnlyTable, FIRST};

use crate::error::{BadHandle, CallError};
use crate::fork::{self, ForkScope};

const SLOT_BITS: u32 = 24;
const GENERATION_BITS: u32 = 32;
const KIND_SHIFT: u32 = SLOT_BITS + GENERATION_BITS;
const MARK: u64 = 0b11 << 62;
const POISONED: u64 = 1 << 61;
const CLOSED: u64 = 1 << 60;
const FORKED: u64 = POISONED | CLOSED;

/// In the word of the free slots: no free slot.
const NONE: u32 = 1 << SLOT_BITS;
/// One change, in the word of the free slots: the bits above the top count changes.
const CHANGE: u64 = 2 << SLOT_BITS;

/// The type of object that a handle names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Region = 1,
    Bump,
    Registrars,
    Registration,
    Background,
    Offset,
    Slab,
    Pool,
    Attached,
    Cache,
    Pin,
    Reservation,
    CancelToken,
    Lease,
}

impl Kind {
    /// Returns the name of the type, if the bits have the form of a handle.
    pub(crate) fn of(bits: u64) -> Option<&'static str> {
        const NAMES: [&str; 14] = [
            "kvmem_region",
            "kvmem_bump_arena",
            "kvmem_registrars",
            "kvmem_registration",
            "kvmem_background_registration",
            "kvmem_offset_allocator",
            "kvmem_slab_allocator",
            "kvmem_pool",
            "kvmem_attached_pool",
            "kvmem_kv_cache",
            "kvmem_kv_cache_pin",
            "kvmem_kv_cache_reservation",
            "kvmem_cancel",
            "kvmem_kv_cache_lease",
        ];
        let kind = (bits >> KIND_SHIFT & 0xf) as usize;
        NAMES
            .get(kind.checked_sub(1)?)
            .copied()
            .filter(|_| bits & (MARK | POISONED | CLOSED) == MARK)
    }
}

/// A C type that stands for a Rust object. No value of it exists: a pointer to it is a handle.
pub(crate) trait Object: Sized + 'static {
    type Value: Send + Sync + 'static;
    const KIND: Kind;
    fn table() -> &'static HandleTable<Self>;
    /// Returns what a forked child inherits of an object.
    fn home(value: &Self::Value) -> ForkScope;
}

/// Declares which Rust objects a C type stands for, and what a forked child inherits of them; by
/// default, nothing.
macro_rules! object {
    ($name:ident, $value:ty, $kind:ident) => {
        object!($name, $value, $kind, |_: &$value| crate::fork::ForkScope::ParentOnly);
    };
    ($name:ident, $value:ty, $kind:ident, $home:expr) => {
        impl crate::table::Object for $name {
            type Value = $value;
            const KIND: crate::table::Kind = crate::table::Kind::$kind;

            #[inline(always)]
            fn table() -> &'static crate::table::HandleTable<Self> {
                static TABLE: crate::table::HandleTable<$name> = crate::table::HandleTable::new();
                &TABLE
            }

            fn home(value: &$value) -> crate::fork::ForkScope {
                let home: fn(&$value) -> crate::fork::ForkScope = $home;
                home(value)
            }
        }
    };
}
pub(crate) use object;

struct Slot<V> {
    /// The handle of this slot's object, with the flags; 0: no object.
    word: AtomicU64,
    /// Initialized if `word` is not 0.
    value: UnsafeCell<MaybeUninit<V>>,
    /// The last handle of this slot. Written by the thread that took the slot from the free ones.
    last: AtomicU64,
    /// The object's [`ForkScope`], as a word. Written by the thread that took the slot.
    home: AtomicUsize,
    /// The next free slot, or [`NONE`], while this one is free.
    below: AtomicU32,
}

// SAFETY: values are `Send + Sync` (`Object::Value`). A value is written before its handle is
// known, and taken by the one thread that takes the handle from `word`.
unsafe impl<V: Send + Sync> Sync for Slot<V> {}

impl<V> Slot<V> {
    const fn new() -> Self {
        Slot {
            word: AtomicU64::new(0),
            value: UnsafeCell::new(MaybeUninit::uninit()),
            last: AtomicU64::new(0),
            home: AtomicUsize::new(0),
            below: AtomicU32::new(NONE),
        }
    }
}

/// The objects of one type.
pub(crate) struct HandleTable<T: Object> {
    slots: AppendOnlyTable<Slot<T::Value>>,
    /// The top of the free slots, or [`NONE`], and the number of changes.
    free: AtomicU64,
    /// The number of slots that were ever in use.
    used: AtomicU32,
}

impl<T: Object> HandleTable<T> {
    pub(crate) const fn new() -> Self {
        HandleTable {
            slots: AppendOnlyTable::new([const { Slot::new() }; FIRST], Slot::new),
            free: AtomicU64::new(NONE as u64),
            used: AtomicU32::new(0),
        }
    }

    /// Adds an object and returns its handle.
    pub(crate) fn insert(&self, value: T::Value) -> Result<*mut T, CallError> {
        fork::install_handler();
        let index =
            self.pop().or_else(|| self.fresh()).ok_or(CallError::TooManyObjects(1 << SLOT_BITS))?;
        let slot = self.slots.get(index);
        // Relaxed, both: this thread owns the slot; it came through `pop`, which acquires.
        let generation = (slot.last.load(Ordering::Relaxed) >> SLOT_BITS) as u32;
        let bits = MARK
            | (T::KIND as u64) << KIND_SHIFT
            | u64::from(generation.wrapping_add(1)) << SLOT_BITS
            | u64::from(index);
        slot.last.store(bits, Ordering::Relaxed);
        slot.home.store(T::home(&value).to_word(), Ordering::Relaxed);
        // SAFETY: the slot is free, and only this thread owns it.
        unsafe { (*slot.value.get()).write(value) };
        // Release pairs with the Acquire in `get` and `take`.
        slot.word.store(bits, Ordering::Release);
        Ok(std::ptr::without_provenance_mut(bits as usize))
    }

    /// Takes a slot that was never in use.
    fn fresh(&self) -> Option<u32> {
        let next = |used: u32| (used < NONE).then_some(used + 1);
        // Relaxed: no thread has written to the slot.
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).ok()
    }

    /// Takes a slot that was returned.
    fn pop(&self) -> Option<u32> {
        // Acquire, here and below, pairs with the Release in `push`: all earlier use of the slot is
        // complete, and its `below` is visible.
        let mut free = self.free.load(Ordering::Acquire);
        loop {
            let index = top(free);
            if index == NONE {
                return None;
            }
            // Relaxed: if another thread takes the slot and writes here, `free` has changed.
            let below = self.slots.get(index).below.load(Ordering::Relaxed);
            match self.free.compare_exchange_weak(
                free,
                changed(free, below),
                Ordering::Acquire,
                Ordering::Acquire,
            ) {
                Ok(_) => return Some(index),
                Err(now) => free = now,
            }
        }
    }

    /// Returns a slot.
    fn push(&self, index: u32) {
        let slot = self.slots.get(index);
        // Relaxed: only compared below.
        let mut free = self.free.load(Ordering::Relaxed);
        loop {
            // Relaxed: the Release below publishes it.
            slot.below.store(top(free), Ordering::Relaxed);
            // Release pairs with the Acquire in `pop`. Relaxed on failure: the value is only
            // compared again.
            match self.free.compare_exchange_weak(
                free,
                changed(free, index),
                Ordering::Release,
                Ordering::Relaxed,
            ) {
                Ok(_) => return,
                Err(now) => free = now,
            }
        }
    }

    /// Returns the object of a handle.
    ///
    /// The caller must not destroy the object during the call that uses it.
    #[inline(always)]
    pub(crate) fn get(&self, handle: *const T) -> Result<&T::Value, CallError> {
        self.find(handle).ok_or_else(|| self.explain(handle.addr() as u64))
    }

    /// Returns the object of a valid handle. Does not determine why a handle is not valid.
    #[inline(always)]
    pub(crate) fn find(&self, handle: *const T) -> Option<&T::Value> {
        let bits = handle.addr() as u64;
        let slot = self.slots.find((bits & ((1 << SLOT_BITS) - 1)) as u32)?;
        // Acquire pairs with the Release in `insert`.
        if bits == 0 || slot.word.load(Ordering::Acquire) != bits {
            return None;
        }
        // SAFETY: the slot holds a value, since its word is not 0.
        Some(unsafe { (*slot.value.get()).assume_init_ref() })
    }

    /// Returns the object of a handle, also if it is closed.
    pub(crate) fn get_even_closed(&self, handle: *const T) -> Result<&T::Value, CallError> {
        match self.get(handle) {
            // Acquire pairs with the Release in `insert`.
            Err(error) => match self.slot(handle) {
                Some(slot)
                    if slot.word.load(Ordering::Acquire) == handle.addr() as u64 | CLOSED =>
                {
                    // SAFETY: the slot holds a value, since its word is not 0.
                    Ok(unsafe { (*slot.value.get()).assume_init_ref() })
                }
                _ => Err(error),
            },
            found => found,
        }
    }

    /// Takes the object out of the table; its handle is no longer valid.
    pub(crate) fn take(&self, handle: *const T) -> Result<T::Value, CallError> {
        let bits = handle.addr() as u64;
        let slot = self.slot(handle).ok_or_else(|| self.explain(bits))?;
        let from = |word| {
            // Acquire pairs with the Release in `insert`. Relaxed on failure: the value is not
            // read.
            slot.word.compare_exchange(word, 0, Ordering::Acquire, Ordering::Relaxed).is_ok()
        };
        if !(from(bits) || from(bits | POISONED)) {
            return Err(self.explain(bits));
        }
        Ok(self.empty(slot, bits))
    }

    /// Destroys the object. If it belongs to the parent of this process, only its handle is
    /// dropped.
    pub(crate) fn destroy(&self, handle: *const T) -> Result<(), CallError> {
        match self.take(handle) {
            Err(CallError::Forked(_)) => self.drop_handle(handle),
            taken => taken.map(drop),
        }
    }

    /// Drops the handle of an object that belongs to the parent of this process. Other handles are
    /// an error.
    pub(crate) fn drop_handle(&self, handle: *const T) -> Result<(), CallError> {
        let bits = handle.addr() as u64;
        let slot = self.slot(handle).ok_or_else(|| self.explain(bits))?;
        // Relaxed, both: the value is neither read nor dropped.
        if slot
            .word
            .compare_exchange(bits | FORKED, 0, Ordering::Relaxed, Ordering::Relaxed)
            .is_err()
        {
            return Err(self.explain(bits));
        }
        self.push((bits & ((1 << SLOT_BITS) - 1)) as u32);
        Ok(())
    }

    /// Marks every object that this process, which was just forked, does not have. O(objects).
    pub(crate) fn mark_forked(&self) {
        // Relaxed, all: the process has one thread, the copy of the one that forked. A slot that
        // another thread was filling or emptying is lost to this process.
        let used = self.used.load(Ordering::Relaxed);
        for slot in (0..used).filter_map(|index| self.slots.find(index)) {
            let word = slot.word.load(Ordering::Relaxed);
            if word != 0 && !ForkScope::is_present(slot.home.load(Ordering::Relaxed)) {
                slot.word.store(word | FORKED, Ordering::Relaxed);
            }
        }
    }

    /// Takes a closed object out of the table; `None` if another thread did.
    pub(crate) fn take_closed(&self, handle: *const T) -> Option<T::Value> {
        let bits = handle.addr() as u64;
        let slot = self.slot(handle)?;
        // Acquire pairs with the Release in `insert`. Relaxed on failure: the value is not read.
        slot.word.compare_exchange(bits | CLOSED, 0, Ordering::Acquire, Ordering::Relaxed).ok()?;
        Some(self.empty(slot, bits))
    }

    /// Runs with exclusive access to the object, whose handle is closed meanwhile. The caller
    /// guarantees that no other thread is in a call on it, as for destroying it.
    pub(crate) fn exclusive(
        &self,
        handle: *const T,
        run: impl FnOnce(&mut T::Value) -> Result<(), CallError>,
    ) -> Result<(), CallError> {
        self.close(handle)?;
        let Some(slot) = self.slot(handle) else { return Err(self.explain(handle.addr() as u64)) };
        let bits = handle.addr() as u64;
        let done = catch_unwind(AssertUnwindSafe(|| {
            // SAFETY: the slot holds a value, and only this thread has closed it.
            run(unsafe { (*slot.value.get()).assume_init_mut() })
        }));
        // Release, both, pair with the Acquire in `get` and `take`.
        match done {
            Ok(done) => {
                slot.word.store(bits, Ordering::Release);
                done
            }
            Err(panic) => {
                slot.word.store(bits | POISONED, Ordering::Release);
                resume_unwind(panic)
            }
        }
    }

    /// Takes the object out of the table if `may` succeeds. Otherwise it stays unchanged.
    pub(crate) fn take_if(
        &self,
        handle: *const T,
        may: impl FnOnce(&mut T::Value) -> Result<(), CallError>,
    ) -> Result<T::Value, CallError> {
        self.exclusive(handle, may)?;
        // Between the two calls no other thread uses it: the caller's promise for functions that
        // take an object over.
        self.take(handle)
    }

    /// Takes the object out of the table and passes it to `run`. If `run` returns it with an error,
    /// the handle is valid again. The handle is closed meanwhile, as in `exclusive`. If `run`
    /// panics, the object is gone.
    pub(crate) fn take_unless(
        &self,
        handle: *const T,
        run: impl FnOnce(T::Value) -> Result<(), (T::Value, CallError)>,
    ) -> Result<(), CallError> {
        self.close(handle)?;
        let bits = handle.addr() as u64;
        let Some(slot) = self.slot(handle) else { return Err(self.explain(bits)) };
        // SAFETY: the slot holds a value, and only this thread has closed it.
        let value = unsafe { (*slot.value.get()).assume_init_read() };
        let done = catch_unwind(AssertUnwindSafe(|| run(value)));
        if let Ok(Err((value, error))) = done {
            // SAFETY: only this thread has closed the slot, and its old value was moved out above.
            unsafe { (*slot.value.get()).write(value) };
            // Release pairs with the Acquire in `get` and `take`.
            slot.word.store(bits, Ordering::Release);
            return Err(error);
        }
        // Relaxed: no value is left to read.
        slot.word.store(0, Ordering::Relaxed);
        self.push((bits & ((1 << SLOT_BITS) - 1)) as u32);
        match done {
            Ok(_) => Ok(()),
            Err(panic) => resume_unwind(panic),
        }
    }

    /// Moves the value out of a slot whose word this thread has set to 0.
    fn empty(&self, slot: &Slot<T::Value>, bits: u64) -> T::Value {
        // SAFETY: the slot held a value, and only this thread took it.
        let value = unsafe { (*slot.value.get()).assume_init_read() };
        self.push((bits & ((1 << SLOT_BITS) - 1)) as u32);
        value
    }

    /// Makes the handle invalid but keeps the object, for functions that accept closed ones.
    pub(crate) fn close(&self, handle: *const T) -> Result<(), CallError> {
        self.flag(handle, CLOSED)
    }

    /// Marks the object after a call on it has panicked: it can only be destroyed.
    pub(crate) fn poison(&self, handle: *const T) {
        // Another thread may have marked it first.
        let _ = self.flag(handle, POISONED);
    }

    fn flag(&self, handle: *const T, flag: u64) -> Result<(), CallError> {
        let bits = handle.addr() as u64;
        let slot = self.slot(handle).ok_or_else(|| self.explain(bits))?;
        // Acquire pairs with the Release in `insert`, for callers that go on to use the value.
        // Relaxed on failure: the value is not read.
        let flagged =
            slot.word.compare_exchange(bits, bits | flag, Ordering::Acquire, Ordering::Relaxed);
        flagged.map(drop).map_err(|_| self.explain(bits))
    }

    /// Returns the slot that a handle of this type names, whatever it holds.
    fn slot(&self, handle: *const T) -> Option<&Slot<T::Value>> {
        let bits = handle.addr() as u64;
        let kind = MARK | (T::KIND as u64) << KIND_SHIFT;
        let ours = bits & !((1 << KIND_SHIFT) - 1) == kind;
        self.slots.find((bits & ((1 << SLOT_BITS) - 1)) as u32).filter(|_| ours)
    }

    /// Determines why a handle is not valid.
    #[cold]
    #[inline(never)]
    fn explain(&self, bits: u64) -> CallError {
        let wanted = Kind::of(MARK | (T::KIND as u64) << KIND_SHIFT).unwrap_or("handle");
        if bits == 0 {
            return CallError::Null(wanted);
        }
        let handle = std::ptr::without_provenance::<T>(bits as usize);
        let why = match (self.slot(handle), Kind::of(bits)) {
            (None, Some(other)) if other != wanted => BadHandle::WrongType(other),
            // Relaxed: read only to give the reason.
            (Some(slot), _) if slot.word.load(Ordering::Relaxed) == bits | FORKED => {
                return CallError::Forked(wanted);
            }
            (Some(slot), _) if slot.word.load(Ordering::Relaxed) == bits | POISONED => {
                return CallError::Poisoned(wanted);
            }
            (Some(slot), _) if slot.word.load(Ordering::Relaxed) == bits | CLOSED => {
                BadHandle::Closed
            }
            (Some(slot), _) if slot.last.load(Ordering::Relaxed) >= bits => BadHandle::Destroyed,
            _ => BadHandle::Unknown,
        };
        CallError::Handle { wanted, bits, why }
    }
}

/// Returns the top slot in the word of the free slots.
fn top(free: u64) -> u32 {
    (free & (CHANGE - 1)) as u32
}

/// Returns the word after `free`, with another slot at the top.
fn changed(free: u64, top: u32) -> u64 {
    (free & !(CHANGE - 1)).wrapping_add(CHANGE) | u64::from(top)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Thing;
    object!(Thing, String, CancelToken, |_| ForkScope::Copied);

    fn why(error: CallError) -> BadHandle {
        match error {
            CallError::Handle { why, .. } => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_handle_is_valid_until_it_is_destroyed() {
        let table = Thing::table();
        let first = table.insert("first".into()).unwrap();
        let second = table.insert("second".into()).unwrap();
        assert_eq!(
            (table.get(first).unwrap().as_str(), table.get(second).unwrap().as_str()),
            ("first", "second")
        );
        assert_eq!(table.take(first).unwrap(), "first");
        assert_eq!(why(table.get(first).unwrap_err()), BadHandle::Destroyed);
        assert_eq!(why(table.take(first).unwrap_err()), BadHandle::Destroyed);
        let third = table.insert("third".into()).unwrap();
        assert_ne!(first, third);
        assert_eq!(why(table.get(first).unwrap_err()), BadHandle::Destroyed);

        assert!(matches!(table.get(std::ptr::null()), Err(CallError::Null(_))));
        for bits in [
            1_usize,
            0xdead_beef,
            usize::MAX,
            second.addr() | POISONED as usize,
            second.addr() + (1 << 23),
        ] {
            assert_eq!(
                why(table.get(std::ptr::without_provenance(bits)).unwrap_err()),
                BadHandle::Unknown,
                "{bits:#x}"
            );
            assert!(table.take(std::ptr::without_provenance(bits)).is_err());
        }
        let other =
            second.addr() ^ ((Kind::CancelToken as usize ^ Kind::Region as usize) << KIND_SHIFT);
        assert_eq!(
            why(table.get(std::ptr::without_provenance(other)).unwrap_err()),
            BadHandle::WrongType("kvmem_region")
        );

        table.close(second).unwrap();
        assert!(
            table.get(second).is_err()
                && table.close(second).is_err()
                && table.take(second).is_err()
        );
        assert_eq!(table.get_even_closed(second).unwrap(), "second");
        assert_eq!(table.take_closed(second).unwrap(), "second");
        assert!(table.take_closed(second).is_none());

        table.poison(third);
        assert!(matches!(table.get(third), Err(CallError::Poisoned(_))));
        assert_eq!(table.take(third).unwrap(), "third");
    }

    #[test]
    fn destroying_a_forked_object_drops_only_its_handle() {
        struct Mine;
        object!(Mine, std::sync::Arc<()>, CancelToken);
        static TABLE: HandleTable<Mine> = HandleTable::new();
        let value = std::sync::Arc::new(());
        let handle = TABLE.insert(value.clone()).unwrap();
        let (poisoned, closed) =
            (TABLE.insert(value.clone()).unwrap(), TABLE.insert(value.clone()).unwrap());
        TABLE.poison(poisoned);
        TABLE.close(closed).unwrap();
        TABLE.mark_forked();
        for handle in [handle, poisoned, closed] {
            assert!(matches!(TABLE.get(handle), Err(CallError::Forked(_))));
            assert!(matches!(TABLE.take(handle), Err(CallError::Forked(_))));
            assert!(matches!(TABLE.exclusive(handle, |_| Ok(())), Err(CallError::Forked(_))));
            assert!(TABLE.get_even_closed(handle).is_err() && TABLE.take_closed(handle).is_none());
            assert!(TABLE.destroy(handle).is_ok());
            assert_eq!(why(TABLE.destroy(handle).unwrap_err()), BadHandle::Destroyed);
        }
        // No value was dropped, and the slots can be reused.
        assert_eq!(std::sync::Arc::strong_count(&value), 4);
        let fresh = TABLE.insert(value).unwrap();
        assert!(
            TABLE.get(fresh).is_ok()
                && TABLE.drop_handle(fresh).is_err()
                && TABLE.destroy(fresh).is_ok()
        );
    }

    #[test]
    fn an_object_that_is_returned_keeps_its_handle() {
        let table = Thing::table();
        let handle = table.insert("first".into()).unwrap();
        let returned = table.take_unless(handle, |mut thing| {
            assert_eq!(why(table.get(handle).unwrap_err()), BadHandle::Closed);
            assert!(table.take(handle).is_err() && table.take_unless(handle, |_| Ok(())).is_err());
            thing.push_str(", given back");
            Err((thing, CallError::NotFound))
        });
        assert!(matches!(returned, Err(CallError::NotFound)));
        assert_eq!(table.get(handle).unwrap(), "first, given back");
        table
            .take_unless(handle, |thing| {
                assert_eq!(thing, "first, given back");
                Ok(())
            })
            .unwrap();
        assert_eq!(why(table.get(handle).unwrap_err()), BadHandle::Destroyed);
        assert!(table.take_unless(handle, |_| panic!("it is gone")).is_err());

        let panicking = table.insert("second".into()).unwrap();
        let panicked =
            catch_unwind(AssertUnwindSafe(|| table.take_unless(panicking, |_| panic!("no more"))));
        assert!(panicked.is_err());
        assert_eq!(why(table.take(panicking).unwrap_err()), BadHandle::Destroyed);
    }

    #[test]
    fn threads_insert_and_take_at_once() {
        let make = || {
            let handles: Vec<usize> =
                (0..500).map(|n| Thing::table().insert(n.to_string()).unwrap().addr()).collect();
            for (n, bits) in handles.iter().enumerate() {
                let handle = std::ptr::without_provenance::<Thing>(*bits);
                assert_eq!(Thing::table().get(handle).unwrap(), &n.to_string());
                assert_eq!(Thing::table().take(handle).unwrap(), n.to_string());
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(make);
            }
        });
    }
}
