//! [`ClusterTier`]: the calls of the threads of a cache or a node, and the thread that watches the helper.

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
use crate::options::ClusterOptions;
use crate::stats::ClusterStats;
use crate::trailer::{self, TRAILER};

/// The longest time between two looks at deadlines.
const TICK: Duration = Duration::from_millis(100);
/// The time between two attempts to remove keys.
const REMOVE_AGAIN: Duration = Duration::from_secs(1);
/// The longest wait for the end of a helper that was told to end, or killed.
const END_WAIT: Duration = Duration::from_secs(3);

/// A store of several machines below a cache or a node, reached through a helper process.
///
/// Keys must name their contents, as hashes do: all tiers with one cluster share its values.
pub struct ClusterTier {
    shared: Arc<Supervised>,
    supervisor: Mutex<Option<JoinHandle<()>>>,
}

/// What the supervising thread shares with the others.
struct Supervised {
    options: ClusterOptions,
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
    remove_at: Option<Instant>,
    /// No value is stored meanwhile.
    clearing: bool,
    closing: bool,
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

impl Calls {
    fn working(&self) -> Option<Arc<Helper>> {
        self.helper.clone().filter(|_| !self.store_is_away)
    }

    /// Sends a call. `None`: there is no helper that takes it.
    fn begin(
        &mut self,
        kind: CallKind,
        items: Vec<CallItem>,
        ranges: Vec<StagedRange>,
        timeout: Duration,
        is_awaited: bool,
    ) -> Option<u64> {
        let helper = self.working()?;
        let id = self.last_id + 1;
        if !helper.send(id, kind, &items) {
            return None;
        }
        self.last_id = id;
        if kind == CallKind::Store {
            self.stats.queued_bytes += items.iter().map(value_len).sum::<u64>();
        }
        let until = Instant::now() + timeout;
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
                (CallKind::Store, result) => {
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
                (CallKind::LookUp | CallKind::Fetch | CallKind::Clear, _) => {}
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
        let open = |call: &PendingCall| call.kind == CallKind::Store && call.outcome.is_none();
        self.pending.values().any(|call| open(call) && call.items.iter().any(has))
    }

    /// Notes that a key must not be found. Returns whether there is room for it.
    fn add_stale(&mut self, key: &[u8], max: usize) -> bool {
        if self.stale.len() >= max && !self.stale.contains_key(key) {
            return false;
        }
        // A removal that is under way may be older than a value that is just being stored.
        self.stale.insert(key.to_vec(), false);
        true
    }

    /// Begins to remove stale keys, of which no value is being stored.
    fn remove_stale(&mut self, timeout: Duration) {
        let is_due = self.remove_at.is_none_or(|at| Instant::now() >= at);
        if self.stale.is_empty() || !is_due || self.working().is_none() {
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
        if self.begin(CallKind::Remove, items, Vec::new(), timeout, false).is_some() {
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
        let mut next = 0;
        'values: while next < values.len() {
            let (helper, stale): (_, Vec<bool>) = {
                let mut calls = self.calls();
                let is_stale = |value: &TierValue<'_>| calls.stale.contains_key(value.key);
                let stale = values[next..].iter().map(is_stale).collect();
                let helper = calls.working().filter(|_| !calls.clearing && !calls.closing);
                let Some(helper) = helper else {
                    calls.stats.dropped += (values.len() - next) as u64;
                    break 'values;
                };
                (helper, stale)
            };
            let first = next;
            let (mut items, mut ranges, mut places) = (Vec::new(), Vec::new(), Vec::new());
            let mut dropped = 0;
            while next < values.len() && items.len() < MAX_ITEMS {
                let TierValue { key, bytes: value, .. } = values[next];
                let room = (!value.is_empty() && !stale[next - first])
                    .then(|| helper.allocate(CallKind::Store, value.len() as u64))
                    .flatten();
                match room {
                    Some(range) => {
                        helper.write(&range, value, &trailer::of(key, value));
                        let (key, offset, len) = (key.to_vec(), range.offset(), range.len);
                        items.push(CallItem { key, offset, len });
                        ranges.push(range);
                        places.push(next);
                    }
                    // It may have room when those before it are stored.
                    None if is_awaited && !items.is_empty() => break,
                    None => dropped += 1,
                }
                next += 1;
            }
            let count = items.len() as u64;
            let id = {
                let mut calls = self.calls();
                calls.stats.dropped += dropped;
                if items.is_empty() {
                    continue;
                }
                // Another helper has other memory.
                let is_same = calls.helper.as_ref().is_some_and(|it| Arc::ptr_eq(it, &helper));
                let timeout = self.options.call_timeout;
                let id = is_same
                    .then(|| calls.begin(CallKind::Store, items, ranges, timeout, is_awaited))
                    .flatten();
                if id.is_none() {
                    calls.stats.dropped += count;
                }
                id
            };
            let Some(id) = id else { continue };
            if !is_awaited {
                places.iter().for_each(|place| done[*place] = StoreOutcome::Stored);
                continue;
            }
            let (results, _ranges) = self.wait(id);
            for (place, result) in places.iter().zip(results.unwrap_or_default()) {
                if result == 1 {
                    done[*place] = StoreOutcome::Stored;
                }
            }
        }
        // Keys name their contents, so no older value of a key is another one.
        done.into_iter().map(Ok).collect()
    }

    /// Reads values, as many at a time as have room.
    fn fetch(&self, reads: &mut [TierRead<'_>]) -> Vec<bool> {
        let mut done = vec![false; reads.len()];
        let mut next = 0;
        while next < reads.len() {
            let Some(helper) = self.calls().working() else { break };
            let (mut items, mut ranges, mut places) = (Vec::new(), Vec::new(), Vec::new());
            while next < reads.len() && items.len() < MAX_ITEMS {
                let read = &reads[next];
                match helper.allocate(CallKind::Fetch, read.into.len() as u64) {
                    Some(range) => {
                        let (key, offset, len) = (read.key.to_vec(), range.offset(), range.len);
                        items.push(CallItem { key, offset, len });
                        ranges.push(range);
                        places.push(next);
                    }
                    None if !items.is_empty() => break,
                    None => self.calls().stats.failed += 1,
                }
                next += 1;
            }
            if items.is_empty() {
                continue;
            }
            let id = {
                let mut calls = self.calls();
                let is_same = calls.helper.as_ref().is_some_and(|it| Arc::ptr_eq(it, &helper));
                let timeout = self.options.call_timeout;
                is_same
                    .then(|| calls.begin(CallKind::Fetch, items, ranges, timeout, true))
                    .flatten()
            };
            let Some(id) = id else { break };
            let (results, ranges) = self.wait(id);
            let results = results.unwrap_or_else(|| vec![NO_VALUE; places.len()]);
            for ((place, range), result) in places.into_iter().zip(&ranges).zip(results) {
                let read = &mut reads[place];
                done[place] = self.take(&helper, range, read, result);
            }
        }
        done
    }

    /// Copies a value that was fetched, and verifies the copy.
    fn take(
        &self,
        helper: &Helper,
        range: &StagedRange,
        read: &mut TierRead<'_>,
        result: i64,
    ) -> bool {
        let is_whole = u64::try_from(result).is_ok_and(|len| len == range.len);
        let is_right = is_whole && {
            let trailer = helper.read(range, read.into);
            trailer == trailer::of(read.key, read.into)
        };
        let mut calls = self.calls();
        if !is_whole {
            calls.stats.failed += 1;
            return false;
        }
        if !is_right {
            calls.stats.corrupt += 1;
            calls.add_stale(read.key, self.options.max_stale);
            return false;
        }
        // The key may have been removed meanwhile.
        if calls.stale.contains_key(read.key) {
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
            let places: Vec<usize> =
                (0..keys.len()).filter(|at| !calls.stale.contains_key(keys[*at])).collect();
            for places in places.chunks(MAX_ITEMS) {
                let items = places.iter().map(|at| CallItem::of_key(keys[*at])).collect();
                let timeout = self.options.call_timeout;
                match calls.begin(CallKind::LookUp, items, Vec::new(), timeout, true) {
                    Some(id) => begun.push((id, places.to_vec())),
                    None => calls.stats.skipped += places.len() as u64,
                }
            }
        }
        let max = Helper::max_len(&self.options);
        for (id, places) in begun {
            let (results, _) = self.wait(id);
            let Some(results) = results else {
                self.calls().stats.skipped += places.len() as u64;
                continue;
            };
            for (place, result) in places.into_iter().zip(results) {
                let len = u64::try_from(result).ok().and_then(|it| it.checked_sub(TRAILER as u64));
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
        let (items, timeout) = (vec![CallItem::of_key(b"")], self.options.call_timeout);
        let id = calls.begin(CallKind::Clear, items, Vec::new(), timeout, true);
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
                "the cluster below is away: {why}; the next attempt is in {:.1} s",
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
                        match (was, is) {
                            (false, true) => report("the cluster below works"),
                            (true, false) => {
                                report("the cluster below is away: its master does not answer");
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
            if calls.closing && !calls.is_storing(None) {
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
            calls.remove_stale(self.options.call_timeout);
        }
    }
}

/// Ends a process: one that was told to end has some time for it. Returns whether it has ended.
fn end(child: &mut Child, is_told: bool) -> bool {
    let waits = |child: &mut Child| {
        let until = Instant::now() + END_WAIT;
        loop {
            match child.try_wait() {
                Ok(None) if Instant::now() < until => thread::sleep(Duration::from_millis(5)),
                outcome => return matches!(outcome, Ok(Some(_))),
            }
        }
    };
    if is_told && waits(child) {
        return true;
    }
    let _ = child.kill();
    waits(child)
}

impl ClusterTier {
    /// Starts the thread that starts the helper. Returns at once; the tier is away until the helper
    /// is ready. `report` is told when that changes, with the reason.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn start(
        options: ClusterOptions,
        report: impl Fn(&str) + Send + 'static,
    ) -> io::Result<ClusterTier> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (state, changed) = (Mutex::new(Calls::default()), Condvar::new());
        let shared = Arc::new(Supervised { options, state, changed, wake });
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
        ClusterStats { state, stale: calls.stale.len() as u64, ..calls.stats }
    }

    /// Waits for the values that are being stored, at most for the time of a call, and ends the
    /// helper. Later calls find and store nothing.
    pub fn close(&self) {
        self.shared.calls().closing = true;
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
        let max = self.shared.options.max_stale;
        let mut calls = self.shared.calls();
        let noted = keys.iter().filter(|key| calls.add_stale(key, max)).count();
        drop(calls);
        self.shared.wake();
        if noted == keys.len() {
            return Ok(());
        }
        Err(format!(
            "{max} keys wait until the cluster removes them, and it does not answer: remove more \
             when it works again"
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
