//! *Namespaces*: tenants and models, whose keys are apart and whose bytes are limited.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use kvmem::cache::History;

use super::curve::Curve;
use super::lists::{Lists, PRIORITIES};
use super::local::Local;
use super::miss_reason::MissCounts;
use super::node::Node;
use super::{Evicted, NamespaceLimits, Slice};
use crate::error::{BadIndex, CallError, Quota, TooMany};
use crate::format::{Header, MAX_NAMESPACE_NAME, MAX_NAMESPACES};

/// One namespace.
#[derive(Clone, Debug)]
pub(super) struct Namespace {
    pub(super) name: String,
    /// The user whose client has made it; the server's own after a recovery.
    made_by: u32,
    /// The number of sessions that had ended when its last one did.
    left_at: u64,
    /// Earlier events of its number are those of another name.
    pub(super) events_from: u64,
    pub(super) limits: NamespaceLimits,
    /// The memory that its values and reservations take.
    pub(super) bytes: u64,
    /// Its values and reservations.
    entries: u64,
    /// Values that are pinned.
    pub(super) pinned: u64,
    pub(super) pinned_bytes: u64,
    /// Keys that were acquired and had a value, and the others, since the server started.
    pub(super) hits: u64,
    pub(super) misses: MissCounts,
    /// Values that left the memory before anybody acquired them.
    pub(super) evicted_unused: u64,
    pub(super) curve: Curve,
    /// Values that can be evicted, by priority.
    lists: [Lists; PRIORITIES],
}

impl Namespace {
    /// Counts a value or a reservation.
    pub(super) fn add_block(&mut self, space: u64) {
        (self.bytes, self.entries) = (self.bytes + space, self.entries + 1);
    }

    pub(super) fn remove_block(&mut self, space: u64) {
        (self.bytes, self.entries) = (self.bytes - space, self.entries - 1);
    }

    pub(super) fn entries(&self) -> u64 {
        self.entries
    }

    pub(super) fn list(&mut self, priority: u8) -> &mut Lists {
        &mut self.lists[usize::from(priority).min(PRIORITIES - 1)]
    }

    /// Removes the stale record of an entry whose value comes to have its place in the order of
    /// use, after a move: the record would not be stale any more.
    pub(super) fn remove_record(&mut self, order: u64, slot: u32) {
        self.lists.iter_mut().for_each(|list| list.remove(order, slot));
    }

    pub(super) fn lists(&self) -> &[Lists] {
        &self.lists
    }

    /// Returns the value to evict first: of the lowest priority, the candidate that was used least
    /// recently, or is worth least, and is neither being stored nor verified.
    pub(super) fn victim(
        &mut self,
        locals: &mut [Local],
        history: Option<&History>,
    ) -> Option<u32> {
        self.lists.iter_mut().find_map(|list| list.victim(locals, history))
    }

    /// Returns whether there is a value that can be evicted, or is only being stored or verified.
    pub(super) fn has_candidates(&self, locals: &[Local]) -> bool {
        self.lists.iter().any(|list| list.has_candidates(locals))
    }

    /// Returns the values in the order in which they would be evicted.
    pub(super) fn candidates<'a>(
        &'a self,
        locals: &'a [Local],
        history: Option<&'a History>,
    ) -> impl Iterator<Item = u32> + 'a {
        self.lists.iter().flat_map(move |list| list.candidates(locals, history))
    }

    /// Returns whether `more` bytes exceed the limit, and by what.
    pub(super) fn over_limit(&self, more: u64) -> Option<CallError> {
        let (value, limit) = (self.bytes.saturating_add(more), self.limits.max_bytes);
        let what = Quota::NamespaceBytes;
        (value > limit).then_some(CallError::Quota { what, value, limit })
    }
}

/// The bytes and the entries of a namespace, and its share.
#[derive(Clone, Copy)]
struct Usage {
    bytes: u64,
    entries: u64,
    share: u32,
}

impl Usage {
    fn of(namespace: &Namespace) -> Usage {
        let Namespace { bytes, entries, limits, .. } = namespace;
        Usage { bytes: *bytes, entries: *entries, share: limits.share }
    }

    /// Returns how much a namespace has for its share, as a number to compare: its part of the
    /// bytes, or of the entries, whichever is larger. A namespace of small values so uses up the
    /// entries at its own expense.
    fn excess(self, bytes_per_entry: f64) -> f64 {
        let entries = self.entries as f64 * bytes_per_entry;
        entries.max(self.bytes as f64) / f64::from(self.share.max(1))
    }
}

