//! *Node pins*: values of a node that cannot be evicted while they are read.
//!
//! Each value is an object with a pin of its own. A batch makes these objects when the first one is
//! wanted, and releases what is left of them with one message.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kvmem_node::{PinBatch, PinnedValue};
use pyo3::exceptions::{PyIndexError, PyOverflowError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyIterator, PySlice, PyTuple};

use crate::buffer::{Bytes, Span};
use crate::cache_key::OwnedKey;
use crate::collect::{Plain, plain};
use crate::context::context_manager;
use crate::error;
use crate::holder::{Held, Holder};
use crate::memory_methods::memory_methods;
use crate::node_error::node_error;
use crate::process;

/// The pin of one value.
pub(crate) struct NodePin {
    pin: Arc<PinBatch>,
    key: OwnedKey,
    span: Span,
    offset: u64,
}

impl NodePin {
    /// Takes the pin of one key. `None` if the server has released it since. The caller does not
    /// have the GIL.
    pub(crate) fn new(pin: PinBatch, key: OwnedKey) -> Option<NodePin> {
        let (span, offset) = pin.value(0).map(|it| (Span::read_only(it.bytes()), it.offset()))?;
        Some(NodePin { pin: Arc::new(pin), key, span, offset })
    }
}

impl Held for NodePin {
    const NAME: &'static str = "pinned value";
    const END: &'static str = "released";
    // The connection has a lock.
    const SLOW: bool = true;
}

impl Bytes for NodePin {
    fn span(&self) -> Span {
        self.span
    }
}

impl Plain for NodePin {}

#[doc = doc!("PinnedValue")]
#[pyclass(name = "PinnedValue", module = "kvmem", frozen, weakref)]
pub(crate) struct PyPinnedValue {
    held: Holder<NodePin>,
}

plain!(PyPinnedValue { held });

memory_methods!(PyPinnedValue, NodePin);

impl PyPinnedValue {
    pub(crate) fn new(pin: NodePin) -> PyPinnedValue {
        PyPinnedValue { held: Holder::new(pin) }
    }
}

#[pymethods]
impl PyPinnedValue {
    #[doc = doc!("PinnedValue.cache_key")]
    #[getter]
    fn cache_key<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        (&self.held.with(|pinned| pinned.key.clone())?).into_pyobject(py)
    }

    #[doc = doc!("PinnedValue.offset")]
    #[getter]
    fn offset(&self) -> PyResult<u64> {
        self.held.with(|pinned| pinned.offset)
    }

    #[doc = doc!("PinnedValue.is_valid")]
    #[getter]
    fn is_valid(&self) -> PyResult<bool> {
        self.held.with(|pinned| pinned.pin.is_valid())
    }

    #[doc = doc!("PinnedValue.address")]
    #[getter]
    fn address(&self, py: Python<'_>) -> PyResult<usize> {
        let found = self.held.with(|pinned| pinned.pin.as_ptr(0))?;
        match found {
            Ok(Some(address)) => Ok(address.addr()),
            Ok(None) => self.held.with(|pinned| pinned.span.at.addr()),
            Err(error) => Err(node_error(py, &error)),
        }
    }

    #[doc = doc!("PinnedValue.verify")]
    fn verify(&self, py: Python<'_>) -> PyResult<()> {
        // The view keeps other threads from releasing the pin.
        let pin = self.held.view(|pinned| Arc::clone(&pinned.pin))?;
        let verified = py.detach(|| {
            let verified = pin.value(0).map_or(Ok(()), |it| it.verify());
            drop(pin);
            verified
        });
        self.held.release();
        verified.map_err(|error| node_error(py, &error))
    }

    #[doc = doc!("PinnedValue.release")]
    fn release(&self, py: Python<'_>) -> PyResult<()> {
        crate::holder::drop_value(py, Some(self.held.take()?));
        Ok(())
    }

    fn __repr__(&self) -> String {
        match self.held.with(|pinned| (pinned.span.len, pinned.offset)) {
            Ok((len, offset)) => format!("<kvmem.PinnedValue of {len} bytes at offset {offset}>"),
            Err(_) => "<kvmem.PinnedValue, released>".to_owned(),
        }
    }
}

