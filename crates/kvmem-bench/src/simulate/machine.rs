//! *Simulated machine*: cores with virtual clocks, and the events that move them.
//!
//! Events are handled in the order of their times, and events of one time in the order in which
//! they were made. All random choices come from one seeded generator. A run is therefore the same
//! each time.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use kvmem_testkit::workload::{Rng, stream};
use rand::RngExt;

use super::costs::{Costs, LOOK, NS, PAUSE, is_spinning, next_look, turn_time};
use super::magazines::{MagazineModel, Served};
use super::space::{Entry, Holder, LockKind, PERIOD, Phase, SpaceModel, WAITS, Waiter};
use super::way::Way;
use crate::concurrency::{CallKind, RecordedCall};

/// The longest period of useful work, in picoseconds.
const PERIOD_TIME: u64 = 256_000 * NS;
/// Looks at an answer before the first look at the lock, and from one to the next.
const LOOK_AFTER: u64 = 24;
const LOOK_EVERY: u64 = 4;
/// Looks that find the lock free before the thread takes it.
const PATIENCE: u32 = 3;
const SEED: u64 = 70;

/// SpaceWork on a space: one call, or several under one lock.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct SpaceWork {
    /// The core whose call it is.
    pub(super) core: usize,
    /// Its time where the metadata are.
    pub(super) ps: u64,
    /// A free, which nobody waits for.
    is_note: bool,
    /// It is one call, which can be published.
    is_single: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A core begins its next call.
    Begin { core: usize },
    /// A core takes the lock or waits for it.
    Lock { core: usize },
    /// A core publishes its call in the entry that it has claimed.
    Publish { core: usize, slot: usize, note: Option<usize> },
    /// The holder goes on.
    Resume { space: usize },
    /// A waiting core takes the lock, unless another one has taken it.
    Grab { space: usize, core: usize, epoch: u64 },
    /// A core sees the answer to its request.
    Answered { core: usize, slot: usize },
    /// A core that waits for an answer looks at the lock.
    Look { core: usize, slot: usize, look: u64, begun: u64, found_free: u32 },
}

/// A core, which runs one thread.
struct Core<'a> {
    /// The calls that it repeats.
    calls: Vec<&'a RecordedCall>,
    next: usize,
    /// The work of its call, and when the call began.
    work: SpaceWork,
    begun: u64,
    /// The number of its call.
    number: u64,
    /// When it published the request whose answer it waits for.
    waits_since: Option<u64>,
}

/// The result of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct SimulatedOutcome {
    /// Calls that began, that ended for their thread, and whose work was done.
    pub(super) begun: u64,
    pub(super) ended: u64,
    pub(super) done: u64,
    /// The virtual time and the ended calls at the moment when the last call began.
    pub(super) window: (u64, u64),
    /// The duration of each call, sorted.
    pub(super) latencies: Vec<u64>,
    /// Transfers of cache lines from one core to another.
    pub(super) transfers: u64,
    /// The most calls of other threads that a holder ran in one turn.
    pub(super) longest_turn: u64,
    /// Calls that magazines served.
    pub(super) hits: u64,
}

impl SimulatedOutcome {
    /// Returns the million calls a second.
    pub(super) fn mops(&self) -> f64 {
        let (ps, ended) = self.window;
        ended as f64 * 1e6 / ps.max(1) as f64
    }

    /// Returns the nanoseconds that this many percent of the calls do not exceed.
    pub(super) fn percentile(&self, percent: usize) -> f64 {
        let at = self.latencies.len() * percent / 100;
        self.latencies.get(at).or(self.latencies.last()).map_or(0.0, |&ps| ps as f64 / NS as f64)
    }

    /// Returns the transfers of a call.
    pub(super) fn lines(&self) -> f64 {
        self.transfers as f64 / self.begun.max(1) as f64
    }
}

