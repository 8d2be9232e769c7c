//! *Ranges*: a set of addresses, stored as disjoint ranges that are not adjacent.

use std::collections::BTreeMap;
use std::ops::Range;

/// A set of addresses. Adding and removing take O(log n + ranges crossed).
#[derive(Debug, Default)]
pub(super) struct Ranges {
    /// The end of each range, by its start.
    ends: BTreeMap<usize, usize>,
}

impl Ranges {
    /// Returns how many addresses of a range are in the set.
    pub(super) fn count(&self, range: &Range<usize>) -> u64 {
        if range.is_empty() {
            return 0;
        }
        // The ranges are sorted and disjoint. Those that overlap `range` are therefore the last
        // ones that begin before its end.
        self.ends
            .range(..range.end)
            .rev()
            .take_while(|&(_, &end)| end > range.start)
            .map(|(&start, &end)| (end.min(range.end) - start.max(range.start)) as u64)
            .sum()
    }

    pub(super) fn add(&mut self, range: Range<usize>) {
        if range.is_empty() {
            return;
        }
        let (mut start, mut end) = (range.start, range.end);
        // Adjacent ranges are merged, too.
        while let Some((&from, &to)) =
            self.ends.range(..=end).next_back().filter(|&(_, &to)| to >= start)
        {
            self.ends.remove(&from);
            (start, end) = (start.min(from), end.max(to));
        }
        self.ends.insert(start, end);
    }

    pub(super) fn remove(&mut self, range: Range<usize>) {
        if range.is_empty() {
            return;
        }
        while let Some((&from, &to)) =
            self.ends.range(..range.end).next_back().filter(|&(_, &to)| to > range.start)
        {
            self.ends.remove(&from);
            if to > range.end {
                self.ends.insert(range.end, to);
            }
            if from < range.start {
                self.ends.insert(from, range.start);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn adjacent_ranges_are_merged() {
        let mut set = Ranges::default();
        set.add(10..20);
        set.add(30..40);
        set.add(20..30);
        assert_eq!(set.ends, BTreeMap::from([(10, 40)]));
        set.remove(15..35);
        assert_eq!(set.ends, BTreeMap::from([(10, 15), (35, 40)]));
        assert_eq!(set.count(&(0..100)), 10);
        assert_eq!(set.count(&(14..36)), 2);
        assert_eq!(set.count(&(15..35)), 0);
        #[allow(clippy::reversed_empty_ranges)]
        let backwards = 30..20;
        set.add(backwards.clone());
        set.remove(backwards.clone());
        assert_eq!((set.count(&backwards), set.ends.len()), (0, 2));
    }

    proptest! {
        #[test]
        fn it_is_a_set(
            steps in proptest::collection::vec((any::<bool>(), 0usize..64, 0usize..24), 1..60)
        ) {
            let mut set = Ranges::default();
            let mut plain = [false; 96];
            for (add, start, len) in steps {
                let range = start..start + len;
                plain[range.clone()].fill(add);
                if add { set.add(range) } else { set.remove(range) }
                for from in (0..96).step_by(7) {
                    let count = plain[from..].iter().filter(|there| **there).count() as u64;
                    prop_assert_eq!(set.count(&(from..96)), count);
                }
                let ends: Vec<_> = set.ends.iter().collect();
                prop_assert!(ends.iter().all(|(start, end)| start < end));
                prop_assert!(ends.windows(2).all(|pair| pair[0].1 < pair[1].0));
            }
        }
    }
}
