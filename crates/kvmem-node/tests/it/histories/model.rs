//! [`Model`]: the state of a node, by its documentation. It has no memory and no index.

use std::collections::{HashMap, HashSet, VecDeque};

use kvmem_node::{
    CallError, Event, EventKind, MissReason, NamespaceLimits, NamespaceStats, NodeOptions, Quota,
};
use kvmem_testkit::oracle::Oracle;

/// Numbers a block, in the order of the reservations.
pub(super) type Id = u64;

/// Numbers a session, in the order of the greetings.
pub(super) type SessionId = u64;

/// A reservation or a value.
#[derive(Clone, Debug)]
pub(super) struct Block {
    pub(super) namespace: usize,
    /// `None`: it is reserved.
    pub(super) key: Option<Vec<u8>>,
    /// The key of its parent, in its namespace. The histories have no cycles.
    pub(super) parent: Option<Vec<u8>>,
    /// Its place in the order of use: its own last use, or a later one that a child has passed on.
    order: u64,
    pub(super) offset: u64,
    pub(super) len: u64,
    /// The memory that it takes.
    pub(super) space: u64,
    pub(super) priority: usize,
    /// Its time is over: it cannot be found, and the server may evict it at any time.
    pub(super) expired: bool,
    /// The sessions that have it pinned.
    pub(super) pinned_by: usize,
    /// It can be found under its key.
    pub(super) committed: bool,
    /// Somebody has acquired it.
    acquired: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Namespace {
    pub(super) name: &'static str,
    pub(super) limits: NamespaceLimits,
    pub(super) bytes: u64,
    entries: u64,
    /// The hits, misses and wasted values; the rest is empty.
    pub(super) counts: NamespaceStats,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Session {
    pub(super) namespace: usize,
    pub(super) read_only: bool,
    pub(super) pins: HashMap<Id, u32>,
    pub(super) reservations: HashMap<Id, u64>,
}

#[derive(Clone, Debug)]
pub(super) struct Model {
    pub(super) options: NodeOptions,
    pub(super) blocks: HashMap<Id, Block>,
    by_key: HashMap<(usize, Vec<u8>), Id>,
    /// Why keys have no value any more.
    gone: HashMap<(usize, Vec<u8>), MissReason>,
    pub(super) namespaces: Vec<Namespace>,
    pub(super) sessions: HashMap<SessionId, Session>,
    /// The length of the memory file.
    len: u64,
    /// The extents of all blocks: they never overlap.
    pub(super) space: Oracle,
    next: Id,
    uses: u64,
}

/// Events of a call, which the model explains one after the other.
#[derive(Clone, Debug)]
pub(super) struct Explained {
    events: VecDeque<Event>,
}

impl Explained {
    pub(super) fn new(events: Vec<Event>) -> Explained {
        Explained { events: events.into() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Takes the evictions of values whose time is over, which may come at any time.
    pub(super) fn take_expired(&mut self, model: &mut Model) {
        while let Some(event) = self.events.front() {
            let id = model.find(event.namespace.into(), &event.key);
            let expired = id.filter(|id| model.blocks[id].expired);
            let Some(id) = expired.filter(|_| event.kind == EventKind::Evicted) else { break };
            model.withdraw(id, EventKind::Evicted);
            self.events.pop_front();
        }
    }

    /// Takes an event that must come next.
    pub(super) fn expect(&mut self, kind: EventKind, namespace: usize, key: &[u8]) {
        let next = self.events.pop_front();
        let is =
            |it: &Event| it.kind == kind && usize::from(it.namespace) == namespace && it.key == key;
        assert!(next.as_ref().is_some_and(is), "{kind:?} of {key:?} instead of {next:?}");
    }

    /// Takes the eviction of the next victim.
    fn evict(&mut self, model: &mut Model, victim: Option<Id>, cause: &str) {
        let next = self.events.front().cloned();
        let evicted = self.take_eviction(model, victim);
        assert!(evicted.is_some(), "{next:?} instead of the eviction of {victim:?} for {cause}");
        self.take_expired(model);
    }

    /// Takes the eviction of the next victim, if that is the next event.
    fn take_eviction(&mut self, model: &mut Model, victim: Option<Id>) -> Option<u64> {
        let event = self.events.front().filter(|event| event.kind == EventKind::Evicted)?;
        let id = model.find(event.namespace.into(), &event.key)?;
        if Some(id) != victim && !model.blocks[&id].expired {
            return None;
        }
        self.events.pop_front();
        let space = model.blocks[&id].space;
        model.withdraw(id, EventKind::Evicted);
        Some(space)
    }

    /// Takes the removals of all values of a namespace, in any order, and returns their number.
    pub(super) fn removed_in(mut self, model: &mut Model, namespace: usize) -> usize {
        let mut removed = 0;
        self.take_expired(model);
        while let Some(event) = self.events.pop_front() {
            assert_eq!((event.kind, event.namespace.into()), (EventKind::Removed, namespace));
            let id = model.find(namespace, &event.key).expect("it was there");
            model.withdraw(id, EventKind::Removed);
            removed += 1;
            self.take_expired(model);
        }
        removed
    }

    /// No event is left.
    pub(super) fn end(mut self, model: &mut Model) {
        self.take_expired(model);
        assert!(self.events.is_empty(), "events without a cause: {:?}", self.events);
    }
}

impl Model {
    pub(super) fn new(options: NodeOptions, capacity: u64) -> Model {
        Model {
            options,
            blocks: HashMap::new(),
            by_key: HashMap::new(),
            gone: HashMap::new(),
            namespaces: Vec::new(),
            sessions: HashMap::new(),
            len: capacity,
            space: Oracle::new(capacity, None),
            next: 0,
            uses: 0,
        }
    }

    /// Returns the number of a namespace, which a session that writes makes.
    pub(super) fn namespace(&mut self, name: &'static str) -> usize {
        if let Some(found) = self.namespaces.iter().position(|it| it.name == name) {
            return found;
        }
        let own = self.options.limits.iter().find(|(of, _)| of == name);
        let limits = own.map_or(self.options.default_limits, |(_, limits)| *limits);
        self.namespaces.push(Namespace {
            name,
            limits,
            bytes: 0,
            entries: 0,
            counts: NamespaceStats::default(),
        });
        self.namespaces.len() - 1
    }

    pub(super) fn find(&self, namespace: usize, key: &[u8]) -> Option<Id> {
        self.by_key.get(&(namespace, key.to_vec())).copied()
    }

    /// Returns the value that a look-up finds.
    pub(super) fn visible(&self, namespace: usize, key: &[u8]) -> Option<Id> {
        self.find(namespace, key).filter(|id| !self.blocks[id].expired)
    }

    fn parent_of(&self, id: Id) -> Option<Id> {
        let block = &self.blocks[&id];
        let parent = self.find(block.namespace, block.parent.as_ref()?)?;
        (parent != id).then_some(parent)
    }

    /// The parent of a value counts as used when the value was.
    fn raise_parent(&mut self, id: Id) {
        let order = self.blocks[&id].order;
        if let Some(parent) = self.parent_of(id) {
            let parent = self.blocks.get_mut(&parent).expect("it is a block");
            parent.order = parent.order.max(order);
        }
    }

    fn note_use(&mut self, id: Id) {
        self.uses += 1;
        let block = self.blocks.get_mut(&id).expect("it is a block");
        block.order = self.uses;
        if block.pinned_by > 0 {
            self.raise_parent(id);
        }
    }

    /// The value that a namespace gives up first: an end of a chain, by priority and order of use.
    fn victim_in(&self, namespace: usize) -> Option<Id> {
        let unpinned = |it: &Block| it.committed && it.pinned_by == 0 && it.namespace == namespace;
        let of = || self.blocks.iter().filter(|(_, it)| unpinned(it));
        let parents: HashSet<Id> = of().filter_map(|(id, _)| self.parent_of(*id)).collect();
        let ends = of().filter(|(id, _)| !parents.contains(id));
        ends.min_by_key(|(_, it)| (it.priority, it.order)).map(|(id, _)| *id)
    }

    /// The bytes of values whose parents are gone.
    pub(super) fn dead_bytes(&self) -> u64 {
        let is_dead = |it: &&Block| {
            let parent = it.parent.as_ref().filter(|parent| it.key.as_ref() != Some(parent));
            it.committed && parent.is_some_and(|key| self.find(it.namespace, key).is_none())
        };
        self.blocks.values().filter(is_dead).map(|it| it.len).sum()
    }

    /// The value that is evicted first: of the namespace that exceeds its share most.
    fn victim(&self) -> Option<Id> {
        let bytes_per_entry = self.len as f64 / self.max_blocks() as f64;
        let excess = |it: &Namespace| {
            let used = (it.bytes as f64).max(it.entries as f64 * bytes_per_entry);
            used / f64::from(it.limits.share.max(1))
        };
        let with_victims = (0..self.namespaces.len()).filter_map(|namespace| {
            Some((excess(&self.namespaces[namespace]), self.victim_in(namespace)?))
        });
        with_victims.max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, id)| id)
    }

    /// A value can no longer be found.
    pub(super) fn withdraw(&mut self, id: Id, kind: EventKind) {
        if self.blocks[&id].pinned_by == 0 {
            self.raise_parent(id);
        }
        let block = self.blocks.get_mut(&id).expect("it is a block");
        block.committed = false;
        let (namespace, key) = (block.namespace, block.key.clone().expect("it is a value"));
        let pinned = block.pinned_by > 0;
        let reason = match kind {
            EventKind::Removed => MissReason::Removed,
            EventKind::Evicted if block.expired => MissReason::Expired,
            _ => MissReason::Evicted,
        };
        self.gone.insert((namespace, key.clone()), reason);
        let is_unused = kind == EventKind::Evicted && !block.acquired;
        self.namespaces[namespace].counts.evicted_unused_total += u64::from(is_unused);
        assert_eq!(self.by_key.remove(&(namespace, key)), Some(id));
        if !pinned {
            self.free(id);
        }
    }

    fn free(&mut self, id: Id) {
        let block = self.blocks.remove(&id).expect("it is a block");
        let namespace = &mut self.namespaces[block.namespace];
        (namespace.bytes, namespace.entries) =
            (namespace.bytes - block.space, namespace.entries - 1);
        assert_eq!(self.space.free(block.offset).expect("it was allocated"), block.space);
    }

    /// A server that begins has counted nothing, and does not know who has acquired what.
    pub(super) fn restart(&mut self) {
        self.gone.clear();
        self.namespaces.iter_mut().for_each(|it| it.counts = NamespaceStats::default());
        let values = self.blocks.values_mut().filter(|it| it.key.is_some());
        values.for_each(|it| it.acquired = true);
    }

    fn max_blocks(&self) -> u64 {
        self.options.max_blocks.expect("it is set").into()
    }

    /// Returns the memory that a block of some bytes takes.
    fn space_for(&self, len: u64) -> u64 {
        let units = len.checked_next_multiple_of(self.options.align);
        units.map_or(self.len, |space| space.min(self.len))
    }

    pub(super) fn pin(&mut self, session: SessionId, id: Id) {
        let count = self.sessions.get_mut(&session).expect("it lives").pins.entry(id).or_default();
        *count += 1;
        self.blocks.get_mut(&id).expect("it is a block").acquired = true;
        if *count == 1 {
            self.blocks.get_mut(&id).expect("it is a block").pinned_by += 1;
            if self.blocks[&id].pinned_by == 1 && self.blocks[&id].committed {
                self.raise_parent(id);
            }
        }
    }

    fn unpin(&mut self, session: SessionId, id: Id) {
        let pins = &mut self.sessions.get_mut(&session).expect("it lives").pins;
        let count = pins.get_mut(&id).expect("it is pinned");
        *count -= 1;
        if *count > 0 {
            return;
        }
        pins.remove(&id);
        let block = self.blocks.get_mut(&id).expect("it is a block");
        block.pinned_by -= 1;
        if (block.pinned_by, block.committed) == (0, false) {
            self.free(id);
        }
    }

    /// Ends pins and reservations, the last one first.
    pub(super) fn release(&mut self, session: SessionId, ids: &[Id]) {
        for id in ids.iter().rev() {
            if self.sessions.get_mut(&session).expect("it lives").reservations.remove(id).is_some()
            {
                self.free(*id);
            } else {
                self.unpin(session, *id);
            }
        }
    }

    /// Ends a session whose client has released all that it had.
    pub(super) fn end_session(&mut self, session: SessionId) {
        let ended = self.sessions.remove(&session).expect("it lives");
        assert!(ended.pins.is_empty() && ended.reservations.is_empty());
    }

    fn check_handles(&self, session: SessionId, more: usize) -> Result<(), CallError> {
        let session = &self.sessions[&session];
        let value = (session.pins.len() + session.reservations.len() + more) as u64;
        let limit = self.options.max_handles_per_session as u64;
        quota(Quota::SessionHandles, value, limit)
    }

    /// Returns the values that an acquisition pins, or the error that it gives.
    pub(super) fn acquire(
        &mut self,
        session: SessionId,
        keys: &[Vec<u8>],
        prefix_only: bool,
    ) -> Result<Vec<Option<Id>>, CallError> {
        if let Some(key) = keys.iter().find(|key| !(1..=64).contains(&key.len())) {
            return Err(CallError::BadKey { len: key.len(), limit: 64 });
        }
        self.check_handles(session, keys.len())?;
        let namespace = self.sessions[&session].namespace;
        let mut found = Vec::new();
        for key in keys {
            let Some(id) = self.find(namespace, key) else {
                found.push(None);
                if prefix_only {
                    break;
                }
                continue;
            };
            assert!(!self.blocks[&id].expired, "a value of {key:?} has outlived its time");
            if let Err(error) = self.check_pin(session, namespace, id) {
                let made: Vec<Id> = found.into_iter().flatten().collect();
                self.release(session, &made);
                return Err(error);
            }
            self.pin(session, id);
            found.push(Some(id));
        }
        for id in found.iter().rev().flatten() {
            self.note_use(*id);
        }
        for (key, found) in keys.iter().zip(&found) {
            let gone = || self.gone.get(&(namespace, key.clone())).copied();
            let reason = || gone().unwrap_or(MissReason::NeverStored);
            let counts = &mut self.namespaces[namespace].counts;
            if found.is_some() {
                counts.hits += 1;
                continue;
            }
            counts.misses += 1;
            *match reason() {
                MissReason::NeverStored => &mut counts.never_stored_misses,
                MissReason::Expired => &mut counts.expired_misses,
                MissReason::Removed => &mut counts.removed_misses,
                _ => &mut counts.evicted_misses,
            } += 1;
        }
        found.resize(keys.len(), None);
        Ok(found)
    }

    fn check_pin(&self, session: SessionId, namespace: usize, id: Id) -> Result<(), CallError> {
        let pins = &self.sessions[&session].pins;
        if pins.contains_key(&id) {
            return Ok(());
        }
        let space = self.blocks[&id].space;
        let own: u64 = pins.keys().map(|id| self.blocks[id].space).sum();
        quota(Quota::SessionPinnedBytes, own + space, self.options.max_pinned_bytes_per_session)?;
        if self.blocks[&id].pinned_by > 0 {
            return Ok(());
        }
        let (pinned, bytes) = self.pinned_in(namespace);
        let limits = self.namespaces[namespace].limits;
        quota(Quota::NamespacePins, pinned + 1, limits.max_pins)?;
        quota(Quota::NamespacePinnedBytes, bytes + space, limits.max_pinned_bytes)
    }

    /// Returns the number of values of a namespace that are pinned, and the bytes that they take.
    pub(super) fn pinned_in(&self, namespace: usize) -> (u64, u64) {
        let pinned = self.blocks.values().filter(|it| it.namespace == namespace);
        pinned
            .filter(|it| it.pinned_by > 0)
            .fold((0, 0), |(count, bytes), it| (count + 1, bytes + it.space))
    }

    /// Marks values as used, the last one first. Returns how many there are.
    pub(super) fn touch(&mut self, session: SessionId, keys: &[Vec<u8>]) -> usize {
        let namespace = self.sessions[&session].namespace;
        let mut touched = 0;
        for key in keys.iter().rev() {
            let Some(id) = self.find(namespace, key) else { continue };
            assert!(!self.blocks[&id].expired, "a value of {key:?} has outlived its time");
            touched += 1;
            self.note_use(id);
        }
        touched
    }

    /// Makes reservations values, the last one first.
    pub(super) fn commit(
        &mut self,
        session: SessionId,
        items: &[(Vec<u8>, Id, usize)],
        events: &mut Explained,
    ) {
        let namespace = self.sessions[&session].namespace;
        for (key, id, priority) in items.iter().rev() {
            events.take_expired(self);
            if let Some(old) = self.find(namespace, key) {
                events.expect(EventKind::Replaced, namespace, key);
                self.withdraw(old, EventKind::Replaced);
            }
            self.by_key.insert((namespace, key.clone()), *id);
            let block = self.blocks.get_mut(id).expect("it is a block");
            (block.key, block.priority) = (Some(key.clone()), *priority);
            block.committed = true;
            let reservations = &mut self.sessions.get_mut(&session).expect("it lives").reservations;
            assert!(reservations.remove(id).is_some());
            self.note_use(*id);
            events.expect(EventKind::Stored, namespace, key);
        }
    }

    /// Returns the error of a reservation that changes nothing.
    pub(super) fn check_reserve(&self, of: SessionId, sizes: &[u64]) -> Result<(), CallError> {
        let session = &self.sessions[&of];
        if session.read_only {
            return Err(CallError::ReadOnly);
        }
        let reserved: u64 = session.reservations.values().sum();
        let value = reserved + sizes.iter().map(|size| self.space_for(*size)).sum::<u64>();
        quota(Quota::SessionReserved, value, self.options.max_reserved_per_session)?;
        self.check_handles(of, sizes.len())
    }

    /// Explains the evictions of a reservation, and makes its blocks: their offsets and lengths.
    pub(super) fn reserve(
        &mut self,
        session: SessionId,
        blocks: &[(u64, u64)],
        events: &mut Explained,
    ) -> Vec<Id> {
        let namespace = self.sessions[&session].namespace;
        let mut made = Vec::new();
        for &(offset, len) in blocks {
            events.take_expired(self);
            let limit = self.namespaces[namespace].limits.max_bytes;
            let space = self.space_for(len);
            while self.namespaces[namespace].bytes + space > limit {
                let victim = self.victim_in(namespace);
                events.evict(self, victim, "the limit of the namespace");
            }
            while !self.space.fits(space, self.options.align) {
                let victim = self.victim();
                events.evict(self, victim, "the allocator, which has no hole");
            }
            if self.blocks.len() as u64 == self.max_blocks() {
                let victim = self.victim();
                events.evict(self, victim, "the index, which has no free entry");
            }
            self.space.grant(offset, space).expect("no block overlaps another one");
            assert_eq!(offset % self.options.align, 0);
            let block = Block {
                namespace,
                key: None,
                parent: None,
                order: 0,
                offset,
                len,
                space,
                priority: 0,
                expired: false,
                pinned_by: 0,
                committed: false,
                acquired: false,
            };
            self.next += 1;
            self.blocks.insert(self.next, block);
            let of = &mut self.namespaces[namespace];
            (of.bytes, of.entries) = (of.bytes + space, of.entries + 1);
            let reservations = &mut self.sessions.get_mut(&session).expect("it lives").reservations;
            reservations.insert(self.next, space);
            made.push(self.next);
        }
        made
    }

    /// Explains the evictions of a reservation that has failed, whose first blocks were made and
    /// freed again. Returns whether there is an explanation.
    ///
    /// Where those blocks were is not known, so the model does not know how many evictions each one
    /// took: it tries all numbers.
    pub(super) fn fail_to_reserve(
        &mut self,
        session: SessionId,
        sizes: &[u64],
        error: &CallError,
        events: &mut Explained,
    ) -> bool {
        let Some((&size, rest)) = sizes.split_first() else { return false };
        let namespace = self.sessions[&session].namespace;
        let capacity = self.space.capacity();
        if size == 0 || size > capacity {
            return *error == CallError::BadLength { requested: size, limit: capacity };
        }
        let limit = self.namespaces[namespace].limits.max_bytes;
        let space = self.space_for(size);
        events.take_expired(self);
        while self.namespaces[namespace].bytes + space > limit {
            let victim = self.victim_in(namespace);
            if events.take_eviction(self, victim).is_none() {
                let value = self.namespaces[namespace].bytes + space;
                let what = Quota::NamespaceBytes;
                return victim.is_none() && *error == CallError::Quota { what, value, limit };
            }
        }
        loop {
            let (mut model, mut left) = (self.clone(), events.clone());
            let of = &mut model.namespaces[namespace];
            (of.bytes, of.entries) = (of.bytes + space, of.entries + 1);
            if model.fail_to_reserve(session, rest, error, &mut left) {
                let of = &mut model.namespaces[namespace];
                (of.bytes, of.entries) = (of.bytes - space, of.entries - 1);
                left.take_expired(&mut model);
                if left.events.is_empty() {
                    (*self, *events) = (model, left);
                    return true;
                }
            }
            let victim = self.victim();
            if events.take_eviction(self, victim).is_none() {
                let is_full = |error: &CallError| match error {
                    CallError::OutOfSpace { requested, .. } => *requested == size,
                    _ => false,
                };
                return victim.is_none() && is_full(error);
            }
        }
    }

    /// Explains the evictions of a change of the size, after which the values have these offsets.
    pub(super) fn resize(
        &mut self,
        size: u64,
        offsets: &HashMap<(usize, Vec<u8>), u64>,
        events: &mut Explained,
    ) -> u64 {
        events.take_expired(self);
        let mut evicted = 0;
        while let victim = self.victim()
            && events.take_eviction(self, victim).is_some()
        {
            evicted += 1;
        }
        let mut moved = 0;
        for (key, id) in &self.by_key {
            let block = self.blocks.get_mut(id).expect("it is a block");
            let offset = offsets[key];
            moved += u64::from(block.offset != offset);
            assert!(block.offset == offset || block.pinned_by == 0, "a pinned value has moved");
            block.offset = offset;
        }
        self.space = Oracle::new(size, None);
        for block in self.blocks.values() {
            self.space.grant(block.offset, block.space).expect("no block overlaps another one");
        }
        moved + evicted
    }

    /// Explains an eviction by an operator. Returns the smallest and the largest possible answer.
    pub(super) fn evict(
        &mut self,
        namespace: Option<usize>,
        bytes: u64,
        events: &mut Explained,
    ) -> (u64, u64) {
        let (mut sure, mut possible) = (0, 0);
        loop {
            let victim = match namespace {
                Some(namespace) => self.victim_in(namespace),
                None => self.victim(),
            };
            let expired = victim.is_none_or(|id| self.blocks[&id].expired);
            if possible >= bytes && !expired {
                break;
            }
            let Some(space) = events.take_eviction(self, victim) else {
                assert!(victim.is_none() || possible >= bytes, "{victim:?} stays: {events:?}");
                break;
            };
            possible += space;
            sure += if expired { 0 } else { space };
        }
        (sure, possible)
    }

    /// Returns the values that can be found, or could be before their time was over.
    pub(super) fn committed(&self) -> impl Iterator<Item = (&Vec<u8>, Id)> {
        self.by_key.iter().map(|((_, key), id)| (key, *id))
    }
}

fn quota(what: Quota, value: u64, limit: u64) -> Result<(), CallError> {
    if value > limit { Err(CallError::Quota { what, value, limit }) } else { Ok(()) }
}
