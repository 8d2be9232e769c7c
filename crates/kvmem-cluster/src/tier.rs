//! [`ClusterTier`]: the calls of the threads of a cache or a node, and the thread that watches the
//! helper.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::process::Child;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use kvmem::tier::{BoxError, Lookup, StoreOutcome, Tier, TierHit, TierRead, TierState, TierValue};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::helper::{Helper, Received, StagedRange};
use crate::messages::{CallItem, CallKind, MAX_ITEMS, NO_VALUE};
use crate::object::{Buffers, Objects, Unreadable};
use crate::options::ClusterOptions;
use crate::stats::ClusterStats;
use crate::trailer::{self, TRAILER};

/// The longest time between two looks at deadlines.
const TICK: Duration = Duration::from_millis(100);
/// The longest time for a call: it can be added to any time of day.
const MAX_TIMEOUT: Duration = Duration::from_secs(365 * 86_400);
/// The time between two attempts to remove keys.
const REMOVE_AGAIN: Duration = Duration::from_secs(1);
/// The longest wait for the end of a helper that was requested to end, or killed.
const END_WAIT: Duration = Duration::from_secs(3);

/// The tier of a cache or a node in a store of several machines, reached through a helper process.
///
/// All tiers with one cluster and one prefix share its values, so a key must mean the same in all
/// of them. Unless the options say that values [replace](ClusterOptions::replaces) others, keys
/// must name their contents, as hashes do.
pub struct ClusterTier {
    shared: Arc<Supervised>,
    supervisor: Mutex<Option<JoinHandle<()>>>,
}

/// State that the supervising thread shares with the others.
struct Supervised {
    options: ClusterOptions,
    objects: Objects,
    state: Mutex<Calls>,
    /// A call has an outcome, or the tier closes.
    changed: Condvar,
    /// An eventfd that wakes the supervising thread.
    wake: OwnedFd,
}

#[derive(Default)]
struct Calls {
    /// The helper, while it is ready.
    helper: Option<Arc<Helper>>,
    /// The helper says that the store does not answer.
    store_is_away: bool,
    last_id: u64,
    pending: HashMap<u64, PendingCall>,
    /// Keys that must not be found, and whether a call to remove them is under way.
    stale: HashMap<Vec<u8>, bool>,
    /// No key must be found, until the store has removed everything.
    all_stale: bool,
    remove_at: Option<Instant>,
    /// No value is stored meanwhile.
    clearing: bool,
    closing: bool,
    /// The longest time for a call.
    timeout: Duration,
    /// The end of the time for removals at the end.
    close_by: Option<Instant>,
    stats: ClusterStats,
}

struct PendingCall {
    kind: CallKind,
    items: Vec<CallItem>,
    until: Instant,
    /// Room that is free when the call has an outcome and its thread has copied.
    ranges: Vec<StagedRange>,
    /// Whether a thread takes the outcome.
    is_awaited: bool,
    /// `None` inside: the helper is gone.
    outcome: Option<Option<Vec<i64>>>,
}

/// Values of one call.
#[derive(Default)]
struct Batch {
    items: Vec<CallItem>,
    ranges: Vec<StagedRange>,
    /// Their places among the values of the caller.
    positions: Vec<usize>,
}

impl Batch {
    fn push(&mut self, key: &[u8], range: StagedRange, place: usize) {
        self.items.push(CallItem { key: key.to_vec(), offset: range.offset(), len: range.len });
        self.ranges.push(range);
        self.positions.push(place);
    }

    fn retain(&mut self, mut stays: impl FnMut(&CallItem, usize) -> bool) {
        let all = std::mem::take(self);
        for ((item, range), place) in all.items.into_iter().zip(all.ranges).zip(all.positions) {
            if stays(&item, place) {
                self.items.push(item);
                self.ranges.push(range);
                self.positions.push(place);
            }
        }
    }
}

impl Calls {
    /// Returns the helper that takes values.
    fn taking(&self) -> Option<Arc<Helper>> {
        self.working().filter(|_| !self.clearing && !self.closing && !self.all_stale)
    }

    fn working(&self) -> Option<Arc<Helper>> {
        self.helper.clone().filter(|_| !self.store_is_away)
    }

