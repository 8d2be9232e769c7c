//! *Storing*: the values that would be evicted next go to the tier before that.

use std::collections::HashSet;
use std::time::Duration;

use kvmem::tier::{Lookup, Priority, TierHints};

use crate::format::State;
use crate::node::namespaces::Namespace;
use crate::node::{Node, SessionIndex};
use crate::socket::now_ms;
use crate::tier::{Offered, Storing, TierJob};

/// The most bytes of values of one job, and the most values.
const JOB_BYTES: u64 = 16 << 20;
pub(super) const JOB_VALUES: usize = 64;

/// The most jobs that store at a time.
const STORE_JOBS: u64 = 2;

/// Values that are being stored cannot be evicted, so they are at most this part of the memory.
const PART_STORED: u64 = 8;

/// The most values that are looked at for one job.
pub(super) const LOOKED_AT: usize = 2048;

/// The most ancestors of one value that are looked at for one job.
const ANCESTORS: usize = 256;

/// Values for a job that stores.
struct StoreJob {
    pub(super) values: Vec<Storing>,
    pub(super) bytes: u64,
}

impl Node {
    /// Stores values that would be evicted next, if the memory is full enough.
    pub(crate) fn store_ahead(&mut self) {
        let Some(queue) = &self.tier else { return };
        let is_idle = queue.idle_at == Some(self.store_changes());
        if !self.may_store() || is_idle {
            return;
        }
        let values = self.next_to_store();
        if values.is_empty() {
            self.stop_storing();
        } else {
            self.begin_storing(values);
        }
    }

    /// Counts what may change which values are to be stored.
    fn store_changes(&self) -> u64 {
        self.tier.as_ref().map_or(0, |it| it.changes) + self.counters.committed
    }

    /// Stores nothing ahead before something has changed.
    pub(super) fn stop_storing(&mut self) {
        let changes = self.store_changes();
        self.tier.as_mut().expect("there is a tier").idle_at = Some(changes);
    }

    /// Offers the tier again what it did not store, if that was all of a job: its device may work
    /// again, or it may have come back. Called at times.
    pub(crate) fn store_again(&mut self) {
        if let Some(queue) = &mut self.tier
            && std::mem::take(&mut queue.refuses)
        {
            queue.idle_at = None;
        }
    }

    /// Returns whether one more job may store values now.
    pub(in crate::node) fn may_store(&self) -> bool {
        let most = STORE_JOBS * self.job_bytes();
        self.tier.as_ref().is_some_and(|it| it.storing_bytes < most)
    }

    /// Returns whether values are being stored.
    pub(crate) fn is_storing(&self) -> bool {
        self.tier.as_ref().is_some_and(|it| it.storing_bytes > 0)
    }

    /// Returns how many values the tier has stored.
    pub(crate) fn stored_in_tier(&self) -> u64 {
        self.counters.tier_stored
    }

    pub(in crate::node) fn begin_storing(&mut self, values: Vec<Storing>) {
        let queue = self.tier.as_mut().expect("there is a tier");
        queue.storing_bytes += values.iter().map(|it| it.len).sum::<u64>();
        queue.next_source = queue.next_source.wrapping_add(1);
        for value in &values {
            self.locals[value.slot as usize].storing = true;
        }
        queue.jobs.push(TierJob::Store(values));
    }

    fn job_bytes(&self) -> u64 {
        JOB_BYTES.min(self.memory.header.memory_len / PART_STORED / STORE_JOBS)
    }

    /// Returns whether values will be evictable or free when the tier has done its jobs, or what is
    /// [over](super::ending) is released.
    pub(crate) fn space_will_come(&self) -> bool {
        // A value that is in a list and was no victim is being stored or verified.
        let listed = |it: &Namespace| it.has_candidates(&self.locals);
        let held = || self.namespaces.all().iter().any(listed);
        self.is_ending() || self.tier.is_some() && (held() || !self.server_pins.is_empty())
    }

