//! *DLPack*: memory shared with NumPy, PyTorch, JAX and others, without a copy.
//!
//! The structures are those of `dlpack.h`, version 1: a capsule called `dltensor_versioned` for
//! consumers that state their version, and one called `dltensor` for the others. A consumer that
//! takes the tensor out of its capsule renames the capsule, and calls the deleter when it is done.
//! A capsule whose tensor was not taken calls the deleter itself. The capsule and the tensor refer
//! to the object, and count as a view of it.
//!
//! Specification: <https://dmlc.github.io/dlpack/latest/python_spec.html>.

use std::ffi::{CStr, c_void};
use std::ptr;

use pyo3::ffi;
use pyo3::prelude::*;

use crate::buffer::{Bytes, Span, Viewed};
use crate::error;
use crate::number::{Exactly, Int};

/// `kDLCPU`, device 0.
pub(crate) const CPU: (i32, i32) = (1, 0);

const VERSION: Version = Version { major: 1, minor: 0 };
const READ_ONLY: u64 = 1;
const IS_COPIED: u64 = 2;
const UINT8: DataType = DataType { code: 1, bits: 8, lanes: 1 };

const LEGACY: &CStr = c"dltensor";
const VERSIONED: &CStr = c"dltensor_versioned";

/// Releases the view of an object.
type ReleaseView = Box<dyn FnOnce(Python<'_>) + Send>;

/// The consumer's request.
pub(crate) struct ExportOptions {
    stream: bool,
    max_version: Option<(u32, u32)>,
    dl_device: Option<(i32, i32)>,
    copy: Option<bool>,
}

impl ExportOptions {
    pub(crate) fn new<'py>(
        py: Python<'py>,
        stream: bool,
        max_version: Option<Exactly<Int<'py>, 2>>,
        dl_device: Option<Exactly<Int<'py>, 2>>,
        copy: Option<bool>,
    ) -> PyResult<ExportOptions> {
        let max_version = match max_version {
            Some(Exactly([major, minor])) => {
                Some((major.u32(py, "max_version[0]")?, minor.u32(py, "max_version[1]")?))
            }
            None => None,
        };
        let number = |given: Int<'py>, name| {
            given.within(py, name, 0..=i32::MAX as u64).map(|number| number as i32)
        };
        let dl_device = match dl_device {
            Some(Exactly([kind, id])) => {
                Some((number(kind, "dl_device[0]")?, number(id, "dl_device[1]")?))
            }
            None => None,
        };
        Ok(ExportOptions { stream, max_version, dl_device, copy })
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Version {
    major: u32,
    minor: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Device {
    kind: i32,
    id: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct DataType {
    code: u8,
    bits: u8,
    lanes: u16,
}

#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device: Device,
    ndim: i32,
    dtype: DataType,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

/// `DLManagedTensor`.
#[repr(C)]
struct Managed {
    tensor: Tensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
}

/// `DLManagedTensorVersioned`.
#[repr(C)]
struct ManagedVersioned {
    version: Version,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut ManagedVersioned)>,
    flags: u64,
    tensor: Tensor,
}

/// A tensor and everything that it points to.
struct Export<M> {
    managed: M,
    shape: i64,
    stride: i64,
    /// The object that keeps the bytes.
    keeper: Option<ReleaseView>,
    /// The bytes, if they are a copy.
    copied: Option<Box<[u8]>>,
}

trait Layout: Sized {
    const NAME: &'static CStr;
    fn new(tensor: Tensor, flags: u64) -> Self;
    fn tensor(&mut self) -> &mut Tensor;
    fn set_context(&mut self, context: *mut c_void);
    fn context(&self) -> *mut c_void;
}

impl Layout for Managed {
    const NAME: &'static CStr = LEGACY;

    fn new(tensor: Tensor, _flags: u64) -> Self {
        Managed { tensor, context: ptr::null_mut(), deleter: Some(delete::<Managed>) }
    }

    fn tensor(&mut self) -> &mut Tensor {
        &mut self.tensor
    }

    fn set_context(&mut self, context: *mut c_void) {
        self.context = context;
    }

    fn context(&self) -> *mut c_void {
        self.context
    }
}

impl Layout for ManagedVersioned {
    const NAME: &'static CStr = VERSIONED;

    fn new(tensor: Tensor, flags: u64) -> Self {
        let deleter = Some(delete::<ManagedVersioned> as unsafe extern "C" fn(*mut Self));
        ManagedVersioned { version: VERSION, context: ptr::null_mut(), deleter, flags, tensor }
    }

    fn tensor(&mut self) -> &mut Tensor {
        &mut self.tensor
    }

    fn set_context(&mut self, context: *mut c_void) {
        self.context = context;
    }

    fn context(&self) -> *mut c_void {
        self.context
    }
}

/// Deletes a tensor. Its owner calls this once, in any thread.
///
/// # Safety
/// [`capsule`] made `managed`, and the caller does not use it afterwards.
unsafe extern "C" fn delete<M: Layout>(managed: *mut M) {
    if managed.is_null() {
        return;
    }
    // SAFETY: by this function's contract `managed` is not used elsewhere, and [`capsule`] made it:
    // its context is the pointer of the box that contains it, from `Box::into_raw` with this type.
    // It is deleted once, so the box has one owner again.
    let export = unsafe { Box::from_raw((*managed).context().cast::<Export<M>>()) };
    let Export { keeper, copied, .. } = *export;
    drop(copied);
    if let Some(keeper) = keeper {
        // Without an interpreter there is nothing to release.
        let mut keeper = Some(keeper);
        Python::try_attach(|py| keeper.take().map(|keeper| keeper(py)));
        std::mem::forget(keeper);
    }
}

/// Destroys a capsule.
///
/// # Safety
/// The interpreter calls this with a capsule of [`capsule`].
unsafe extern "C" fn forget<M: Layout>(capsule: *mut ffi::PyObject) {
    // SAFETY: by this function's contract the object is a capsule of this module, alive, in a
    // thread that is attached. Under its first name it still owns the tensor, which `delete` then
    // gets once: a consumer that takes the tensor over renames the capsule.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, M::NAME.as_ptr()) == 1 {
            delete(ffi::PyCapsule_GetPointer(capsule, M::NAME.as_ptr()).cast::<M>());
        }
    }
}