context_manager!(PyPinnedValue, |it, py| it.held.end(py));

/// The name of a batch in messages.
const NAME: &str = "batch of pins";

/// The values of a batch.
enum PinnedValues {
    /// As the calls of the library have returned them, one after the other, and the keys.
    Whole(Vec<PinBatch>, Vec<OwnedKey>),
    /// An object for each key that has a value.
    Each(Vec<Option<Py<PyPinnedValue>>>),
}

/// The values of a batch; none once it is released.
pub(crate) struct BatchValues {
    values: Mutex<Option<PinnedValues>>,
    age: u32,
}

// A pinned value owns no object of Python, so no cycle leads through it.
impl Plain for BatchValues {}

/// Positions of keys.
pub(crate) struct Positions(Vec<usize>);

impl Plain for Positions {}

#[doc = doc!("PinBatch")]
#[pyclass(name = "PinBatch", module = "kvmem", frozen, weakref, sequence)]
pub(crate) struct PyPinBatch {
    values: BatchValues,
    pending: Positions,
}

plain!(PyPinBatch { values, pending });

impl PyPinBatch {
    /// Takes the pins of keys, in their order, and the positions of those that are
    /// [pending](PinBatch::pending).
    pub(crate) fn new(pins: Vec<PinBatch>, keys: Vec<OwnedKey>, pending: Vec<usize>) -> PyPinBatch {
        let values = PinnedValues::Whole(pins, keys);
        PyPinBatch {
            values: BatchValues { values: Mutex::new(Some(values)), age: process::age() },
            pending: Positions(pending),
        }
    }

    /// Returns whether the values belong to this process.
    fn is_ours(&self) -> bool {
        self.values.age == process::age()
    }

    fn lock(&self) -> PyResult<MutexGuard<'_, Option<PinnedValues>>> {
        if self.is_ours() {
            Ok(self.values.values.lock().unwrap_or_else(PoisonError::into_inner))
        } else {
            Err(error::forked(NAME))
        }
    }

    /// Uses the values. `using` runs no Python.
    fn with_values<R>(&self, using: impl FnOnce(&PinnedValues) -> R) -> PyResult<R> {
        self.lock()?.as_ref().map(using).ok_or_else(|| error::closed(NAME, "released"))
    }

    /// Uses the objects, and makes them before the first use. `using` runs no Python, and neither
    /// does the making: the objects are not those of a collector of garbage.
    fn with<R>(
        &self,
        py: Python<'_>,
        using: impl FnOnce(&[Option<Py<PyPinnedValue>>]) -> R,
    ) -> PyResult<R> {
        let mut values = self.lock()?;
        if let Some(PinnedValues::Whole(pins, keys)) = &mut *values {
            let (pins, keys) = (std::mem::take(pins), std::mem::take(keys));
            let pins =
                pins.into_iter().flat_map(PinBatch::split).chain(std::iter::repeat_with(|| None));
            let object = |(pin, key): (Option<PinBatch>, OwnedKey)| {
                let pin = pin.and_then(|pin| NodePin::new(pin, key));
                pin.map(|pin| Py::new(py, PyPinnedValue::new(pin))).transpose()
            };
            *values =
                Some(PinnedValues::Each(pins.zip(keys).map(object).collect::<PyResult<_>>()?));
        }
        match &*values {
            Some(PinnedValues::Each(all)) => Ok(using(all)),
            _ => Err(error::closed(NAME, "released")),
        }
    }

    /// Returns what `of` returns for each value; `None` for keys without one, and for values that
    /// are released.
    fn of_each<T: Clone>(
        &self,
        of_pin: impl Fn(PinnedValue<'_>) -> T,
        of_object: impl Fn(&NodePin) -> T,
    ) -> PyResult<Vec<Option<T>>> {
        self.with_values(|values| match values {
            PinnedValues::Whole(pins, keys) => {
                let each = pins.iter().flat_map(PinBatch::values);
                let mut all: Vec<Option<T>> = each.map(|it| it.map(&of_pin)).collect();
                all.resize(keys.len(), None);
                all
            }
            PinnedValues::Each(all) => {
                let of = |it: &Py<PyPinnedValue>| it.get().held.with(&of_object).ok();
                all.iter().map(|it| it.as_ref().and_then(of)).collect()
            }
        })
    }

    /// Releases all values that are left, or none while one is viewed.
    fn end(&self, py: Python<'_>) -> PyResult<()> {
        let all = match self.lock()?.take() {
            None => return Ok(()),
            Some(PinnedValues::Whole(pins, _)) => {
                py.detach(|| PinBatch::release_all(pins));
                return Ok(());
            }
            Some(PinnedValues::Each(all)) => all,
        };
        let mut taken: Vec<(&Py<PyPinnedValue>, NodePin)> = Vec::with_capacity(all.len());
        let mut failed = None;
        for object in all.iter().flatten() {
            match object.get().held.take_if_any() {
                Ok(Some(pin)) => taken.push((object, pin)),
                Ok(None) => {}
                Err(error) => {
                    failed = Some(error);
                    break;
                }
            }
        }
        if let Some(error) = failed {
            taken.into_iter().for_each(|(object, pin)| object.get().held.put_back(pin));
            *self.lock()? = Some(PinnedValues::Each(all));
            return Err(error);
        }
        let taken: Vec<NodePin> = taken.into_iter().map(|(_, pin)| pin).collect();
        release(py, taken);
        Ok(())
    }
}

