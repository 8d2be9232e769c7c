//! *Range*: what a handle knows of what was granted, without the handle's duty to free it.

use super::heap::Grant;
use super::table::NIL;

/// As the length of a range: it does not fit; the books know it.
pub(crate) const LONG: u32 = u32::MAX;

/// A range that is allocated: what a handle knows of it. Two words, so that it is passed in registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Range {
    offset: u64,
    /// Size below, or [`LONG`]; node above.
    rest: u64,
}

impl Range {
    #[inline(always)]
    pub(crate) fn new(offset: u64, size: u32, node: u32) -> Self {
        Range { offset, rest: u64::from(node) << 32 | u64::from(size) }
    }

    /// In place of a range where there is none, so that two registers are enough to say so: see [`found`](Self::found).
    pub(crate) const NONE: Range = Range { offset: 0, rest: (NIL as u64) << 32 };

    /// The range, unless it is [`NONE`](Self::NONE).
    #[inline(always)]
    pub(crate) fn found(self) -> Option<Range> {
        (self.node() != NIL).then_some(self)
    }

    #[inline(always)]
    pub(crate) fn offset(self) -> u64 {
        self.offset
    }

    #[inline(always)]
    pub(crate) fn size(self) -> u32 {
        self.rest as u32
    }

    #[inline(always)]
    pub(crate) fn node(self) -> u32 {
        (self.rest >> 32) as u32
    }

    #[inline(always)]
    pub(super) fn grant(self) -> Grant {
        Grant { node: self.node(), offset: self.offset }
    }
}