/// A namespace whose next value may be the next one to evict.
struct Candidate<I> {
    usage: Usage,
    excess: f64,
    number: usize,
    values: I,
    next: u32,
}

impl<I> Ord for Candidate<I> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.excess.total_cmp(&other.excess).then(self.number.cmp(&other.number))
    }
}

impl<I> PartialOrd for Candidate<I> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<I> PartialEq for Candidate<I> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl<I> Eq for Candidate<I> {}

/// All namespaces, by their numbers in the index file.
#[derive(Debug)]
pub(super) struct Namespaces {
    all: Vec<Namespace>,
    /// The memory for each entry that there can be.
    bytes_per_entry: f64,
}

impl Namespaces {
    pub(super) fn new(header: &Header) -> Namespaces {
        let bytes_per_entry = header.memory_len as f64 / f64::from(header.entries);
        Namespaces { all: Vec::new(), bytes_per_entry }
    }

    pub(super) fn at(&mut self, namespace: u16) -> &mut Namespace {
        &mut self.all[usize::from(namespace)]
    }

    pub(super) fn get(&self, namespace: u16) -> &Namespace {
        &self.all[usize::from(namespace)]
    }

    /// Returns a namespace that exists.
    pub(super) fn find(&mut self, namespace: u16) -> Option<&mut Namespace> {
        self.all.get_mut(usize::from(namespace))
    }

    pub(super) fn all(&self) -> &[Namespace] {
        &self.all
    }

    /// Returns the value to evict first: of the namespace that exceeds its share most.
    pub(super) fn victim(
        &mut self,
        locals: &mut [Local],
        history: Option<&History>,
    ) -> Option<u32> {
        let excess = |it: &Namespace| Usage::of(it).excess(self.bytes_per_entry);
        let all = self.all.iter_mut();
        let with_victims = all.filter_map(|it| Some((excess(it), it.victim(locals, history)?)));
        with_victims.max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, slot)| slot)
    }

    /// Returns the values in the order in which they would be evicted if nothing else happened.
    /// O(log(namespaces)) for each value.
    pub(super) fn eviction_order<'a>(
        &'a self,
        locals: &'a [Local],
        history: Option<&'a History>,
        space_of: impl Fn(u32) -> u64 + 'a,
    ) -> impl Iterator<Item = u32> + 'a {
        let mut heap = BinaryHeap::new();
        let bytes_per_entry = self.bytes_per_entry;
        for (number, it) in self.all.iter().enumerate() {
            let mut values = it.candidates(locals, history);
            if let Some(next) = values.next() {
                let usage = Usage::of(it);
                let excess = usage.excess(bytes_per_entry);
                heap.push(Candidate { usage, excess, number, values, next });
            }
        }
        std::iter::from_fn(move || {
            let mut first = heap.pop()?;
            let slot = first.next;
            if let Some(next) = first.values.next() {
                let Usage { bytes, entries, share } = first.usage;
                let bytes = bytes.saturating_sub(space_of(slot));
                let usage = Usage { bytes, entries: entries.saturating_sub(1), share };
                let excess = usage.excess(bytes_per_entry);
                heap.push(Candidate { usage, excess, next, ..first });
            }
            Some(slot)
        })
    }
}

/// Returns an error for a name that no namespace can have.
pub(super) fn check_name(name: &str) -> Result<(), CallError> {
    if name.len() > MAX_NAMESPACE_NAME {
        return Err(CallError::BadNamespace { len: name.len(), limit: MAX_NAMESPACE_NAME });
    }
    Ok(())
}