    /// Returns whether a namespace that is over its limit will meet it when the tier has done
    /// its jobs, or what is [over](super::ending) is released.
    pub(crate) fn namespace_space_will_come(&self, session: SessionIndex) -> bool {
        let namespace = self.sessions.get(session).namespace;
        // A value that is in a list and was no victim is being stored or verified.
        let listed = || self.namespaces.get(namespace).has_candidates(&self.locals);
        let removing =
            || self.server_pins.keys().any(|it| self.entry(*it).namespace() == namespace);
        self.is_ending() || self.tier.is_some() && (listed() || removing())
    }

    /// Returns values that the tier does not have and that would be evicted next, up to one job.
    ///
    /// Values are evicted for two reasons: the memory is needed, or their namespace is at its own
    /// limit. The values of the first kind come from all namespaces, in the order of
    /// [`Namespaces::eviction_order`](super::namespaces::Namespaces). Each namespace that is close
    /// to its limit is a source of its own. Each source in rotation is the first of a job, so
    /// one that always has values does not delay the others.
    fn next_to_store(&self) -> Vec<Storing> {
        let queue = self.tier.as_ref().expect("there is a tier");
        let ahead_bytes = queue.options.ahead_bytes;
        let above = |bytes: u64| (bytes as f64 * queue.options.store_above) as u64;
        let metrics = self.space.metrics();
        let (entries, used) = (self.memory.header.entries, self.used_slots());
        let is_full =
            metrics.allocated >= above(metrics.capacity) || used >= above(u64::from(entries));
        let is_limited = |it: &&Namespace| {
            let limit = it.limits.max_bytes;
            limit < metrics.capacity && it.bytes > 0 && it.bytes >= above(limit)
        };
        let limited: Vec<&Namespace> = self.namespaces.all().iter().filter(is_limited).collect();
        let sources = limited.len() + 1;
        let mut job = StoreJob { values: Vec::new(), bytes: 0 };
        for source in 0..sources {
            match (queue.next_source + source) % sources {
                0 if is_full => {
                    let (locals, history) = (&self.locals, self.history.as_deref());
                    let space_of = |slot| self.space_of(slot);
                    let order = self.namespaces.eviction_order(locals, history, space_of);
                    self.add_to_job(&mut job, order, ahead_bytes, LOOKED_AT);
                }
                0 => {}
                number => {
                    let namespace = limited[number - 1];
                    let limit = namespace.limits.max_bytes;
                    let ahead = ahead_bytes.min(limit - above(limit).min(limit));
                    let order = namespace.candidates(&self.locals, self.history.as_deref());
                    self.add_to_job(&mut job, order, ahead, (LOOKED_AT / limited.len()).max(8));
                }
            }
            if self.is_full_job(job.bytes, job.values.len()) {
                break;
            }
        }
        job.values
    }

    pub(in crate::node) fn is_full_job(&self, bytes: u64, values: usize) -> bool {
        bytes >= self.job_bytes() || values == JOB_VALUES
    }

