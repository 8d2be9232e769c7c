//! *Hold*: a promise that the pages of a range stay where they are.
//!
//! A device that was given pages keeps writing to those pages, whatever the kernel puts at their
//! addresses later. So while a range is held it is not discarded; that it is not unmapped follows
//! from whoever holds it having the region.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::mapping::Mapping;

/// Ranges of one mapping that are held, as offsets into it.
#[derive(Debug, Default)]
pub(crate) struct Holds(Mutex<Vec<Range<usize>>>);

impl Holds {
    /// Locks the books, so that nothing is held anew meanwhile, and finds a held range that has a
    /// part in `range`.
    pub(crate) fn look(&self, range: &Range<usize>) -> (Option<Range<usize>>, impl Drop + use<'_>) {
        let holds = self.lock();
        let held =
            holds.iter().find(|held| held.start < range.end && range.start < held.end).cloned();
        (held, holds)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Range<usize>>> {
        // Each change is one push or one removal: a panic elsewhere leaves nothing half done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A held range, until this is dropped.
#[derive(Debug)]
pub(crate) struct Hold {
    mapping: Arc<Mapping>,
    range: Range<usize>,
}

impl Hold {
    /// Holds a range of a mapping, given as offsets into it.
    pub(crate) fn new(mapping: &Arc<Mapping>, range: Range<usize>) -> Hold {
        mapping.holds().lock().push(range.clone());
        Hold { mapping: Arc::clone(mapping), range }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut holds = self.mapping.holds().lock();
        if let Some(at) = holds.iter().position(|held| *held == self.range) {
            holds.swap_remove(at);
        }
    }
}
