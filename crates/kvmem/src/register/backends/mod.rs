//! *Backends*: the registrars, and which of them this machine has.

pub mod cuda;
mod devices;
mod discovery;
mod flags;
mod io_uring;
mod live_keys;
mod memlock;
mod mlock;
pub mod nixl;
pub mod verbs;

pub use devices::{DeviceSpec, Devices, DevicesError};
pub use discovery::{Availability, DetectedDevice, discover};
pub use io_uring::{IoUring, RingTable};
pub use mlock::Mlock;
