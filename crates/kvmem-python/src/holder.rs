//! *Holder*: a value of the library in a Python object: used, viewed, and given up.
//!
//! ```text
//!          new            take (free, close, commit)
//!   ──────────▶ held ─────────────────────────────▶ gone
//!                │ ▲
//!         view   ▼ │ release             while views exist, `take` fails: BufferError
//!               viewed
//! ```
//!
//! The lock is held during a call of the library that runs no Python and does not take long. Longer
//! work has a *view* meanwhile, like a `memoryview`.

use std::ops::Deref;
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;

use crate::collect::Plain;
use crate::error;
use crate::process;

/// A value that a [`Holder`] can contain.
pub(crate) trait Held: Send + Sized {
    /// Its name in messages.
    const NAME: &'static str;
    /// The word for giving it up, in messages.
    const END: &'static str = "closed";
    /// The word for its views in messages, and how to end them.
    const VIEWS: &'static str = "view(s), such as a memoryview, an array or a tensor: drop them";
    /// Whether dropping it can take long, or wait for a thread that calls into Python.
    const SLOW: bool = false;
    /// Whether a forked child can use its copy.
    const SURVIVES_FORK: bool = false;
}

/// A value, or the place of one that was taken out.
pub(crate) struct Holder<T: Held> {
    state: Mutex<State<T>>,
    age: u32,
}

struct State<T> {
    value: Option<T>,
    views: usize,
}

/// Reason why a value is not available. It becomes an exception after the lock is released, because
/// making one runs Python.
enum Unavailable {
    Forked,
    Gone,
    Viewed(usize),
}

impl<T: Held> Holder<T> {
    pub(crate) fn new(value: T) -> Holder<T> {
        Holder { state: Mutex::new(State { value: Some(value), views: 0 }), age: process::age() }
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether the value belongs to this process.
    #[inline]
    fn is_ours(&self) -> bool {
        T::SURVIVES_FORK || self.age == process::age()
    }

    /// Runs a function under the lock. The function runs no Python: another thread that has the GIL
    /// may wait for the lock.
    #[inline]
    fn locked<R>(&self, run: impl FnOnce(&mut State<T>) -> Result<R, Unavailable>) -> PyResult<R> {
        let result = if self.is_ours() { run(&mut self.lock()) } else { Err(Unavailable::Forked) };
        result.map_err(|reason| match reason {
            Unavailable::Forked => error::forked(T::NAME),
            Unavailable::Gone => error::closed(T::NAME, T::END),
            Unavailable::Viewed(views) => error::viewed(T::NAME, T::VIEWS, views),
        })
    }

    /// Uses the value. `using` runs no Python.
    #[inline]
    pub(crate) fn with<R>(&self, using: impl FnOnce(&T) -> R) -> PyResult<R> {
        self.locked(|state| state.value.as_ref().map(using).ok_or(Unavailable::Gone))
    }

    /// Changes the value. Fails while views exist. `changing` runs no Python.
    pub(crate) fn change<R>(&self, changing: impl FnOnce(&mut T) -> R) -> PyResult<R> {
        self.locked(|state| match (&mut state.value, state.views) {
            (Some(value), 0) => Ok(changing(value)),
            (Some(_), views) => Err(Unavailable::Viewed(views)),
            (None, _) => Err(Unavailable::Gone),
        })
    }

    /// Uses the value and adds a view. `using` runs no Python.
    pub(crate) fn view<R>(&self, using: impl FnOnce(&T) -> R) -> PyResult<R> {
        self.locked(|state| {
            let result = state.value.as_ref().map(using).ok_or(Unavailable::Gone)?;
            state.views += 1;
            Ok(result)
        })
    }

    /// Removes a view.
    pub(crate) fn release(&self) {
        let mut state = self.lock();
        state.views = state.views.saturating_sub(1);
    }

    /// Takes the value out. Fails while views exist.
    #[inline]
    pub(crate) fn take(&self) -> PyResult<T> {
        self.locked(|state| match state.views {
            0 => state.value.take().ok_or(Unavailable::Gone),
            views => Err(Unavailable::Viewed(views)),
        })
    }

    /// Puts back a value that was just taken out.
    pub(crate) fn put_back(&self, value: T) {
        self.lock().value = Some(value);
    }

    /// Takes the value out, if it is still there, at the end of a `with` block.
    pub(crate) fn take_if_any(&self) -> PyResult<Option<T>> {
        if self.is_gone() || !self.is_ours() { Ok(None) } else { self.take().map(Some) }
    }

    /// Gives the value up, with the GIL released if that can take long.
    pub(crate) fn end(&self, py: Python<'_>) -> PyResult<()> {
        let value = self.take_if_any()?;
        drop_value(py, value);
        Ok(())
    }

    /// Gives the value up for the garbage collector, unless views exist. Returns whether no value
    /// remains.
    pub(crate) fn clear(&self, py: Python<'_>) -> bool {
        if !self.is_ours() {
            return false;
        }
        let value = {
            let mut state = self.lock();
            if state.views > 0 { None } else { state.value.take() }
        };
        drop_value(py, value);
        self.is_gone()
    }

    /// Returns whether the value has been taken out.
    pub(crate) fn is_gone(&self) -> bool {
        self.lock().value.is_none()
    }
}

impl<T: Held + Plain> Plain for Holder<T> {}

/// A clone of the held value, for work without the GIL. It may be the last one when the work ends.
pub(crate) struct Lent<T: Held>(Option<T>);

impl<T: Held> Lent<T> {
    pub(crate) fn new(value: T) -> Lent<T> {
        Lent(Some(value))
    }

    /// Returns the clone. The caller drops it without the GIL.
    pub(crate) fn into_inner(mut self) -> T {
        self.0.take().expect("only this and `drop` take it")
    }
}

impl<T: Held> Deref for Lent<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect("only `into_inner` and `drop` take it")
    }
}

impl<T: Held> Drop for Lent<T> {
    fn drop(&mut self) {
        drop_slowly(&mut self.0);
    }
}

/// Drops a value without the GIL, whether or not this thread has it: the drop may wait for a thread
/// that needs the GIL.
fn drop_slowly<T: Held>(value: &mut Option<T>) {
    if T::SLOW && value.is_some() {
        Python::try_attach(|py| drop_value(py, value.take()));
    }
    // The interpreter has ended, or the drop is quick.
    *value = None;
}

/// Drops a value, with the GIL released if that can take long.
pub(crate) fn drop_value<T: Held>(py: Python<'_>, value: Option<T>) {
    if T::SLOW && value.is_some() {
        py.detach(|| drop(value));
    }
}

impl<T: Held> Drop for Holder<T> {
    fn drop(&mut self) {
        let ours = self.is_ours();
        let Some(value) = self.state.get_mut().unwrap_or_else(PoisonError::into_inner).value.take()
        else {
            return;
        };
        if !ours {
            // Its locks may be held forever, and the memory that it would release belongs to the
            // parent.
            std::mem::forget(value);
        } else {
            drop_slowly(&mut Some(value));
        }
    }
}