/// The cores, the spaces that they share, and what is to happen.
pub(super) struct SimulatedMachine<'a> {
    costs: Costs,
    now: u64,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    made: u64,
    cores: Vec<Core<'a>>,
    spaces: Vec<SpaceModel>,
    magazines: Option<MagazineModel>,
    random: Rng,
    /// Calls to begin.
    calls: u64,
    outcome: SimulatedOutcome,
}

impl<'a> SimulatedMachine<'a> {
    /// Creates `cores` cores that share what `way` says. Core `i` repeats the calls of the logical
    /// threads `i`, `i + cores`, and so on.
    pub(super) fn new(
        way: &Way,
        costs: Costs,
        recorded: &'a [Vec<RecordedCall>],
        cores: usize,
        capacity: u64,
    ) -> Self {
        let core = |index: usize| {
            let own = recorded.iter().cycle().skip(index).step_by(cores);
            let shares = (recorded.len() / cores).max(1);
            Core {
                calls: own.take(shares).flatten().collect(),
                next: 0,
                work: SpaceWork { core: index, ps: 0, is_note: false, is_single: true },
                begun: 0,
                number: 0,
                waits_since: None,
            }
        };
        SimulatedMachine {
            costs,
            now: 0,
            events: BinaryHeap::new(),
            made: 0,
            cores: (0..cores).map(core).collect(),
            spaces: vec![SpaceModel::new(way.lock); way.spaces],
            magazines: way.has_magazines.then(|| MagazineModel::new(cores, capacity)),
            random: stream(SEED, 0),
            calls: 0,
            outcome: SimulatedOutcome::default(),
        }
    }

    /// Runs until `calls` calls have begun and ended.
    pub(super) fn run(mut self, calls: u64) -> SimulatedOutcome {
        self.calls = calls;
        for core in 0..self.cores.len() {
            // Threads do not begin at the same moment.
            self.at(core as u64 * NS, Event::Begin { core });
        }
        while let Some(Reverse((time, _, event))) = self.events.pop() {
            self.now = time;
            self.handle(event);
        }
        // Notes that nobody has run yet: the next holder would.
        for space in 0..self.spaces.len() {
            let slots = self.spaces[space].slots.iter_mut();
            for note in slots.flat_map(|slot| &mut slot.notes) {
                if let Entry::Ready(_) = std::mem::replace(note, Entry::Free) {
                    self.outcome.done += 1;
                }
            }
        }
        let mut outcome = self.outcome;
        outcome.hits = self.magazines.map_or(0, |magazines| magazines.hits);
        outcome.latencies.sort_unstable();
        outcome
    }

    fn at(&mut self, time: u64, event: Event) {
        self.made += 1;
        self.events.push(Reverse((time, self.made, event)));
    }

    fn after(&mut self, time: u64, event: Event) {
        self.at(self.now + time, event);
    }

