//! *Time line*: who was at work when, while memory was mapped, populated, registered and given
//! back.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kvmem::arena::WorkUnit;
use kvmem::register::{Phase, RegisterProgress};
use kvmem_report::{Section, Spans, Table};

/// What can be done, in the order in which it is.
const KINDS: [&str; 4] = ["map", "populate", "register", "unregister"];

/// Who did what, and from when to when, in seconds since the beginning.
pub(crate) struct TimeLine {
    start: Instant,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// When the clock began that reports are made by.
    base: f64,
    /// Bytes of the present step that have been reported.
    reported: u64,
    done: Vec<Done>,
}

struct Done {
    who: String,
    what: &'static str,
    from: f64,
    to: f64,
    bytes: u64,
}

impl TimeLine {
    /// Nothing has been done.
    pub(crate) fn new() -> TimeLine {
        TimeLine { start: Instant::now(), state: Mutex::default() }
    }

    /// Work begins whose reports tell the time since now.
    pub(crate) fn begin(&self) {
        self.began(Duration::ZERO);
    }

    /// The same, but the work began a while ago.
    pub(crate) fn began(&self, ago: Duration) {
        let from = self.start.elapsed().saturating_sub(ago).as_secs_f64();
        let mut state = self.lock();
        (state.base, state.reported) = (from, 0);
    }

    /// Something that was done since `begin`.
    pub(crate) fn whole(&self, who: &str, what: &'static str, bytes: u64) {
        let to = self.start.elapsed().as_secs_f64();
        let mut state = self.lock();
        let from = state.base;
        state.done.push(Done { who: who.to_owned(), what, from, to, bytes });
    }

    /// A piece of work; `done_bytes` of this step are done with it.
    pub(crate) fn piece(&self, who: String, what: &'static str, piece: WorkUnit, done_bytes: u64) {
        let mut state = self.lock();
        if state.done.last().is_some_and(|last| last.what != what) {
            state.reported = 0;
        }
        let [from, to] = [piece.began, piece.ended].map(|at| state.base + at.as_secs_f64());
        let bytes = done_bytes.saturating_sub(state.reported);
        state.reported = done_bytes;
        state.done.push(Done { who, what, from, to, bytes });
    }

    /// What a report of registering tells; `names` are those of the registrars, in order.
    pub(crate) fn registering(&self, names: &[String], progress: &RegisterProgress) {
        let Some(piece) = progress.piece else { return };
        let registrar = || names.get(piece.worker).cloned().unwrap_or_default();
        let (who, what) = match progress.phase {
            Phase::Populate => (format!("thread {}", piece.worker), "populate"),
            Phase::Register => (registrar(), "register"),
            Phase::Deregister => (registrar(), "unregister"),
        };
        self.piece(who, what, piece, progress.done_bytes);
    }

    /// A plot of all, one of each step by its own clock, since one may take a thousandth of
    /// another's time, and a line for each who did something.
    pub(crate) fn section(&self) -> Section {
        let state = self.lock();
        let mut spans = Spans::new("Who was at work", "seconds").kinds(KINDS);
        let mut steps: Vec<(&str, f64, Spans)> = Vec::new();
        let mut sums: Vec<(&str, &str, Done, f64)> = Vec::new();
        for done in &state.done {
            spans.span(&done.who, done.what, done.from, done.to);
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
            own.span(&done.who, done.what, done.from - *began, done.to - *began);
            match sums.iter_mut().find(|sum| (sum.0, sum.1) == (&done.who, done.what)) {
                Some((_, _, sum, busy)) => {
                    (sum.from, sum.to) = (sum.from.min(done.from), sum.to.max(done.to));
                    sum.bytes += done.bytes;
                    *busy += took;
                }
                None => {
                    sums.push((&done.who, done.what, Done { who: String::new(), ..*done }, took))
                }
            }
        }
        let table = Table::new(["", "what", "from s", "to s", "busy s", "MiB"]);
        let table = sums.iter().fold(table, |table, (who, what, sum, busy)| {
            let seconds = [sum.from, sum.to, *busy].map(|seconds| format!("{seconds:.4}"));
            let [from, to, busy] = seconds;
            let mebibytes = format!("{:.1}", sum.bytes as f64 / f64::from(1 << 20));
            table.row([(*who).to_owned(), (*what).to_owned(), from, to, busy, mebibytes])
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

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nobody panics in the middle of a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
