//! *Object*: one part of a block.

/// Identifies an object: the block's hash id, and the object's number within the block.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ObjectId {
    /// The block's hash id.
    pub block: u64,
    /// The number, from 0, in the order of the layout.
    pub number: u32,
}
