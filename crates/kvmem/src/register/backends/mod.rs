//! *Backends*: the registrars, and which of them this machine has.

pub mod cuda;
mod device_spec;
mod devices;
mod discovery;
mod flags;
mod io_uring;
mod live_keys;
mod memlock;
mod mlock;
pub mod nixl;
mod retry;
pub mod verbs;

pub use device_spec::DeviceSpec;
pub use device_spec::DevicesError;
pub use devices::Devices;
pub use discovery::{Availability, DetectedDevice, discover};
pub use io_uring::{IoUring, RingTable};
pub use mlock::Mlock;