/// Returns the number of values.
fn hits(values: &PinnedValues) -> usize {
    match values {
        PinnedValues::Whole(pins, _) => {
            pins.iter().filter(|it| it.is_valid()).map(PinBatch::hits).sum()
        }
        PinnedValues::Each(all) => all.iter().flatten().count(),
    }
}

/// Returns whether no other reference to an object exists. The caller has the GIL.
fn is_last(object: &Py<PyPinnedValue>) -> bool {
    // SAFETY: the object is alive, because it is borrowed.
    unsafe { pyo3::ffi::Py_REFCNT(object.as_ptr()) == 1 }
}

/// Releases pins with one message.
fn release(py: Python<'_>, pins: Vec<NodePin>) {
    // No other thread has a pin that was taken out.
    let pins = pins.into_iter().filter_map(|pin| Arc::into_inner(pin.pin));
    let pins: Vec<PinBatch> = pins.collect();
    py.detach(|| PinBatch::release_all(pins));
}

impl Drop for PyPinBatch {
    fn drop(&mut self) {
        let is_ours = self.is_ours();
        let values = self.values.values.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        let values = match values {
            None => return,
            // The pins are the parent's, and do nothing when they are dropped.
            Some(PinnedValues::Whole(..)) if !is_ours => return,
            Some(PinnedValues::Whole(pins, _)) => {
                Python::try_attach(|py| py.detach(|| PinBatch::release_all(pins)));
                return;
            }
            Some(PinnedValues::Each(values)) => values,
        };
        // Objects that only the batch has end with it. The others keep their pins.
        Python::try_attach(|py| {
            let own = values.iter().flatten().filter(|object| is_last(object));
            let taken = own.filter_map(|object| object.get().held.take_if_any().ok().flatten());
            release(py, taken.collect());
        });
    }
}

#[pymethods]
impl PyPinBatch {
    fn __len__(&self) -> PyResult<usize> {
        self.with_values(|values| match values {
            PinnedValues::Whole(_, keys) => keys.len(),
            PinnedValues::Each(all) => all.len(),
        })
    }

