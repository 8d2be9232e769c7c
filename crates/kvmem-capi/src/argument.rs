//! *Arguments*: types of the parameters of C functions.
//!
//! Each has the bits of a pointer, and carries the promises 1 and 2 of the C caller (see the head
//! of the crate) for it. A C program makes the values, by calling a function; Rust makes none,
//! except in tests. Members of the structures that a program passes have these types, too. No
//! function keeps a value after the call, or sends it to another thread; a structure that the
//! library passes to a function of the program is read by the program alone.
//!
//! The test that writes the headers reads [`Handle`] and [`In`] as `*const T`, and [`Owned`] and
//! [`Out`] as `*mut T`.

use std::ffi::{c_char, c_void};
use std::fmt;
use std::ops::Deref;

use crate::call::{self, Place, PlaceList, guard, guard_for};
use crate::error::CallError;
use crate::promise::ObjectPromise;
use crate::status::kvmem_status;
use crate::table::Object;

/// Types that can be copied, and made as NULL: those of members of structures.
macro_rules! member {
    ($type:ident) => {
        impl<T> Clone for $type<T> {
            fn clone(&self) -> Self {
                *self
            }
        }

        impl<T> Copy for $type<T> {}

        impl<T> fmt::Debug for $type<T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Pointer::fmt(&self.0, f)
            }
        }

        impl<T> $type<T> {
            pub(crate) const NULL: Self = $type(std::ptr::null());

            /// Returns the bits.
            #[inline(always)]
            pub(crate) fn pointer(&self) -> *const T {
                self.0
            }

            /// Returns whether it is NULL.
            pub(crate) fn is_null(&self) -> bool {
                self.0.is_null()
            }
        }
    };
}

member!(Handle);
member!(In);

/// A handle: any bits. If it names an object, promise 2 of the C caller holds for that object.
#[repr(transparent)]
pub struct Handle<T>(*const T);

/// A handle of a function that may change or destroy the object. As [`Handle`].
#[repr(transparent)]
pub struct Owned<T>(Handle<T>);

/// A pointer to what a call reads. Promise 1 of the C caller holds for it.
#[repr(transparent)]
pub struct In<T>(*const T);

/// A pointer to what a call writes. Promise 1 of the C caller holds for it.
#[repr(transparent)]
pub struct Out<T>(*mut T);

impl<T> Deref for Owned<T> {
    type Target = Handle<T>;

    #[inline(always)]
    fn deref(&self) -> &Handle<T> {
        &self.0
    }
}

impl<T> Owned<T> {
    /// Returns the bits.
    #[inline(always)]
    pub(crate) fn pointer(&self) -> *mut T {
        self.0.0.cast_mut()
    }
}

#[allow(private_bounds, reason = "the types are public as parameters only")]
impl<T: Object> Owned<T> {
    /// Takes the object out of its table; the handle is no longer valid.
    pub(crate) fn take(&self, promise: &mut ObjectPromise) -> Result<T::Value, CallError> {
        T::table().take(promise, self.0.0)
    }

    /// Runs a call with exclusive access to the object, whose handle is closed meanwhile.
    pub(crate) fn exclusive(
        &self,
        run: impl FnOnce(&mut T::Value) -> Result<(), CallError>,
    ) -> kvmem_status {
        // SAFETY: promise 2 of the C caller, which the handle carries.
        let mut promise = unsafe { ObjectPromise::of_caller() };
        guard(|| T::table().exclusive(&mut promise, self.0.0, run))
    }

    /// Destroys an object. If the destructor panics, the object is gone nevertheless.
    pub(crate) fn destroy(self) -> kvmem_status {
        // SAFETY: promise 2 of the C caller, which the handle carries.
        let mut promise = unsafe { ObjectPromise::of_caller() };
        guard(|| T::table().destroy(&mut promise, self.0.0))
    }
}

