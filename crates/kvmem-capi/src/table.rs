//! *Table*: the objects of one kind, by handles that can be anything.
//!
//! A caller may hand over NULL, an object that was destroyed, one of another kind, or any bits at
//! all; so a handle is no address. It is a number that has the type of a pointer:
//!
//! ```text
//!   63 62 | 61       60     | 59..56 | 55..24     | 23..0
//!    1  1 | poisoned closed | kind   | generation | slot
//! ```
//!
//! Its bits 63 and 61 differ, so that no processor takes it for an address: who follows it is
//! stopped at once. The slot is looked up in a [table that only grows](kvmem::Stable) and is never
//! unmapped; the slot bears the number of whom it holds, or 0. So to find an object is a bounds
//! check, a load and a compare: no lock, and nothing is written. The two upper flags are never in a
//! handle, only in a slot's word: then the handle does not compare equal, and the slow path says
//! why. Both together say that the object is that of the process that this one was
//! [forked](crate::fork) from.
//!
//! Free slots are a stack: each bears the next, and the top stands in one word with the number of
//! changes, so that a thread that was kept waiting does not take an old top for the new one. There
//! is no lock: a program may fork while another thread makes or destroys objects, and the child has
//! the table whole, but perhaps for the slot that the other thread was at.
//!
//! A generation is used again after 2^32 objects of one slot.
//!
//! Destroying an object while another thread uses it is the caller's to prevent, as with `free`.
//! Two threads that destroy the same object are told apart: one of them gets KVMEM_BAD_HANDLE.

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use kvmem::{FIRST, Stable};

use crate::fail::{BadHandle, Fail};
use crate::fork::{self, Home};

const SLOT_BITS: u32 = 24;
const GENERATION_BITS: u32 = 32;
const KIND_SHIFT: u32 = SLOT_BITS + GENERATION_BITS;
const MARK: u64 = 0b11 << 62;
const POISONED: u64 = 1 << 61;
const CLOSED: u64 = 1 << 60;
const FORKED: u64 = POISONED | CLOSED;

/// In the word of the free slots, where there is none.
const NONE: u32 = 1 << SLOT_BITS;
/// What that word has above the top: how often it was changed.
const CHANGE: u64 = 2 << SLOT_BITS;

/// What a handle can stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Region = 1,
    Bump,
    Registrars,
    Registration,
    Background,
    Offset,
    Slice,
    Pool,
    Attached,
    Cache,
    Pin,
    Reservation,
    CancelToken,
    Lease,
}

impl Kind {
    /// What the bits say, if they are those of a handle at all.
    pub(crate) fn of(bits: u64) -> Option<&'static str> {
        const NAMES: [&str; 14] = [
            "kvmem_region",
            "kvmem_bump_arena",
            "kvmem_registrars",
            "kvmem_registration",
            "kvmem_background",
            "kvmem_offset_allocator",
            "kvmem_slice_allocator",
            "kvmem_pool",
            "kvmem_attached_pool",
            "kvmem_kv_cache",
            "kvmem_kv_pin",
            "kvmem_kv_reservation",
            "kvmem_cancel",
            "kvmem_kv_lease",
        ];
        let kind = (bits >> KIND_SHIFT & 0xf) as usize;
        NAMES
            .get(kind.checked_sub(1)?)
            .copied()
            .filter(|_| bits & (MARK | POISONED | CLOSED) == MARK)
    }
}

/// A type of C that stands for an object of Rust. Never made: a pointer to it is a handle.
pub(crate) trait Object: Sized + 'static {
    type Value: Send + Sync + 'static;
    const KIND: Kind;
    fn table() -> &'static Table<Self>;
    /// What a forked child has of one.
    fn home(value: &Self::Value) -> Home;
}

