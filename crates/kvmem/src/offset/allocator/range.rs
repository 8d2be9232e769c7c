//! *Range*: what a handle stores about an allocated range, without the duty to free it.

use crate::offset::heap::NIL;
use crate::offset::heap::Placed;

/// Length of a range that does not fit into 32 bits; the metadata knows it.
pub(crate) const LONG: u32 = u32::MAX;

/// Returns a length as a range stores it.
#[inline(always)]
pub(super) fn short_size(size: u64) -> u32 {
    u32::try_from(size).unwrap_or(LONG)
}

/// Returns a length if the range itself stores it.
#[inline(always)]
pub(super) fn known_size(size: u32) -> Option<u64> {
    (size != LONG).then_some(u64::from(size))
}

/// An allocated range as a handle stores it. An array, which moves between memory places by one
/// move of 16 bytes. A load that spans two recent stores makes the processor wait: 2 of 17 ns in a
/// full space of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Range {
    /// The offset; then the size in the low half, or [`LONG`], and the node in the high half.
    words: [u64; 2],
}

impl Range {
    #[inline(always)]
    pub(crate) fn new(offset: u64, size: u32, node: u32) -> Self {
        Range { words: [offset, u64::from(node) << 32 | u64::from(size)] }
    }

    /// Replaces a range where there is none, and says why in one word: two registers are enough to
    /// answer a request.
    pub(crate) const fn none(why: u64) -> Self {
        Range { words: [why, (NIL as u64) << 32] }
    }

    /// Returns the range, or the reason why there is [`none`](Self::none).
    #[inline(always)]
    pub(crate) fn found(self) -> Result<Range, u64> {
        if self.node() == NIL { Err(self.offset()) } else { Ok(self) }
    }

    /// Returns both words, which functions pass and return in registers, as they do no array.
    #[inline(always)]
    pub(crate) fn into_words(self) -> (u64, u64) {
        (self.words[0], self.words[1])
    }

    /// Returns the range of which [`into_words`](Self::into_words) returned these words.
    #[inline(always)]
    pub(crate) fn from_words((first, second): (u64, u64)) -> Self {
        Range { words: [first, second] }
    }

    #[inline(always)]
    pub(crate) fn offset(self) -> u64 {
        self.words[0]
    }

    #[inline(always)]
    pub(crate) fn size(self) -> u32 {
        self.words[1] as u32
    }

    #[inline(always)]
    pub(crate) fn node(self) -> u32 {
        (self.words[1] >> 32) as u32
    }

    #[inline(always)]
    pub(super) fn placed(self) -> Placed {
        Placed { node: self.node(), offset: self.offset() }
    }
}
