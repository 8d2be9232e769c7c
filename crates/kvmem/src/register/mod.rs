#![doc = include_str!("../../docs/register.md")]

mod backends;
mod background;
mod builder;
mod diagnosis;
mod engine;
mod error;
mod limits;
mod mount_report;
mod plan;
mod platform;
mod registrar;
mod registration;
mod set;

pub(crate) use plan::admit;

pub use backends::{Availability, DetectedDevice, discover};
pub use backends::{DeviceSpec, Devices, DevicesError};
pub use backends::{IoUring, Mlock, RingTable};
pub use backends::{cuda, nixl, verbs};
pub use background::Background;
pub use builder::RegistrationBuilder;
pub use diagnosis::{Diagnosis, diagnose};
pub use engine::{Calibration, Deregistered, Outcome, Phase, RegisterProgress};
pub use error::{ChunkError, NotAvailable, RegisterError, RegistrarError};
pub use limits::{Account, Limits, Memlock, RegisterLimit};
pub use mount_report::{MountReport, MountTimings};
pub use plan::{CalibrationPlan, DevicePlan, Estimate, Plan, PlanOptions, plan};
pub use plan::{ParsePolicyError, Policy, PolicyError};
pub use platform::{HeldHeadroom, Platform, SystemPlatform};
pub use registrar::{Key, Registrar};
pub use registration::Registration;
pub use set::RegistrationSet;
