//! *Fetching*: values that only the tier has come back into memory.

use std::time::Duration;

use kvmem::tier::TierHints;

use super::Waiting;
use super::names::NamedKey;
use super::queue::{Found, PendingFetch};
use crate::format::{Committing, put};
use crate::node::sessions::NOWHERE;
use crate::node::{EventKind, Node, SessionIndex};
use crate::tier::{Fetching, TierJob};

/// The most calls that wait for one key. For further ones, the tier has no such key.
pub(super) const MAX_WAITING: usize = 1024;

/// The most keys that an acquisition fetches that does not wait, and the part of the memory that
/// may be fetched into at a time before such an acquisition fetches no more.
const MAX_PENDING: usize = 256;
/// The most values of one job of such an acquisition.
pub(super) const AT_ONCE: usize = 16;
const PART_FETCHED: u64 = 4;

/// Lets a call wait, if there is one. Returns false if too many wait.
pub(super) fn add_waiting(list: &mut Vec<Waiting>, waiting: Option<Waiting>) -> bool {
    let may_wait = waiting.is_none() || list.len() < MAX_WAITING;
    list.extend(waiting.filter(|_| may_wait));
    may_wait
}

impl Node {
    /// Begins to fetch the keys, from position `from` on, that only the tier has. `waiting`
    /// [ends](Self::tier_done) for each of them. Returns their positions, and the position to go on
    /// from if they need more than `evictions_left`. If no call waits, they are limited: the next
    /// call goes on.
    pub(crate) fn fetch_from_tier(
        &mut self,
        session: SessionIndex,
        keys: &[&[u8]],
        prefix_only: bool,
        waiting: Option<Waiting>,
        from: usize,
    ) -> (Vec<u16>, Option<usize>) {
        let namespace = self.sessions.get(session).namespace;
        if namespace == NOWHERE {
            return (Vec::new(), None);
        }
        let mut goes_on = None;
        let max_bytes = self.memory.header.memory_len / PART_FETCHED;
        let (mut begun, mut unknown, mut waits) = (Vec::new(), Vec::new(), Vec::new());
        for (index, key) in keys.iter().enumerate().skip(from) {
            if self.find(namespace, key).is_some() {
                continue;
            }
            // The tier stores no parents. The key before it in a prefix is one, unless the node
            // knows better.
            let before = index.checked_sub(1).filter(|_| prefix_only).map(|it| keys[it]);
            let parent = before.map_or(0, |before| self.hash_of_key(namespace, before));
            let Some(queue) = &mut self.tier else { break };
            if waiting.is_none() && waits.len() == MAX_PENDING {
                break;
            }
            let is_full = queue.fetching_bytes >= max_bytes;
            let position = index as u16;
            let named = (namespace, key.to_vec());
            if let Some(fetch) = queue.fetches.get_mut(&named).filter(|it| !it.superseded) {
                if add_waiting(&mut fetch.waiting, waiting) {
                    waits.push(position);
                } else if prefix_only {
                    break;
                }
                continue;
            }
            if waiting.is_none() && is_full {
                // What others fetch has taken the room: the next call begins.
                if waits.is_empty() && self.is_only_in_tier(namespace, key) {
                    waits.push(position);
                }
                break;
            }
            let free = !queue.fetches.contains_key(&named) && !queue.removals.contains_key(&named);
            match free.then(|| self.len_in_tier(&named)).flatten() {
                Some(len) => {
                    match self.begin_fetch(&named, len, parent, waiting.into_iter().collect()) {
                        Ok(fetching) => {
                            begun.push(fetching);
                            waits.push(position);
                        }
                        Err(_) if waiting.is_some() && self.evictions_left == 0 => {
                            goes_on = Some(index);
                            break;
                        }
                        // Values are stored before they are evicted: the next call begins.
                        Err(_)
                            if waiting.is_none()
                                && waits.is_empty()
                                && (self.evictions_left == 0 || self.space_will_come()) =>
                        {
                            waits.push(position);
                            break;
                        }
                        Err(_) if prefix_only => break,
                        Err(_) => {}
                    }
                }
                None if free
                    && self.begin_look_up(
                        &named,
                        &mut unknown,
                        |it| &mut it.acquiring,
                        waiting,
                    ) =>
                {
                    waits.push(position);
                }
                None if prefix_only => break,
                None => {}
            }
        }
        // The start of a prefix is of use before its end has come, if no call waits for all of it.
        let at_once = if waiting.is_none() { AT_ONCE } else { usize::MAX };
        while !begun.is_empty() {
            let rest = begun.split_off(begun.len().min(at_once));
            let mut values = std::mem::replace(&mut begun, rest);
            // The tier evicts the start of a prefix after its end.
            values.reverse();
            self.push_fetches(values);
        }
        self.push_look_ups(unknown);
        (waits, goes_on)
    }

    fn push_fetches(&mut self, values: Vec<Fetching>) {
        let Some(queue) = &mut self.tier else { return };
        let (far, near): (Vec<Fetching>, Vec<Fetching>) =
            values.into_iter().partition(|it| queue.tier.len_of(&it.key).found().is_none());
        for (values, job) in
            [(near, TierJob::Fetch as fn(_) -> _), (far, TierJob::FetchFar as fn(_) -> _)]
        {
            if !values.is_empty() {
                queue.jobs.push(job(values));
            }
        }
    }