    /// Returns each value behind its ancestors, except those that came before, and at most `max` of
    /// them. They are evicted later, and the value is dead without them: if only some are stored in
    /// time, it is to be they.
    pub(super) fn with_ancestors<'a>(
        &'a self,
        order: impl Iterator<Item = u32> + 'a,
        max: usize,
    ) -> impl Iterator<Item = Vec<u32>> + 'a {
        let mut seen = HashSet::new();
        order.map(move |slot| {
            let mut chain = vec![slot];
            let mut next = self.parent_of(slot);
            while let Some(parent) = next.filter(|it| chain.len() <= max && seen.insert(*it)) {
                chain.push(parent);
                next = self.parent_of(parent);
            }
            chain.reverse();
            chain
        })
    }

    /// Stores a value that is to be evicted, if the tier has evicted its copy since it was stored,
    /// or has descendants of it that are dead without it. Returns whether it does: the value is no
    /// victim then. If too much is being stored already, the value is evicted without being stored.
    pub(in crate::node) fn store_first(&mut self, slot: u32) -> bool {
        let Some(queue) = &self.tier else { return false };
        let is_wanted = if self.entry(slot).is_clean() {
            let (namespace, key) = self.named_key(slot);
            let key = self.key_in_tier(namespace, &key);
            if queue.tier.len_of(&key) != Lookup::Missing {
                self.touch_chain(slot);
                return false;
            }
            self.entry(slot).unset_tier();
            true
        } else {
            let local = &self.locals[slot as usize];
            local.has_stored_children && !local.store_failed && self.is_to_store(slot)
        };
        // Beside the values that are stored ahead.
        let queue = self.tier.as_ref().expect("it was just there");
        let stores = is_wanted && queue.storing_bytes < 2 * STORE_JOBS * self.job_bytes();
        if stores {
            self.begin_storing(vec![self.storing(slot)]);
        }
        stores
    }

    /// Adds values to a job until it is full, or `ahead` bytes or `max` values were looked at. The
    /// end of a chain goes first, so a chain is of interest if one of its last `ahead` bytes is not
    /// stored. Then all of it is stored, from its start on.
    fn add_to_job(
        &self,
        job: &mut StoreJob,
        order: impl Iterator<Item = u32>,
        ahead: u64,
        max: usize,
    ) {
        let (mut seen_bytes, mut seen) = (0, 0);
        for chain in self.with_ancestors(order, ANCESTORS) {
            let before = seen_bytes;
            let mut goes_unstored = false;
            for slot in chain.iter().rev() {
                goes_unstored |= seen_bytes < ahead && self.is_to_store(*slot);
                seen_bytes += self.len_of(*slot);
            }
            if before >= ahead || seen >= max {
                break;
            }
            seen += chain.len();
            for slot in chain.into_iter().filter(|_| goes_unstored) {
                if !self.is_to_store(slot) || job.values.iter().any(|it| it.slot == slot) {
                    continue;
                }
                let value = self.storing(slot);
                job.bytes += value.len;
                job.values.push(value);
                if self.is_full_job(job.bytes, job.values.len()) {
                    return;
                }
            }
        }
    }

    /// Returns whether a value is one that the tier takes and does not have.
    pub(in crate::node) fn is_to_store(&self, slot: u32) -> bool {
        let entry = self.entry(slot);
        !entry.is_clean() && !self.locals[slot as usize].storing
    }

    pub(in crate::node) fn storing(&self, slot: u32) -> Storing {
        let (namespace, key) = self.named_key(slot);
        let key = self.key_in_tier(namespace, &key);
        let (offset, checksum) = (self.entry(slot).extent().start, self.entry(slot).checksum());
        let entry = self.entry(slot);
        let left = |until: u64| Duration::from_millis(until.saturating_sub(now_ms()));
        let ttl = Some(entry.expires_at()).filter(|it| *it != 0).map(left);
        let priority = Priority::new(entry.priority()).unwrap_or(Priority::MAX);
        let data_type = entry.data_type();
        let hints = TierHints { priority, ttl, data_type, ..TierHints::default() };
        Storing { slot, key, offset, len: self.len_of(slot), checksum, hints }
    }

    pub(super) fn value_stored(&mut self, value: &Storing, offered: Offered) {
        let stored = offered == Offered::Stored;
        let queue = self.tier.as_mut().expect("there is a tier");
        queue.storing_bytes -= value.len;
        queue.changes += u64::from(stored);
        self.counters.tier_not_stored += u64::from(!stored);
        if stored {
            self.counters.tier_stored += 1;
            if self.word(value.slot).state == State::Committed {
                self.entry(value.slot).set_clean();
                let named = self.named_key(value.slot);
                self.tier.as_mut().expect("there is a tier").names.add(named);
            }
        }
        let local = &mut self.locals[value.slot as usize];
        (local.storing, local.store_failed) = (false, !stored);
        local.hides_older = offered == Offered::Failed;
    }
}
