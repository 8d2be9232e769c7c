//! *Batch events*: what the thread of a batch does while its transfers are in flight.

use std::io;

use super::Read;

/// Receives the events of a batch, in the thread that has begun it.
pub(super) trait BatchEvents {
    /// Whether [`in_flight`](Self::in_flight) does anything.
    const HAS_WORK: bool;

    /// The transfer with this index has been submitted. Called once for each, in order.
    fn in_flight(&mut self, index: usize);

    /// The transfer with this index is complete. Called once for each, in any order.
    fn done(&mut self, index: usize, result: io::Result<()>);
}

/// Works on the bytes of writes while they are in flight, and collects the results.
pub(super) struct Writing<'a> {
    pub(super) meanwhile: &'a mut dyn FnMut(usize),
    pub(super) results: Vec<io::Result<()>>,
}

impl<'a> Writing<'a> {
    /// Receives the events of `len` writes.
    pub(super) fn new(len: usize, meanwhile: &'a mut dyn FnMut(usize)) -> Self {
        Writing { meanwhile, results: (0..len).map(|_| Ok(())).collect() }
    }
}

impl BatchEvents for Writing<'_> {
    const HAS_WORK: bool = true;

    fn in_flight(&mut self, index: usize) {
        (self.meanwhile)(index);
    }

    fn done(&mut self, index: usize, result: io::Result<()>) {
        self.results[index] = result;
    }
}

/// Hands out the bytes of each read as soon as it is complete.
pub(super) struct Reading<'a, 'b> {
    pub(super) batch: &'a mut [Read<'b>],
    pub(super) done: &'a mut dyn FnMut(usize, &mut Read<'_>, io::Result<()>),
}

impl BatchEvents for Reading<'_, '_> {
    const HAS_WORK: bool = false;

    fn in_flight(&mut self, _: usize) {}

    fn done(&mut self, index: usize, result: io::Result<()>) {
        (self.done)(index, &mut self.batch[index], result);
    }
}