impl Node {
    /// Returns the number of a namespace, and makes it if it is new. A user may make `max_of_user`.
    /// When there are as many as there can be, one that nothing belongs to gets the new name. If
    /// all have values, the one whose last session ended first is emptied, and a later call gets
    /// its place.
    pub(crate) fn namespace(
        &mut self,
        name: &str,
        user: u32,
        max_of_user: usize,
    ) -> Result<u16, CallError> {
        if let Some(found) = self.find_namespace(name) {
            if self.emptying == Some(found) {
                self.emptying = None;
            }
            return Ok(found);
        }
        check_name(name)?;
        let made = self.namespaces.all.iter().filter(|it| it.made_by == user).count();
        let number = self.namespaces.all.len();
        let number = if made < max_of_user && number < MAX_NAMESPACES {
            self.memory.namespaces()[number].write(name);
            self.add_namespace(name.to_owned(), user);
            number as u16
        } else {
            let limit = max_of_user.min(MAX_NAMESPACES);
            let full = CallError::TooMany { what: TooMany::Namespaces, limit };
            let of_user = (made >= max_of_user).then_some(user);
            let Some(number) = self.unused_namespace(of_user) else {
                self.emptying = self.emptying.or_else(|| self.idle_namespace(of_user));
                return Err(full);
            };
            self.memory.namespaces()[usize::from(number)].rename(name);
            let (limits, events_from) = (self.options.limits_of(name), self.next_event());
            let namespace = self.namespaces.at(number);
            namespace.events_from = events_from;
            (namespace.name, namespace.limits) = (name.to_owned(), limits);
            namespace.made_by = user;
            (namespace.hits, namespace.evicted_unused) = (0, 0);
            (namespace.misses, namespace.curve) = (MissCounts::default(), Curve::default());
            self.forget_namespace(number);
            number
        };
        self.join_namespace(name, number);
        Ok(number)
    }

    /// Returns a namespace, of a user or of any, that nothing belongs to: no block, no session, and
    /// no work of the tier.
    fn unused_namespace(&self, of: Option<u32>) -> Option<u16> {
        let found = self.namespaces_at_rest(of).find(|(_, it)| it.bytes == 0);
        found.map(|(number, _)| number)
    }

    /// Returns the namespace, of a user or of any, that only has values, and whose last session
    /// ended first.
    fn idle_namespace(&self, of: Option<u32>) -> Option<u16> {
        let all = self.namespaces_at_rest(of);
        all.min_by_key(|(_, it)| it.left_at).map(|(number, _)| number)
    }

    /// Notes that a session of a namespace has ended.
    pub(super) fn note_left(&mut self, namespace: u16) {
        self.sessions_ended += 1;
        if let Some(namespace) = self.namespaces.all.get_mut(usize::from(namespace)) {
            namespace.left_at = self.sessions_ended;
        }
    }

    /// Evicts values of the namespace that is being emptied, up to `evictions_left` of them, in a
    /// slice of time.
    pub(crate) fn empty_namespace(&mut self, slice: Slice) -> Evicted {
        let Some(namespace) = self.emptying else { return Evicted::Enough };
        let (_, next) = self.evict_some(Some(namespace), u64::MAX, slice);
        if next == Evicted::Enough {
            self.emptying = None;
        }
        next
    }

    /// Returns the namespaces, of a user or of any, without a session and without work of the tier.
    fn namespaces_at_rest(&self, of: Option<u32>) -> impl Iterator<Item = (u16, &Namespace)> {
        let mut used = [false; MAX_NAMESPACES];
        let mut mark = |number: u16| {
            if let Some(used) = used.get_mut(usize::from(number)) {
                *used = true;
            }
        };
        self.sessions.all().for_each(|(_, session)| mark(session.namespace));
        self.to_remove.iter().for_each(|(namespace, _)| mark(*namespace));
        self.namespaces_in_tier().for_each(mark);
        let all = (0..).zip(&self.namespaces.all);
        all.filter(move |(number, it): &(u16, &Namespace)| {
            !used[usize::from(*number)] && of.is_none_or(|user| it.made_by == user)
        })
    }

    /// Returns the number of a namespace that exists.
    pub(crate) fn find_namespace(&self, name: &str) -> Option<u16> {
        self.namespaces.all.iter().position(|it| it.name == name).map(|number| number as u16)
    }

    fn add_namespace(&mut self, name: String, made_by: u32) {
        let limits = self.options.limits_of(&name);
        let lists = std::array::from_fn::<_, PRIORITIES, _>(|_| Lists::default());
        self.namespaces.all.push(Namespace {
            name,
            made_by,
            left_at: 0,
            events_from: 0,
            limits,
            bytes: 0,
            entries: 0,
            pinned: 0,
            pinned_bytes: 0,
            hits: 0,
            misses: MissCounts::default(),
            evicted_unused: 0,
            curve: Curve::default(),
            lists,
        });
    }

    /// Reads the names in the index file.
    pub(super) fn recover_namespaces(&mut self) -> Result<(), BadIndex> {
        let own = rustix::process::getuid().as_raw();
        for index in 0..MAX_NAMESPACES {
            match self.memory.namespaces()[index].read() {
                None => return Err(BadIndex::Namespace { index }),
                Some(None) => break,
                Some(Some(name)) => self.add_namespace(name, own),
            }
        }
        Ok(())
    }
}
