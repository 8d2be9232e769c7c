//! *Coverage*: the number of keys over each page.
//!
//! The kernel keeps one bit for a page: locked or not. This process must therefore know when the
//! last key over a page is deregistered. Ranges are stored as the edges between segments with
//! different numbers of keys.

use std::collections::BTreeMap;
use std::ops::Range;

/// For each edge, the number of keys from this address to the next edge. Before the first edge and
/// after the last there are no keys.
#[derive(Debug, Default)]
pub(super) struct KeyCoverage {
    edges: BTreeMap<usize, u32>,
}

impl KeyCoverage {
    pub(super) const fn new() -> KeyCoverage {
        KeyCoverage { edges: BTreeMap::new() }
    }

    /// Adds a key over a range. Takes time logarithmic in the number of edges and linear in the
    /// segments that the range crosses.
    pub(super) fn add(&mut self, range: &Range<usize>) {
        self.change(range, |keys| keys.saturating_add(1));
    }

    /// Removes a key over a range; returns the parts that no key covers any more.
    pub(super) fn remove(&mut self, range: &Range<usize>) -> Vec<Range<usize>> {
        self.change(range, |keys| keys.saturating_sub(1));
        self.uncovered(range)
    }

    /// Returns the parts of a range that no key covers.
    pub(super) fn uncovered(&self, range: &Range<usize>) -> Vec<Range<usize>> {
        let mut uncovered: Vec<Range<usize>> = Vec::new();
        let (mut from, mut keys) = (range.start, self.at(range.start));
        let inner = self.edges.range(range.clone()).map(|(at, keys)| (*at, *keys));
        for (to, next) in inner.chain([(range.end, 0)]) {
            if keys == 0 && from < to {
                match uncovered.last_mut() {
                    Some(last) if last.end == from => last.end = to,
                    _ => uncovered.push(from..to),
                }
            }
            (from, keys) = (to, next);
        }
        uncovered
    }

    fn at(&self, address: usize) -> u32 {
        self.edges.range(..=address).next_back().map_or(0, |(_, keys)| *keys)
    }

    fn change(&mut self, range: &Range<usize>, change: impl Fn(u32) -> u32) {
        if range.is_empty() {
            return;
        }
        for edge in [range.start, range.end] {
            let keys = self.at(edge);
            self.edges.entry(edge).or_insert(keys);
        }
        for (_, keys) in self.edges.range_mut(range.clone()) {
            *keys = change(*keys);
        }
        // Removes edges between segments with the same number of keys.
        for edge in [range.start, range.end] {
            let before = self.edges.range(..edge).next_back().map_or(0, |(_, keys)| *keys);
            if self.edges.get(&edge) == Some(&before) {
                self.edges.remove(&edge);
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::iter;

    use super::*;

    #[test]
    fn the_last_key_over_a_page_uncovers_it() {
        let mut coverage = KeyCoverage::new();
        coverage.add(&(0..8));
        coverage.add(&(4..12));
        coverage.add(&(20..24));
        assert_eq!(coverage.uncovered(&(0..32)), [12..20, 24..32]);
        assert!(coverage.remove(&(0..8)).into_iter().eq(iter::once(0..4)));
        coverage.add(&(6..8));
        assert_eq!(coverage.remove(&(4..12)), [4..6, 8..12]);
        assert!(coverage.remove(&(6..8)).into_iter().eq(iter::once(6..8)));
        assert!(coverage.remove(&(20..24)).into_iter().eq(iter::once(20..24)));
        assert!(coverage.edges.is_empty(), "{coverage:?}");
    }

    /// Compares with a count for each address.
    #[test]
    fn any_mix_matches_a_count_per_address() {
        const SPACE: usize = 64;
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut below = |limit: usize| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % limit
        };
        let (mut coverage, mut counts, mut live) = (KeyCoverage::new(), [0u32; SPACE], Vec::new());
        for _ in 0..20_000 {
            if live.len() < 2 || live.len() < 12 && below(2) == 0 {
                let start = below(SPACE);
                let range = start..start + below(SPACE - start) + 1;
                coverage.add(&range);
                counts[range.clone()].iter_mut().for_each(|count| *count += 1);
                live.push(range);
            } else {
                let range = live.swap_remove(below(live.len()));
                counts[range.clone()].iter_mut().for_each(|count| *count -= 1);
                let uncovered: Vec<usize> = coverage.remove(&range).into_iter().flatten().collect();
                let want: Vec<usize> = range.filter(|at| counts[*at] == 0).collect();
                assert_eq!(uncovered, want);
            }
            assert!((0..SPACE).all(|at| coverage.at(at) == counts[at]));
            assert!(coverage.edges.len() <= 2 * live.len());
        }
    }
}
