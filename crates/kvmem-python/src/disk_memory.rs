//! *Disk memory*: bytes of the caller that a disk tier writes from or reads into.
//!
//! The objects are exported, or borrowed if they never change, while a call uses their bytes
//! without the GIL.

use std::slice;

use pyo3::prelude::*;

use crate::buffer::{Exported, Span};
use crate::elements::{elements, named};
use crate::error;

/// Returns the bytes of a span.
///
/// # Safety
/// They stay mapped for `'a`, and nobody writes to them meanwhile, except a program with a data
/// race of its own.
pub(crate) unsafe fn bytes_of<'a>(span: &Span) -> &'a [u8] {
    if span.len == 0 {
        return &[];
    }
    // SAFETY: the span is not empty, so its address is not NULL; the rest is the caller's promise.
    unsafe { slice::from_raw_parts(span.at, span.len) }
}

/// Returns the bytes of a span, for writing.
///
/// # Safety
/// They stay mapped for writing for `'a`, and nobody else uses them meanwhile, except a program
/// with a data race of its own.
pub(crate) unsafe fn bytes_of_mut<'a>(span: &Span) -> &'a mut [u8] {
    if span.len == 0 {
        return &mut [];
    }
    // SAFETY: the span is not empty, so its address is not NULL; the rest is the caller's promise.
    unsafe { slice::from_raw_parts_mut(span.at, span.len) }
}

/// Writable memory for values that are fetched.
pub(crate) struct FetchTarget {
    pub(crate) span: Span,
    /// Keeps the bytes where they are.
    _exported: Exported,
}

/// Exports the buffers, and checks that none shares bytes with another.
pub(crate) fn targets(buffers: &Bound<'_, PyAny>, keys: usize) -> PyResult<Vec<FetchTarget>> {
    let py = buffers.py();
    let target = |(at, buffer): (usize, PyResult<Bound<'_, PyAny>>)| {
        let exported =
            Exported::of(&buffer?).map_err(|error| named(py, error, &format!("buffers[{at}]")))?;
        let span = match exported.len() {
            0 => Span::writable(std::ptr::null_mut(), 0),
            len => Span::writable(exported.writable_at(py)?.as_ptr(), len),
        };
        Ok(FetchTarget { span, _exported: exported })
    };
    let targets = elements(buffers, "buffers", "buffers")?.enumerate().map(target);
    let targets = targets.collect::<PyResult<Vec<_>>>()?;
    if targets.len() != keys {
        let message = format!("{} buffers for {keys} keys: give one for each", targets.len());
        return Err(error::bad_number(py, message, targets.len(), keys));
    }
    let mut ranges: Vec<(usize, usize)> = targets
        .iter()
        .map(|target| (target.span.at.addr(), target.span.len))
        .filter(|&(_, len)| len > 0)
        .collect();
    ranges.sort_unstable();
    if ranges.windows(2).any(|pair| pair[0].0 + pair[0].1 > pair[1].0) {
        let message = "two of the buffers share bytes: give each key memory of its own";
        return Err(error::bad_buffer(py, message));
    }
    Ok(targets)
}
