//! *Registration*: one region with one registrar, and its keys.

use std::ops::{Bound, Range, RangeBounds};
use std::sync::Arc;

use super::engine::{IssuedKeys, leak, release};
use super::{Deregistered, Key, Platform, RegisterError, Registrar};
use crate::arena::{PinnedRange, Region};

/// One region, registered with one registrar.
///
/// A registration holds its region: while a key exists, the memory stays mapped and its pages
/// cannot be discarded. Dropping the registration deregisters its keys. If the registrar fails to
/// deregister a key three times, the memory stays mapped for the life of the process. Otherwise
/// the device could write to memory that is mapped later at the same addresses.
#[derive(Debug)]
pub struct Registration {
    host: Arc<dyn Platform>,
    registrar: Arc<dyn Registrar>,
    region: Arc<Region>,
    pinned: Option<PinnedRange>,
    chunks: Vec<Range<usize>>,
    keys: Vec<Key>,
    /// Chunks that are still registered.
    live: Vec<usize>,
}

impl Registration {
    /// Takes over `issued`, which holds the keys of the whole region.
    pub(super) fn new(
        host: &Arc<dyn Platform>,
        region: &Arc<Region>,
        issued: IssuedKeys,
    ) -> Registration {
        let (chunks, keys): (Vec<_>, Vec<_>) =
            issued.keys.into_iter().map(|(_, range, key)| (range, key)).unzip();
        Registration {
            host: Arc::clone(host),
            registrar: issued.registrar,
            pinned: Some(region.pin_pages()),
            region: Arc::clone(region),
            live: (0..chunks.len()).collect(),
            chunks,
            keys,
        }
    }

    /// Returns the registrar's name.
    #[must_use]
    pub fn device(&self) -> &str {
        self.registrar.name()
    }

    /// Returns the region.
    #[must_use]
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// Returns the registered chunks with their keys, in order of addresses; none after
    /// [`deregister`](Registration::deregister).
    #[must_use]
    pub fn chunks(&self) -> impl ExactSizeIterator<Item = (Range<usize>, Key)> + '_ {
        self.live.iter().map(|chunk| (self.chunks[*chunk].clone(), self.keys[*chunk]))
    }

    /// Returns whether any key is still registered.
    #[must_use]
    pub fn is_live(&self) -> bool {
        !self.live.is_empty()
    }

    /// Returns the key that covers all of a range. O(log n) for n chunks.
    ///
    /// # Errors
    /// [`Straddles`](RegisterError::Straddles) if the range needs more than one key,
    /// [`OutOfBounds`](RegisterError::OutOfBounds) if it ends beyond the region,
    /// [`Ended`](RegisterError::Deregistered) if its key was deregistered.
    pub fn key_for(&self, range: impl RangeBounds<usize>) -> Result<Key, RegisterError> {
        let chunk = locate(self.device(), &self.chunks, self.region.len(), range)?;
        match self.live.binary_search(&chunk) {
            Ok(_) => Ok(self.keys[chunk]),
            Err(_) => Err(RegisterError::Deregistered { device: self.device().to_owned() }),
        }
    }

    /// Deregisters all keys. A second call does nothing.
    ///
    /// # Errors
    /// [`DeregisterFailed`](RegisterError::DeregisterFailed) names the keys that could not be
    /// deregistered in three attempts. They stay registered, the memory stays mapped, and the
    /// call can be repeated.
    pub fn deregister(&mut self) -> Result<Deregistered, RegisterError> {
        let issued = [self.issued_keys()];
        let (back, kept) = release(&*self.host, &issued, 1, &|_, _| ());
        let kept: Vec<_> = kept.into_iter().map(|(_, error)| error).collect();
        self.retain_chunks(kept.iter().map(|error| error.chunk).collect());
        if kept.is_empty() { Ok(back) } else { Err(RegisterError::DeregisterFailed { kept }) }
    }

    /// Returns the keys that are still registered.
    pub(super) fn issued_keys(&self) -> IssuedKeys {
        let keys =
            self.live.iter().map(|chunk| (*chunk, self.chunks[*chunk].clone(), self.keys[*chunk]));
        IssuedKeys { registrar: Arc::clone(&self.registrar), keys: keys.collect() }
    }

    /// Records that all keys were deregistered except those of these chunks.
    pub(super) fn retain_chunks(&mut self, mut chunks: Vec<usize>) {
        chunks.sort_unstable();
        self.live = chunks;
        if self.live.is_empty() {
            self.pinned = None;
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

/// Returns the index of the registrar's chunk that contains all of a range.
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
    // An empty range at the end of the region belongs to the last chunk.
    let chunk = chunks.partition_point(|chunk| chunk.end <= start).min(chunks.len() - 1);
    let edge = chunks[chunk].end;
    if end > edge {
        return Err(RegisterError::Straddles { device: device.to_owned(), start, end, edge });
    }
    Ok(chunk)
}
