//! The ranges: the space divided into used and free ranges, without gap or overlap.
//!
//! ```text
//!        ┌────────┬──────────┬────────┬───────────────┬─ ─ ─
//! space  │ used   │ free     │ used   │ used          │
//!        └────────┴──────────┴────────┴───────────────┴─ ─ ─
//! nodes sentinel ⇄ 1 ⇄ 5 ⇄ 2 ⇄ 3 ⇄ … ⇄ sentinel   16 bytes each
//! holes            └─ {offset, size, bin links}      32 bytes each
//! ```
//!
//! Each range has a node in a ring in address order, the [chain]. A used node stores where
//! its range begins; the next node says where it ends. A free node names its hole, which stores
//! offset, size and a place in a bin.
//!
//! ## The boundary
//!
//! A DMA consumer registers memory in chunks; a range that lies in two chunks has no key. With a
//! boundary *B*, no used range crosses a multiple of *B*. Free ranges do not coalesce across one
//! either. Every binned hole therefore lies within one *segment* of *B* bytes, and the search can
//! ignore boundaries. Wholly free segments form [runs], which are as long as possible. A space of a
//! million segments therefore costs what its used segments cost.

mod chain;
mod check;
mod cuts;
mod end;
mod first_below;
mod held_back;
mod partition;
mod parts;
mod placed;
mod range_table;
mod release;
mod runs;
mod segments;
mod small_region;

pub(crate) use chain::SENTINEL;
pub(crate) use cuts::aligned_start;
pub(crate) use placed::{MaybePlaced, Placed, SizedRange};
pub(crate) use range_table::RangeTable;
