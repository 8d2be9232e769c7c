//! *Registration*: one region with one registrar, and the keys to it.

use std::ops::{Bound, Range, RangeBounds};
use std::sync::Arc;

use super::engine::leak;
use super::release::{Given, release};
use super::{Deregistered, Key, Platform, RegisterError, Registrar};
use crate::arena::{Hold, Region};

/// One region, registered with one registrar.
///
/// It holds its region: as long as there is a key the memory is mapped, and its pages are not given
/// back. Dropping it gives the keys back. If the registrar does not take one back, tried three
/// times, the memory stays mapped for the life of the process: a device that can still write to it
/// must not write to what comes next at these addresses.
#[derive(Debug)]
pub struct Registration {
    host: Arc<dyn Platform>,
    registrar: Arc<dyn Registrar>,
    region: Arc<Region>,
    hold: Option<Hold>,
    chunks: Vec<Range<usize>>,
    keys: Vec<Key>,
    /// Chunks that have not been given back.
    live: Vec<usize>,
}

impl Registration {
    /// `given` is all of the region.
    pub(super) fn new(
        host: &Arc<dyn Platform>,
        region: &Arc<Region>,
        given: Given,
    ) -> Registration {
        let (chunks, keys): (Vec<_>, Vec<_>) =
            given.keys.into_iter().map(|(_, range, key)| (range, key)).unzip();
        Registration {
            host: Arc::clone(host),
            registrar: given.registrar,
            hold: Some(region.hold()),
            region: Arc::clone(region),
            live: (0..chunks.len()).collect(),
            chunks,
            keys,
        }
    }

    /// The registrar's name.
    #[must_use]
    pub fn device(&self) -> &str {
        self.registrar.name()
    }

    /// The memory.
    #[must_use]
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// Each chunk with its key, in order; none if they have been given back.
    pub fn chunks(&self) -> impl ExactSizeIterator<Item = (Range<usize>, Key)> + '_ {
        self.live.iter().map(|chunk| (self.chunks[*chunk].clone(), self.keys[*chunk]))
    }

    /// Whether keys are out.
    #[must_use]
    pub fn is_live(&self) -> bool {
        !self.live.is_empty()
    }

    /// The key with which all of a range can be reached. O(log n) for n chunks.
    ///
    /// # Errors
    /// [`Straddles`](RegisterError::Straddles) if it takes more than one key,
    /// [`OutOfBounds`](RegisterError::OutOfBounds), [`Ended`](RegisterError::Ended).
    pub fn key_for(&self, range: impl RangeBounds<usize>) -> Result<Key, RegisterError> {
        let chunk = locate(self.device(), &self.chunks, self.region.len(), range)?;
        match self.live.binary_search(&chunk) {
            Ok(_) => Ok(self.keys[chunk]),
            Err(_) => Err(RegisterError::Ended { device: self.device().to_owned() }),
        }
    }

    /// Gives the keys back. A second time does nothing.
    ///
    /// # Errors
    /// [`DeregisterFailed`](RegisterError::DeregisterFailed) names the keys that were not taken back, tried three times.
    /// They stay out, the memory stays mapped, and this can be tried again.
    pub fn deregister(&mut self) -> Result<Deregistered, RegisterError> {
        let given = [self.given()];
        let (back, kept) = release(&*self.host, &given, 1, &|_, _| ());
        let kept: Vec<_> = kept.into_iter().map(|(_, error)| error).collect();
        self.keep(kept.iter().map(|error| error.chunk).collect());
        if kept.is_empty() { Ok(back) } else { Err(RegisterError::DeregisterFailed { kept }) }
    }

    /// The keys that are out.
    pub(super) fn given(&self) -> Given {
        let keys =
            self.live.iter().map(|chunk| (*chunk, self.chunks[*chunk].clone(), self.keys[*chunk]));
        Given { registrar: Arc::clone(&self.registrar), keys: keys.collect() }
    }

    /// All keys were given back but those of these chunks.
    pub(super) fn keep(&mut self, mut chunks: Vec<usize>) {
        chunks.sort_unstable();
        self.live = chunks;
        if self.live.is_empty() {
            self.hold = None;
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if self.is_live() && self.deregister().is_err() {
            leak(&self.region);
        }
    }
}

/// Which of a registrar's chunks a range lies in.
pub(super) fn locate(
    device: &str,
    chunks: &[Range<usize>],
    len: usize,
    range: impl RangeBounds<usize>,
) -> Result<usize, RegisterError> {
    let start = match range.start_bound() {
        Bound::Included(start) => *start,
        Bound::Excluded(before) => before.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(last) => last.saturating_add(1),
        Bound::Excluded(end) => *end,
        Bound::Unbounded => len,
    };
    if start > end || end > len {
        return Err(RegisterError::OutOfBounds { start, end, len });
    }
    // The end of a region lies in its last chunk, for who asks about no bytes there.
    let chunk = chunks.partition_point(|chunk| chunk.end <= start).min(chunks.len() - 1);
    let edge = chunks[chunk].end;
    if end > edge {
        return Err(RegisterError::Straddles { device: device.to_owned(), start, end, edge });
    }
    Ok(chunk)
}
