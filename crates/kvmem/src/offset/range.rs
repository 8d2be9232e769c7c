//! *Range*: what a handle knows of what was granted, without the handle's duty to free it.

use super::heap::Placed;
use super::table::NIL;

/// As the length of a range: it does not fit; the books know it.
pub(crate) const LONG: u32 = u32::MAX;

/// A length as a range has it.
#[inline(always)]
pub(super) fn short_size(size: u64) -> u32 {
    u32::try_from(size).unwrap_or(LONG)
}

/// A length that the books need not be asked for.
#[inline(always)]
pub(super) fn known_size(size: u32) -> Option<u64> {
    (size != LONG).then_some(u64::from(size))
}

/// A range that is allocated: what a handle knows of it. An array, so that it goes from memory to
/// memory by one move of 16 bytes: what is written in two pieces and soon read in one makes the
/// processor wait, 2 of 17 ns in a full space of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Range {
    /// The offset; size below, or [`LONG`], and node above.
    words: [u64; 2],
}

impl Range {
    #[inline(always)]
    pub(crate) fn new(offset: u64, size: u32, node: u32) -> Self {
        Range { words: [offset, u64::from(node) << 32 | u64::from(size)] }
    }

    /// In place of a range where there is none, and why in one word: so two registers are enough to
    /// answer a request.
    pub(crate) const fn none(why: u64) -> Self {
        Range { words: [why, (NIL as u64) << 32] }
    }

    /// The range, or why there is [`none`](Self::none).
    #[inline(always)]
    pub(crate) fn found(self) -> Result<Range, u64> {
        if self.node() == NIL { Err(self.offset()) } else { Ok(self) }
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
