//! *Acquiring*: values are found and pinned, and pins are released.

use std::collections::hash_map::Entry;

use serde::{Deserialize, Serialize};

use super::node::Node;
use super::sessions::{NOWHERE, SessionPin};
use super::{BlockHandle, EventKind, Granted, SessionIndex};
use crate::error::{CallError, Quota};
use crate::format::{MAX_KEY, State};

/// Returns an error for a key that no value can have.
pub(super) fn check_key(key: &[u8]) -> Result<(), CallError> {
    if (1..=MAX_KEY).contains(&key.len()) {
        Ok(())
    } else {
        Err(CallError::BadKey { len: key.len(), limit: MAX_KEY })
    }
}

impl Node {
    /// Returns how many keys in front have values, in memory or in the tier.
    pub(crate) fn lookup(&self, session: SessionIndex, keys: &[&[u8]], now: u64) -> usize {
        let namespace = self.sessions.get(session).namespace;
        let has = |key: &&&[u8]| match self.find(namespace, key) {
            Some(slot) => !self.is_expired(slot, now),
            None => self.is_only_in_tier(namespace, key),
        };
        keys.iter().take_while(has).count()
    }

    /// Returns whether memory has values of all keys: an acquisition needs no tier.
    pub(crate) fn has_all(&self, session: SessionIndex, keys: &[&[u8]], now: u64) -> bool {
        let namespace = self.sessions.get(session).namespace;
        let has =
            |key: &&[u8]| self.find(namespace, key).is_some_and(|slot| !self.is_expired(slot, now));
        keys.iter().all(has)
    }

    /// Pins the values that memory has, and begins to fetch others of the keys that only the tier
    /// has. Returns also the positions of the latter. With `prefix_only`, they are those behind the
    /// pinned ones, up to the first key without a value.
    pub(crate) fn try_acquire(
        &mut self,
        session: SessionIndex,
        keys: &[&[u8]],
        prefix_only: bool,
        now: u64,
    ) -> Result<(Vec<Option<Granted>>, Vec<u16>), CallError> {
        // First: what is pinned is not evicted for what is fetched.
        let (blocks, missed) = self.pin_found(session, keys, prefix_only, now)?;
        let pending = match self.has_tier() && blocks.iter().any(Option::is_none) {
            true => self.fetch_from_tier(session, keys, prefix_only, None, 0).0,
            false => Vec::new(),
        };
        self.count(session, keys, (&blocks, &missed), &pending, now);
        Ok((blocks, pending))
    }

    /// Returns where the values of keys are. Counts as no use, and waits for no device.
    pub(crate) fn locate(
        &self,
        session: SessionIndex,
        keys: &[&[u8]],
        now: u64,
    ) -> Result<Vec<Located>, CallError> {
        keys.iter().try_for_each(|key| check_key(key))?;
        let namespace = self.sessions.get(session).namespace;
        let located = |key: &&[u8]| Located {
            in_memory: self.find(namespace, key).is_some_and(|slot| !self.is_expired(slot, now)),
            in_tier: namespace != NOWHERE && self.is_in_tier(namespace, key),
        };
        Ok(keys.iter().map(located).collect())
    }

    /// Pins the values of keys, and counts those that have none. With `prefix_only`, the keys after
    /// the first one without a value are not looked up.
    pub(crate) fn acquire(
        &mut self,
        session: SessionIndex,
        keys: &[&[u8]],
        prefix_only: bool,
        now: u64,
    ) -> Result<Vec<Option<Granted>>, CallError> {
        let (granted, missed) = self.pin_found(session, keys, prefix_only, now)?;
        self.count(session, keys, (&granted, &missed), &[], now);
        Ok(granted)
    }

