//! *Buffer*: memory as Python sees it: address, length, the buffer protocol, DLPack.
//!
//! A view refers to its object, and the object counts its views. Therefore the object lives as long
//! as its views, and cannot be freed while views exist. A view guarantees what a view of a
//! `bytearray` guarantees: the bytes stay where they are. The owners of the views, devices
//! included, have to agree on their writes.

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;

use pyo3::PyClass;
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::pyclass::boolean_struct::True;
use pyo3::types::PyBytes;

use crate::error;
use crate::holder::{Held, Holder};

/// Bytes in memory. Valid while the value that owns them is held.
#[derive(Clone, Copy)]
pub(crate) struct Span {
    pub(crate) at: *mut u8,
    pub(crate) len: usize,
    pub(crate) writable: bool,
}

impl Span {
    pub(crate) fn writable(at: *mut u8, len: usize) -> Span {
        Span { at, len, writable: true }
    }

    pub(crate) fn read_only(bytes: &[u8]) -> Span {
        Span { at: bytes.as_ptr().cast_mut(), len: bytes.len(), writable: false }
    }
}

// SAFETY: a span is an address and a length, with no access of its own. Code that accesses the
// bytes counts a view on their object, on every thread.
unsafe impl Send for Span {}
// SAFETY: as above.
unsafe impl Sync for Span {}

/// A value with bytes in memory.
pub(crate) trait Bytes: Held {
    /// Returns the bytes. They are mapped and stay where they are while the value is held
    /// unchanged.
    fn span(&self) -> Span;
}

/// A Python class with such bytes.
pub(crate) trait Viewed: PyClass<Frozen = True> + Sync {
    type Value: Bytes;

    fn held(&self) -> &Holder<Self::Value>;
}

/// Fills in a `Py_buffer`.
///
/// # Safety
/// `view` is the argument that the interpreter passed to `__getbuffer__` of `object`.
pub(crate) unsafe fn export<C: Viewed>(
    object: &Bound<'_, C>,
    view: *mut ffi::Py_buffer,
    flags: c_int,
) -> PyResult<()> {
    let held = object.get().held();
    if view.is_null() {
        return Err(PyBufferError::new_err("the buffer request has no Py_buffer"));
    }
    let Span { at, len, writable } = held.view(C::Value::span)?;
    // SAFETY: `view` is not NULL, and by this function's contract it is the interpreter's: aligned,
    // writable, used by no other thread. `object` is alive, since it is borrowed, and the
    // interpreter is attached to this thread. The bytes are mapped and stay where they are while
    // the view is counted, until `release`.
    let status = unsafe {
        ffi::PyBuffer_FillInfo(
            view,
            object.as_ptr(),
            at.cast::<c_void>(),
            len as ffi::Py_ssize_t,
            c_int::from(!writable),
            flags,
        )
    };
    if status != 0 {
        held.release();
        return Err(PyErr::fetch(object.py()));
    }
    Ok(())
}

/// A buffer of another object, exported while this value exists.
pub(crate) struct Exported {
    buffer: PyUntypedBuffer,
}

impl Exported {
    /// Exports the contiguous bytes of an object with the buffer protocol.
    pub(crate) fn of(object: &Bound<'_, PyAny>) -> PyResult<Exported> {
        let buffer = PyUntypedBuffer::get(object)?;
        if !buffer.is_c_contiguous() {
            let message = "the bytes are not contiguous: pass a contiguous copy";
            return Err(error::bad_buffer(object.py(), message));
        }
        Ok(Exported { buffer })
    }

    pub(crate) fn len(&self) -> usize {
        self.buffer.len_bytes()
    }

    /// Visits the object that exports the buffer.
    pub(crate) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        // SAFETY: the collector calls this in a thread that is attached to the interpreter, for
        // which the token is proof. It serves only to read a reference; no Python code runs.
        let py = unsafe { Python::assume_attached() };
        visit.call(self.buffer.obj(py).map(Bound::as_unbound))
    }

    /// Returns the first address. Fails if the bytes are read-only.
    pub(crate) fn writable_at(&self, py: Python<'_>) -> PyResult<NonNull<u8>> {
        if self.buffer.readonly() {
            return Err(error::bad_buffer(py, "the bytes are read-only: pass a writable buffer"));
        }
        NonNull::new(self.buffer.buf_ptr().cast()).ok_or_else(|| {
            error::bad_buffer(py, "the buffer has no address: pass one that is not empty")
        })
    }
}

/// Bytes of another object, as the source of a copy.
pub(crate) enum Source<'a> {
    /// The bytes of a `bytes` object, which never change: no buffer is exported.
    Bytes(&'a [u8]),
    Buffer(Exported),
}

impl<'a> Source<'a> {
    /// Exports the contiguous bytes of an object with the buffer protocol.
    #[inline]
    pub(crate) fn of(object: &'a Bound<'_, PyAny>) -> PyResult<Source<'a>> {
        match object.cast_exact::<PyBytes>() {
            Ok(bytes) => Ok(Source::Bytes(bytes.as_bytes())),
            Err(_) => Exported::of(object).map(Source::Buffer),
        }
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        match self {
            Source::Bytes(bytes) => bytes.len(),
            Source::Buffer(exported) => exported.len(),
        }
    }

    /// Returns where the bytes are. They stay there while this value exists.
    pub(crate) fn span(&self) -> Span {
        match self {
            Source::Bytes(bytes) => Span::read_only(bytes),
            Source::Buffer(Exported { buffer }) => {
                Span { at: buffer.buf_ptr().cast(), len: buffer.len_bytes(), writable: false }
            }
        }
    }

    /// Copies all bytes to `to`, with the GIL released if that takes long.
    ///
    /// # Safety
    /// `to` is mapped for writing, is as long as the source, and stays so.
    #[inline]
    pub(crate) unsafe fn copy_to(&self, py: Python<'_>, to: *mut u8) {
        let from = self.span();
        let to = Span::writable(to, from.len);
        let copy = move || {
            let (from, to) = (from, to);
            // SAFETY: the source is valid for reading: its object is borrowed, or its buffer
            // exported, until the copy is done. The target is valid for writing as many bytes, by
            // the contract of `copy_to`. `copy` allows overlap, and bytes need no alignment. Python
            // code may write to shared bytes from another thread meanwhile: the program then has a
            // data race of its own, as with `bytearray`.
            unsafe { std::ptr::copy(from.at, to.at, from.len) };
        };
        if from.len >= LONG { py.detach(copy) } else { copy() }
    }
}

/// Length in bytes from which a copy takes longer than releasing and reacquiring the GIL.
const LONG: usize = 64 << 10;
