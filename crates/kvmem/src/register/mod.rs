#![doc = include_str!("../../docs/register.md")]

mod background;
mod builder;
mod costs;
mod crew;
pub mod cuda;
mod devices;
mod engine;
mod error;
mod flags;
mod found;
mod ground;
mod host;
mod io_uring;
mod lanes;
mod live;
mod memlock;
mod mlock;
pub mod nixl;
mod outcome;
mod plan;
mod policy;
mod registrar;
mod registration;
mod release;
mod set;
pub mod simulated;
mod trial;
pub mod verbs;
mod watching;

pub(crate) use plan::admit;

pub use background::Background;
pub use builder::RegistrationBuilder;
pub use devices::{DeviceSpec, Devices, DevicesError};
pub use error::{Barrier, ChunkError, NotAvailable, Refusal, RegisterError};
pub use found::{Found, FoundState, discover};
pub use host::{Host, ThisMachine};
pub use io_uring::{IoUring, RingTable};
pub use mlock::Mlock;
pub use outcome::{Deregistered, Outcome, Phase, RegisterProgress, Trial};
pub use plan::{Estimate, Lane, Plan, Terms, TrialPlan, plan};
pub use policy::{Policy, PolicyError};
pub use registrar::{Account, Key, Limits, Memlock, Registrar};
pub use registration::Registration;
pub use set::RegistrationSet;
