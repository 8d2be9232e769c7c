//! *Making magazines* over slabs, with the settings that memory asks for.

use std::time::Duration;

use super::magazines::Magazines;
use super::settings::Settings;
use super::slab::Chunk;
use super::source::Source;

/// Magazines for so many classes.
pub(crate) fn magazines<S: Source<Chunk>>(source: S, classes: usize, working_set: Duration) -> Magazines<Chunk, S> {
    Magazines::new(source, Settings { working_set, ..Settings::new(classes) })
}