    fn __getitem__<'py>(
        &self,
        py: Python<'py>,
        index: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let object = |at: usize| self.with(py, |all| all[at].as_ref().map(|it| it.clone_ref(py)));
        let len = self.__len__()?;
        if let Ok(slice) = index.cast::<PySlice>() {
            let range = slice.indices(len as isize)?;
            let at = (0..range.slicelength as isize).map(|n| range.start + n * range.step);
            let some = at.map(|at| object(at as usize)).collect::<PyResult<Vec<_>>>()?;
            return Ok(PyTuple::new(py, some)?.into_any());
        }
        let given = match index.extract::<isize>() {
            Ok(given) => given,
            Err(error) if error.is_instance_of::<PyOverflowError>(py) => isize::MAX,
            Err(_) => {
                let name = index.get_type().name()?;
                let message = format!("an index is an int or a slice, not {name}");
                return Err(PyTypeError::new_err(message));
            }
        };
        let at = if given < 0 { given + len as isize } else { given };
        match usize::try_from(at) {
            Ok(at) if at < len => Ok(object(at)?.into_pyobject(py)?),
            _ => Err(PyIndexError::new_err(format!("index {index} of {len} values"))),
        }
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyIterator>> {
        let copy = |all: &[Option<Py<PyPinnedValue>>]| -> Vec<_> {
            all.iter().map(|object| object.as_ref().map(|object| object.clone_ref(py))).collect()
        };
        PyTuple::new(py, self.with(py, copy)?)?.try_iter()
    }

    #[doc = doc!("PinBatch.hits")]
    #[getter]
    fn hits(&self) -> PyResult<usize> {
        self.with_values(hits)
    }

    #[doc = doc!("PinBatch.pending")]
    #[getter]
    fn pending(&self) -> Vec<usize> {
        self.pending.0.clone()
    }

    #[doc = doc!("PinBatch.offsets")]
    #[getter]
    fn offsets(&self) -> PyResult<Vec<Option<u64>>> {
        self.of_each(|pinned| pinned.offset(), |pinned| pinned.offset)
    }

    #[doc = doc!("PinBatch.lengths")]
    #[getter]
    fn lengths(&self) -> PyResult<Vec<Option<usize>>> {
        self.of_each(|pinned| pinned.bytes().len(), |pinned| pinned.span.len)
    }

    #[doc = doc!("PinBatch.is_valid")]
    #[getter]
    fn is_valid(&self) -> PyResult<bool> {
        self.with_values(|values| match values {
            PinnedValues::Whole(pins, _) => pins.iter().all(PinBatch::is_valid),
            PinnedValues::Each(all) => {
                let is_valid = |pinned: &NodePin| pinned.pin.is_valid();
                all.iter().flatten().all(|it| it.get().held.with(is_valid).unwrap_or(true))
            }
        })
    }

    #[doc = doc!("PinBatch.release")]
    fn release(&self, py: Python<'_>) -> PyResult<()> {
        self.end(py)
    }

    fn __enter__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, Self>> {
        slf.get().with_values(|_| ())?;
        Ok(slf)
    }

    #[pyo3(signature = (*exc))]
    fn __exit__(&self, py: Python<'_>, exc: &Bound<'_, PyTuple>) -> PyResult<()> {
        match self.end(py) {
            // The current exception says more than the existence of views.
            Err(error)
                if error.is_instance_of::<pyo3::exceptions::PyBufferError>(py)
                    && exc.get_item(0).is_ok_and(|kind| !kind.is_none()) =>
            {
                Ok(())
            }
            ended => ended,
        }
    }

    fn __repr__(&self) -> String {
        match self.hits().and_then(|hits| Ok((hits, self.__len__()?))) {
            Ok((hits, keys)) => format!("<kvmem.PinBatch of {hits} values for {keys} keys>"),
            Err(_) => "<kvmem.PinBatch, released>".to_owned(),
        }
    }
}
