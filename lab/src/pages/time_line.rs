//! *Time line*: which thread worked when, while memory was mapped, populated, registered and
//! deregistered.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use kvmem::arena::WorkUnit;
use kvmem::register::{Phase, RegisterProgress};
use kvmem_report::{Section, Spans, Table};

/// The kinds of work, in their order.
const KINDS: [&str; 4] = ["map", "populate", "register", "unregister"];

/// The work of all threads, in seconds since the beginning.
pub(crate) struct TimeLine {
    start: Instant,
    state: Mutex<RecordedWork>,
}

#[derive(Default)]
struct RecordedWork {
    /// Start of the present step, which its reports count from.
    base: f64,
    /// Bytes of the present step that have been reported.
    reported: u64,
    done: Vec<Work>,
}

struct Work {
    worker: String,
    what: &'static str,
    from: f64,
    to: f64,
    bytes: u64,
}

impl TimeLine {
    /// Makes an empty time line.
    pub(crate) fn new() -> TimeLine {
        TimeLine { start: Instant::now(), state: Mutex::default() }
    }

    /// Begins a step now; its reports count from here.
    pub(crate) fn begin(&self) {
        let from = self.start.elapsed().as_secs_f64();
        let mut state = self.lock();
        (state.base, state.reported) = (from, 0);
    }

    /// Records work that began with the step and ends now.
    pub(crate) fn whole(&self, worker: &str, what: &'static str, bytes: u64) {
        let to = self.start.elapsed().as_secs_f64();
        let mut state = self.lock();
        let from = state.base;
        state.done.push(Work { worker: worker.to_owned(), what, from, to, bytes });
    }

    /// Records one unit of work; `done_bytes` of this step are then done.
    pub(crate) fn piece(
        &self,
        worker: String,
        what: &'static str,
        piece: WorkUnit,
        done_bytes: u64,
    ) {
        let mut state = self.lock();
        if state.done.last().is_some_and(|last| last.what != what) {
            state.reported = 0;
        }
        let [from, to] = [piece.began, piece.ended].map(|at| state.base + at.as_secs_f64());
        let bytes = done_bytes.saturating_sub(state.reported);
        state.reported = done_bytes;
        state.done.push(Work { worker, what, from, to, bytes });
    }

    /// Records a progress report of registering; `names` are the registrars in order.
    pub(crate) fn registering(&self, names: &[String], progress: &RegisterProgress) {
        let Some(piece) = progress.piece else { return };
        let registrar = || names.get(piece.worker).cloned().unwrap_or_default();
        let (worker, what) = match progress.phase {
            Phase::Populate => (format!("thread {}", piece.worker), "populate"),
            Phase::Register => (registrar(), "register"),
            Phase::Deregister => (registrar(), "unregister"),
        };
        self.piece(worker, what, piece, progress.done_bytes);
    }

    /// Draws one plot for each step, since one step may take a thousandth of another's time, with a
    /// line for each thread.
    pub(crate) fn section(&self) -> Section {
        let state = self.lock();
        let mut spans = Spans::new("Work of each thread", "seconds").kinds(KINDS);
        let mut steps: Vec<(&str, f64, Spans)> = Vec::new();
        let mut sums: Vec<(&str, &str, Work, f64)> = Vec::new();
        for done in &state.done {
            spans.span(&done.worker, done.what, done.from, done.to);
            let took = done.to - done.from;
            let step = steps.iter().position(|step| step.0 == done.what).unwrap_or_else(|| {
                let about = format!("The same, {} alone", done.what);
                steps.push((
                    done.what,
                    done.from,
                    Spans::new(about, "seconds since it began").kinds(KINDS),
                ));
                steps.len() - 1
            });
            let (_, began, own) = &mut steps[step];
            own.span(&done.worker, done.what, done.from - *began, done.to - *began);
            match sums.iter_mut().find(|sum| (sum.0, sum.1) == (&done.worker, done.what)) {
                Some((_, _, sum, busy)) => {
                    (sum.from, sum.to) = (sum.from.min(done.from), sum.to.max(done.to));
                    sum.bytes += done.bytes;
                    *busy += took;
                }
                None => sums.push((
                    &done.worker,
                    done.what,
                    Work { worker: String::new(), ..*done },
                    took,
                )),
            }
        }
        let table = Table::new(["", "what", "from s", "to s", "busy s", "MiB"]);
        let table = sums.iter().fold(table, |table, (worker, what, sum, busy)| {
            let seconds = [sum.from, sum.to, *busy].map(|seconds| format!("{seconds:.4}"));
            let [from, to, busy] = seconds;
            let mebibytes = format!("{:.1}", sum.bytes as f64 / f64::from(1 << 20));
            table.row([(*worker).to_owned(), (*what).to_owned(), from, to, busy, mebibytes])
        });
        let mut section = Section::new("Time line");
        if !spans.is_empty() {
            section = section.plot(spans.plot());
        }
        if steps.len() > 1 {
            let with_several = steps.iter().filter(|(_, _, own)| own.len() > 1);
            section = with_several.fold(section, |section, (_, _, own)| section.plot(own.plot()));
        }
        section.table(table)
    }

    fn lock(&self) -> MutexGuard<'_, RecordedWork> {
        // No code panics while it holds this lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
