//! *Batch*: thousands of allocations in one call and one object.

use std::ffi::{CStr, c_int, c_void};

use pyo3::PyClass;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::pyclass::boolean_struct::True;
use pyo3::types::PyMemoryView;

use crate::collect::plain;
use crate::elements::{elements, named};
use crate::holder::{Held, Holder};

/// Many allocations of one length.
pub(crate) trait Batch: Held {
    /// Length of each in bytes.
    fn nbytes(&self) -> u64;

    /// Offset of each.
    fn offsets(&self) -> Vec<u64>;
}

/// Takes the values out of all objects of the argument `name`, or of none.
pub(crate) fn take_all<C, T>(
    objects: &Bound<'_, PyAny>,
    name: &str,
    held: fn(&C) -> &Holder<T>,
) -> PyResult<Vec<T>>
where
    C: PyClass<Frozen = True> + Sync,
    T: Held,
{
    let mut taken = Vec::new();
    let mut go_on = || -> PyResult<()> {
        for (at, object) in elements(objects, name, name)?.enumerate() {
            let object = object?
                .cast_into::<C>()
                .map_err(|error| named(objects.py(), error, &format!("{name}[{at}]")))?;
            let value = held(object.get()).take()?;
            taken.push((object, value));
        }
        Ok(())
    };
    match go_on() {
        Ok(()) => Ok(taken.into_iter().map(|(_, value)| value).collect()),
        Err(error) => {
            taken.into_iter().for_each(|(object, value)| held(object.get()).put_back(value));
            Err(error)
        }
    }
}

/// Read-only numbers, in the format of `array('Q')`.
#[pyclass(name = "Offsets", module = "kvmem", frozen)]
pub(crate) struct Offsets {
    numbers: Box<[u64]>,
    shape: [ffi::Py_ssize_t; 1],
    strides: [ffi::Py_ssize_t; 1],
}

plain!(Offsets { numbers, shape, strides });

const FORMAT: &CStr = c"Q";

impl Offsets {
    /// Returns a `memoryview` of these numbers, which keeps them.
    pub(crate) fn view(py: Python<'_>, numbers: Vec<u64>) -> PyResult<Bound<'_, PyAny>> {
        let shape = [numbers.len() as ffi::Py_ssize_t];
        let strides = [size_of::<u64>() as ffi::Py_ssize_t];
        let offsets = Bound::new(py, Offsets { numbers: numbers.into(), shape, strides })?;
        Ok(PyMemoryView::from(offsets.as_any())?.into_any())
    }
}

#[pymethods]
impl Offsets {
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("the buffer request has no Py_buffer"));
        }
        if flags & ffi::PyBUF_WRITABLE == ffi::PyBUF_WRITABLE {
            return Err(PyBufferError::new_err("offsets are read-only"));
        }
        let Offsets { numbers, shape, strides } = slf.get();
        let wants = |flag| flags & flag == flag;
        let format = if wants(ffi::PyBUF_FORMAT) {
            FORMAT.as_ptr().cast_mut()
        } else {
            std::ptr::null_mut()
        };
        let shape =
            if wants(ffi::PyBUF_ND) { shape.as_ptr().cast_mut() } else { std::ptr::null_mut() };
        let strides = if wants(ffi::PyBUF_STRIDES) {
            strides.as_ptr().cast_mut()
        } else {
            std::ptr::null_mut()
        };
        // SAFETY: the interpreter calls this with a view to be filled in: not NULL (checked above),
        // aligned, writable, and used by no other thread. The pointers stored in it lead into the
        // object or are static. The object is frozen, and `obj` holds a counted reference to it
        // until the view is released. The view is read-only, so nothing is written through the
        // pointers.
        unsafe {
            (*view).buf = numbers.as_ptr().cast_mut().cast::<c_void>();
            (*view).len = size_of_val(&**numbers) as ffi::Py_ssize_t;
            (*view).readonly = 1;
            (*view).itemsize = size_of::<u64>() as ffi::Py_ssize_t;
            (*view).format = format;
            (*view).ndim = 1;
            (*view).shape = shape;
            (*view).strides = strides;
            (*view).suboffsets = std::ptr::null_mut();
            (*view).internal = std::ptr::null_mut();
            (*view).obj = slf.into_any().into_ptr();
        }
        Ok(())
    }
}
