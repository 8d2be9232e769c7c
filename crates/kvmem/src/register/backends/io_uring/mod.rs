//! *io_uring*: fixed buffers of a ring, pinned by the same kernel path that RDMA drivers use.
//!
//! A ring has a table of up to 16,384 slots, each for a buffer of up to 1 GiB. Filling a slot pins
//! the pages. Work on the ring then names the slot (`buf_index`), and the kernel need not look up
//! the pages again. [`IoUring::new`] creates a ring and uses only its table;
//! [`IoUring::adopt`] uses a ring that other code submits work to.
//!
//! ## Avoiding a quadratic search
//!
//! A hugepage counts once against the limit of pinned memory, even if several buffers of a ring lie
//! in it. To detect that, the kernel searches for each hugepage that it pins: it walks the
//! hugepages of all buffers in the table, and every slot of the table, used or not. The time to
//! register a region therefore grows with the square of its hugepages. Measured on Linux 6.18, THP
//! in chunks of 256 MiB, one ring:
//!
//! | region | table of 64 | of 1,024 | of 16,384 | through a side ring |
//! |---|---|---|---|---|
//! | 8 GiB | 50 ms | 52 ms | 82 ms | 7.5 ms |
//! | 16 GiB | 195 ms | 203 ms | 254 ms | 16 ms |
//!
//! The last column is what this module does. Each ring has a *side ring*, whose table has a single,
//! empty slot. Pages are pinned in the side ring, where there is nothing to search. Then the buffer
//! is cloned into the table of the main ring, which costs no more than copying the table, and the
//! side ring releases it. Base pages, which are not searched, take 72 ms for 4 GiB in both ways.
//! Cloning a single slot needs Linux 6.13; on older kernels buffers are registered in the table
//! itself.
//!
//! The search then fails its purpose: a hugepage with several buffers counts once for each of them.
//! Newer kernels count like that in any case. If a limit applies, buffers that do not begin and end
//! on a hugepage boundary are registered in the table itself.
//!
//! In Linux 6.13 to 6.18, before the fix in their stable releases, such a clone drops every buffer
//! in the slots after its own. Buffers are therefore cloned only into the slot after all used ones.
//! Free slots between used ones are filled in place, when no others are left.
//!
//! ## The size of the table
//!
//! A table starts with 1,024 slots: 8 KiB of kernel memory and 14 µs. A table of 16,384 slots would
//! take 128 KiB and 170 µs, and, without the side ring, 8 µs more for each hugepage. Cloning into a
//! slot beyond the end extends the table, so with the side ring all 16,384 slots can be used.
//! Without it there are 1,024, which is 1 TiB in chunks of 1 GiB.
//!
//! ## The size of chunks
//!
//! Registering each chunk in all rings one after the other is fastest with chunks of at most 256
//! MiB: the kernel's metadata of the pages is then still in the cache when the next ring needs it.
//! Eight rings register 8 GiB of THP in 36 ms, compared with 57 ms with chunks of 1 GiB; base pages
//! take a tenth to a fifth less time.

mod failure;
mod registrar;
mod side_ring;
mod slots;
mod table;

pub use registrar::IoUring;
pub use table::RingTable;
