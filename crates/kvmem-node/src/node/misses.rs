//! *Misses*: keys that were acquired and had no value, and why.

use std::collections::VecDeque;

use kvmem::tier::TierState;
use serde::{Deserialize, Serialize};

use super::ghosts::{Ghost, Ghosts};
use super::miss_reason::MissReason;
use super::node::Node;
use super::{EventKind, Granted, NO_NAMESPACE, SessionIndex};

/// A key that was acquired and had no value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Miss {
    /// The name of the namespace.
    pub namespace: String,
    /// The key.
    pub key: Vec<u8>,
    /// Why it had no value.
    pub reason: MissReason,
    /// Milliseconds since the miss.
    pub ago_ms: u64,
    /// Seconds between the moment when its value left the memory and the miss. `None`: the server
    /// does not know a value of the key.
    pub gone_s: Option<u32>,
    /// The name of the namespace for whose block the value was evicted. `None`: for none.
    pub evicted_for: Option<String>,
    /// The priority of the value.
    pub priority: Option<u8>,
}

/// Misses that are remembered: the first one of each of the last calls.
const MAX_RECENT: usize = 256;

/// A miss, as it is remembered.
#[derive(Debug)]
struct Recent {
    namespace: u16,
    key: Box<[u8]>,
    reason: MissReason,
    at_ms: u64,
    ghost: Option<Ghost>,
}

/// The last misses.
#[derive(Debug, Default)]
pub(super) struct RecentMisses(VecDeque<Recent>);

impl Node {
    /// Remembers why the value of an entry leaves the memory.
    pub(super) fn add_ghost(&mut self, slot: u32, hash: u64, kind: EventKind, now: u64) {
        let entry = self.entry(slot);
        let (namespace, priority) = (entry.namespace(), entry.priority());
        let reason = match kind {
            EventKind::Removed => MissReason::Removed,
            EventKind::Damaged => MissReason::Damaged,
            EventKind::Evicted if self.is_expired(slot, now) => MissReason::Expired,
            EventKind::Evicted if entry.is_clean() => MissReason::TierLost,
            EventKind::Evicted => MissReason::Evicted,
            EventKind::Stored | EventKind::Replaced | EventKind::TierEvicted => return,
        };
        let evicted_for = if kind == EventKind::Evicted { self.evicting_for } else { NO_NAMESPACE };
        if kind == EventKind::Evicted && self.locals[slot as usize].is_unused {
            self.counters.evicted_unused += 1;
            self.namespaces.at(namespace).evicted_unused += 1;
        }
        if matches!(reason, MissReason::Evicted | MissReason::TierLost) {
            self.push_evicted(namespace, hash, self.space_of(slot));
        }
        let left_s = (now / 1000) as u32;
        self.ghosts.add(hash, Ghost { reason, left_s, evicted_for, priority });
    }

    /// Counts the hits and misses of an acquisition, of which `missed` has the hashes in order. The
    /// keys behind the first miss of a prefix were not looked up, and those that are `pending` are
    /// no misses: their values come.
    pub(super) fn count(
        &mut self,
        session: SessionIndex,
        keys: &[&[u8]],
        (granted, missed): (&[Option<Granted>], &[u64]),
        pending: &[u16],
        now: u64,
    ) {
        self.correct_curves();
        let namespace = self.sessions.get(session).namespace;
        let hits = granted.iter().flatten().count() as u64;
        self.counters.hits += hits;
        if let Some(of) = self.namespaces.find(namespace) {
            of.hits += hits;
            of.curve.keys += (keys.len() - pending.len()) as u64;
        }
        if hits == keys.len() as u64 {
            return;
        }
        let mut pending = pending.iter().peekable();
        let mut first = true;
        let missing = keys.iter().enumerate().filter(|(at, _)| granted[*at].is_none());
        for ((at, key), &hash) in missing.zip(missed) {
            if pending.next_if(|it| usize::from(**it) == at).is_none() {
                let (reason, ghost) = self.miss_reason(namespace, key, hash);
                self.counters.misses.add(reason);
                if let Some(of) = self.namespaces.find(namespace) {
                    of.misses.add(reason);
                    if let Some(stack) = of.curve.stack() {
                        stack.count_miss(hash);
                    }
                }
                if std::mem::take(&mut first) {
                    let (key, at_ms) = ((*key).into(), now);
                    self.recent_misses.0.truncate(MAX_RECENT - 1);
                    self.recent_misses.0.push_front(Recent {
                        namespace,
                        key,
                        reason,
                        at_ms,
                        ghost,
                    });
                }
            }
        }
    }

    /// Returns why a key has no value, and the record of the one that it had.
    fn miss_reason(&self, namespace: u16, key: &[u8], hash: u64) -> (MissReason, Option<Ghost>) {
        let ghost = self.ghosts.find(hash);
        let reads = matches!(self.tier_state(), TierState::Working | TierState::ReadOnly);
        let in_tier = self.is_only_in_tier(namespace, key);
        let reason = match ghost.map_or(MissReason::NeverStored, |it| it.reason) {
            _ if in_tier && reads => MissReason::NotFetched,
            MissReason::TierLost if !reads => MissReason::TierAway,
            _ if in_tier => MissReason::TierAway,
            reason => reason,
        };
        (reason, ghost)
    }

    /// Forgets the misses of a namespace whose number gets another name, and why the values of
    /// any namespace have left: a record does not say which namespace its key is in.
    pub(super) fn forget_namespace(&mut self, number: u16) {
        self.recent_misses.0.retain(|it| it.namespace != number);
        self.ghosts = Ghosts::new(self.memory.header.entries);
    }

    /// Returns up to `max` of the last misses, of a namespace or of all, the last one first.
    pub(crate) fn misses(&self, namespace: Option<u16>, max: usize, now: u64) -> Vec<Miss> {
        let name = |number: u16| self.namespaces.all().get(usize::from(number)).map(|it| &it.name);
        let of = |it: &&Recent| namespace.is_none_or(|namespace| it.namespace == namespace);
        let miss = |it: &Recent| Miss {
            namespace: name(it.namespace).cloned().unwrap_or_default(),
            key: it.key.to_vec(),
            reason: it.reason,
            ago_ms: now.saturating_sub(it.at_ms),
            gone_s: it.ghost.map(|ghost| ((it.at_ms / 1000) as u32).saturating_sub(ghost.left_s)),
            evicted_for: it.ghost.and_then(|ghost| name(ghost.evicted_for).cloned()),
            priority: it.ghost.map(|ghost| ghost.priority),
        };
        self.recent_misses.0.iter().filter(of).take(max).map(miss).collect()
    }
}
