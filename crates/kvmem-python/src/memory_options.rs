//! *Memory options*: those of regions and pools.

use kvmem::arena::{Ladder, Numa};
use pyo3::prelude::*;

use crate::error;
use crate::keywords::Keywords;
use crate::options::{self, Words};

/// The options of memory that is mapped.
pub(crate) struct MemoryOptions {
    pub(crate) ladder: Ladder,
    pub(crate) numa: Numa,
    pub(crate) shared: bool,
    pub(crate) readers_only: bool,
    pub(crate) guard_pages: bool,
}

impl MemoryOptions {
    /// Takes them. `readers_only` is for shared memory alone.
    pub(crate) fn take(py: Python<'_>, given: &Keywords<'_>) -> PyResult<MemoryOptions> {
        let (pages, strict) = (given.take::<Words>("pages")?, given.flag("strict", false)?);
        let shared = given.flag("shared", false)?;
        let readers_only = given.flag("readers_only", false)?;
        if readers_only && !shared {
            let message = "readers_only is True, but the memory is private and has no other \
                           writers: add shared=True, or leave readers_only out";
            return Err(error::bad_value(py, message));
        }
        Ok(MemoryOptions {
            ladder: options::ladder(py, pages.as_ref(), strict)?,
            numa: options::numa(py, given.text("numa")?.as_deref())?,
            shared,
            readers_only,
            guard_pages: given.flag("guard_pages", false)?,
        })
    }
}