/// Says which objects a type of C stands for, and what a forked child has of them: nothing, if
/// nothing is said.
macro_rules! object {
    ($name:ident, $value:ty, $kind:ident) => {
        object!($name, $value, $kind, |_: &$value| crate::fork::Home::Process);
    };
    ($name:ident, $value:ty, $kind:ident, $home:expr) => {
        impl crate::table::Object for $name {
            type Value = $value;
            const KIND: crate::table::Kind = crate::table::Kind::$kind;

            #[inline(always)]
            fn table() -> &'static crate::table::Table<Self> {
                static TABLE: crate::table::Table<$name> = crate::table::Table::new();
                &TABLE
            }

            fn home(value: &$value) -> crate::fork::Home {
                let home: fn(&$value) -> crate::fork::Home = $home;
                home(value)
            }
        }
    };
}
pub(crate) use object;

struct Slot<V> {
    /// The handle of what is here, with the flags; 0: nothing.
    word: AtomicU64,
    /// There is a value if `word` is not 0.
    value: UnsafeCell<MaybeUninit<V>>,
    /// The last handle given out. Written by who has taken the slot from the free ones.
    last: AtomicU64,
    /// Where the value lives, as a word. Written by who has taken the slot, too.
    home: AtomicUsize,
    /// The free slot below it, or [`NONE`], while it is free.
    below: AtomicU32,
}

// SAFETY: values are `Send + Sync` (`Object::Value`). One is written before its handle is known,
// and taken by the one thread that takes the handle from `word`.
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

/// The objects of one kind.
pub(crate) struct Table<T: Object> {
    slots: Stable<Slot<T::Value>>,
    /// The topmost free slot, or [`NONE`], and how often it has changed.
    free: AtomicU64,
    /// Slots that were ever in use.
    used: AtomicU32,
}

impl<T: Object> Table<T> {
    pub(crate) const fn new() -> Self {
        Table {
            slots: Stable::new([const { Slot::new() }; FIRST], Slot::new),
            free: AtomicU64::new(NONE as u64),
            used: AtomicU32::new(0),
        }
    }

    /// Takes an object in.
    pub(crate) fn insert(&self, value: T::Value) -> Result<*mut T, Fail> {
        fork::watch();
        let index =
            self.pop().or_else(|| self.fresh()).ok_or(Fail::TooManyObjects(1 << SLOT_BITS))?;
        let slot = self.slots.get(index);
        // Relaxed, both: the slot is this thread's, and came to it by `pop`, which acquires.
        let generation = (slot.last.load(Ordering::Relaxed) >> SLOT_BITS) as u32;
        let bits = MARK
            | (T::KIND as u64) << KIND_SHIFT
            | u64::from(generation.wrapping_add(1)) << SLOT_BITS
            | u64::from(index);
        slot.last.store(bits, Ordering::Relaxed);
        slot.home.store(T::home(&value).to_word(), Ordering::Relaxed);
        // SAFETY: the slot is free, and was given to this thread alone.
        unsafe { (*slot.value.get()).write(value) };
        // Release pairs with the Acquire in `get` and `take`.
        slot.word.store(bits, Ordering::Release);
        Ok(std::ptr::without_provenance_mut(bits as usize))
    }

