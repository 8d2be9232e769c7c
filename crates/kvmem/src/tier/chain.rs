//! [`Chain`]: two tiers, one below the other.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::{BoxError, Lookup, StoreOutcome, Tier, TierHit, TierRead, TierState, TierValue};

/// Two tiers, one below the other, such as a disk above a cluster. Either may be a chain again, or
/// have a queue of its own ([`WriteBehind`](super::WriteBehind)).
///
/// - *A value that is stored* goes to both. A store waits for the upper tier; the lower one
///   [takes](Tier::offer) what it has room for. What the upper tier evicts is therefore in the
///   lower one already, and costs neither a read nor a write then.
/// - *A fetch* reads from the upper tier, and the rest from the lower one. A value that the lower
///   tier had is in memory then, and goes to the upper tier again when memory evicts it.
/// - *Removals* are made to both, whether or not one of them fails. A store fails if one of them
///   fails: that one may have an older value.
pub struct Chain {
    upper: Arc<dyn Tier>,
    lower: Arc<dyn Tier>,
}

impl Chain {
    /// Puts `upper` above `lower`.
    #[must_use]
    pub fn new(upper: Arc<dyn Tier>, lower: Arc<dyn Tier>) -> Chain {
        Chain { upper, lower }
    }

    /// Returns the tier that is read first.
    #[must_use]
    pub fn upper(&self) -> &Arc<dyn Tier> {
        &self.upper
    }

    /// Returns the tier that is read for the rest.
    #[must_use]
    pub fn lower(&self) -> &Arc<dyn Tier> {
        &self.lower
    }
}

/// Replaces those of `all` that satisfy `is_open` by what `find` returns for their keys.
fn fill<R>(
    keys: &[&[u8]],
    all: &mut [R],
    is_open: impl Fn(&R) -> bool,
    find: impl FnOnce(&[&[u8]]) -> Vec<R>,
) {
    let places: Vec<usize> = (0..keys.len()).filter(|&place| is_open(&all[place])).collect();
    if places.is_empty() {
        return;
    }
    let open: Vec<&[u8]> = places.iter().map(|&place| keys[place]).collect();
    places.into_iter().zip(find(&open)).for_each(|(place, found)| all[place] = found);
}

/// Combines the outcomes of both tiers: the upper one's, unless the lower one has failed.
fn both(
    upper: Vec<Result<StoreOutcome, BoxError>>,
    lower: Vec<Result<StoreOutcome, BoxError>>,
) -> Vec<Result<StoreOutcome, BoxError>> {
    upper.into_iter().zip(lower).map(|(upper, lower)| lower.and(upper)).collect()
}

impl Tier for Chain {
    fn store(&self, values: &[TierValue<'_>]) -> Vec<Result<StoreOutcome, BoxError>> {
        let lower = self.lower.offer(values);
        both(self.upper.store(values), lower)
    }

    fn offer(&self, values: &[TierValue<'_>]) -> Vec<Result<StoreOutcome, BoxError>> {
        let lower = self.lower.offer(values);
        both(self.upper.offer(values), lower)
    }

    fn look_up(&self, keys: &[&[u8]]) -> Vec<Lookup> {
        let mut all = self.upper.look_up(keys);
        fill(keys, &mut all, |it| *it == Lookup::Missing, |keys| self.lower.look_up(keys));
        all
    }

    fn len_of(&self, key: &[u8]) -> Lookup {
        match self.upper.len_of(key) {
            Lookup::Missing => self.lower.len_of(key),
            known => known,
        }
    }

    fn may_have(&self, key: &[u8]) -> bool {
        self.upper.may_have(key) || self.lower.may_have(key)
    }

    fn ask(&self, keys: &[&[u8]]) -> Vec<Option<u64>> {
        let mut all = self.upper.ask(keys);
        fill(keys, &mut all, Option::is_none, |keys| self.lower.ask(keys));
        all
    }

    fn knows_all(&self) -> bool {
        self.upper.knows_all() && self.lower.knows_all()
    }

    fn touch(&self, keys: &[&[u8]]) {
        self.upper.touch(keys);
        self.lower.touch(keys);
    }

    /// The upper tier reads what it may have, and the lower one what it lacks or has damaged.
    fn fetch(&self, reads: &mut [TierRead<'_>]) -> Vec<Option<TierHit>> {
        let may_have = |read: &TierRead<'_>| self.upper.len_of(read.key) != Lookup::Missing;
        let mut hits = vec![None; reads.len()];
        let above: Vec<bool> = reads.iter().map(may_have).collect();
        for (tier, is_upper) in [(&self.upper, true), (&self.lower, false)] {
            let wanted = |place: &usize| match is_upper {
                true => above[*place],
                false => hits[*place].is_none(),
            };
            let places: Vec<usize> = (0..reads.len()).filter(wanted).collect();
            let mut next = places.iter().peekable();
            let mut part: Vec<TierRead<'_>> = reads
                .iter_mut()
                .enumerate()
                .filter(|(place, _)| next.next_if_eq(&place).is_some())
                .map(|(_, TierRead { key, into })| TierRead { key, into })
                .collect();
            if !part.is_empty() {
                let fetched = tier.fetch(&mut part);
                places.iter().zip(fetched).for_each(|(&place, hit)| hits[place] = hit);
            }
        }
        hits
    }

    fn remove(&self, keys: &[&[u8]]) -> Result<(), BoxError> {
        let lower = self.lower.remove(keys);
        self.upper.remove(keys).and(lower)
    }

    fn clear(&self) -> Result<(), BoxError> {
        let lower = self.lower.clear();
        self.upper.clear().and(lower)
    }

    fn forget_unknown(&self) -> Result<(), BoxError> {
        let lower = self.lower.forget_unknown();
        self.upper.forget_unknown().and(lower)
    }

    fn forget_namespace(&self, namespace: &[u8]) -> Result<(), BoxError> {
        let lower = self.lower.forget_namespace(namespace);
        self.upper.forget_namespace(namespace).and(lower)
    }

    fn forgets_namespaces(&self) -> bool {
        self.upper.forgets_namespaces() && self.lower.forgets_namespaces()
    }

    fn sync(&self) -> Result<(), BoxError> {
        let lower = self.lower.sync();
        self.upper.sync().and(lower)
    }

    /// Most values are in both tiers, so this is the number of the one that has more.
    fn values(&self) -> u64 {
        self.upper.values().max(self.lower.values())
    }

    fn evictions(&self) -> u64 {
        self.upper.evictions().wrapping_add(self.lower.evictions())
    }

    fn state(&self) -> TierState {
        match self.upper.state() {
            TierState::Working => self.lower.state(),
            state => state,
        }
    }

    fn keep_open(&self, file: OwnedFd) -> io::Result<()> {
        self.upper.keep_open(file.try_clone()?)?;
        self.lower.keep_open(file)
    }

    /// Waits for the upper tier, or for the lower one if the upper one keeps no value.
    fn wait_for_release(&self, seen: u64) -> Option<u64> {
        self.upper.wait_for_release(seen).or_else(|| self.lower.wait_for_release(seen))
    }
}

impl fmt::Debug for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Chain").finish_non_exhaustive()
    }
}
