//! *Settings* of one instance of the magazine layer.

use std::sync::Arc;
use std::time::Duration;

use super::clock::{Clock, SystemClock};
use super::topology::{SystemTopology, Topology};

/// The settings of one instance of the magazine layer.
#[derive(Clone, Debug)]
pub(crate) struct MagazineSettings {
    /// The number of classes; they are numbered from 0.
    pub(crate) classes: usize,
    /// The most storage of one magazine, in bytes; at most 16 KiB.
    pub(crate) magazine_bytes: usize,
    /// How long the depot keeps magazines that no thread needs.
    pub(crate) working_set: Duration,
    /// The most bytes that all caches together may hold; `None` for no bound.
    pub(crate) max_cached_bytes: Option<u64>,
    /// The most full magazines that a depot keeps for each class and memory node. Rounds beyond
    /// that return to the source.
    pub(crate) max_full_magazines: usize,
    /// The clock for the working set.
    pub(crate) clock: Arc<dyn Clock>,
    /// The memory nodes.
    pub(crate) topology: Arc<dyn Topology>,
}

impl MagazineSettings {
    /// Returns the default settings for `classes` classes.
    pub(crate) fn new(classes: usize) -> Self {
        MagazineSettings {
            classes,
            magazine_bytes: MAX_MAGAZINE_BYTES,
            working_set: Duration::from_secs(15),
            max_cached_bytes: None,
            max_full_magazines: usize::MAX,
            clock: Arc::new(SystemClock::default()),
            topology: Arc::new(SystemTopology),
        }
    }
}

/// The most storage of one magazine, in bytes.
pub(crate) const MAX_MAGAZINE_BYTES: usize = 16 << 10;
/// A new magazine holds rounds of this many bytes together, within the numbers of rounds below.
/// Measured on blocks of up to 512 or 1024 bytes, of which each thread replaces 5,000 at a time:
/// with 16 KiB two threads take 11 and 14 ns for a pair, with 64 KiB 4.5 and 7, with 128 KiB 4.2
/// and 4.3, but then a sixth more memory than with other allocators is resident.
const FIRST_CONTENT_BYTES: usize = 96 << 10;
const FIRST_ROUNDS: (usize, usize) = (4, 384);
/// A grown magazine holds rounds of this many bytes together.
const LAST_CONTENT_BYTES: usize = 256 << 10;

/// Returns the least and the greatest number of rounds in a magazine, for rounds of `round_bytes`
/// bytes each. A magazine of large rounds has few of them; one of small rounds has as many as its
/// storage allows.
pub(crate) fn capacity_bounds(
    magazine_bytes: usize,
    slot_bytes: usize,
    round_bytes: usize,
) -> (usize, usize) {
    let storage = (magazine_bytes.min(MAX_MAGAZINE_BYTES) / slot_bytes.max(1)).max(1);
    let first = (FIRST_CONTENT_BYTES / round_bytes.max(1))
        .clamp(FIRST_ROUNDS.0, FIRST_ROUNDS.1)
        .min(storage);
    let last = (LAST_CONTENT_BYTES / round_bytes.max(1)).clamp(first, storage);
    (first, last)
}