/// Makes a capsule of an object's bytes.
pub(crate) fn export<'py, C: Viewed>(
    object: &Bound<'py, C>,
    options: &ExportOptions,
) -> PyResult<Bound<'py, PyAny>> {
    let py = object.py();
    let held = object.get().held();
    if options.stream {
        return Err(error::bad_buffer(py, "host memory has no stream: pass stream=None"));
    }
    if let Some(device) = options.dl_device.filter(|device| *device != CPU) {
        let message =
            format!("the bytes are in host memory, {CPU:?}, and not on device {device:?}");
        return Err(error::bad_buffer(py, message));
    }
    let versioned = options.max_version.is_some_and(|(major, _)| major >= 1);
    if options.copy == Some(true) {
        let Span { at, len, .. } = held.view(C::Value::span)?;
        let mut bytes = vec![0; len].into_boxed_slice();
        // SAFETY: both sides have `len` bytes. The source is mapped and stays where it is while the
        // view is counted, until the next line. The target is a new allocation, so the two do not
        // overlap. No reference to the source is made: Python code may write to it from another
        // thread, and then has a data race of its own, as with `bytearray`.
        unsafe { ptr::copy_nonoverlapping(at, bytes.as_mut_ptr(), len) };
        held.release();
        return make(py, versioned, IS_COPIED, None, Err(bytes));
    }
    let span = held.view(C::Value::span)?;
    if !span.writable && !versioned {
        held.release();
        return Err(error::bad_buffer(
            py,
            "the bytes are read-only, which DLPack can express only from version 1 on: pass \
             max_version=(1, 0), or copy=True",
        ));
    }
    let object = object.clone().unbind();
    let keeper: ReleaseView = Box::new(move |py| object.into_bound(py).get().held().release());
    let flags = if span.writable { 0 } else { READ_ONLY };
    make(py, versioned, flags, Some(keeper), Ok(span))
}

fn make<'py>(
    py: Python<'py>,
    versioned: bool,
    flags: u64,
    keeper: Option<ReleaseView>,
    bytes: Result<Span, Box<[u8]>>,
) -> PyResult<Bound<'py, PyAny>> {
    if versioned {
        capsule::<ManagedVersioned>(py, flags, keeper, bytes)
    } else {
        capsule::<Managed>(py, flags, keeper, bytes)
    }
}

/// Makes a capsule over bytes: shared ones with their owner, or a copy.
fn capsule<M: Layout>(
    py: Python<'_>,
    flags: u64,
    keeper: Option<ReleaseView>,
    bytes: Result<Span, Box<[u8]>>,
) -> PyResult<Bound<'_, PyAny>> {
    let (at, len, copied) = match bytes {
        Ok(span) => (span.at, span.len, None),
        Err(mut copy) => (copy.as_mut_ptr(), copy.len(), Some(copy)),
    };
    let tensor = Tensor {
        data: at.cast(),
        device: Device { kind: CPU.0, id: CPU.1 },
        ndim: 1,
        dtype: UINT8,
        shape: ptr::null_mut(),
        strides: ptr::null_mut(),
        byte_offset: 0,
    };
    let managed = M::new(tensor, flags);
    let export =
        Box::into_raw(Box::new(Export { managed, shape: len as i64, stride: 1, keeper, copied }));
    // SAFETY: `export` comes from `Box::into_raw`, so it is valid and unique: no other code has it
    // yet. The pointers stored in it lead into the same box, which does not move until `delete`.
    let managed = unsafe {
        let tensor = (*export).managed.tensor();
        tensor.shape = &raw mut (*export).shape;
        tensor.strides = &raw mut (*export).stride;
        (*export).managed.set_context(export.cast());
        &raw mut (*export).managed
    };
    // SAFETY: the token says that this thread is attached. The tensor is not NULL, the name is
    // static and ends with a NUL, and the destructor is for capsules of this type. On failure the
    // capsule does not exist, so `delete` gets the tensor once, here.
    unsafe {
        let capsule = ffi::PyCapsule_New(managed.cast(), M::NAME.as_ptr(), Some(forget::<M>));
        Bound::from_owned_ptr_or_err(py, capsule).inspect_err(|_| delete(managed))
    }
}
