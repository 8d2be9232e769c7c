//! *Cache key*: the key of a cached value: an `int`, `bytes` or a `str`.
//!
//! A look-up borrows the bytes from the Python object: [`CacheKey`]. A cache owns its keys:
//! [`OwnedKey`]. Both hash and compare alike, through [`AsCacheKey`], so a look-up copies nothing.
//!
//! The exact types are checked first, by one comparison of pointers each. Subclasses, and objects
//! with `__index__` such as NumPy's integers, are checked after them.

use std::borrow::Borrow;
use std::ffi::c_int;
use std::hash::{Hash, Hasher};

use kvmem::cache::KvCache;
use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyInt, PyString};

use crate::error::{self, ArgumentError};

/// A key that is borrowed for one call. Numbers, bytes and texts are never equal.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum CacheKey<'a> {
    Int(i128),
    Bytes(&'a [u8]),
    Text(&'a str),
}

/// A key that owns its content.
#[derive(Clone)]
pub(crate) enum OwnedKey {
    Int(i128),
    Bytes(Box<[u8]>),
    Text(Box<str>),
}

/// A value that can be viewed as a key.
pub(crate) trait AsCacheKey {
    fn key(&self) -> CacheKey<'_>;
}

impl CacheKey<'_> {
    pub(crate) fn to_owned_key(self) -> OwnedKey {
        match self {
            CacheKey::Int(number) => OwnedKey::Int(number),
            CacheKey::Bytes(bytes) => OwnedKey::Bytes(bytes.into()),
            CacheKey::Text(text) => OwnedKey::Text(text.into()),
        }
    }
}

impl AsCacheKey for CacheKey<'_> {
    #[inline]
    fn key(&self) -> CacheKey<'_> {
        *self
    }
}

impl AsCacheKey for OwnedKey {
    #[inline]
    fn key(&self) -> CacheKey<'_> {
        match self {
            OwnedKey::Int(number) => CacheKey::Int(*number),
            OwnedKey::Bytes(bytes) => CacheKey::Bytes(bytes),
            OwnedKey::Text(text) => CacheKey::Text(text),
        }
    }
}

impl Hash for CacheKey<'_> {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        match self {
            CacheKey::Int(number) => state.write_i128(*number),
            CacheKey::Bytes(bytes) => state.write(bytes),
            CacheKey::Text(text) => {
                state.write(text.as_bytes());
                state.write_u8(0xFF);
            }
        }
    }
}

impl Hash for OwnedKey {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key().hash(state);
    }
}

impl PartialEq for OwnedKey {
    #[inline]
    fn eq(&self, other: &OwnedKey) -> bool {
        self.key() == other.key()
    }
}

impl Eq for OwnedKey {}

impl Hash for dyn AsCacheKey + '_ {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key().hash(state);
    }
}

impl PartialEq for dyn AsCacheKey + '_ {
    #[inline]
    fn eq(&self, other: &(dyn AsCacheKey + '_)) -> bool {
        self.key() == other.key()
    }
}

impl Eq for dyn AsCacheKey + '_ {}

impl<'a> Borrow<dyn AsCacheKey + 'a> for OwnedKey {
    #[inline]
    fn borrow(&self) -> &(dyn AsCacheKey + 'a) {
        self
    }
}

impl ToOwned for dyn AsCacheKey + '_ {
    type Owned = OwnedKey;

    fn to_owned(&self) -> OwnedKey {
        self.key().to_owned_key()
    }
}

/// A cache with such keys.
pub(crate) type Cache = KvCache<OwnedKey>;

impl<'a, 'py> FromPyObject<'a, 'py> for CacheKey<'a> {
    type Error = ArgumentError;

    #[inline]
    fn extract(given: Borrowed<'a, 'py, PyAny>) -> Result<CacheKey<'a>, ArgumentError> {
        if given.is_exact_instance_of::<PyInt>() {
            int(given)
        } else if given.is_exact_instance_of::<PyBytes>() {
            Ok(CacheKey::Bytes(given.extract::<&'a [u8]>().map_err(PyErr::from)?))
        } else if given.is_exact_instance_of::<PyString>() {
            text(given)
        } else {
            other(given)
        }
    }
}

/// Returns the UTF-8 form of a `str`, which the object keeps.
#[inline]
fn text<'a>(given: Borrowed<'a, '_, PyAny>) -> Result<CacheKey<'a>, ArgumentError> {
    match given.extract::<&'a str>() {
        Ok(text) => Ok(CacheKey::Text(text)),
        Err(_) => Err(error::bad_value(
            given.py(),
            "a str key must be text that UTF-8 can encode: give other data as bytes",
        )
        .into()),
    }
}

/// Converts an `int`, or an instance of a subclass. Raises no Python exception for numbers that fit
/// in 128 bits.
#[inline]
fn int<'a>(given: Borrowed<'a, '_, PyAny>) -> Result<CacheKey<'a>, ArgumentError> {
    let mut overflow: c_int = 0;
    // SAFETY: the borrowed object is alive, and the token of its type says that this thread is
    // attached. The flag is a local, writable until the call returns. For an int, which the caller
    // checked, the call sets no exception: it reports overflow in the flag.
    let number = unsafe { ffi::PyLong_AsLongLongAndOverflow(given.as_ptr(), &raw mut overflow) };
    if overflow == 0 { Ok(CacheKey::Int(i128::from(number))) } else { long(given) }
}

#[cold]
fn long<'a>(given: Borrowed<'a, '_, PyAny>) -> Result<CacheKey<'a>, ArgumentError> {
    match given.extract::<i128>() {
        Ok(number) => Ok(CacheKey::Int(number)),
        Err(_) => {
            let message = "an int key has at most 127 bits and a sign: give a longer one as bytes";
            Err(error::bad_number(given.py(), message, given, i128::MAX).into())
        }
    }
}

#[cold]
fn other<'a>(given: Borrowed<'a, '_, PyAny>) -> Result<CacheKey<'a>, ArgumentError> {
    if given.is_instance_of::<PyBytes>() {
        Ok(CacheKey::Bytes(given.extract::<&'a [u8]>().map_err(PyErr::from)?))
    } else if given.is_instance_of::<PyString>() {
        text(given)
    } else if given.is_instance_of::<PyInt>() {
        int(given)
    } else if let Ok(number) = given.extract::<i128>() {
        Ok(CacheKey::Int(number))
    } else {
        let name = given.get_type().name()?;
        Err(PyTypeError::new_err(format!("a key is an int, bytes or a str, not {name}")).into())
    }
}

impl<'py> IntoPyObject<'py> for &CacheKey<'_> {
    type Target = PyAny;
    type Output = Bound<'py, PyAny>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(match *self {
            CacheKey::Int(number) => number.into_pyobject(py)?.into_any(),
            CacheKey::Bytes(bytes) => PyBytes::new(py, bytes).into_any(),
            CacheKey::Text(text) => PyString::new(py, text).into_any(),
        })
    }
}

impl<'py> IntoPyObject<'py> for &OwnedKey {
    type Target = PyAny;
    type Output = Bound<'py, PyAny>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        (&self.key()).into_pyobject(py)
    }
}
