//! *Map*: what lies where, cached ranges told from those in use.

use serde::Serialize;

use crate::offset::{MapRange, Range};

/// What a range of the map is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ExtentState {
    /// Somebody's extent.
    Used,
    /// Nobody's: kept for the next request of its size, or for one that finds no other room.
    Cached,
    /// On the books of the space.
    Free,
}

/// One range of the map. Offsets and sizes are bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ExtentMapRange {
    /// Where it begins.
    pub offset: u64,
    /// Its length.
    pub size: u64,
    /// What it is.
    pub state: ExtentState,
}

/// The map of the books, with what is cached told apart.
pub(super) fn mark(map: Vec<MapRange>, cached: &[Range]) -> Vec<ExtentMapRange> {
    let mut offsets: Vec<u64> = cached.iter().map(|range| range.offset()).collect();
    offsets.sort_unstable();
    let state = |range: &MapRange| match range.used {
        false => ExtentState::Free,
        true if offsets.binary_search(&range.offset).is_ok() => ExtentState::Cached,
        true => ExtentState::Used,
    };
    map.iter()
        .map(|range| ExtentMapRange { offset: range.offset, size: range.size, state: state(range) })
        .collect()
}