    /// Sends a call. `None`: there is no helper that takes it.
    fn begin(
        &mut self,
        kind: CallKind,
        items: Vec<CallItem>,
        ranges: Vec<StagedRange>,
        is_awaited: bool,
    ) -> Option<u64> {
        let helper = self.working()?;
        let id = self.last_id + 1;
        if !helper.send(id, kind, &items) {
            return None;
        }
        self.last_id = id;
        if kind.is_store() {
            self.stats.queued_bytes += items.iter().map(value_len).sum::<u64>();
        }
        let until = Instant::now() + self.timeout;
        let call = PendingCall { kind, items, until, ranges, is_awaited, outcome: None };
        self.pending.insert(id, call);
        Some(id)
    }

    /// Takes the results of a call; `None`: the helper is gone.
    fn end(&mut self, id: u64, results: Option<Vec<i64>>) {
        let Some(call) = self.pending.get_mut(&id) else { return };
        let of = |at: usize| results.as_ref().map_or(NO_VALUE, |results| results[at]);
        for (at, item) in call.items.iter().enumerate() {
            match (call.kind, of(at)) {
                (CallKind::Store | CallKind::Replace, result) => {
                    self.stats.queued_bytes -= value_len(item);
                    if result == 1 {
                        self.stats.stored += 1;
                        self.stats.stored_bytes += value_len(item);
                    } else {
                        self.stats.failed += 1;
                    }
                }
                (CallKind::Remove, 1) => drop(self.stale.remove(&item.key)),
                (CallKind::Remove, _) => {
                    if let Some(removing) = self.stale.get_mut(&item.key) {
                        *removing = false;
                    }
                    self.remove_at = Some(Instant::now() + REMOVE_AGAIN);
                }
                (CallKind::Clear, 1) => self.all_stale = false,
                (CallKind::Clear, _) => self.remove_at = Some(Instant::now() + REMOVE_AGAIN),
                (CallKind::LookUp | CallKind::Fetch, _) => {}
            }
        }
        if call.is_awaited {
            call.outcome = Some(results);
        } else {
            self.pending.remove(&id);
        }
    }

    fn is_storing(&self, key: Option<&[u8]>) -> bool {
        let has = |item: &CallItem| key.is_none_or(|key| item.key == key);
        let open = |call: &PendingCall| call.kind.is_store() && call.outcome.is_none();
        self.pending.values().any(|call| open(call) && call.items.iter().any(has))
    }

    fn is_stale(&self, key: &[u8]) -> bool {
        self.all_stale || self.stale.contains_key(key)
    }

    /// Notes that a key must not be found. Returns whether that is possible.
    fn add_stale(&mut self, key: &[u8], options: &ClusterOptions) -> bool {
        if self.all_stale {
            return true;
        }
        if self.stale.len() >= options.max_stale && !self.stale.contains_key(key) {
            if options.replaces {
                self.all_stale = true;
                self.stale.clear();
            }
            return options.replaces;
        }
        // A removal that is under way may be older than a value that is just being stored.
        self.stale.insert(key.to_vec(), false);
        true
    }

    /// Begins to remove stale keys, of which no value is being stored.
    fn remove_stale(&mut self) {
        let is_due = self.remove_at.is_none_or(|at| Instant::now() >= at);
        if !is_due || self.working().is_none() {
            return;
        }
        let is_clearing = |call: &PendingCall| call.kind == CallKind::Clear;
        if self.all_stale && !self.is_storing(None) && !self.pending.values().any(is_clearing) {
            let all = vec![CallItem::of_key(b"")];
            self.begin(CallKind::Clear, all, Vec::new(), false);
        }
        if self.stale.is_empty() {
            return;
        }
        let ready =
            |(key, removing): &(&Vec<u8>, &bool)| !**removing && !self.is_storing(Some(key));
        let keys: Vec<Vec<u8>> =
            self.stale.iter().filter(ready).map(|(key, _)| key.clone()).take(MAX_ITEMS).collect();
        if keys.is_empty() {
            return;
        }
        let items = keys.iter().map(|key| CallItem::of_key(key)).collect();
        if self.begin(CallKind::Remove, items, Vec::new(), false).is_some() {
            keys.into_iter().for_each(|key| {
                self.stale.insert(key, true);
            });
        }
    }
}

/// Returns the bytes of the value of an item, without the trailer.
fn value_len(item: &CallItem) -> u64 {
    item.len.saturating_sub(TRAILER as u64)
}

