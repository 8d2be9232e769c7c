//! L2, *register*: keys, the right to DMA into bytes.

mod error;
mod host;
mod io_uring;
mod memlock;
mod mlock;
mod policy;
mod registrar;

pub use error::{Barrier, ChunkError, NotAvailable, Refusal, RegisterError};
pub use host::{Host, ThisMachine};
pub use io_uring::{IoUring, RingTable};
pub use mlock::Mlock;
pub use policy::{Policy, PolicyError};
pub use registrar::{Account, Key, Limits, Memlock, Registrar};
