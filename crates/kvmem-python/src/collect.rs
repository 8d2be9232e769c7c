//! *Collect*: the references that the garbage collector of Python follows.
//!
//! Reference counts free no cycle: a lower tier that knows its cache, a buffer that knows the
//! region over it. The collector frees it if each class on the cycle reports its references
//! (`__traverse__`) and drops them on demand (`__clear__`).
//!
//! ```text
//!        ┌──────────────────────────────────────────────┐
//!        ▼                                              │ tier.cache = cache
//!   KvCache ──Link──▶ lower tier (an object of Python) ─┘
//!     │                     ▲
//!     ▼                     ┆ borrowed: reads the link, owns nothing
//!   kvmem::cache::KvCache ┄ closure of `on_evict`
//! ```
//!
//! Four rules make this sound:
//!
//! 1. *One owner.* The collector compares the references that it visits with the reference count,
//!    so each counted reference is visited exactly once. An object of Python is therefore owned by
//!    a [`Link`] in exactly one class. A closure deep in the library borrows that link.
//! 2. *No lock is waited for.* The collector runs in any thread that allocates. A link's lock is
//!    held only by a thread with the GIL, and no Python runs under it. So it is free whenever the
//!    collector runs, in both of its passes.
//! 3. *Memory outlives its views.* `__clear__` runs in any order. It gives up memory only if no
//!    view of it exists; otherwise clearing the view frees the cycle.
//! 4. *Nothing is forgotten.* The module accepts only a class that is [`Accounted`]. The macros
//!    below name every field of it: a new field that holds objects of Python does not compile as
//!    [`Plain`], and a new class does not compile without an account.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError, TryLockError};

use kvmem::arena::{CancelToken, Region};
use kvmem::offset::OffsetAllocator;
use pyo3::PyClass;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;

/// A value that may own objects of Python.
pub(crate) trait Traverse {
    /// Visits each reference that the value owns, once. Runs no Python and waits for no lock.
    fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError>;
}

/// A value that owns no object of Python.
pub(crate) trait Plain {}

impl<T: Plain> Traverse for T {
    fn traverse(&self, _: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        Ok(())
    }
}

/// A class whose fields are all accounted for, by [`collected`] or [`plain`].
pub(crate) trait Accounted: PyClass {}

/// Adds a class to the module.
pub(crate) fn add<C: Accounted>(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<C>()
}

/// A reference to an object of Python that the collector follows, and can drop.
pub(crate) struct Link<T>(Mutex<Option<Py<T>>>);

impl<T> Link<T> {
    pub(crate) fn new(object: Option<Py<T>>) -> Link<T> {
        Link(Mutex::new(object))
    }

    /// The object; None once the link is cut.
    pub(crate) fn get(&self, py: Python<'_>) -> Option<Py<T>> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .as_ref()
            .map(|object| object.clone_ref(py))
    }

    /// Drops the reference.
    pub(crate) fn cut(&self, _py: Python<'_>) {
        drop(self.take());
    }

    /// Takes the reference out. The lock is free when the caller drops it, which runs Python.
    pub(crate) fn take(&self) -> Option<Py<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl<T> Traverse for Link<T> {
    fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        match self.0.try_lock() {
            Ok(object) => visit.call(&*object),
            Err(TryLockError::Poisoned(object)) => visit.call(&*object.into_inner()),
            // Rule 2 excludes this. An object that is not visited counts as reachable.
            Err(TryLockError::WouldBlock) => Ok(()),
        }
    }
}

impl<T: Traverse> Traverse for Option<T> {
    fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.as_ref().map_or(Ok(()), |value| value.traverse(visit))
    }
}

impl Plain for u32 {}
impl Plain for u64 {}
impl Plain for usize {}
impl Plain for isize {}
impl Plain for CancelToken {}
impl Plain for OffsetAllocator {}
impl Plain for Box<[u64]> {}
impl Plain for [isize; 1] {}
// Memory of its own, or foreign memory whose owner the Python object links to: see `region.rs`.
impl Plain for Arc<Region> {}
impl Plain for Mutex<Option<OwnedFd>> {}

/// Accounts for a class that owns objects of Python: names every field, and says how its links are
/// cut.
macro_rules! collected {
    ($class:ident { $($field:ident),* $(,)? }, $clear:expr) => {
        impl $crate::collect::Accounted for $class {}

        #[pyo3::pymethods]
        impl $class {
            fn __traverse__(
                &self,
                visit: pyo3::gc::PyVisit<'_>,
            ) -> Result<(), pyo3::gc::PyTraverseError> {
                let Self { $($field),* } = self;
                $($crate::collect::Traverse::traverse($field, &visit)?;)*
                Ok(())
            }

            fn __clear__(&self, py: pyo3::Python<'_>) {
                let clear: fn(&$class, pyo3::Python<'_>) = $clear;
                clear(self, py);
            }
        }
    };
}

/// Accounts for a class that owns no object of Python: names every field. The collector does not
/// track its objects.
macro_rules! plain {
    ($class:ident { $($field:ident),* $(,)? }) => {
        impl $crate::collect::Accounted for $class {}

        const _: () = {
            fn is_plain(_: &impl $crate::collect::Plain) {}

            #[allow(dead_code, reason = "its types are checked, and nothing is to be run")]
            fn all(object: &$class) {
                let $class { $($field),* } = object;
                $(is_plain($field);)*
            }
        };
    };
}

pub(crate) use {collected, plain};
