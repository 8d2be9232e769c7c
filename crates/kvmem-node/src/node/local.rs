//! [`Local`]: the server's own state of an entry, which the index file lacks.

use kvmem::offset::RawHandle;

use super::chains::NONE;

/// The server's own state of an entry, which the index file lacks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Local {
    /// The extent's allocation.
    pub(super) extent: RawHandle,
    /// Its place in the order of use, as the index file has it, while it is committed.
    pub(super) order: u64,
    /// Sessions that have pins of it, and pins of the server itself.
    pub(super) pins: u32,
    /// The values with the same parent, and those with this one as their parent;
    /// [`NONE`]: there are none.
    pub(super) siblings: u32,
    pub(super) children: u32,
    /// Children that nobody has pinned: the value is no victim.
    pub(super) holding: u32,
    /// Its list has a record of it at this place.
    pub(super) queued: bool,
    /// It came to this entry by a move: a stale record of the entry may be of a place that it gets
    /// from a child.
    pub(super) has_moved: bool,
    /// The number of values that had left the memory when the server reported a use of this one to
    /// the tier.
    pub(super) touched_at: u64,
    /// Children of it have left the memory, and the tier has them.
    pub(super) has_stored_children: bool,
    /// The tier is storing the value: it is no victim.
    pub(super) storing: bool,
    /// The tier has not taken the value.
    pub(super) store_failed: bool,
    /// The tier may have an older value under the key, because it failed to store this one.
    pub(super) hides_older: bool,
    /// The scrubber is verifying the value: it stays at its position in its list, and is no victim.
    pub(super) verifying: bool,
    /// A client has committed the value, and nobody has acquired it since.
    pub(super) is_unused: bool,
}

impl Local {
    pub(super) fn new(extent: RawHandle) -> Local {
        Local {
            extent,
            order: 0,
            pins: 0,
            siblings: NONE,
            children: NONE,
            holding: 0,
            queued: false,
            has_moved: false,
            touched_at: 0,
            has_stored_children: false,
            storing: false,
            store_failed: false,
            hides_older: false,
            verifying: false,
            is_unused: false,
        }
    }

    /// Returns whether a committed value can be evicted, unless it [is held](Self::is_held).
    pub(super) fn is_candidate(&self) -> bool {
        self.pins == 0 && self.holding == 0
    }

    /// Returns whether another thread reads the value, which therefore cannot be evicted.
    pub(super) fn is_held(&self) -> bool {
        self.storing || self.verifying
    }
}
