//! *Key*: the name of a cached value: an `int`, `bytes` or a `str`.
//!
//! A look-up borrows the bytes from the Python object: [`Key`]. A cache owns its keys: [`Name`].
//! Both hash and compare alike, through [`AsKey`], so a look-up copies nothing.
//!
//! The exact types come first, by one comparison of pointers each. Subclasses, and objects with
//! `__index__` such as NumPy's integers, come after them.

use std::borrow::Borrow;
use std::ffi::c_int;
use std::hash::{Hash, Hasher};

use kvmem::pool::KvCache;
use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyInt, PyString};

use crate::error;

/// A key for the length of a call. Numbers, bytes and texts never equal each other.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Key<'a> {
    Int(i128),
    Bytes(&'a [u8]),
    Text(&'a str),
}

/// A key that owns what it consists of.
#[derive(Clone)]
pub(crate) enum Name {
    Int(i128),
    Bytes(Box<[u8]>),
    Text(Box<str>),
}

/// What is, or can be looked at as, a key.
pub(crate) trait AsKey {
    fn key(&self) -> Key<'_>;
}

impl Key<'_> {
    pub(crate) fn to_name(self) -> Name {
        match self {
            Key::Int(number) => Name::Int(number),
            Key::Bytes(bytes) => Name::Bytes(bytes.into()),
            Key::Text(text) => Name::Text(text.into()),
        }
    }
}

impl AsKey for Key<'_> {
    #[inline]
    fn key(&self) -> Key<'_> {
        *self
    }
}

impl AsKey for Name {
    #[inline]
    fn key(&self) -> Key<'_> {
        match self {
            Name::Int(number) => Key::Int(*number),
            Name::Bytes(bytes) => Key::Bytes(bytes),
            Name::Text(text) => Key::Text(text),
        }
    }
}

impl Hash for Key<'_> {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        match self {
            Key::Int(number) => state.write_i128(*number),
            Key::Bytes(bytes) => state.write(bytes),
            Key::Text(text) => {
                state.write(text.as_bytes());
                state.write_u8(0xFF);
            }
        }
    }
}

impl Hash for Name {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key().hash(state);
    }
}

impl PartialEq for Name {
    #[inline]
    fn eq(&self, other: &Name) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Name {}

impl Hash for dyn AsKey + '_ {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key().hash(state);
    }
}

impl PartialEq for dyn AsKey + '_ {
    #[inline]
    fn eq(&self, other: &(dyn AsKey + '_)) -> bool {
        self.key() == other.key()
    }
}

impl Eq for dyn AsKey + '_ {}

impl<'a> Borrow<dyn AsKey + 'a> for Name {
    #[inline]
    fn borrow(&self) -> &(dyn AsKey + 'a) {
        self
    }
}

/// A cache by such keys.
pub(crate) type Cache = KvCache<Name>;

impl<'a, 'py> FromPyObject<'a, 'py> for Key<'a> {
    type Error = PyErr;

    #[inline]
    fn extract(given: Borrowed<'a, 'py, PyAny>) -> PyResult<Key<'a>> {
        if given.is_exact_instance_of::<PyInt>() {
            int(given)
        } else if given.is_exact_instance_of::<PyBytes>() {
            Ok(Key::Bytes(given.extract::<&'a [u8]>()?))
        } else if given.is_exact_instance_of::<PyString>() {
            text(given)
        } else {
            other(given)
        }
    }
}

/// A `str`, in UTF-8, which the object keeps.
#[inline]
fn text<'a>(given: Borrowed<'a, '_, PyAny>) -> PyResult<Key<'a>> {
    match given.extract::<&'a str>() {
        Ok(text) => Ok(Key::Text(text)),
        Err(_) => Err(error::bad_value(
            given.py(),
            "a str as key must be text that UTF-8 can encode: give other data as bytes",
        )),
    }
}

/// An `int`, or an instance of a subclass. Makes no exception of Python's for numbers that fit in
/// 128 bits.
#[inline]
fn int<'a>(given: Borrowed<'a, '_, PyAny>) -> PyResult<Key<'a>> {
    let mut overflow: c_int = 0;
    // SAFETY: an int, and an address to write to. For an int the call fails by nothing but
    // overflow, which it says there.
    let number = unsafe { ffi::PyLong_AsLongLongAndOverflow(given.as_ptr(), &raw mut overflow) };
    if overflow == 0 { Ok(Key::Int(i128::from(number))) } else { long(given) }
}

#[cold]
fn long<'a>(given: Borrowed<'a, '_, PyAny>) -> PyResult<Key<'a>> {
    match given.extract::<i128>() {
        Ok(number) => Ok(Key::Int(number)),
        Err(_) => {
            let message = "an int as key has at most 127 bits and a sign: give a longer one as bytes";
            Err(error::bad_number(given.py(), message, given, i128::MAX))
        }
    }
}

#[cold]
fn other<'a>(given: Borrowed<'a, '_, PyAny>) -> PyResult<Key<'a>> {
    if given.is_instance_of::<PyBytes>() {
        Ok(Key::Bytes(given.extract::<&'a [u8]>()?))
    } else if given.is_instance_of::<PyString>() {
        text(given)
    } else if given.is_instance_of::<PyInt>() {
        int(given)
    } else if let Ok(number) = given.extract::<i128>() {
        Ok(Key::Int(number))
    } else {
        let name = given.get_type().name()?;
        Err(PyTypeError::new_err(format!("a key is an int, bytes or a str, not {name}")))
    }
}

impl<'py> IntoPyObject<'py> for &Key<'_> {
    type Target = PyAny;
    type Output = Bound<'py, PyAny>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(match *self {
            Key::Int(number) => number.into_pyobject(py)?.into_any(),
            Key::Bytes(bytes) => PyBytes::new(py, bytes).into_any(),
            Key::Text(text) => PyString::new(py, text).into_any(),
        })
    }
}

impl<'py> IntoPyObject<'py> for &Name {
    type Target = PyAny;
    type Output = Bound<'py, PyAny>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        (&self.key()).into_pyobject(py)
    }
}