    /// Reserves a block for a value that the tier has. Fails with the calls that would wait if
    /// there is no space.
    fn begin_fetch(
        &mut self,
        named: &NamedKey,
        len: u64,
        parent: u64,
        waiting: Vec<Waiting>,
    ) -> Result<Fetching, Vec<Waiting>> {
        let (namespace, key) = (named.0, self.key_in_tier(named.0, &named.1));
        let Ok(slot) = self.reserve_block(None, namespace, len) else { return Err(waiting) };
        let hash = self.hash_of_key(named.0, &named.1);
        let queue = self.tier.as_mut().expect("there is a tier");
        let parent = queue.parents.of(hash).unwrap_or(parent);
        queue.known.remove(named);
        queue.fetched_into.insert(slot, named.clone());
        queue.fetching_bytes += len;
        queue.fetches.insert(named.clone(), PendingFetch { superseded: false, waiting });
        Ok(Fetching { slot, key, offset: self.entry(slot).extent().start, len, parent })
    }

    /// Returns whether values that look-ups have found are still to be fetched.
    pub(crate) fn has_found(&self) -> bool {
        self.tier.as_ref().is_some_and(|it| !it.found.is_empty())
    }

    /// Begins to fetch values that look-ups have found, as far as `evictions_left` allow. Returns
    /// the calls that wait no longer for one of them, because it is there or does not come.
    pub(crate) fn fetch_found(&mut self) -> Vec<Waiting> {
        let (mut begun, mut ended) = (Vec::new(), Vec::new());
        while let Some(found) = self.tier.as_mut().and_then(|it| it.found.pop_front()) {
            let Found { named, len, waiting } = found;
            let queue = self.tier.as_mut().expect("it was just there");
            if let Some(fetch) = queue.fetches.get_mut(&named).filter(|it| !it.superseded) {
                fetch.waiting.extend(waiting);
                continue;
            }
            let busy = queue.fetches.contains_key(&named) || queue.removals.contains_key(&named);
            if busy || queue.is_clearing(named.0) || self.find(named.0, &named.1).is_some() {
                ended.extend(waiting);
                continue;
            }
            match self.begin_fetch(&named, len, 0, waiting) {
                Ok(fetching) => begun.push(fetching),
                Err(waiting) if self.evictions_left == 0 => {
                    let queue = self.tier.as_mut().expect("it was just there");
                    queue.found.push_front(Found { named, len, waiting });
                    break;
                }
                Err(waiting) => ended.extend(waiting),
            }
        }
        self.push_fetches(begun);
        ended
    }

    pub(super) fn value_fetched(
        &mut self,
        value: &Fetching,
        fetched: Option<(u32, TierHints)>,
        now: u64,
    ) -> Vec<Waiting> {
        let queue = self.tier.as_mut().expect("there is a tier");
        let named = queue.fetched_into[&value.slot].clone();
        queue.fetching_bytes -= value.len;
        let fetch = queue.fetches.remove(&named).expect("it was begun");
        let (namespace, key) = (named.0, &named.1);
        let slot = value.slot;
        // The tier rounds its time up, and finds it for some seconds more.
        let is_over = fetched.is_some_and(|(_, hints)| hints.ttl == Some(Duration::ZERO));
        let current = !fetch.superseded && !is_over && self.find(namespace, key).is_none();
        let failed = fetched.is_none();
        match fetched.filter(|_| current) {
            Some((checksum, hints)) => {
                let batch = self.next_batch();
                let until = |ttl: Duration| now.saturating_add(ttl.as_millis() as u64).max(1);
                let what = Committing {
                    key,
                    namespace,
                    priority: hints.priority.get(),
                    data_type: hints.data_type,
                    checksum: Some(checksum),
                    batch,
                    expires_at: hints.ttl.map_or(0, until),
                    parent: value.parent,
                };
                self.set_order(slot);
                let entry = self.entry(slot);
                entry.set_used_at(now);
                entry.prepare(entry.generation(), &what);
                entry.set_clean();
                entry.commit(self.word(slot));
                let queue = self.tier.as_mut().expect("there is a tier");
                queue.fetched_into.remove(&slot);
                queue.names.add(named.clone());
                self.chains.begin_linking(1);
                self.enter(slot, |_| false);
                self.events.add(EventKind::Stored, namespace, key);
                self.counters.tier_fetched += 1;
            }
            None => {
                self.release_extent(slot);
                self.tier.as_mut().expect("there is a tier").fetched_into.remove(&slot);
                self.counters.tier_failed += u64::from(failed);
            }
        }
        fetch.waiting
    }

    /// Takes the number of the next batch.
    pub(in crate::node) fn next_batch(&mut self) -> u64 {
        let header = self.memory.header_cell();
        let batch = header.next_batch.load(std::sync::atomic::Ordering::Relaxed);
        put(&header.next_batch, batch + 1);
        batch
    }
}
