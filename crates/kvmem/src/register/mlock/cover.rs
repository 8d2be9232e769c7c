//! *Cover*: how many keys lie over each page.
//!
//! The kernel keeps one bit for a page: locked or not. So somebody has to know when the last key
//! over a page is gone. Ranges are kept as the edges between stretches that have the same number of
//! keys over them.

use std::collections::BTreeMap;
use std::ops::Range;

/// Edges: from this address on, up to the next edge, so many keys. Before the first and after the
/// last: none.
#[derive(Debug, Default)]
pub(super) struct Cover {
    edges: BTreeMap<usize, u32>,
}

impl Cover {
    pub(super) const fn new() -> Cover {
        Cover { edges: BTreeMap::new() }
    }

    /// One key more over a range. Time is logarithmic, and linear in the stretches that the range
    /// crosses.
    pub(super) fn add(&mut self, range: &Range<usize>) {
        self.change(range, |keys| keys.saturating_add(1));
    }

    /// One key less; returns the parts over which none is left.
    pub(super) fn remove(&mut self, range: &Range<usize>) -> Vec<Range<usize>> {
        self.change(range, |keys| keys.saturating_sub(1));
        self.bare(range)
    }

    /// The parts of a range over which there is no key.
    pub(super) fn bare(&self, range: &Range<usize>) -> Vec<Range<usize>> {
        let mut bare: Vec<Range<usize>> = Vec::new();
        let (mut from, mut keys) = (range.start, self.at(range.start));
        let inner = self.edges.range(range.clone()).map(|(at, keys)| (*at, *keys));
        for (to, next) in inner.chain([(range.end, 0)]) {
            if keys == 0 && from < to {
                match bare.last_mut() {
                    Some(last) if last.end == from => last.end = to,
                    _ => bare.push(from..to),
                }
            }
            (from, keys) = (to, next);
        }
        bare
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
        // Edges that are none any more.
        for edge in [range.start, range.end] {
            let before = self.edges.range(..edge).next_back().map_or(0, |(_, keys)| *keys);
            if self.edges.get(&edge) == Some(&before) {
                self.edges.remove(&edge);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::iter;

    use super::*;

    #[test]
    fn the_last_key_over_a_page_uncovers_it() {
        let mut cover = Cover::new();
        cover.add(&(0..8));
        cover.add(&(4..12));
        cover.add(&(20..24));
        assert_eq!(cover.bare(&(0..32)), [12..20, 24..32]);
        assert!(cover.remove(&(0..8)).into_iter().eq(iter::once(0..4)));
        cover.add(&(6..8));
        assert_eq!(cover.remove(&(4..12)), [4..6, 8..12]);
        assert!(cover.remove(&(6..8)).into_iter().eq(iter::once(6..8)));
        assert!(cover.remove(&(20..24)).into_iter().eq(iter::once(20..24)));
        assert!(cover.edges.is_empty(), "{cover:?}");
    }

    /// Against a count for each address.
    #[test]
    fn any_mix_is_as_counted_one_by_one() {
        const SPACE: usize = 64;
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut below = |most: usize| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % most
        };
        let (mut cover, mut counts, mut live) = (Cover::new(), [0u32; SPACE], Vec::new());
        for _ in 0..20_000 {
            if live.len() < 2 || live.len() < 12 && below(2) == 0 {
                let start = below(SPACE);
                let range = start..start + below(SPACE - start) + 1;
                cover.add(&range);
                counts[range.clone()].iter_mut().for_each(|count| *count += 1);
                live.push(range);
            } else {
                let range = live.swap_remove(below(live.len()));
                counts[range.clone()].iter_mut().for_each(|count| *count -= 1);
                let bare: Vec<usize> = cover.remove(&range).into_iter().flatten().collect();
                let want: Vec<usize> = range.filter(|at| counts[*at] == 0).collect();
                assert_eq!(bare, want);
            }
            assert!((0..SPACE).all(|at| cover.at(at) == counts[at]));
            assert!(cover.edges.len() <= 2 * live.len());
        }
    }
}