#[allow(private_bounds, reason = "the types are public as parameters only")]
impl<T: Object> Handle<T> {
    /// Runs a call on an object, and poisons the object if the call panics.
    #[inline(always)]
    pub(crate) fn on(&self, run: impl FnOnce(&T::Value) -> Result<(), CallError>) -> kvmem_status {
        let handle = self.0;
        guard_for(handle, || {
            // SAFETY: promise 2 of the C caller, which the handle carries. The promise is made
            // here, because a captured reference takes a store in every call.
            let promise = unsafe { ObjectPromise::of_caller() };
            run(T::table().get(&promise, handle)?)
        })
    }

    /// Returns the object.
    #[inline(always)]
    pub(crate) fn get<'call>(
        &'call self,
        promise: &'call ObjectPromise,
    ) -> Result<&'call T::Value, CallError> {
        T::table().get(promise, self.0)
    }
}

impl<T> In<T> {
    /// Borrows a structure.
    #[inline(always)]
    pub(crate) fn get(&self, name: &'static str) -> Result<&T, CallError> {
        // SAFETY: promise 1 of the C caller, which this value carries.
        unsafe { call::read(self.0, name) }
    }

    /// Borrows a list of at most `max` elements.
    pub(crate) fn short_list(
        &self,
        count: u64,
        max: u64,
        name: &'static str,
    ) -> Result<&[T], CallError> {
        // SAFETY: promise 1 of the C caller, which this value carries.
        unsafe { call::short_list(self.0, count, max, name) }
    }

    /// Borrows a list. It may be NULL if there are no elements.
    pub(crate) fn list(&self, count: u64, name: &'static str) -> Result<&[T], CallError> {
        // SAFETY: promise 1 of the C caller, which this value carries.
        unsafe { call::list(self.0, count, name) }
    }
}

impl In<c_void> {
    /// Lends bytes to a function of the program.
    pub(crate) fn lent(bytes: &[u8]) -> In<c_void> {
        In(bytes.as_ptr().cast())
    }
}

impl In<c_char> {
    /// Borrows a text; `None` if it is NULL.
    pub(crate) fn text(&self, name: &'static str) -> Result<Option<&str>, CallError> {
        // SAFETY: promise 1 of the C caller, which this value carries.
        unsafe { call::text(self.0, name) }
    }

    /// Borrows a required text.
    pub(crate) fn some_text(&self, name: &'static str) -> Result<&str, CallError> {
        self.text(name)?.ok_or(CallError::Null(name))
    }
}

impl In<c_void> {
    /// Borrows the bytes of a value. It may be NULL if there are none.
    pub(crate) fn value(&self, bytes: u64) -> Result<&[u8], CallError> {
        // SAFETY: promise 1 of the C caller, which this value carries.
        unsafe { call::value_bytes(self.0, bytes) }
    }

    /// Borrows bytes. It may be NULL if there are none.
    pub(crate) fn bytes(&self, bytes: u64, name: &'static str) -> Result<&[u8], CallError> {
        // SAFETY: promise 1 of the C caller, which this value carries.
        unsafe { call::list(self.0.cast::<u8>(), bytes, name) }
    }
}

impl<T> Out<T> {
    /// Returns the pointer as one that the call reads, too.
    pub(crate) fn as_in(&self) -> In<T> {
        In(self.0)
    }

    /// Returns the place, which must not be NULL. A call does so before it changes anything.
    #[inline(always)]
    pub(crate) fn get(&self, name: &'static str) -> Result<Place<T>, CallError> {
        // SAFETY: promise 1 of the C caller, which this value carries.
        unsafe { call::place(self.0, name) }
    }

    /// Writes a result. The pointer must not be NULL.
    #[inline(always)]
    pub(crate) fn put(&self, name: &'static str, value: T) -> Result<(), CallError> {
        self.get(name)?.put(value);
        Ok(())
    }

    /// Writes a result, unless the pointer is NULL.
    #[inline(always)]
    pub(crate) fn put_if_wanted(&self, value: T) {
        if let Ok(place) = self.get("") {
            place.put(value);
        }
    }