    /// [Acquires](Self::acquire) values without counting them. Returns also the hashes of the keys
    /// that were looked up and have none.
    fn pin_found(
        &mut self,
        session: SessionIndex,
        keys: &[&[u8]],
        prefix_only: bool,
        now: u64,
    ) -> Result<(Vec<Option<Granted>>, Vec<u64>), CallError> {
        keys.iter().try_for_each(|key| check_key(key))?;
        let limit = self.options.max_handles_per_session;
        self.sessions.get(session).check_handles(keys.len(), limit)?;
        let namespace = self.sessions.get(session).namespace;
        let mut granted = Vec::with_capacity(keys.len());
        // First all look-ups: their cache misses overlap.
        let mut found = Vec::with_capacity(keys.len());
        for key in keys {
            let hash = self.hash_of_key(namespace, key);
            let slot = self.find_by(hash, namespace, key);
            found.push((hash, slot));
            if prefix_only && slot.is_none() {
                break;
            }
        }
        let half_age = self.namespaces.find(namespace).map_or(u64::MAX, |it| it.curve.half_age);
        let (mut withdrawn, mut old_hits, mut missed) = (false, 0, Vec::new());
        for (key, (hash, slot)) in keys.iter().zip(found) {
            // A key that comes twice had the value that was withdrawn.
            let slot = if withdrawn { self.find_by(hash, namespace, key) } else { slot };
            let expired = slot.is_some_and(|slot| self.drop_if_expired(slot, now));
            withdrawn |= expired;
            let Some(slot) = slot.filter(|_| !expired) else {
                granted.push(None);
                missed.push(hash);
                if prefix_only {
                    break;
                }
                continue;
            };
            if let Err(error) = self.check_pin_limits(session, namespace, slot) {
                let made: Vec<BlockHandle> =
                    granted.iter().flatten().map(|it: &Granted| it.handle).collect();
                self.release(session, &made)?;
                return Err(error);
            }
            let age = self.next_order.wrapping_sub(self.locals[slot as usize].order);
            old_hits += u64::from(age > half_age);
            self.pin(session, slot);
            granted.push(Some(self.granted(slot)));
        }
        // The last key first: the end of a prefix is evicted before its start.
        for granted in granted.iter().rev().flatten() {
            self.note_use(granted.handle.slot, now);
        }
        if let Some(of) = self.namespaces.find(namespace) {
            of.curve.old_hits += old_hits;
        }
        granted.resize(keys.len(), None);
        Ok((granted, missed))
    }

    /// [Acquires](Self::acquire) values for a client that releases others in the same call, and
    /// does so first: the answer need not wait for the release. Returns whether the others are
    /// still to be released. They are released first if the pins of both exceed a limit.
    pub(crate) fn exchange(
        &mut self,
        session: SessionIndex,
        (epoch, release): (u64, &[BlockHandle]),
        keys: &[&[u8]],
        prefix_only: bool,
        now: u64,
    ) -> (Result<Vec<Option<Granted>>, CallError>, bool) {
        let acquired = self.acquire(session, keys, prefix_only, now);
        if acquired.is_ok() || release.is_empty() {
            return (acquired, !release.is_empty());
        }
        // The server releases the others also if a handle among them is stale.
        let _ = self.release_of(session, epoch, release);
        (self.acquire(session, keys, prefix_only, now), false)
    }

    /// Marks values as used now, without a pin. Returns how many there are.
    pub(crate) fn touch(&mut self, session: SessionIndex, keys: &[&[u8]], now: u64) -> usize {
        let namespace = self.sessions.get(session).namespace;
        let mut touched = 0;
        // The last key first: the end of a prefix is evicted before its start.
        for key in keys.iter().rev() {
            let slot = self.find(namespace, key);
            let Some(slot) = slot.filter(|slot| !self.drop_if_expired(*slot, now)) else {
                continue;
            };
            touched += 1;
            self.note_use(slot, now);
        }
        touched
    }

    /// [Releases](Self::release) handles of a client that has had the pins in an epoch. If it is
    /// over, only reservations end.
    pub(crate) fn release_of(
        &mut self,
        session: SessionIndex,
        epoch: u64,
        handles: &[BlockHandle],
    ) -> Result<(), CallError> {
        if epoch == self.epoch_of(session) {
            return self.release(session, handles);
        }
        for &handle in handles {
            let Ok((slot, _)) = self.live(handle) else { continue };
            if self.sessions.get(session).has_reserved(slot) {
                self.end_reservation(session, slot);
            }
        }
        Ok(())
    }

    /// Ends pins and reservations of a session. A handle that appears twice ends two pins.
    pub(crate) fn release(
        &mut self,
        session: SessionIndex,
        handles: &[BlockHandle],
    ) -> Result<(), CallError> {
        let mut stale = None;
        for &handle in handles.iter().rev() {
            let BlockHandle { slot, generation } = handle;
            let live = self.live(handle).is_ok();
            if live && self.unpin(session, slot) {
                continue;
            }
            if live && self.sessions.get(session).has_reserved(slot) {
                self.end_reservation(session, slot);
            } else {
                stale = Some(CallError::Stale { slot, generation });
            }
        }
        stale.map_or(Ok(()), Err)
    }

