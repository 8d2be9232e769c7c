//! *Caching*: makes magazines over slabs with the options that users can set.

use std::sync::Arc;
use std::time::Duration;

use crate::slab::magazine::MagazineSettings;
use crate::slab::magazine::Magazines;
use crate::slab::magazine::RoundSource;
use crate::slab::magazine::{Clock, SystemClock};
use crate::slab::slabs::Chunk;

/// The options for the magazines of a cache.
#[derive(Clone, Debug)]
pub(crate) struct CachingOptions {
    pub(crate) working_set: Duration,
    pub(crate) max_cached_bytes: Option<u64>,
    pub(crate) clock: Arc<dyn Clock>,
}

impl Default for CachingOptions {
    fn default() -> Self {
        let clock = Arc::new(SystemClock::default());
        CachingOptions { working_set: Duration::from_secs(15), max_cached_bytes: None, clock }
    }
}

/// Makes magazines for `classes` classes.
pub(crate) fn magazines<S: RoundSource<Chunk>>(
    source: S,
    classes: usize,
    caching: CachingOptions,
) -> Magazines<Chunk, S> {
    let CachingOptions { working_set, max_cached_bytes, clock } = caching;
    Magazines::new(
        source,
        MagazineSettings { working_set, max_cached_bytes, clock, ..MagazineSettings::new(classes) },
    )
}
