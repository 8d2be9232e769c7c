//! [`Ranges`]: where a value is.

use kvmem::offset::RawHandle;

use crate::format::{Entry, MAX_EXTENTS};

/// An entry with its ranges in the space, in the order of its extents.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Indexed {
    pub(crate) entry: Entry,
    pub(crate) ranges: Ranges,
}

/// The ranges of a value: as many as it has extents.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ranges {
    first: RawHandle,
    /// The lower halves of the other handles, and how many there are.
    behind: [[u32; 2]; MAX_EXTENTS - 1],
    count: u8,
}

impl From<RawHandle> for Ranges {
    fn from(first: RawHandle) -> Ranges {
        Ranges { first, behind: [[0; 2]; MAX_EXTENTS - 1], count: 1 }
    }
}

impl Ranges {
    /// Returns the ranges of these handles of one allocator: one to [`MAX_EXTENTS`].
    pub(crate) fn of(handles: impl IntoIterator<Item = RawHandle>) -> Ranges {
        let mut handles = handles.into_iter();
        let mut ranges = Ranges::from(handles.next().expect("a value has an extent"));
        for (handle, behind) in handles.zip(&mut ranges.behind) {
            *behind = lower_half(handle);
            ranges.count += 1;
        }
        ranges
    }

    pub(crate) fn first(&self) -> RawHandle {
        self.first
    }

    pub(super) fn lower_halves(&self) -> impl Iterator<Item = [u32; 2]> {
        let behind = self.behind.into_iter();
        std::iter::once(lower_half(self.first)).chain(behind).take(self.count.into())
    }

    /// Returns the handles.
    pub(crate) fn iter(&self) -> impl Iterator<Item = RawHandle> {
        let allocator = self.first.to_bits() >> 64 << 64;
        self.lower_halves().map(move |[high, low]| {
            RawHandle::from_bits(allocator | u128::from(high) << 32 | u128::from(low))
        })
    }
}

fn lower_half(handle: RawHandle) -> [u32; 2] {
    let bits = handle.to_bits();
    [(bits >> 32) as u32, bits as u32]
}
