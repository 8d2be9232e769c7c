//! *Namespaces*: tenants and models, whose keys are apart and whose bytes are limited.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use kvmem::pool::kv_cache::History;

use super::NamespaceLimits;
use super::lists::{Lists, PRIORITIES};
use super::node::{Local, Node};
use crate::error::{BadIndex, CallError, Quota, TooMany};
use crate::format::{MAX_NAMESPACE_NAME, MAX_NAMESPACES};

/// One namespace.
#[derive(Clone, Debug)]
pub(super) struct Namespace {
    pub(super) name: String,
    /// The user whose client has made it; the server's own after a recovery.
    made_by: u32,
    /// Earlier events of its number are those of another name.
    pub(super) events_from: u64,
    pub(super) limits: NamespaceLimits,
    /// Of its values and reservations.
    pub(super) bytes: u64,
    /// Values that are pinned.
    pub(super) pinned: u64,
    pub(super) pinned_bytes: u64,
    /// Values that can be evicted, by priority.
    lists: [Lists; PRIORITIES],
}

impl Namespace {
    pub(super) fn list(&mut self, priority: u8) -> &mut Lists {
        &mut self.lists[usize::from(priority).min(PRIORITIES - 1)]
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

/// The share of the memory that a namespace exceeds, as a number to compare.
fn excess(bytes: u64, share: u32) -> f64 {
    bytes as f64 / f64::from(share.max(1))
}

/// A namespace whose next value may be the next one to evict.
struct Candidate<I> {
    bytes: u64,
    share: u32,
    number: usize,
    values: I,
    next: u32,
}

impl<I> Ord for Candidate<I> {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_excess = excess(self.bytes, self.share).total_cmp(&excess(other.bytes, other.share));
        by_excess.then(self.number.cmp(&other.number))
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
#[derive(Debug, Default)]
pub(super) struct Namespaces(Vec<Namespace>);

impl Namespaces {
    pub(super) fn at(&mut self, namespace: u16) -> &mut Namespace {
        &mut self.0[usize::from(namespace)]
    }

    pub(super) fn get(&self, namespace: u16) -> &Namespace {
        &self.0[usize::from(namespace)]
    }

    pub(super) fn all(&self) -> &[Namespace] {
        &self.0
    }

    /// Returns the value to evict first: of the namespace that exceeds its share most.
    pub(super) fn victim(
        &mut self,
        locals: &mut [Local],
        history: Option<&History>,
    ) -> Option<u32> {
        let excess = |it: &Namespace| excess(it.bytes, it.limits.share);
        let all = self.0.iter_mut();
        let with_victims = all.filter_map(|it| Some((excess(it), it.victim(locals, history)?)));
        with_victims.max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, slot)| slot)
    }

    /// Returns the values in the order in which they would be evicted if nothing else happened.
    /// O(log(namespaces)) for each value.
    pub(super) fn eviction_order<'a>(
        &'a self,
        locals: &'a [Local],
        history: Option<&'a History>,
        len_of: impl Fn(u32) -> u64 + 'a,
    ) -> impl Iterator<Item = u32> + 'a {
        let mut heap = BinaryHeap::new();
        for (number, it) in self.0.iter().enumerate() {
            let mut values = it.candidates(locals, history);
            if let Some(next) = values.next() {
                let (bytes, share) = (it.bytes, it.limits.share);
                heap.push(Candidate { bytes, share, number, values, next });
            }
        }
        std::iter::from_fn(move || {
            let mut first = heap.pop()?;
            let slot = first.next;
            if let Some(next) = first.values.next() {
                let bytes = first.bytes.saturating_sub(len_of(slot));
                heap.push(Candidate { bytes, next, ..first });
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
    /// When there are as many as there can be, one that nothing belongs to gets the new name.
    pub(crate) fn namespace(
        &mut self,
        name: &str,
        user: u32,
        max_of_user: usize,
    ) -> Result<u16, CallError> {
        if let Some(found) = self.find_namespace(name) {
            return Ok(found);
        }
        check_name(name)?;
        let made = self.namespaces.0.iter().filter(|it| it.made_by == user).count();
        let number = self.namespaces.0.len();
        let number = if made < max_of_user && number < MAX_NAMESPACES {
            self.memory.namespaces()[number].write(name);
            self.add_namespace(name.to_owned(), user);
            number as u16
        } else {
            let limit = max_of_user.min(MAX_NAMESPACES);
            let full = CallError::TooMany { what: TooMany::Namespaces, limit };
            let own_only = made >= max_of_user;
            let number = self.unused_namespace(own_only.then_some(user)).ok_or(full)?;
            self.memory.namespaces()[usize::from(number)].rename(name);
            let (limits, events_from) = (self.options.limits_of(name), self.next_event());
            let namespace = self.namespaces.at(number);
            namespace.events_from = events_from;
            (namespace.name, namespace.limits) = (name.to_owned(), limits);
            namespace.made_by = user;
            number
        };
        self.join_namespace(name, number);
        Ok(number)
    }

    /// Returns a namespace, of a user or of any, that nothing belongs to: no block, no session, and
    /// no work of the tier.
    fn unused_namespace(&self, of: Option<u32>) -> Option<u16> {
        let mut used = [false; MAX_NAMESPACES];
        let mut mark = |number: u16| {
            if let Some(used) = used.get_mut(usize::from(number)) {
                *used = true;
            }
        };
        self.sessions.all().for_each(|(_, session)| mark(session.namespace));
        self.to_remove.iter().for_each(|(namespace, _)| mark(*namespace));
        self.namespaces_below().for_each(mark);
        let is_unused = |(number, it): &(usize, &Namespace)| {
            !used[*number] && it.bytes == 0 && of.is_none_or(|user| it.made_by == user)
        };
        let found = self.namespaces.0.iter().enumerate().find(is_unused);
        found.map(|(number, _)| number as u16)
    }

    /// Returns the number of a namespace that exists.
    pub(crate) fn find_namespace(&self, name: &str) -> Option<u16> {
        self.namespaces.0.iter().position(|it| it.name == name).map(|number| number as u16)
    }

    fn add_namespace(&mut self, name: String, made_by: u32) {
        let limits = self.options.limits_of(&name);
        let lists = std::array::from_fn::<_, PRIORITIES, _>(|_| Lists::default());
        self.namespaces.0.push(Namespace {
            name,
            made_by,
            events_from: 0,
            limits,
            bytes: 0,
            pinned: 0,
            pinned_bytes: 0,
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
