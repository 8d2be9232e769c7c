//! A receiver of progress that records its calls, for any suite.

use kvmem_bench::progress::Progress;

#[derive(Default)]
pub(crate) struct Watch {
    pub(crate) planned: u64,
    pub(crate) done: u64,
    pub(crate) steps: Vec<String>,
    pub(crate) rows: usize,
}

impl<R> Progress<R> for Watch {
    fn begin(&mut self, units: u64) {
        self.planned = units;
    }

    fn step(&mut self, what: &str) {
        self.steps.push(what.to_owned());
    }

    fn advance(&mut self, units: u64) {
        self.done += units;
    }

    fn row(&mut self, _row: &R) {
        self.rows += 1;
    }
}
