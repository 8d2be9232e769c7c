//! *Address map*: where the objects of a pool lie, in equal cells; and how such maps are drawn over
//! time.
//!
//! The gaps between objects are free, so the map of every allocator is found in the same way.

use std::ops::Range;

use kvmem_report::{Heat, Section};

/// Number of equal cells of a pool.
pub const CELLS: usize = 64;

/// Where objects lie, for each cell of the pool from the lowest address up.
#[derive(Clone, Debug, PartialEq)]
pub struct Map {
    /// The share in use.
    pub used: Box<[f32; CELLS]>,
    /// Free ranges that begin in the cell.
    pub holes: Box<[u32; CELLS]>,
}

impl Map {
    /// Makes the map of a pool in which `spans` are in use, in the order of their addresses. Calls
    /// `hole` with each free range.
    pub fn of(pool_bytes: u64, spans: &[Range<u64>], mut hole: impl FnMut(Range<u64>)) -> Map {
        let mut map = Map { used: Box::new([0.0; CELLS]), holes: Box::new([0; CELLS]) };
        let edge = |cell: usize| (u128::from(pool_bytes) * cell as u128 / CELLS as u128) as u64;
        let cell = |at: u64| {
            ((u128::from(at) * CELLS as u128 / u128::from(pool_bytes.max(1))) as usize)
                .min(CELLS - 1)
        };
        let mut free = |range: Range<u64>| {
            if range.start < range.end {
                map.holes[cell(range.start)] += 1;
                hole(range);
            }
        };
        let mut end = 0;
        for span in spans {
            free(end..span.start);
            end = end.max(span.end);
        }
        free(end..pool_bytes);
        for span in spans {
            for cell in cell(span.start)..=cell(span.end.saturating_sub(1)) {
                let (low, high) = (edge(cell), edge(cell + 1));
                let within = span.end.min(high).saturating_sub(span.start.max(low));
                map.used[cell] += (within as f64 / (high - low).max(1) as f64) as f32;
            }
        }
        map
    }

    /// Returns the number of free ranges.
    pub fn free_ranges(&self) -> u32 {
        self.holes.iter().sum()
    }
}

/// Draws where objects lie and where free ranges begin: a column for each map, at its position on
/// the axis `x`.
pub fn over_time<'a>(
    x: &str,
    pool_bytes: u64,
    maps: impl Iterator<Item = (f64, &'a Map)> + Clone,
) -> Section {
    let (unit, name) = [(1u64 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")]
        .into_iter()
        .find(|(unit, _)| pool_bytes >= *unit)
        .unwrap_or((1, "B"));
    let range = (0.0, pool_bytes as f64 / unit as f64);
    let heat = |title: &str| Heat::new(title, x, &format!("address, {name}"), range);
    let most = maps.clone().flat_map(|(_, map)| *map.holes).max().unwrap_or(0);
    let mut used = heat("In use: the fuller the colour the more, from nothing to all");
    let mut broken = heat(&format!(
        "Free ranges that begin here: the fuller the colour the more, from 0 to {most}"
    ));
    let mut before = 0.0;
    for (to, map) in maps {
        used.column(before, to, map.used.iter().map(|used| f64::from(*used)));
        let shade = |holes: &u32| f64::from(*holes) / f64::from(most.max(1));
        broken.column(before, to, map.holes.iter().map(shade));
        before = to;
    }
    let section = Section::new("Address space over time");
    if used.is_empty() {
        return section.text("This allocator returns no offsets.");
    }
    section.plot(used.plot()).plot(broken.plot()).text(format!(
        "Each cell is a {CELLS}th of the pool. What is free in one range is not fragmented: it \
         begins once."
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_and_what_lies_between() {
        let mut free = Vec::new();
        let map =
            Map::of(640, &[0..100, 100..150, 164..640], |hole| free.push((hole.start, hole.end)));
        assert!(
            (map.used.iter().sum::<f32>() - 62.6).abs() < 1e-3,
            "626 of 640 bytes, ten a cell: {:?}",
            map.used
        );
        assert_eq!((map.used[0], map.used[15], map.used[16]), (1.0, 0.0, 0.6));
        assert_eq!((map.free_ranges(), map.holes[15]), (1, 1));
        assert_eq!(free, [(150, 164)]);
        assert_eq!(Map::of(640, &[], |_| {}).free_ranges(), 1, "an empty pool is one hole");
    }
}
