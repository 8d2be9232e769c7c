//! *Batch events*: what the thread of a batch does while its transfers are in flight.

use std::io;

use super::Read;

/// Receives the events of a batch, in the thread that has begun it, and works meanwhile.
pub(super) trait BatchEvents {
    /// Whether [`done`](Self::done) works on what was transferred: others are to be in flight then.
    const WORKS_WHEN_DONE: bool;

    /// Returns whether there is work, when `submitted` transfers have been submitted.
    fn has_work(&self, submitted: usize) -> bool;

    /// Does a piece of that work.
    fn work(&mut self);

    /// The transfer with this index is complete. Called once for each, in any order.
    fn done(&mut self, index: usize, result: io::Result<()>);
}

/// Works on the bytes of writes while they are in flight, and collects the results.
pub(super) struct Writing<'a> {
    meanwhile: &'a mut dyn FnMut(usize),
    /// The next write to work on.
    next: usize,
    pub(super) results: Vec<io::Result<()>>,
}

impl<'a> Writing<'a> {
    /// Receives the events of `len` writes.
    pub(super) fn new(len: usize, meanwhile: &'a mut dyn FnMut(usize)) -> Self {
        Writing { meanwhile, next: 0, results: (0..len).map(|_| Ok(())).collect() }
    }
}

impl BatchEvents for Writing<'_> {
    const WORKS_WHEN_DONE: bool = false;

    fn has_work(&self, submitted: usize) -> bool {
        self.next < submitted
    }

    fn work(&mut self) {
        (self.meanwhile)(self.next);
        self.next += 1;
    }

    fn done(&mut self, index: usize, result: io::Result<()>) {
        self.results[index] = result;
    }
}

/// Hands out the bytes of each read as soon as it is complete, and works on other things before.
pub(super) struct Reading<'a, 'b> {
    batch: &'a mut [Read<'b>],
    meanwhile: &'a mut dyn FnMut() -> bool,
    has_work: bool,
    done: &'a mut dyn FnMut(usize, &mut Read<'_>, io::Result<()>),
}

impl<'a, 'b> Reading<'a, 'b> {
    /// Receives the events of these reads. There is work until `meanwhile` returns false.
    pub(super) fn new(
        batch: &'a mut [Read<'b>],
        meanwhile: &'a mut dyn FnMut() -> bool,
        done: &'a mut dyn FnMut(usize, &mut Read<'_>, io::Result<()>),
    ) -> Self {
        Reading { batch, meanwhile, has_work: true, done }
    }
}

impl BatchEvents for Reading<'_, '_> {
    const WORKS_WHEN_DONE: bool = true;

    fn has_work(&self, _: usize) -> bool {
        self.has_work
    }

    fn work(&mut self) {
        self.has_work = (self.meanwhile)();
    }

    fn done(&mut self, index: usize, result: io::Result<()>) {
        (self.done)(index, &mut self.batch[index], result);
    }
}
