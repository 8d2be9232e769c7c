//! *Names* of values in the tier: which keys this server has stored there, or fetched.
//!
//! A tier finds values by keys and names none. A client that follows events and has missed some
//! asks for what there is, and this table has the names for that. It is bounded, and begins empty:
//! what an earlier server stored has a name once it was fetched. It may name values that the tier
//! has evicted since; a few names are looked at whenever the tier has done a job.

use std::collections::HashMap;

/// A key of a namespace.
pub(in crate::node) type NamedKey = (u16, Vec<u8>);

/// The most names, about 200 bytes for each. Further values have none.
const MAX_NAMES: usize = 1 << 20;

/// Keys of values in the tier.
#[derive(Default)]
pub(super) struct TierNames {
    /// In no order. A name that is removed is replaced by the last one.
    names: Vec<NamedKey>,
    positions: HashMap<NamedKey, usize>,
    /// The name that is looked at next.
    cursor: usize,
}

impl TierNames {
    pub(super) fn len(&self) -> usize {
        self.names.len()
    }

    pub(super) fn get(&self, place: usize) -> Option<&NamedKey> {
        self.names.get(place)
    }

    pub(super) fn add(&mut self, named: NamedKey) {
        if self.names.len() < MAX_NAMES && !self.positions.contains_key(&named) {
            self.positions.insert(named.clone(), self.names.len());
            self.names.push(named);
        }
    }

    pub(super) fn remove(&mut self, named: &NamedKey) {
        let Some(place) = self.positions.remove(named) else { return };
        self.names.swap_remove(place);
        if let Some(moved) = self.names.get(place) {
            self.positions.insert(moved.clone(), place);
        }
    }

    /// Removes the names that are not `wanted`.
    pub(super) fn retain(&mut self, wanted: impl Fn(&NamedKey) -> bool) {
        self.names.retain(wanted);
        let places = self.names.iter().cloned().zip(0..);
        (self.positions, self.cursor) = (places.collect(), 0);
    }

    /// Looks at some names, and removes those of values that are not there any more.
    pub(super) fn look_at(&mut self, count: usize, is_there: impl Fn(&NamedKey) -> bool) {
        for _ in 0..count.min(self.names.len()) {
            if self.cursor >= self.names.len() {
                self.cursor = 0;
            }
            let Some(named) = self.names.get(self.cursor) else { return };
            if is_there(named) {
                self.cursor += 1;
            } else {
                let named = named.clone();
                self.remove(&named);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_that_were_added_and_not_removed() {
        let mut names = TierNames::default();
        let named = |key: u8| (3, vec![key]);
        (0..100).for_each(|key| names.add(named(key)));
        (0..100).for_each(|key| names.add(named(key)));
        (0..100).filter(|key| key % 3 == 0).for_each(|key| names.remove(&named(key)));
        names.remove(&named(200));
        // Twice as many looks as names: each is looked at.
        for _ in 0..20 {
            names.look_at(10, |(_, key)| key[0] % 3 == 1);
        }
        let mut left: Vec<u8> =
            (0..names.len()).map(|place| names.get(place).expect("it is there").1[0]).collect();
        left.sort_unstable();
        assert_eq!(left, (0..100).filter(|key| key % 3 == 1).collect::<Vec<u8>>());
        assert_eq!(names.positions.len(), names.len());
        names.add((4, vec![7]));
        names.retain(|(namespace, _)| *namespace == 4);
        assert_eq!((names.len(), names.get(0)), (1, Some(&(4, vec![7]))));
        names.remove(&(4, vec![7]));
        names.look_at(10, |_| false);
        assert_eq!((names.len(), names.get(0)), (0, None));
    }
}
