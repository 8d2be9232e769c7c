//! *History*: the learned eviction policy, for an owner in Python that orders its values itself.
//!
//! The class adds to [`kvmem::cache::History`] the numbers of slots, and a check of each number.
//!
//! Nothing here releases the GIL. No lock is therefore held by another thread when the process
//! forks, and a child continues with its copy.

use std::sync::{Mutex, MutexGuard, PoisonError};

use kvmem::cache::{History, Slot};
use pyo3::prelude::*;

use crate::collect::{Plain, plain};
use crate::elements::named;
use crate::error;
use crate::number::Int;

/// A history and its slots.
#[derive(Default)]
pub(crate) struct Slots {
    history: History,
    /// Whether each slot has a value.
    used: Vec<bool>,
    free: Vec<Slot>,
}

impl Plain for Mutex<Slots> {}

#[doc = doc!("History")]
#[pyclass(name = "History", module = "kvmem._kvmem", frozen, weakref)]
pub(crate) struct PyHistory {
    slots: Mutex<Slots>,
}

plain!(PyHistory { slots });

impl PyHistory {
    fn lock(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a slot that has a value, and the history.
    fn at(&self, py: Python<'_>, slot: Int<'_>) -> PyResult<(Slot, MutexGuard<'_, Slots>)> {
        let slot = slot.u32(py, "slot")?;
        let slots = self.lock();
        if slots.used.get(slot as usize) == Some(&true) {
            return Ok((slot, slots));
        }
        let count = slots.used.len();
        drop(slots);
        let message =
            format!("slot {slot} has no value: give a number below {count} that insert returned");
        Err(error::bad_number(py, message, slot, count))
    }

    fn leave(
        &self,
        py: Python<'_>,
        slot: Int<'_>,
        leave: impl Fn(&mut History, Slot),
    ) -> PyResult<()> {
        let (slot, mut slots) = self.at(py, slot)?;
        leave(&mut slots.history, slot);
        slots.used[slot as usize] = false;
        slots.free.push(slot);
        Ok(())
    }
}

#[pymethods]
impl PyHistory {
    /// Number of kinds.
    #[classattr]
    const KINDS: usize = History::KINDS;

    #[new]
    fn create() -> PyHistory {
        PyHistory { slots: Mutex::default() }
    }

    #[doc = doc!("History.insert")]
    fn insert(&self, key: &Bound<'_, PyAny>) -> PyResult<Slot> {
        // Python's hashes of numbers are not mixed.
        let hash = (key.hash()? as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(32);
        let mut slots = self.lock();
        let slot = slots.free.pop().unwrap_or(slots.used.len() as Slot);
        if slot as usize == slots.used.len() {
            slots.used.push(true);
        }
        slots.used[slot as usize] = true;
        slots.history.insert(slot, hash);
        Ok(slot)
    }

    #[doc = doc!("History.touch")]
    fn touch(&self, py: Python<'_>, slot: Int<'_>) -> PyResult<()> {
        let (slot, mut slots) = self.at(py, slot)?;
        slots.history.touch(slot);
        Ok(())
    }

    #[doc = doc!("History.evict")]
    fn evict(&self, py: Python<'_>, slot: Int<'_>) -> PyResult<()> {
        self.leave(py, slot, History::evict)
    }

    #[doc = doc!("History.remove")]
    fn remove(&self, py: Python<'_>, slot: Int<'_>) -> PyResult<()> {
        self.leave(py, slot, History::remove)
    }

    #[doc = doc!("History.kind")]
    fn kind(&self, py: Python<'_>, slot: Int<'_>) -> PyResult<usize> {
        let (slot, slots) = self.at(py, slot)?;
        Ok(slots.history.kind(slot))
    }

    #[doc = doc!("History.choose")]
    fn choose(&self, firsts: &Bound<'_, PyAny>) -> PyResult<Option<usize>> {
        let py = firsts.py();
        let (mut slots, mut count) = ([None; History::KINDS], 0);
        for first in firsts.try_iter().map_err(|error| named(py, error, "firsts"))? {
            let first = first?.extract::<Option<Int<'_>>>();
            let first = first.map_err(|error| named(py, error, &format!("firsts[{count}]")))?;
            if let Some(to) = slots.get_mut(count) {
                *to = first.map(|first| self.at(py, first).map(|(slot, _)| slot)).transpose()?;
            }
            count += 1;
        }
        if count != History::KINDS {
            let kinds = History::KINDS;
            let message = format!("firsts has {count} slots: give one for each of {kinds} kinds");
            return Err(error::bad_number(py, message, count, kinds));
        }
        let history = &mut self.lock().history;
        history.learn();
        let victim = history.victim(slots);
        Ok(slots.iter().position(|first| victim.is_some() && *first == victim))
    }
}
