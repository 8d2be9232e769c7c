//! *Table*: the objects of one type, found by handles that may be any bits.
//!
//! The slot of a [handle](crate::handle) is looked up in an [append-only
//! table](kvmem::AppendOnlyTable), which is never unmapped. A slot stores the handle of its object,
//! or 0. Finding an object is therefore a bounds check, a load and a compare, without a lock and
//! without a store. The two upper flags never occur in a handle, only in a slot's word: the handle
//! then does not compare equal, and the slow path determines the reason. Both flags together say
//! that the object belongs to the process that this one was [forked](crate::fork) from.
//!
//! A generation is reused after 2^30 objects in one slot.
//!
//! No object may be destroyed while a call on it runs, as with `free`. Each call holds an
//! [`ObjectPromise`] for that: references to objects borrow it, and removing an object borrows it
//! mutably. If two threads destroy the same object, one of them gets KVMEM_ERR_BAD_HANDLE.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{BadHandle, CallError};
use crate::fork::{self, ForkScope, Mark};
use crate::handle::{CLOSED, FORKED, GENERATION_BITS, KIND_SHIFT, Kind, POISONED, SLOT_BITS};
use crate::promise::ObjectPromise;
use crate::slots::{Slot, Slots};

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
    ($name:ident, $value:ty) => {
        object!($name, $value, |_: &$value| crate::fork::ForkScope::ParentOnly);
    };
    ($name:ident, $value:ty, $home:expr) => {
        object!($name as $name, $value, $home);
    };
    ($name:ident as $kind:ident, $value:ty, $home:expr) => {
        impl crate::table::Object for $name {
            type Value = $value;
            const KIND: crate::handle::Kind = crate::handle::Kind::$kind;

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

/// The bits of a generation, in their lowest position.
const GENERATION_MASK: u64 = (1 << GENERATION_BITS) - 1;

/// The objects of one type.
pub(crate) struct HandleTable<T: Object> {
    slots: Slots<T::Value>,
    /// For forked children.
    mark: Mark,
    is_marked: AtomicBool,
}

impl<T: Object> HandleTable<T> {
    pub(crate) const fn new() -> Self {
        let mark = Mark(|| T::table().mark_forked());
        HandleTable { slots: Slots::new(), mark, is_marked: AtomicBool::new(false) }
    }

    /// Adds an object and returns its handle.
    pub(crate) fn insert(&self, value: T::Value) -> Result<*mut T, CallError> {
        // Relaxed, both: a second time is harmless.
        if !self.is_marked.load(Ordering::Relaxed) && fork::mark_in_children(&T::table().mark) {
            self.is_marked.store(true, Ordering::Relaxed);
        }
        let index = self.slots.acquire().ok_or(CallError::TooManyObjects(1 << SLOT_BITS))?;
        let slot = self.slots.get(index);
        // Relaxed, both: this thread owns the slot; `acquire` returned it.
        let generation = (slot.last.load(Ordering::Relaxed) >> SLOT_BITS) + 1;
        let bits = T::KIND.bits() | (generation & GENERATION_MASK) << SLOT_BITS | u64::from(index);
        slot.last.store(bits, Ordering::Relaxed);
        slot.home.store(T::home(&value).to_word(), Ordering::Relaxed);
        // SAFETY: the pointer comes from an `UnsafeCell` that lives as long as the table. `acquire`
        // gave the slot to this thread alone, and its word is 0: the slot holds no value, and
        // no reference to one exists.
        unsafe { (*slot.value.get()).write(value) };
        // Release pairs with the Acquire in `get` and `take`.
        slot.word.store(bits, Ordering::Release);
        Ok(std::ptr::without_provenance_mut(bits as usize))
    }

    /// Returns the object of a handle.
    #[inline(always)]
    pub(crate) fn get<'call>(
        &'call self,
        promise: &'call ObjectPromise,
        handle: *const T,
    ) -> Result<&'call T::Value, CallError> {
        self.find(promise, handle).ok_or_else(|| self.explain(handle.addr() as u64))
    }

    /// Returns the object of a valid handle. Does not determine why a handle is not valid.
    #[inline(always)]
    pub(crate) fn find<'call>(
        &'call self,
        _promise: &'call ObjectPromise,
        handle: *const T,
    ) -> Option<&'call T::Value> {
        let bits = handle.addr() as u64;
        let slot = self.slots.find((bits & ((1 << SLOT_BITS) - 1)) as u32)?;
        // Acquire pairs with the Release in `insert`.
        if bits == 0 || slot.word.load(Ordering::Acquire) != bits {
            return None;
        }
        // SAFETY: the value is initialized: the word is a handle, and the Acquire above makes the
        // write before it visible. It is neither moved out nor borrowed mutably while the reference
        // lives: by this call, since that needs the promise mutably; by other calls, since the
        // promise says so.
        Some(unsafe { (*slot.value.get()).assume_init_ref() })
    }

    /// Returns the object of a handle, also if it is closed.
    ///
    /// # Safety
    /// If the handle is closed, [`close`](HandleTable::close) closed it, not a function that uses
    /// the object exclusively. Until the last use of the reference, no other call takes the object.
    pub(crate) unsafe fn get_even_closed<'call>(
        &'call self,
        promise: &'call ObjectPromise,
        handle: *const T,
    ) -> Result<&'call T::Value, CallError> {
        match self.get(promise, handle) {
            // Acquire pairs with the Release in `insert`.
            Err(error) => match self.slot(handle) {
                Some(slot)
                    if slot.word.load(Ordering::Acquire) == handle.addr() as u64 | CLOSED =>
                {
                    // SAFETY: the value is initialized, since the word is a closed handle, and the
                    // Acquire above makes the write before it visible. The caller promises that it
                    // is neither borrowed mutably nor moved out while the reference lives.
                    Ok(unsafe { (*slot.value.get()).assume_init_ref() })
                }
                _ => Err(error),
            },
            found => found,
        }
    }

    /// Takes the object out of the table; its handle is no longer valid.
    pub(crate) fn take(
        &self,
        _promise: &mut ObjectPromise,
        handle: *const T,
    ) -> Result<T::Value, CallError> {
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
        // SAFETY: the word was the object's handle, perhaps poisoned, so the slot holds a value,
        // and this thread alone has replaced it by 0. No reference is left: those of this call
        // borrow the promise, and other calls have none by the promise.
        Ok(unsafe { self.empty(slot, bits) })
    }

    /// Destroys the object. If it belongs to the parent of this process, only its handle is
    /// dropped.
    pub(crate) fn destroy(
        &self,
        promise: &mut ObjectPromise,
        handle: *const T,
    ) -> Result<(), CallError> {
        match self.take(promise, handle) {
            Err(CallError::Forked(_)) => self.drop_handle(promise, handle),
            taken => taken.map(drop),
        }
    }

    /// Drops the handle of an object that belongs to the parent of this process. Other handles are
    /// an error.
    pub(crate) fn drop_handle(
        &self,
        _promise: &mut ObjectPromise,
        handle: *const T,
    ) -> Result<(), CallError> {
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
        self.slots.release((bits & ((1 << SLOT_BITS) - 1)) as u32);
        Ok(())
    }

    /// Marks every object that this process, which was just forked, does not have. O(objects).
    pub(crate) fn mark_forked(&self) {
        // Relaxed, all: the process has one thread, the copy of the one that forked. A slot that
        // another thread was filling or emptying is lost to this process.
        for slot in self.slots.ever_used() {
            let word = slot.word.load(Ordering::Relaxed);
            if word != 0 && !ForkScope::is_present(slot.home.load(Ordering::Relaxed)) {
                slot.word.store(word | FORKED, Ordering::Relaxed);
            }
        }
    }

    /// Takes a closed object out of the table; `None` if another thread did.
    ///
    /// # Safety
    /// If the handle is closed, [`close`](HandleTable::close) closed it, not a function that uses
    /// the object exclusively. No other call holds a reference to the object.
    pub(crate) unsafe fn take_closed(
        &self,
        _promise: &mut ObjectPromise,
        handle: *const T,
    ) -> Option<T::Value> {
        let bits = handle.addr() as u64;
        let slot = self.slot(handle)?;
        // Acquire pairs with the Release in `insert`. Relaxed on failure: the value is not read.
        slot.word.compare_exchange(bits | CLOSED, 0, Ordering::Acquire, Ordering::Relaxed).ok()?;
        // SAFETY: the word was a closed handle, so the slot holds a value, and this thread alone
        // has replaced it by 0. No reference is left: those of this call borrow the promise, and
        // the caller promises that other calls have none.
        Some(unsafe { self.empty(slot, bits) })
    }

    /// Runs with exclusive access to the object, whose handle is closed meanwhile.
    pub(crate) fn exclusive(
        &self,
        _promise: &mut ObjectPromise,
        handle: *const T,
        run: impl FnOnce(&mut T::Value) -> Result<(), CallError>,
    ) -> Result<(), CallError> {
        self.close(handle)?;
        let Some(slot) = self.slot(handle) else { return Err(self.explain(handle.addr() as u64)) };
        let bits = handle.addr() as u64;
        let done = catch_unwind(AssertUnwindSafe(|| {
            // SAFETY: the value is initialized, since the word was its handle. This thread alone
            // has closed it, so no lookup finds it until the word is restored below. No older
            // reference is left: those of this call borrow the promise, and other calls have none
            // by the promise.
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
        promise: &mut ObjectPromise,
        handle: *const T,
        may: impl FnOnce(&mut T::Value) -> Result<(), CallError>,
    ) -> Result<T::Value, CallError> {
        self.exclusive(promise, handle, may)?;
        // Between the two calls no other call uses it, by the promise.
        self.take(promise, handle)
    }

    /// Moves the value out of a slot, and returns the slot.
    ///
    /// # Safety
    /// This thread alone has replaced the slot's handle, `bits`, by 0, with Acquire. No reference
    /// to the value is left.
    unsafe fn empty(&self, slot: &Slot<T::Value>, bits: u64) -> T::Value {
        // SAFETY: the value is initialized, since the word was a handle, and its write is visible
        // by the caller's Acquire. The caller promises that no other thread moves it out, and that
        // no reference to it is left.
        let value = unsafe { (*slot.value.get()).assume_init_read() };
        self.slots.release((bits & ((1 << SLOT_BITS) - 1)) as u32);
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
        let kind = T::KIND.bits();
        let ours = bits & !((1 << KIND_SHIFT) - 1) == kind;
        self.slots.find((bits & ((1 << SLOT_BITS) - 1)) as u32).filter(|_| ours)
    }

    /// Determines why a handle is not valid.
    #[cold]
    #[inline(never)]
    fn explain(&self, bits: u64) -> CallError {
        let wanted = Kind::of(T::KIND.bits()).unwrap_or("handle");
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

#[cfg(test)]
mod tests;
