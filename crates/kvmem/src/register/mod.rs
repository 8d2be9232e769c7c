//! L2, *register*: keys, the right to DMA into bytes.

pub mod cuda;
mod error;
mod flags;
mod host;
mod live;
mod memlock;
mod policy;
mod registrar;
pub mod verbs;

pub use error::{Barrier, ChunkError, NotAvailable, Refusal, RegisterError};
pub use host::{Host, ThisMachine};
pub use policy::{Policy, PolicyError};
pub use registrar::{Account, Key, Limits, Memlock, Registrar};