    /// Returns an error if a further pin of an entry exceeds a limit. A value that is pinned
    /// already counts once.
    fn check_pin_limits(
        &self,
        index: SessionIndex,
        namespace: u16,
        slot: u32,
    ) -> Result<(), CallError> {
        let session = self.sessions.get(index);
        if session.pins.contains_key(&slot) {
            return Ok(());
        }
        self.check_holders(index, slot)?;
        let exceeds = |what, value, limit| match value > limit {
            true => Err(CallError::Quota { what, value, limit }),
            false => Ok(()),
        };
        let len = self.space_of(slot);
        let limit = self.options.max_pinned_bytes_per_session;
        exceeds(Quota::SessionPinnedBytes, session.pinned_bytes + len, limit)?;
        if self.locals[slot as usize].pins > 0 {
            return Ok(());
        }
        let namespace = self.namespaces.get(namespace);
        exceeds(Quota::NamespacePins, namespace.pinned + 1, namespace.limits.max_pins)?;
        let limit = namespace.limits.max_pinned_bytes;
        exceeds(Quota::NamespacePinnedBytes, namespace.pinned_bytes + len, limit)
    }

    /// Withdraws the value of an entry that has outlived its time; returns whether it had.
    fn drop_if_expired(&mut self, slot: u32, now: u64) -> bool {
        let expired = self.is_expired(slot, now);
        if expired {
            self.counters.expired += 1;
            self.withdraw(slot, EventKind::Evicted);
        }
        expired
    }

    /// Adds a pin to an entry that is committed. A session has up to 2^32 - 1 of them: a client
    /// that requests more receives wrong counts of its own pins alone.
    pub(super) fn pin(&mut self, session: SessionIndex, slot: u32) {
        self.locals[slot as usize].is_unused = false;
        let space = self.space_of(slot);
        let pinning = self.sessions.get_mut(session);
        match pinning.pins.entry(slot) {
            Entry::Occupied(mut pin) => {
                let SessionPin { count, .. } = pin.get_mut();
                *count = count.saturating_add(1);
            }
            Entry::Vacant(place) => {
                place.insert(SessionPin::of(1));
                pinning.pinned_bytes += space;
                self.hold(session, slot);
                self.entry(slot).add_user(session.number());
                self.begin_pin(slot);
            }
        }
    }

    /// Ends a pin of a session; returns whether it has one.
    pub(super) fn unpin(&mut self, session: SessionIndex, slot: u32) -> bool {
        let Entry::Occupied(mut entry) = self.sessions.get_mut(session).pins.entry(slot) else {
            return false;
        };
        let pin = entry.get_mut();
        if pin.is_over() {
            return false;
        }
        pin.count -= 1;
        if pin.count == 0 {
            entry.remove();
            self.note_unpinned(session, slot);
        }
        true
    }

    /// Ends what a session has pinned of an entry.
    pub(super) fn end_pins(&mut self, session: SessionIndex, slot: u32) {
        let pinning = self.sessions.get_mut(session);
        pinning.pins.remove(&slot).expect("the session has pinned the entry");
        self.note_unpinned(session, slot);
    }

    /// Notes that a session has no pins of an entry any more.
    fn note_unpinned(&mut self, session: SessionIndex, slot: u32) {
        self.sessions.get_mut(session).pinned_bytes -= self.space_of(slot);
        self.entry(slot).remove_user(session.number());
        self.end_hold(session, slot);
        self.end_pin(slot);
    }

    /// Pins a committed entry for the server itself. A recovery does not know of it.
    pub(super) fn begin_server_pin(&mut self, slot: u32) {
        *self.server_pins.entry(slot).or_default() += 1;
        self.begin_pin(slot);
    }

    pub(super) fn end_server_pin(&mut self, slot: u32) {
        let count = self.server_pins.get_mut(&slot).expect("the server has a pin");
        *count -= 1;
        if *count == 0 {
            self.server_pins.remove(&slot);
        }
        self.end_pin(slot);
    }

    pub(super) fn begin_pin(&mut self, slot: u32) {
        if self.locals[slot as usize].pins == 0 {
            self.release_parent(slot);
            let (namespace, space) = (self.entry(slot).namespace(), self.space_of(slot));
            let namespace = self.namespaces.at(namespace);
            (namespace.pinned, namespace.pinned_bytes) =
                (namespace.pinned + 1, namespace.pinned_bytes + space);
        }
        self.locals[slot as usize].pins += 1;
    }

    pub(super) fn end_pin(&mut self, slot: u32) {
        let pins = &mut self.locals[slot as usize].pins;
        *pins -= 1;
        if *pins > 0 {
            return;
        }
        let (namespace, space) = (self.entry(slot).namespace(), self.space_of(slot));
        let namespace = self.namespaces.at(namespace);
        (namespace.pinned, namespace.pinned_bytes) =
            (namespace.pinned - 1, namespace.pinned_bytes - space);
        match self.word(slot).state {
            State::Detached => self.release_extent(slot),
            _ => {
                self.hold_parent(slot);
                self.queue(slot);
            }
        }
    }
}

/// Where the value of a key is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Located {
    /// In the memory of the node.
    pub in_memory: bool,
    /// In the [tier](kvmem::tier::Tier), as far as that answers without waiting for a network.
    pub in_tier: bool,
}