    /// A slot that was never in use.
    fn fresh(&self) -> Option<u32> {
        let next = |used: u32| (used < NONE).then_some(used + 1);
        // Relaxed: nobody has written to it.
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).ok()
    }

    /// A slot that was given back.
    fn pop(&self) -> Option<u32> {
        // Acquire, here and below, pairs with the Release in `push`: what was done with the slot is
        // over, and what lies below it is known.
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

    /// Gives a slot back.
    fn push(&self, index: u32) {
        let slot = self.slots.get(index);
        // Relaxed: only compared below.
        let mut free = self.free.load(Ordering::Relaxed);
        loop {
            // Relaxed: the Release below makes it known.
            slot.below.store(top(free), Ordering::Relaxed);
            // Release pairs with the Acquire in `pop`; Relaxed: as above.
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

    /// The object of a handle.
    ///
    /// It is good as long as nobody destroys the object, which is the caller's to prevent while a
    /// call is going on.
    #[inline(always)]
    pub(crate) fn get(&self, handle: *const T) -> Result<&T::Value, Fail> {
        self.find(handle).ok_or_else(|| self.explain(handle.addr() as u64))
    }

    /// The object of a handle, if it is good: without a word on why not.
    #[inline(always)]
    pub(crate) fn find(&self, handle: *const T) -> Option<&T::Value> {
        let bits = handle.addr() as u64;
        let slot = self.slots.find((bits & ((1 << SLOT_BITS) - 1)) as u32)?;
        // Acquire pairs with the Release in `insert`.
        if bits == 0 || slot.word.load(Ordering::Acquire) != bits {
            return None;
        }
        // SAFETY: it holds a value, since its word is not 0.
        Some(unsafe { (*slot.value.get()).assume_init_ref() })
    }

    /// As `get`, also if it was closed.
    pub(crate) fn get_even_closed(&self, handle: *const T) -> Result<&T::Value, Fail> {
        match self.get(handle) {
            // Acquire pairs with the Release in `insert`.
            Err(fail) => match self.slot(handle) {
                Some(slot)
                    if slot.word.load(Ordering::Acquire) == handle.addr() as u64 | CLOSED =>
                {
                    // SAFETY: as in `get`.
                    Ok(unsafe { (*slot.value.get()).assume_init_ref() })
                }
                _ => Err(fail),
            },
            found => found,
        }
    }

    /// The object, taken out: its handle is good no more.
    pub(crate) fn take(&self, handle: *const T) -> Result<T::Value, Fail> {
        let bits = handle.addr() as u64;
        let slot = self.slot(handle).ok_or_else(|| self.explain(bits))?;
        let from = |word| {
            // Acquire pairs with the Release in `insert`. Relaxed: nothing is read then.
            slot.word.compare_exchange(word, 0, Ordering::Acquire, Ordering::Relaxed).is_ok()
        };
        if !(from(bits) || from(bits | POISONED)) {
            return Err(self.explain(bits));
        }
        Ok(self.empty(slot, bits))
    }

    /// Destroys the object. What is the parent's of this process is forgotten, and stays as it is.
    pub(crate) fn destroy(&self, handle: *const T) -> Result<(), Fail> {
        match self.take(handle) {
            Err(Fail::Forked(_)) => self.forget(handle),
            taken => taken.map(drop),
        }
    }

    /// Lets go of the handle of an object that is the parent's of this process, and of nothing
    /// else.
    pub(crate) fn forget(&self, handle: *const T) -> Result<(), Fail> {
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

    /// Marks every object that this process, which was forked just now, does not have. O(objects).
    pub(crate) fn mark_forked(&self) {
        // Relaxed, all: the process has one thread, which is the copy of the one that forked. A
        // slot that another thread was just filling or emptying is lost to this process.
        let used = self.used.load(Ordering::Relaxed);
        for slot in (0..used).filter_map(|index| self.slots.find(index)) {
            let word = slot.word.load(Ordering::Relaxed);
            if word != 0 && !Home::is_here(slot.home.load(Ordering::Relaxed)) {
                slot.word.store(word | FORKED, Ordering::Relaxed);
            }
        }
    }

    /// Takes out what was closed; `None` if another thread did.
    pub(crate) fn take_closed(&self, handle: *const T) -> Option<T::Value> {
        let bits = handle.addr() as u64;
        let slot = self.slot(handle)?;
        // As in `take`.
        slot.word.compare_exchange(bits | CLOSED, 0, Ordering::Acquire, Ordering::Relaxed).ok()?;
        Some(self.empty(slot, bits))
    }

    /// Runs with the object alone. Its handle is closed meanwhile; that no other thread is in the
    /// middle of a call on it is the caller's to see to, as for destroying it.
    pub(crate) fn exclusive(
        &self,
        handle: *const T,
        run: impl FnOnce(&mut T::Value) -> Result<(), Fail>,
    ) -> Result<(), Fail> {
        self.close(handle)?;
        let Some(slot) = self.slot(handle) else { return Err(self.explain(handle.addr() as u64)) };
        let bits = handle.addr() as u64;
        // SAFETY: it holds a value, and this thread alone has closed it.
        let done = catch_unwind(AssertUnwindSafe(|| {
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

    /// The object, taken out if `may` says so. Otherwise it is as before.
    pub(crate) fn take_if(
        &self,
        handle: *const T,
        may: impl FnOnce(&mut T::Value) -> Result<(), Fail>,
    ) -> Result<T::Value, Fail> {
        self.exclusive(handle, may)?;
        // Between the two nobody else uses it: the caller's promise for what takes an object.
        self.take(handle)
    }

    /// The object, taken out and handed to `run`, unless that gives it back: then its handle is
    /// good as before. Closed meanwhile, as in `exclusive`. If `run` panics it is gone.
    pub(crate) fn take_unless(
        &self,
        handle: *const T,
        run: impl FnOnce(T::Value) -> Result<(), (T::Value, Fail)>,
    ) -> Result<(), Fail> {
        self.close(handle)?;
        let bits = handle.addr() as u64;
        let Some(slot) = self.slot(handle) else { return Err(self.explain(bits)) };
        // SAFETY: it holds a value, and this thread alone has closed it.
        let value = unsafe { (*slot.value.get()).assume_init_read() };
        let done = catch_unwind(AssertUnwindSafe(|| run(value)));
        if let Ok(Err((value, fail))) = done {
            // SAFETY: as above; what was there has been read.
            unsafe { (*slot.value.get()).write(value) };
            // Release pairs with the Acquire in `get` and `take`.
            slot.word.store(bits, Ordering::Release);
            return Err(fail);
        }
        // Relaxed: there is nothing to be read.
        slot.word.store(0, Ordering::Relaxed);
        self.push((bits & ((1 << SLOT_BITS) - 1)) as u32);
        match done {
            Ok(_) => Ok(()),
            Err(panic) => resume_unwind(panic),
        }
    }

    /// What is in a slot whose word this thread has made 0.
    fn empty(&self, slot: &Slot<T::Value>, bits: u64) -> T::Value {
        // SAFETY: there was a value, and this thread alone has taken it.
        let value = unsafe { (*slot.value.get()).assume_init_read() };
        self.push((bits & ((1 << SLOT_BITS) - 1)) as u32);
        value
    }

    /// The handle is good no more, but the object stays, for those who ask for closed ones.
    pub(crate) fn close(&self, handle: *const T) -> Result<(), Fail> {
        self.flag(handle, CLOSED)
    }

    /// A call on the object has ended in a panic: it can only be destroyed.
    pub(crate) fn poison(&self, handle: *const T) {
        // Another thread may have been before.
        let _ = self.flag(handle, POISONED);
    }

    fn flag(&self, handle: *const T, flag: u64) -> Result<(), Fail> {
        let bits = handle.addr() as u64;
        let slot = self.slot(handle).ok_or_else(|| self.explain(bits))?;
        // Acquire pairs with the Release in `insert`, for who goes on to use the value. Relaxed:
        // nothing is read then.
        let flagged =
            slot.word.compare_exchange(bits, bits | flag, Ordering::Acquire, Ordering::Relaxed);
        flagged.map(drop).map_err(|_| self.explain(bits))
    }

    /// The slot that the bits of a handle of this kind name, whatever is in it.
    fn slot(&self, handle: *const T) -> Option<&Slot<T::Value>> {
        let bits = handle.addr() as u64;
        let kind = MARK | (T::KIND as u64) << KIND_SHIFT;
        let ours = bits & !((1 << KIND_SHIFT) - 1) == kind;
        self.slots.find((bits & ((1 << SLOT_BITS) - 1)) as u32).filter(|_| ours)
    }

    /// Why a handle is not good.
    #[cold]
    #[inline(never)]
    fn explain(&self, bits: u64) -> Fail {
        let wanted = Kind::of(MARK | (T::KIND as u64) << KIND_SHIFT).unwrap_or("handle");
        if bits == 0 {
            return Fail::Null(wanted);
        }
        let handle = std::ptr::without_provenance::<T>(bits as usize);
        let why = match (self.slot(handle), Kind::of(bits)) {
            (None, Some(other)) if other != wanted => BadHandle::Other(other),
            // Relaxed: only to say why.
            (Some(slot), _) if slot.word.load(Ordering::Relaxed) == bits | FORKED => {
                return Fail::Forked(wanted);
            }
            (Some(slot), _) if slot.word.load(Ordering::Relaxed) == bits | POISONED => {
                return Fail::Poisoned(wanted);
            }
            (Some(slot), _) if slot.word.load(Ordering::Relaxed) == bits | CLOSED => {
                BadHandle::Closed
            }
            (Some(slot), _) if slot.last.load(Ordering::Relaxed) >= bits => BadHandle::Destroyed,
            _ => BadHandle::Never,
        };
        Fail::Handle { wanted, bits, why }
    }
}

/// The slot in the word of the free ones.
fn top(free: u64) -> u32 {
    (free & (CHANGE - 1)) as u32
}

/// The word after `free`, with another slot at the top.
fn changed(free: u64, top: u32) -> u64 {
    (free & !(CHANGE - 1)).wrapping_add(CHANGE) | u64::from(top)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Thing;
    object!(Thing, String, CancelToken, |_| Home::Heap);

    fn why(fail: Fail) -> BadHandle {
        match fail {
            Fail::Handle { why, .. } => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_handle_is_good_once() {
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

        assert!(matches!(table.get(std::ptr::null()), Err(Fail::Null(_))));
        for bits in [
            1_usize,
            0xdead_beef,
            usize::MAX,
            second.addr() | POISONED as usize,
            second.addr() + (1 << 23),
        ] {
            assert_eq!(
                why(table.get(std::ptr::without_provenance(bits)).unwrap_err()),
                BadHandle::Never,
                "{bits:#x}"
            );
            assert!(table.take(std::ptr::without_provenance(bits)).is_err());
        }
        let other =
            second.addr() ^ ((Kind::CancelToken as usize ^ Kind::Region as usize) << KIND_SHIFT);
        assert_eq!(
            why(table.get(std::ptr::without_provenance(other)).unwrap_err()),
            BadHandle::Other("kvmem_region")
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
        assert!(matches!(table.get(third), Err(Fail::Poisoned(_))));
        assert_eq!(table.take(third).unwrap(), "third");
    }

    #[test]
    fn a_forked_object_is_only_forgotten() {
        struct Mine;
        object!(Mine, std::sync::Arc<()>, CancelToken);
        static TABLE: Table<Mine> = Table::new();
        let value = std::sync::Arc::new(());
        let handle = TABLE.insert(value.clone()).unwrap();
        let (poisoned, closed) =
            (TABLE.insert(value.clone()).unwrap(), TABLE.insert(value.clone()).unwrap());
        TABLE.poison(poisoned);
        TABLE.close(closed).unwrap();
        TABLE.mark_forked();
        for handle in [handle, poisoned, closed] {
            assert!(matches!(TABLE.get(handle), Err(Fail::Forked(_))));
            assert!(matches!(TABLE.take(handle), Err(Fail::Forked(_))));
            assert!(matches!(TABLE.exclusive(handle, |_| Ok(())), Err(Fail::Forked(_))));
            assert!(TABLE.get_even_closed(handle).is_err() && TABLE.take_closed(handle).is_none());
            assert!(TABLE.destroy(handle).is_ok());
            assert_eq!(why(TABLE.destroy(handle).unwrap_err()), BadHandle::Destroyed);
        }
        // Nothing was dropped, and the slots are good for others.
        assert_eq!(std::sync::Arc::strong_count(&value), 4);
        let fresh = TABLE.insert(value).unwrap();
        assert!(
            TABLE.get(fresh).is_ok()
                && TABLE.forget(fresh).is_err()
                && TABLE.destroy(fresh).is_ok()
        );
    }

    #[test]
    fn what_is_given_back_keeps_its_handle() {
        let table = Thing::table();
        let handle = table.insert("first".into()).unwrap();
        let refused = table.take_unless(handle, |mut thing| {
            assert_eq!(why(table.get(handle).unwrap_err()), BadHandle::Closed);
            assert!(table.take(handle).is_err() && table.take_unless(handle, |_| Ok(())).is_err());
            thing.push_str(", given back");
            Err((thing, Fail::NotFound))
        });
        assert!(matches!(refused, Err(Fail::NotFound)));
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
    fn many_at_once_from_many_threads() {
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
