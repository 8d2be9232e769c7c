//! *Making magazines* over slabs, with the settings that memory asks for.

use std::sync::Arc;
use std::time::Duration;

use super::clock::{Clock, SystemClock};
use super::magazines::Magazines;
use super::settings::Settings;
use super::slab::Chunk;
use super::source::Source;

/// What the users of a cache may say about its magazines.
#[derive(Clone, Debug)]
pub(crate) struct Caching {
    pub(crate) working_set: Duration,
    pub(crate) stranded_bytes: Option<u64>,
    pub(crate) clock: Arc<dyn Clock>,
}

impl Default for Caching {
    fn default() -> Self {
        let clock = Arc::new(SystemClock::default());
        Caching { working_set: Duration::from_secs(15), stranded_bytes: None, clock }
    }
}

/// Magazines for so many classes.
pub(crate) fn magazines<S: Source<Chunk>>(
    source: S,
    classes: usize,
    caching: Caching,
) -> Magazines<Chunk, S> {
    let Caching { working_set, stranded_bytes, clock } = caching;
    Magazines::new(
        source,
        Settings { working_set, stranded_bytes, clock, ..Settings::new(classes) },
    )
}
