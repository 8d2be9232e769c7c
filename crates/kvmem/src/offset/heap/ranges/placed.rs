//! *Placed*: an allocated range, as its node and where it begins.

use super::super::chunked_table::NIL;

/// An allocated range: its node and where it begins. Its size is the requested size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Placed {
    pub(crate) node: u32,
    pub(crate) offset: u64,
}

/// An allocated range or none, in two registers. An `Option` passes through memory. A reader that
/// loads it there as a whole, right after it was written in parts, waits for all earlier stores: 5
/// ns of a call that takes 15.
#[derive(Clone, Copy)]
pub(crate) struct MaybePlaced {
    /// `NIL` if there is none.
    node: u32,
    offset: u64,
}

impl MaybePlaced {
    pub(crate) fn get(self) -> Option<Placed> {
        (self.node != NIL).then_some(Placed { node: self.node, offset: self.offset })
    }
}

impl From<Option<Placed>> for MaybePlaced {
    fn from(placed: Option<Placed>) -> Self {
        placed.map_or(MaybePlaced { node: NIL, offset: 0 }, |Placed { node, offset }| MaybePlaced {
            node,
            offset,
        })
    }
}

/// An allocated range with its size.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SizedRange {
    pub(crate) placed: Placed,
    pub(crate) size: u64,
}
