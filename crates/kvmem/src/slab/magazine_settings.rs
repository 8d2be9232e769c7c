//! *Settings*: what one instance of the magazine layer is made with.

use std::sync::Arc;
use std::time::Duration;

use super::clock::{Clock, SystemClock};
use super::topology::{SystemTopology, Topology};

/// What an instance is made with.
#[derive(Clone, Debug)]
pub(crate) struct MagazineSettings {
    /// How many classes there are, numbered from 0.
    pub(crate) classes: usize,
    /// The most storage that one magazine has, in bytes; 16 KiB at most.
    pub(crate) magazine_bytes: usize,
    /// How long the depot keeps what nobody came for.
    pub(crate) working_set: Duration,
    /// The most bytes that all caches together may strand; `None` for no bound.
    pub(crate) max_cached_bytes: Option<u64>,
    /// The most full magazines that a depot keeps, of each class and memory node; what is put
    /// beyond them goes to the source.
    pub(crate) max_full_magazines: usize,
    /// What time it is.
    pub(crate) clock: Arc<dyn Clock>,
    /// Which memory nodes there are.
    pub(crate) topology: Arc<dyn Topology>,
}

impl MagazineSettings {
    /// The usual ones.
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

/// The most storage of one magazine.
pub(crate) const MAX_MAGAZINE_BYTES: usize = 16 << 10;
/// What a magazine holds at first: rounds of so many bytes together, but neither fewer nor more
/// rounds than these. Measured on blocks of up to 512 or 1024 bytes, of which each thread replaces
/// 5,000 at a time: with 16 KiB two threads take 11 and 14 ns for a pair, with 64 KiB 4.5 and 7,
/// with 128 KiB 4.2 and 4.3, but then a sixth more memory than others is resident.
const FIRST_CONTENT_BYTES: usize = 96 << 10;
const FIRST_ROUNDS: (usize, usize) = (4, 384);
/// What it holds at most.
const LAST_CONTENT_BYTES: usize = 256 << 10;

/// The least and the greatest number of rounds in a magazine of rounds that strand so many bytes
/// each. A magazine of large rounds has few of them; one of small rounds has as many as its storage
/// takes.
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
