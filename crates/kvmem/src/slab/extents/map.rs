//! *Map*: the space in address order, with cached ranges marked; and the check of both.

use serde::Serialize;

use crate::offset::{CheckError, MapRange, Range};

use super::cache::ExtentCache;

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
fn mark(map: Vec<MapRange>, cached: &[Range]) -> Vec<ExtentMapRange> {
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

impl ExtentCache {
    /// Returns the whole space in address order: one entry for each extent in use, one for each
    /// cached range, and one for each run of free bytes. A range that a thread is moving between
    /// cache and metadata is shown as used. Stops all threads that use the space meanwhile.
    /// O(ranges × log cached).
    #[must_use]
    pub fn map(&self) -> Vec<ExtentMapRange> {
        self.instance.magazines.with_all_stopped(|cached| mark(self.space.map(), cached))
    }

    /// Checks the metadata against their numbered invariants, and the cached ranges against the
    /// metadata. Stops all threads that use the space meanwhile. O(ranges + cached × log cached).
    ///
    /// # Errors
    /// Returns a [`CheckError`] if it finds a defect of this library.
    pub fn check(&self) -> Result<(), CheckError> {
        self.instance.magazines.with_all_stopped(|cached| {
            self.space.check(cached)?;
            let mut nodes: Vec<u32> = cached.iter().map(|range| range.node()).collect();
            nodes.sort_unstable();
            match nodes.windows(2).find(|pair| pair[0] == pair[1]) {
                Some(pair) => Err(CheckError {
                    invariant: 3,
                    what: format!("node {} is cached twice", pair[0]),
                }),
                None => Ok(()),
            }
        })
    }
}
