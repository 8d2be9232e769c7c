//! *Map*: the space in address order, with cached ranges marked.

use serde::Serialize;

use crate::offset::{MapRange, Range};

/// The state of a range in the map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ExtentState {
    /// In use by an extent.
    Used,
    /// Free and cached: kept for the next request of its size, or reclaimed by a request that finds
    /// no other free range.
    Cached,
    /// Free in the metadata of the space.
    Free,
}

/// One range of the map. Offsets and sizes are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ExtentMapRange {
    /// Offset of the range.
    pub offset: u64,
    /// Length of the range.
    pub size: u64,
    /// State of the range.
    pub state: ExtentState,
}

/// Returns the map of the metadata with the cached ranges marked.
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
