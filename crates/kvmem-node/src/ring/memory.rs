//! *Memory* of a pair of rings: a sealed memory file that the server makes and the client maps.
//!
//! The first page has the two headers, and the areas follow it.

use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use kvmem::arena::{ArenaError, Backing, PageSize, Populate, Region};

use super::lines::{RingHeader, RingView};
use super::{Consumer, Producer};
use crate::protocol::MAX_MESSAGE;
use crate::sync::AtomicU64;

/// Words of one area: two messages of the greatest length, nearly.
const WORDS: usize = 1 << 15;

const AREA_BYTES: usize = WORDS * 8;

/// Where the areas begin.
const AREAS_AT: usize = 4096;

/// Where the second header begins.
const SECOND_HEADER_AT: usize = 2048;

/// Bytes of the memory file.
const FILE_BYTES: usize = AREAS_AT + 2 * AREA_BYTES;

const _: () = assert!(AREA_BYTES >= MAX_MESSAGE + 8);
#[cfg(not(loom))]
const _: () = assert!(size_of::<RingHeader>() <= SECOND_HEADER_AT && size_of::<AtomicU64>() == 8);

/// The ends of the server.
#[derive(Debug)]
pub(crate) struct ServerEnds {
    pub(crate) requests: Consumer,
    pub(crate) answers: Producer,
}

#[cfg(all(test, not(loom)))]
impl ServerEnds {
    /// Returns the addresses of the memory of both rings.
    pub(crate) fn memory(&self) -> std::ops::Range<usize> {
        let first = self.requests.address();
        first..first + FILE_BYTES
    }
}

/// The ends of the client.
#[derive(Debug)]
pub(crate) struct ClientEnds {
    pub(crate) requests: Producer,
    pub(crate) answers: Consumer,
}

/// Makes the memory of two rings. Returns the server's ends, and a descriptor for the client.
pub(crate) fn create() -> Result<(ServerEnds, OwnedFd), ArenaError> {
    let region = Region::builder(FILE_BYTES)
        .backing(Backing::Shared)
        .ladder(PageSize::Base)
        .populate(Populate::None)
        .map()?;
    let file = region.share()?.expect("shared memory has a file");
    let region = Arc::new(region);
    let (requests, answers) = (view(&region, 0), view(&region, 1));
    let ends = ServerEnds { requests: Consumer::new(requests), answers: Producer::new(answers) };
    Ok((ends, file))
}

/// Maps the memory that a server has made. Its seals are checked: the file cannot shrink.
pub(crate) fn attach(file: OwnedFd) -> Result<ClientEnds, ArenaError> {
    let region = Arc::new(Region::attach(file, Some(FILE_BYTES))?);
    let (requests, answers) = (view(&region, 0), view(&region, 1));
    Ok(ClientEnds { requests: Producer::new(requests), answers: Consumer::new(answers) })
}

fn view(region: &Arc<Region>, index: usize) -> RingView {
    assert!(region.len() >= FILE_BYTES, "the file has {} bytes", region.len());
    let base = region.base();
    // SAFETY: both places are in the mapping, which is at least `FILE_BYTES` long, begins at a
    // page, and lives as long as the region. They are multiples of the alignments of the types. All
    // processes use the memory through such views, and what another one stores is some value of an
    // atomic. A new file has zeros, which are an empty ring.
    unsafe {
        let header: NonNull<RingHeader> = base.add(index * SECOND_HEADER_AT).cast();
        let area: NonNull<AtomicU64> = base.add(AREAS_AT + index * AREA_BYTES).cast();
        RingView::new(header, area, WORDS, Arc::clone(region) as _)
    }
}
