//! L2, *register*: keys, the right to DMA into bytes.

mod error;
mod host;
mod policy;
mod registrar;
pub mod simulated;

pub use error::{Barrier, ChunkError, NotAvailable, Refusal, RegisterError};
pub use host::{Host, ThisMachine};
pub use policy::{Policy, PolicyError};
pub use registrar::{Account, Key, Limits, Memlock, Registrar};