    /// Writes each result to its place in a list, unless the pointer is NULL.
    ///
    /// # Safety
    /// The list has a place for each of the values.
    pub(crate) unsafe fn put_all_if_wanted(&self, values: impl IntoIterator<Item = T>) {
        if self.0.is_null() {
            return;
        }
        for (index, value) in values.into_iter().enumerate() {
            // SAFETY: promise 1 of the C caller, which this value carries, and the caller's promise
            // of a place for each value.
            unsafe { self.0.add(index).write(value) };
        }
    }

    /// Returns a list of `capacity` places: NULL only with `capacity` 0.
    pub(crate) fn list(
        &self,
        capacity: u64,
        name: &'static str,
        count: &Out<u64>,
    ) -> Result<PlaceList<T>, CallError> {
        // SAFETY: promise 1 of the C caller, which both values carry.
        unsafe { call::place_list(self.0, capacity, name, count.0) }
    }

    /// Returns the pointer.
    #[inline(always)]
    pub(crate) fn pointer(&self) -> *mut T {
        self.0
    }

    /// Checks a list of `count` places: NULL only with `count` 0.
    pub(crate) fn check_list(&self, count: u64, name: &'static str) -> Result<(), CallError> {
        if self.0.is_null() && count > 0 { Err(CallError::Null(name)) } else { Ok(()) }
    }

    /// Returns whether the pointer is NULL.
    #[inline(always)]
    pub(crate) fn is_null(&self) -> bool {
        self.0.is_null()
    }
}

impl<T: Copy> Out<T> {
    /// Reads a structure that the call also writes: promise 1 of the C caller is that of an
    /// initialized one.
    #[inline(always)]
    pub(crate) fn read(&self, name: &'static str) -> Result<T, CallError> {
        // SAFETY: promise 1 of the C caller, which this value carries.
        unsafe { call::read(self.0.cast_const(), name) }.copied()
    }

    /// Writes all elements of a list. The pointer must not be NULL.
    ///
    /// # Safety
    /// The list of the C caller has a place for each of them.
    pub(crate) unsafe fn put_all(&self, name: &'static str, items: &[T]) -> Result<(), CallError> {
        self.get(name)?;
        // SAFETY: promise 1 of the C caller, which this value carries, and the caller's promise of
        // a place for each element. The items are not the C caller's memory.
        unsafe { self.0.copy_from_nonoverlapping(items.as_ptr(), items.len()) };
        Ok(())
    }

    /// Writes a list, truncated to the buffer, and its full length.
    pub(crate) fn write_list(
        &self,
        items: &[T],
        capacity: u64,
        count: &Out<u64>,
    ) -> Result<(), CallError> {
        // SAFETY: promise 1 of the C caller, which both values carry. The items are not the
        // caller's memory.
        unsafe { call::write_list(items, self.0, capacity, count.0) }
    }
}

impl Out<c_char> {
    /// Writes a text and its NUL, truncated to the buffer.
    pub(crate) fn write_text(
        &self,
        text: &str,
        capacity: u64,
        needed: &Out<u64>,
    ) -> Result<(), CallError> {
        // SAFETY: promise 1 of the C caller, which both values carry. The text is not the caller's
        // memory.
        unsafe { call::write_text(text, self.0, capacity, needed.0) }
    }
}

/// The arguments that a test passes.
#[cfg(test)]
pub(crate) mod of_test {
    use super::*;

    /// # Safety
    /// Promise 2 of the C caller.
    pub(crate) unsafe fn handle<T>(bits: *mut T) -> Handle<T> {
        Handle(bits)
    }

    /// # Safety
    /// Promise 2 of the C caller.
    pub(crate) unsafe fn owned<T>(bits: *mut T) -> Owned<T> {
        Owned(Handle(bits))
    }

    pub(crate) fn out<T>(place: &mut T) -> Out<T> {
        Out(place)
    }
}