    /// Counts transfers and returns the time that they take one after another.
    fn fetch(&mut self, lines: u64) -> u64 {
        self.outcome.transfers += lines;
        lines * self.costs.line
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Begin { core } => self.begin(core),
            Event::Lock { core } => self.lock(core),
            Event::Publish { core, slot, note } => self.publish(core, slot, note),
            Event::Resume { space } => self.resume(space),
            Event::Grab { space, core, epoch } => {
                if self.spaces[space].epoch == epoch && self.spaces[space].holder.is_none() {
                    let waiters = &mut self.spaces[space].waiters;
                    let at = waiters.iter().position(|waiter| waiter.core == core);
                    if let Some(waiter) = at.and_then(|at| waiters.remove(at)) {
                        self.hold(space, waiter.work, true);
                    }
                }
            }
            Event::Answered { core, slot } => {
                let space = self.space_of(core);
                self.spaces[space].slots[slot].request = Entry::Free;
                self.spaces[space].slots[slot].at = core;
                self.cores[core].waits_since = None;
                self.end(core);
            }
            Event::Look { core, slot, look, begun, found_free } => {
                self.look(core, slot, look, begun, found_free);
            }
        }
    }

    /// Returns the space of a core: its home.
    fn space_of(&self, core: usize) -> usize {
        core % self.spaces.len()
    }

    fn begin(&mut self, core: usize) {
        if self.outcome.begun == self.calls {
            return;
        }
        self.outcome.begun += 1;
        if self.outcome.begun == self.calls {
            self.outcome.window = (self.now, self.outcome.ended);
        }
        let now = self.now;
        let state = &mut self.cores[core];
        let Some(&&call) = state.calls.get(state.next) else { return };
        state.next = (state.next + 1) % state.calls.len();
        state.begun = now;
        state.number += 1;
        if call.kind == CallKind::Fail {
            // The hint of the longest free range answers, on a line that all cores have.
            self.outcome.done += 1;
            let costs = call.ps;
            return self.end_after(core, costs);
        }
        let mut calls = 1;
        if let Some(magazines) = &mut self.magazines {
            match magazines.call(core, call.kind, call.bytes) {
                Served::Here { ps, lines } => {
                    self.outcome.done += 1;
                    let time = ps + self.fetch(lines);
                    return self.end_after(core, time);
                }
                Served::BySpace { calls: several } => calls = several,
            }
        }
        self.cores[core].work = SpaceWork {
            core,
            ps: call.ps * calls,
            is_note: call.kind == CallKind::Free && calls == 1,
            is_single: calls == 1,
        };
        self.enter(core);
    }

    /// Ends a call that takes no lock.
    fn end_after(&mut self, core: usize, time: u64) {
        self.now += time;
        self.end(core);
        self.now -= time;
    }

    /// Ends the call of a core, now.
    fn end(&mut self, core: usize) {
        self.outcome.ended += 1;
        self.outcome.latencies.push(self.now - self.cores[core].begun);
        self.after(self.costs.think, Event::Begin { core });
    }

    /// Publishes a call, or takes the lock.
    fn enter(&mut self, core: usize) {
        let space = self.space_of(core);
        let work = self.cores[core].work;
        let model = &mut self.spaces[space];
        if !model.is_open || model.owner == core || !work.is_single {
            return self.lock(core);
        }
        let (mut claimed, mut lines) = (None, 0);
        for is_note in [true, false] {
            if claimed.is_none() && (work.is_note || !is_note) {
                let (entry, fetched) = model.claim(core, is_note);
                (claimed, lines) = (entry, lines + fetched);
            }
        }
        let time = self.fetch(lines);
        match claimed {
            Some((slot, note)) => self.after(time, Event::Publish { core, slot, note }),
            None => self.after(time, Event::Lock { core }),
        }
    }

    fn publish(&mut self, core: usize, slot: usize, note: Option<usize>) {
        let space = self.space_of(core);
        let entry = Entry::Ready(self.cores[core].work);
        let model = &mut self.spaces[space];
        model.used |= 1 << slot;
        model.slots[slot].at = core;
        match note {
            Some(note) => {
                model.slots[slot].notes[note] = entry;
                self.end(core);
            }
            None => {
                model.slots[slot].request = entry;
                let begun = self.cores[core].number;
                self.cores[core].waits_since = Some(self.now);
                let first = Event::Look { core, slot, look: LOOK_AFTER, begun, found_free: 0 };
                self.after(turn_time(LOOK, LOOK_AFTER), first);
            }
        }
    }

    /// Looks at the lock while a request is not answered.
    fn look(&mut self, core: usize, slot: usize, look: u64, begun: u64, found_free: u32) {
        let space = self.space_of(core);
        let state = &self.cores[core];
        let waits = state.number == begun && state.waits_since.is_some();
        let Some(since) = state.waits_since.filter(|_| waits) else { return };
        let work = state.work;
        let model = &mut self.spaces[space];
        if !matches!(model.slots[slot].request, Entry::Ready(_)) {
            // It is being run.
            return;
        }
        model.word_is_shared = true;
        let found_free = if model.holder.is_some() { 0 } else { found_free + 1 };
        if found_free >= PATIENCE {
            model.slots[slot].request = Entry::Free;
            model.owner = core;
            self.cores[core].waits_since = None;
            return self.hold(space, work, false);
        }
        let look = look + LOOK_EVERY;
        let next = Event::Look { core, slot, look, begun, found_free };
        self.at(since + turn_time(LOOK, look), next);
    }

    /// Takes the lock, or waits for it.
    fn lock(&mut self, core: usize) {
        let space = self.space_of(core);
        let work = self.cores[core].work;
        if self.spaces[space].holder.is_none() {
            return self.hold(space, work, false);
        }
        self.spaces[space].waiters.push_back(Waiter { core, since: self.now, work });
    }

    /// Makes a core the holder of the free lock.
    fn hold(&mut self, space: usize, work: SpaceWork, has_waited: bool) {
        let now = self.now;
        let model = &mut self.spaces[space];
        let core = work.core;
        model.epoch += 1;
        let has_looked = |waiter: &Waiter| {
            let from = model.taken.saturating_sub(waiter.since);
            waiter.since + next_look(PAUSE, from) <= now
        };
        let shared = model.kind != LockKind::Queue
            && (model.word_is_shared || model.waiters.iter().any(has_looked));
        model.taken = now;
        let is_remote = model.word_at.is_some_and(|at| at != core);
        let lines = u64::from(is_remote || shared);
        model.word_at = Some(core);
        model.word_is_shared = false;
        if let (LockKind::Combining(_), false, true) = (model.kind, model.is_open, has_waited) {
            model.count += 1;
            if model.count >= WAITS {
                model.open(core, now);
            }
        }
        let phase = match model.is_open {
            true => Phase::ServeFirst { mask: model.used },
            false => Phase::Own,
        };
        model.holder = Some(Holder { core, work, phase, answering: None, served: 0 });
        let time = self.fetch(lines);
        self.after(time, Event::Resume { space });
    }

    /// Returns the time in which the metadata come to a core.
    fn fetch_metadata(&mut self, space: usize, core: usize) -> u64 {
        let is_remote = self.spaces[space].data_at.replace(core).is_some_and(|at| at != core);
        if is_remote { self.fetch(self.costs.metadata_lines) } else { 0 }
    }

    /// Runs the holder to the next moment at which time passes.
    fn resume(&mut self, space: usize) {
        loop {
            let Some(mut holder) = self.spaces[space].holder else { return };
            if let Some((slot, waiting)) = holder.answering.take() {
                self.answer(space, slot, waiting);
            }
            let core = holder.core;
            let mut time = 0;
            match holder.phase {
                Phase::ServeFirst { mask: 0 } => holder.phase = Phase::Own,
                Phase::ServeLast { mask: 0 } => {
                    self.end_period(space);
                    holder.phase = Phase::Release;
                }
                Phase::ServeFirst { mask } | Phase::ServeLast { mask } => {
                    time = self.serve(space, &mut holder, mask.trailing_zeros() as usize);
                    let mask = mask & (mask - 1);
                    holder.phase = match holder.phase {
                        Phase::ServeFirst { .. } => Phase::ServeFirst { mask },
                        _ => Phase::ServeLast { mask },
                    };
                }
                Phase::Own => {
                    time = self.fetch_metadata(space, core) + holder.work.ps;
                    holder.phase = Phase::Finish;
                }
                Phase::Finish => {
                    self.outcome.done += 1;
                    holder.phase = self.finish(space, core);
                }
                Phase::Release => return self.release(space, holder),
            }
            self.spaces[space].holder = Some(holder);
            if time > 0 {
                return self.after(time, Event::Resume { space });
            }
        }
    }

    /// Runs what a slot holds; returns the time of that.
    fn serve(&mut self, space: usize, holder: &mut Holder, number: usize) -> u64 {
        let now = self.now;
        let slot = &mut self.spaces[space].slots[number];
        let mut lines = 0;
        let mut time = 0;
        if slot.at != holder.core {
            (slot.at, lines) = (holder.core, 1);
        } else {
            time = slot.arrives.saturating_sub(now);
        }
        let mut ran = Vec::new();
        for note in &mut slot.notes {
            if let Entry::Ready(work) = *note {
                *note = Entry::Free;
                ran.push(work);
            }
        }
        if let Entry::Ready(work) = slot.request {
            // The waiting thread reads the line, so storing the answer takes it back.
            slot.request = Entry::Claimed;
            lines += 1;
            ran.push(work);
            holder.answering = Some((number, work.core));
        }
        time += self.fetch(lines);
        if !ran.is_empty() {
            time += self.fetch_metadata(space, holder.core);
            time += ran.iter().map(|work| work.ps).sum::<u64>();
            holder.served += ran.len() as u64;
            self.spaces[space].served += ran.len() as u32;
            self.outcome.done += ran.len() as u64;
        }
        time
    }

    /// Stores the answer to a request.
    fn answer(&mut self, space: usize, slot: usize, core: usize) {
        let holder = self.spaces[space].word_at.unwrap_or(core);
        self.spaces[space].slots[slot].at = holder;
        let since = self.cores[core].waits_since.unwrap_or(self.now);
        let seen = since + next_look(LOOK, self.now - since) + self.fetch(1);
        self.at(seen, Event::Answered { core, slot });
    }

    /// Ends the holder's own call; returns what comes next.
    fn finish(&mut self, space: usize, core: usize) -> Phase {
        let model = &mut self.spaces[space];
        if !model.is_open {
            return Phase::Release;
        }
        model.count += 1;
        if model.count.is_multiple_of(2) {
            return Phase::ServeLast { mask: model.used };
        }
        let arrives = self.now + self.costs.line;
        let used = model.used;
        let slots = model.slots.iter_mut().enumerate();
        let mut fetched = 0;
        for (_, slot) in slots.filter(|(number, slot)| used >> number & 1 == 1 && slot.at != core) {
            (slot.at, slot.arrives) = (core, arrives);
            fetched += 1;
        }
        self.outcome.transfers += fetched;
        Phase::Release
    }

    /// Closes the slots after a period without use.
    fn end_period(&mut self, space: usize) {
        let now = self.now;
        let model = &mut self.spaces[space];
        if model.count >= PERIOD {
            let useful = model.served > 0 && now - model.since <= PERIOD_TIME;
            (model.count, model.served, model.since) = (0, 0, now);
            if !useful {
                model.try_close();
            }
        }
    }

    /// Releases the lock and ends the holder's call.
    fn release(&mut self, space: usize, holder: Holder) {
        self.outcome.longest_turn = self.outcome.longest_turn.max(holder.served);
        self.spaces[space].holder = None;
        self.end(holder.core);
        self.wake(space);
    }

    /// Decides which waiting thread is the next to try the free lock, and when.
    fn wake(&mut self, space: usize) {
        let now = self.now;
        let model = &mut self.spaces[space];
        if model.kind == LockKind::Queue {
            if let Some(waiter) = model.waiters.pop_front() {
                self.hold(space, waiter.work, true);
            }
            return;
        }
        let mut spinning = VecDeque::new();
        let mut next = None;
        for waiter in &model.waiters {
            if is_spinning(now - waiter.since) {
                spinning.push_back(waiter.core);
            } else {
                let look = waiter.since + next_look(PAUSE, now - waiter.since);
                next = next.into_iter().chain([(look, waiter.core)]).min();
            }
        }
        let epoch = model.epoch;
        if !spinning.is_empty() {
            let Costs { line, think, .. } = self.costs;
            // A spinning thread asks for the line once in the time of a transfer. It is first if it
            // asks before the last holder comes back.
            let one = if line > 0 { (think as f64 / line as f64).min(1.0) } else { 1.0 };
            let none = (1.0 - one).powi(spinning.len() as i32);
            let is_first = self.random.random_range(0.0..1.0) >= none;
            let core = spinning[self.random.random_range(0..spinning.len())];
            let grabs = if is_first { now } else { now + line };
            next = next.into_iter().chain([(grabs, core)]).min();
        }
        if let Some((time, core)) = next {
            self.at(time, Event::Grab { space, core, epoch });
        }
    }
}