impl Supervised {
    fn calls(&self) -> MutexGuard<'_, Calls> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        // The counter of an eventfd cannot overflow here, so the write does not block.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    /// Waits for the outcome of a call. The supervising thread ends it when its time is over.
    fn wait(&self, id: u64) -> (Option<Vec<i64>>, Vec<StagedRange>) {
        let calls = self.calls();
        let is_open =
            |calls: &mut Calls| calls.pending.get(&id).is_some_and(|call| call.outcome.is_none());
        let mut calls =
            self.changed.wait_while(calls, is_open).unwrap_or_else(PoisonError::into_inner);
        match calls.pending.remove(&id) {
            Some(call) => (call.outcome.flatten(), call.ranges),
            None => (None, Vec::new()),
        }
    }

    /// Copies values into the helper's memory, and begins to store them, as many as have room.
    /// Returns which ones are stored: with `is_awaited`, or else which ones were begun.
    fn store(
        &self,
        values: &[TierValue<'_>],
        is_awaited: bool,
    ) -> Vec<Result<StoreOutcome, BoxError>> {
        let mut done = vec![StoreOutcome::NotStored; values.len()];
        let mut buffers = Buffers::default();
        let mut next = 0;
        while next < values.len() {
            let helper = self.calls().taking();
            let Some(helper) = helper else {
                self.calls().stats.dropped += (values.len() - next) as u64;
                break;
            };
            let mut batch = Batch::default();
            while next < values.len() && batch.items.len() < MAX_ITEMS {
                let value = &values[next];
                let room = (!value.bytes.is_empty())
                    .then(|| helper.allocate(CallKind::Store, self.max_body_len(value.bytes)))
                    .flatten();
                match room {
                    Some(mut range) => match self.objects.encode(value, &mut buffers) {
                        Some((body, trailer)) => {
                            range.len = (body.len() + TRAILER) as u64;
                            helper.write(&range, body, &trailer);
                            self.count_encoded(value.bytes, body);
                            batch.push(value.key, range, next);
                        }
                        None => self.calls().stats.dropped += 1,
                    },
                    // It may have room when those before it are stored.
                    None if is_awaited && !batch.items.is_empty() => break,
                    None => self.calls().stats.dropped += 1,
                }
                next += 1;
            }
            let Some((id, positions)) = self.begin_store(&helper, batch, values, is_awaited) else {
                continue;
            };
            if !is_awaited {
                positions.iter().for_each(|place| done[*place] = StoreOutcome::Stored);
                continue;
            }
            let (results, _ranges) = self.wait(id);
            for (place, result) in positions.iter().zip(results.unwrap_or_default()) {
                if result == 1 {
                    done[*place] = StoreOutcome::Stored;
                }
            }
        }
        let outcomes = done.into_iter().zip(values);
        outcomes.map(|(outcome, value)| self.outcome(outcome, value)).collect()
    }

    /// Begins to store what is still to be stored of a batch. Returns the call, and the places of
    /// its values.
    fn begin_store(
        &self,
        helper: &Arc<Helper>,
        mut batch: Batch,
        values: &[TierValue<'_>],
        is_awaited: bool,
    ) -> Option<(u64, Vec<usize>)> {
        let replaces = self.options.replaces;
        let mut calls = self.calls();
        if replaces && is_awaited {
            // The helper makes calls in any order. This ends, because each call does.
            let is_busy = |calls: &mut Calls| {
                batch.items.iter().any(|item| calls.is_storing(Some(&item.key)))
            };
            calls = self.changed.wait_while(calls, is_busy).unwrap_or_else(PoisonError::into_inner);
        }
        // The lock orders the changes of a key.
        let before = batch.items.len();
        batch.retain(|item, place| {
            let is_busy = replaces && !is_awaited && calls.is_storing(Some(&item.key));
            !is_busy && !calls.is_stale(&item.key) && !values[place].is_superseded()
        });
        let Batch { items, ranges, positions } = batch;
        calls.stats.dropped += (before - items.len()) as u64;
        if items.is_empty() {
            return None;
        }
        // Another helper has other memory.
        let is_same = calls.helper.as_ref().is_some_and(|it| Arc::ptr_eq(it, helper));
        let kind = if replaces { CallKind::Replace } else { CallKind::Store };
        let id = (is_same && !calls.clearing)
            .then(|| calls.begin(kind, items, ranges, is_awaited))
            .flatten();
        if id.is_none() {
            calls.stats.dropped += positions.len() as u64;
        }
        Some((id?, positions))
    }

    /// Returns the outcome for a value. One that was not stored leaves no older one behind.
    fn outcome(
        &self,
        outcome: StoreOutcome,
        value: &TierValue<'_>,
    ) -> Result<StoreOutcome, BoxError> {
        // Without replacements keys name their contents, and no older value is another one.
        if outcome == StoreOutcome::NotStored && self.options.replaces && !value.is_superseded() {
            // It cannot fail: all keys are stale if there is no room for one more.
            self.calls().add_stale(value.key, &self.options);
        }
        Ok(outcome)
    }

    /// Reads values, as many at a time as have room.
    fn fetch(&self, reads: &mut [TierRead<'_>]) -> Vec<bool> {
        let mut done = vec![false; reads.len()];
        let mut next = 0;
        while next < reads.len() {
            let Some(helper) = self.calls().working() else { break };
            let mut batch = Batch::default();
            while next < reads.len() && batch.items.len() < MAX_ITEMS {
                let read = &reads[next];
                match helper.allocate(CallKind::Fetch, self.max_body_len(read.into)) {
                    Some(range) => batch.push(read.key, range, next),
                    None if !batch.items.is_empty() => break,
                    None => self.calls().stats.failed += 1,
                }
                next += 1;
            }
            let Batch { items, ranges, positions } = batch;
            if items.is_empty() {
                continue;
            }
            let id = {
                let mut calls = self.calls();
                let is_same = calls.helper.as_ref().is_some_and(|it| Arc::ptr_eq(it, &helper));
                is_same.then(|| calls.begin(CallKind::Fetch, items, ranges, true)).flatten()
            };
            let Some(id) = id else { break };
            let (results, ranges) = self.wait(id);
            let results = results.unwrap_or_else(|| vec![NO_VALUE; positions.len()]);
            for ((place, range), result) in positions.into_iter().zip(ranges).zip(results) {
                let read = &mut reads[place];
                done[place] = self.take(&helper, range, read, result);
            }
        }
        done
    }

    /// Returns the most bytes of the body of a value.
    fn max_body_len(&self, value: &[u8]) -> u64 {
        (value.len() + self.objects.overhead()) as u64
    }

    fn count_encoded(&self, value: &[u8], body: &[u8]) {
        if !std::ptr::eq(value, body) {
            let mut calls = self.calls();
            calls.stats.encoded_before_bytes += value.len() as u64;
            calls.stats.encoded_after_bytes += body.len() as u64;
        }
    }

    /// Copies a value that was fetched, and verifies the copy.
    fn take(
        &self,
        helper: &Helper,
        mut range: StagedRange,
        read: &mut TierRead<'_>,
        result: i64,
    ) -> bool {
        let are_encoded = self.objects.are_encoded();
        let min = if are_encoded { TRAILER as u64 } else { range.len };
        let len = u64::try_from(result).ok().filter(|len| (min..=range.len).contains(len));
        let Some(len) = len else {
            self.calls().stats.failed += 1;
            return false;
        };
        range.len = len;
        let mut body = Vec::new();
        let trailer = if are_encoded {
            body.resize(len as usize - TRAILER, 0);
            helper.read(&range, &mut body)
        } else {
            helper.read(&range, read.into)
        };
        drop(range);
        let decoded = if are_encoded {
            self.objects.decode(read.key, &mut body, &trailer, read.into)
        } else if trailer == trailer::of(read.key, read.into) {
            Ok(())
        } else {
            self.objects.decode(read.key, &mut read.into.to_vec(), &trailer, read.into)
        };
        let mut calls = self.calls();
        if let Err(why) = decoded {
            match why {
                Unreadable::Corrupt => calls.stats.corrupt += 1,
                Unreadable::Tag => calls.stats.tag_misses += 1,
                Unreadable::NoKey => calls.stats.key_misses += 1,
                Unreadable::Form => calls.stats.form_misses += 1,
            }
            // Other tiers may read what this one does not.
            if matches!(why, Unreadable::Corrupt | Unreadable::Tag) {
                calls.add_stale(read.key, &self.options);
            }
            return false;
        }
        // The key may have been removed meanwhile.
        if calls.is_stale(read.key) {
            return false;
        }
        calls.stats.fetched += 1;
        calls.stats.fetched_bytes += read.into.len() as u64;
        true
    }

    fn look_up(&self, keys: &[&[u8]]) -> Vec<Option<u64>> {
        let mut lengths = vec![None; keys.len()];
        let mut begun = Vec::new();
        {
            let mut calls = self.calls();
            let positions: Vec<usize> =
                (0..keys.len()).filter(|at| !calls.is_stale(keys[*at])).collect();
            for positions in positions.chunks(MAX_ITEMS) {
                let items = positions.iter().map(|at| CallItem::of_key(keys[*at])).collect();
                match calls.begin(CallKind::LookUp, items, Vec::new(), true) {
                    Some(id) => begun.push((id, positions.to_vec())),
                    None => calls.stats.skipped += positions.len() as u64,
                }
            }
        }
        let max = Helper::max_len(&self.options) - self.objects.overhead() as u64;
        for (id, positions) in begun {
            let (results, _) = self.wait(id);
            let Some(results) = results else {
                self.calls().stats.skipped += positions.len() as u64;
                continue;
            };
            for (place, result) in positions.into_iter().zip(results) {
                let body = u64::try_from(result).ok().and_then(|it| it.checked_sub(TRAILER as u64));
                let len = body.and_then(|body| self.objects.value_len(body));
                lengths[place] = len.filter(|len| (1..=max).contains(len));
                self.calls().stats.absent += u64::from(lengths[place].is_none());
            }
        }
        lengths
    }

    /// Removes everything of the helper's prefix, after the values that are being stored.
    fn clear(&self) -> bool {
        let mut calls = self.calls();
        calls.clearing = true;
        let is_storing = |calls: &mut Calls| calls.is_storing(None);
        let (waited, _) = self
            .changed
            .wait_timeout_while(calls, self.options.call_timeout, is_storing)
            .unwrap_or_else(PoisonError::into_inner);
        calls = waited;
        let items = vec![CallItem::of_key(b"")];
        let id = calls.begin(CallKind::Clear, items, Vec::new(), true);
        drop(calls);
        let cleared = id.and_then(|id| self.wait(id).0).is_some_and(|results| results == [1]);
        self.calls().clearing = false;
        cleared
    }

    /// Starts helpers, one after the other, until the tier closes.
    fn supervise(&self, report: &dyn Fn(&str)) {
        let mut pause = self.options.first_pause;
        let mut lingering: Vec<Child> = Vec::new();
        while !self.calls().closing {
            let started = Instant::now();
            let why = match Helper::start(&self.options) {
                Ok((helper, mut child)) => {
                    self.calls().stats.starts += 1;
                    let helper = Arc::new(helper);
                    let why = self.run(&helper, report);
                    {
                        let mut calls = self.calls();
                        calls.helper = None;
                        let ids: Vec<u64> = calls.pending.keys().copied().collect();
                        ids.into_iter().for_each(|id| calls.end(id, None));
                        self.changed.notify_all();
                    }
                    helper.hang_up();
                    if !end(&mut child, why.is_none()) {
                        lingering.push(child);
                    }
                    why
                }
                Err(error) => Some(format!("{} cannot be started: {error}", self.program())),
            };
            // One that could not be killed at once, because a driver held it.
            lingering.retain_mut(|child| !matches!(child.try_wait(), Ok(Some(_))));
            let Some(why) = why else { return };
            if started.elapsed() >= self.options.max_pause {
                pause = self.options.first_pause;
            }
            report(&format!(
                "the cluster does not answer: {why}; the next attempt is in {:.1} s",
                pause.as_secs_f64()
            ));
            let calls = self.calls();
            let is_open = |calls: &mut Calls| !calls.closing;
            let waited = self.changed.wait_timeout_while(calls, pause, is_open);
            drop(waited.unwrap_or_else(PoisonError::into_inner));
            pause = (pause * 2).min(self.options.max_pause);
        }
    }

    fn program(&self) -> String {
        let program = self.options.command.first();
        program.map_or_else(String::new, |it| it.to_string_lossy().into_owned())
    }

    /// Serves one helper. Returns the reason for its end; `None`: the tier closes.
    fn run(&self, helper: &Arc<Helper>, report: &dyn Fn(&str)) -> Option<String> {
        let ready_until = Instant::now() + self.options.start_timeout;
        let mut is_ready = false;
        loop {
            let mut fds = [
                PollFd::new(helper.socket(), PollFlags::IN),
                PollFd::new(&self.wake, PollFlags::IN),
            ];
            let tick = Timespec { tv_sec: 0, tv_nsec: TICK.as_nanos() as i64 };
            let _ = poll(&mut fds, Some(&tick));
            if !fds[1].revents().is_empty() {
                let _ = rustix::io::read(&self.wake, &mut [0; 8]);
            }
            loop {
                match helper.receive() {
                    Received::Nothing => break,
                    Received::End => return Some(format!("{} has ended", self.program())),
                    Received::Answer(0, results) if matches!(results[..], [0 | 1]) => {
                        let mut calls = self.calls();
                        let was = is_ready && !calls.store_is_away;
                        is_ready = true;
                        calls.store_is_away = results == [0];
                        calls.helper = Some(Arc::clone(helper));
                        let is = !calls.store_is_away;
                        drop(calls);
                        self.changed.notify_all();
                        match (was, is) {
                            (false, true) => report("the cluster works"),
                            (true, false) => {
                                report("the cluster does not answer: its master is not reachable");
                            }
                            _ => {}
                        }
                    }
                    Received::Answer(id, results) => {
                        let mut calls = self.calls();
                        let call = calls.pending.get(&id).filter(|call| call.outcome.is_none());
                        if call.is_none_or(|call| call.items.len() != results.len()) {
                            calls.stats.violations += 1;
                            return Some(format!("{} answers what was not begun", self.program()));
                        }
                        calls.end(id, Some(results));
                        self.changed.notify_all();
                    }
                    Received::Violation => {
                        self.calls().stats.violations += 1;
                        return Some(format!("{} sends what is no answer", self.program()));
                    }
                }
            }
            let now = Instant::now();
            let mut calls = self.calls();
            let removes = !calls.stale.is_empty() || calls.all_stale;
            let may_remove = removes && calls.working().is_some();
            let has_time = calls.close_by.is_some_and(|until| now < until);
            if calls.closing && !calls.is_storing(None) && !(may_remove && has_time) {
                return None;
            }
            if !is_ready && now >= ready_until {
                calls.stats.hangs += 1;
                let limit = self.options.start_timeout.as_secs_f64();
                return Some(format!("{} was not ready within {limit} s", self.program()));
            }
            let is_late = |call: &PendingCall| call.outcome.is_none() && now >= call.until;
            if calls.pending.values().any(is_late) {
                calls.stats.hangs += 1;
                let limit = self.options.call_timeout.as_secs_f64();
                return Some(format!("{} did not answer within {limit} s", self.program()));
            }
            calls.remove_stale();
        }
    }
}

/// Ends a process: one that was requested to end has some time for it. Returns whether it has
/// ended.
fn end(child: &mut Child, is_graceful: bool) -> bool {
    let waits = |child: &mut Child| {
        let until = Instant::now() + END_WAIT;
        loop {
            match child.try_wait() {
                Ok(None) if Instant::now() < until => thread::sleep(Duration::from_millis(5)),
                outcome => return matches!(outcome, Ok(Some(_))),
            }
        }
    };
    if is_graceful && waits(child) {
        return true;
    }
    let _ = child.kill();
    waits(child)
}

impl ClusterTier {
    /// Starts the thread that starts the helper. Returns at once; the tier is away until the helper
    /// is ready. `report` is called with the reason when that changes.
    ///
    /// # Errors
    /// A thread cannot be started, or the system has no random numbers, which encryption needs.
    pub fn start(
        options: ClusterOptions,
        report: impl Fn(&str) + Send + 'static,
    ) -> io::Result<ClusterTier> {
        let longest = |timeout: Duration| timeout.min(MAX_TIMEOUT);
        let options = ClusterOptions {
            call_timeout: longest(options.call_timeout),
            start_timeout: longest(options.start_timeout),
            ..options
        };
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let objects = Objects::new(&options).map_err(io::Error::other)?;
        let calls = Calls { timeout: options.call_timeout, ..Calls::default() };
        let (state, changed) = (Mutex::new(calls), Condvar::new());
        let shared = Arc::new(Supervised { options, objects, state, changed, wake });
        let supervised = Arc::clone(&shared);
        let supervisor = thread::Builder::new()
            .name("kvmem-cluster".into())
            .spawn(move || supervised.supervise(&report))?;
        Ok(ClusterTier { shared, supervisor: Mutex::new(Some(supervisor)) })
    }

    /// Returns the statistics.
    #[must_use]
    pub fn stats(&self) -> ClusterStats {
        let calls = self.shared.calls();
        let is_working = calls.working().is_some();
        let state = if is_working { TierState::Working } else { TierState::Away };
        let stale = if calls.all_stale { self.shared.options.max_stale } else { calls.stale.len() };
        ClusterStats { state, stale: stale as u64, ..calls.stats }
    }

    /// Waits until the cluster works, or the tier closes. Returns whether it works at `deadline`.
    pub fn wait_ready(&self, deadline: Instant) -> bool {
        self.wait_until(deadline, |calls| calls.working().is_some())
    }

    /// Waits until no value waits for the cluster, and no key for its removal. Returns whether that
    /// is so at `deadline`.
    pub fn flush_until(&self, deadline: Instant) -> bool {
        let is_done =
            |calls: &Calls| !calls.is_storing(None) && calls.stale.is_empty() && !calls.all_stale;
        self.wait_until(deadline, is_done)
    }

    fn wait_until(&self, deadline: Instant, is_so: impl Fn(&Calls) -> bool) -> bool {
        let calls = self.shared.calls();
        let timeout = deadline.saturating_duration_since(Instant::now());
        let waits = |calls: &mut Calls| !is_so(calls) && !calls.closing;
        let waited = self.shared.changed.wait_timeout_while(calls, timeout, waits);
        let (calls, _) = waited.unwrap_or_else(PoisonError::into_inner);
        is_so(&calls)
    }

    /// Waits for the values that are being stored and the keys that are being removed, at most for
    /// the time of a call, and ends the helper. Later calls find and store nothing.
    pub fn close(&self) {
        {
            let mut calls = self.shared.calls();
            calls.closing = true;
            calls.close_by.get_or_insert(Instant::now() + self.shared.options.call_timeout);
        }
        self.shared.changed.notify_all();
        self.shared.wake();
        let supervisor = self.supervisor.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(supervisor) = supervisor {
            let _ = supervisor.join();
        }
    }
}

impl Drop for ClusterTier {
    /// Closes it.
    fn drop(&mut self) {
        self.close();
    }
}

impl fmt::Debug for ClusterTier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterTier").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

impl Tier for ClusterTier {
    fn store(&self, values: &[TierValue<'_>]) -> Vec<Result<StoreOutcome, BoxError>> {
        self.shared.store(values, true)
    }

    fn offer(&self, values: &[TierValue<'_>]) -> Vec<Result<StoreOutcome, BoxError>> {
        self.shared.store(values, false)
    }

    fn look_up(&self, keys: &[&[u8]]) -> Vec<Lookup> {
        vec![Lookup::Unknown; keys.len()]
    }

    fn len_of(&self, _key: &[u8]) -> Lookup {
        Lookup::Unknown
    }

    fn knows_all(&self) -> bool {
        false
    }

    fn ask(&self, keys: &[&[u8]]) -> Vec<Option<u64>> {
        self.shared.look_up(keys)
    }

    fn fetch(&self, reads: &mut [TierRead<'_>]) -> Vec<Option<TierHit>> {
        let fetched = self.shared.fetch(reads);
        fetched.into_iter().map(|fetched| fetched.then(TierHit::default)).collect()
    }

    /// Returns at once: the keys are not found any more, and a later call of the helper removes
    /// them.
    fn remove(&self, keys: &[&[u8]]) -> Result<(), BoxError> {
        let options = &self.shared.options;
        let mut calls = self.shared.calls();
        let noted = keys.iter().filter(|key| calls.add_stale(key, options)).count();
        drop(calls);
        self.shared.wake();
        if noted == keys.len() {
            return Ok(());
        }
        Err(format!(
            "{} keys wait until the cluster removes them, and it does not answer: remove more \
             when it works again",
            options.max_stale
        )
        .into())
    }

    fn clear(&self) -> Result<(), BoxError> {
        match self.shared.clear() {
            true => Ok(()),
            false => Err("the cluster did not remove its values: clear it when it works".into()),
        }
    }

    /// Keys name their contents, so none of the values is older than another one.
    fn forget_unknown(&self) -> Result<(), BoxError> {
        Ok(())
    }

    fn state(&self) -> TierState {
        self.stats().state
    }
}
