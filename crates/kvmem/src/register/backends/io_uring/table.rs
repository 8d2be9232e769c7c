//! *Table*: a ring's table of buffers, and the kernel's limits for it.

use std::ops::Range;

/// The largest buffer in bytes: `SZ_1G` in the kernel's `io_uring/rsrc.c`.
pub(super) const MAX_BYTES: u64 = 1 << 30;
/// The largest number of slots: `IORING_MAX_REG_BUFFERS` in the kernel's `io_uring/rsrc.c`.
pub(super) const MAX_SLOTS: u32 = 1 << 14;
/// The number of slots of a new table.
pub(super) const NEW_SLOTS: u32 = 1 << 10;

/// The table that [`IoUring::adopt`](super::IoUring::adopt) uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RingTable {
    /// A new table with this number of slots, 1 to 16,384, all for the registrar. The ring must not
    /// have a table.
    New(u32),
    /// These slots of the ring's table. They are emptied, and belong to the registrar until it is
    /// dropped.
    Existing(Range<u32>),
}
