//! *Prefix*: keys of the blocks of a prompt.

use std::num::NonZeroUsize;

use kvmem::cache::prefix_keys as keys_of;
use pyo3::buffer::{PyBuffer, PyUntypedBuffer};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyInt, PyString};

use crate::buffer::Source;
use crate::elements::{elements, named};
use crate::error;
use crate::number::Int;

/// Numbers of tokens, copied: nobody can change them during the calculation.
struct Tokens(Vec<i32>);

impl Tokens {
    fn of(tokens: &Bound<'_, PyAny>) -> PyResult<Tokens> {
        let py = tokens.py();
        if tokens.is_instance_of::<PyString>() || tokens.is_instance_of::<PyBytes>() {
            let name = tokens.get_type().name()?;
            let message = format!("tokens are numbers, not {name}: pass what a tokenizer returns");
            return Err(PyTypeError::new_err(message));
        }
        // An object without the protocol is a sequence.
        let Ok(buffer) = PyUntypedBuffer::get(tokens) else {
            return elements(tokens, "tokens", "numbers")?
                .map(|each| token(&each?))
                .collect::<PyResult<_>>()
                .map(Tokens);
        };
        if buffer.dimensions() != 1 {
            let message = format!(
                "tokens have {} dimensions: pass the tokens of one prompt",
                buffer.dimensions()
            );
            return Err(error::bad_buffer(py, message));
        }
        if buffer.len_bytes() == 0 {
            // It may have no address.
            return Ok(Tokens(Vec::new()));
        }
        if let Ok(tokens) = PyBuffer::<i32>::get(tokens) {
            return tokens.to_vec(py).map(Tokens);
        }
        if let Ok(tokens) = PyBuffer::<i64>::get(tokens) {
            return narrow(py, tokens.to_vec(py)?).map(Tokens);
        }
        if let Ok(tokens) = PyBuffer::<u32>::get(tokens) {
            return narrow(py, tokens.to_vec(py)?).map(Tokens);
        }
        let format = buffer.format().to_string_lossy();
        let message =
            format!("tokens are a buffer of format {format:?}: pass one of int32 or int64");
        Err(error::bad_buffer(py, message))
    }
}

/// Converts one number.
fn token(given: &Bound<'_, PyAny>) -> PyResult<i32> {
    if let Ok(number) = given.extract::<i32>() {
        return Ok(number);
    }
    // Objects with `__index__`, such as the numbers of NumPy, have been converted.
    if given.is_instance_of::<PyInt>() || given.extract::<i128>().is_ok() {
        return Err(beyond(given, given.lt(0)?));
    }
    let name = given.get_type().name()?;
    Err(PyTypeError::new_err(format!("a token is an int, not {name}")))
}

fn narrow<T>(py: Python<'_>, tokens: Vec<T>) -> PyResult<Vec<i32>>
where
    T: Copy + Into<i128>,
    i32: TryFrom<T>,
{
    let one = |token: T| {
        i32::try_from(token).or_else(|_| {
            let token: i128 = token.into();
            Err(beyond(token.into_pyobject(py)?.as_any(), token < 0))
        })
    };
    tokens.into_iter().map(one).collect()
}

/// Makes the error of a number that has more than 32 bits.
#[cold]
fn beyond(given: &Bound<'_, PyAny>, is_low: bool) -> PyErr {
    let (low, high) = (i32::MIN, i32::MAX);
    let message = format!("a token is {given}: give numbers from {low} to {high}");
    error::bad_number(given.py(), message, given, if is_low { low } else { high })
}

#[doc = doc!("prefix_keys")]
#[pyfunction]
pub(crate) fn prefix_keys<'py>(
    py: Python<'py>,
    tokens: &Bound<'py, PyAny>,
    block: Int<'py>,
    salt: &Bound<'py, PyAny>,
) -> PyResult<Vec<Bound<'py, PyBytes>>> {
    let block = block.within(py, "block", 1..=u64::MAX)?;
    let block =
        usize::try_from(block).ok().and_then(NonZeroUsize::new).unwrap_or(NonZeroUsize::MAX);
    let source = Source::of(salt).map_err(|error| named(py, error, "salt"))?;
    let mut salt = vec![0; source.len()];
    // SAFETY: the vector has as many bytes as the source, and is this function's.
    unsafe { source.copy_to(py, salt.as_mut_ptr()) };
    let tokens = Tokens::of(tokens)?.0;
    let keys = if tokens.len() >= LONG {
        py.detach(|| keys_of(&tokens, block, &salt))
    } else {
        keys_of(&tokens, block, &salt)
    };
    Ok(keys.iter().map(|key| PyBytes::new(py, key)).collect())
}

/// Number of tokens from which the calculation takes longer than releasing and reacquiring the GIL.
const LONG: usize = 4096;
