//! *Options* of a queue of evicted values.

/// What happens to an evicted value that the queue has no room for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum WhenFull {
    /// The thread that evicts it waits until a writer has made room.
    #[default]
    Wait,
    /// The value is not written, and a value that the tier has under the key is removed.
    Drop,
}

/// What happens to values in the queue when the [`WriteBehind`](super::WriteBehind) is dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OnDrop {
    /// They are written; the drop waits for it.
    #[default]
    Write,
    /// They are not written. The drop waits until the tier has removed older values of their keys.
    Discard,
}

/// How a queue is made.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueueOptions {
    pub(super) max_bytes: u64,
    pub(super) when_full: WhenFull,
    pub(super) writers: usize,
    pub(super) on_drop: OnDrop,
}
