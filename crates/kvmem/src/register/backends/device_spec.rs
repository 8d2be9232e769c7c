//! *Device spec*: registrars of one kind, as a text such as `io_uring:8` or `verbs:mlx5_0`.

use super::cuda::Cuda;
use super::io_uring::IoUring;
use super::mlock::Mlock;
use super::nixl::Nixl;
use super::verbs::Verbs;
use crate::register::{NotAvailable, Registrar};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::num::NonZeroUsize;
use std::str::FromStr;
use std::sync::Arc;
use thiserror::Error;

/// The largest number of rings in one list. Each ring takes a descriptor and some hundred KiB of
/// kernel memory.
const MAX_RINGS: usize = 1024;

/// Registrars of one kind. [`Devices`](super::Devices) lists the names.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
#[non_exhaustive]
pub enum DeviceSpec {
    /// This number of rings, at most 1024.
    IoUring(NonZeroUsize),
    /// `mlock`.
    Mlock,
    /// The NIC of this name; `None`: all NICs.
    Verbs(Option<String>),
    /// The GPU of this number; `None`: all GPUs.
    Cuda(Option<u32>),
    /// A NIXL agent with this backend; `None`: with UCX.
    Nixl(Option<String>),
}

impl DeviceSpec {
    /// Returns every kind, each without a number or name.
    #[must_use]
    pub fn kinds() -> [DeviceSpec; 5] {
        [
            DeviceSpec::IoUring(NonZeroUsize::MIN),
            DeviceSpec::Mlock,
            DeviceSpec::Verbs(None),
            DeviceSpec::Cuda(None),
            DeviceSpec::Nixl(None),
        ]
    }

    /// Returns the kind's name: `io_uring`, `mlock`, `verbs`, `cuda` or `nixl`.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            DeviceSpec::IoUring(_) => "io_uring",
            DeviceSpec::Mlock => "mlock",
            DeviceSpec::Verbs(_) => "verbs",
            DeviceSpec::Cuda(_) => "cuda",
            DeviceSpec::Nixl(_) => "nixl",
        }
    }

    /// Returns one entry per device: all NICs or GPUs if none is named; the default NIXL backend.
    pub(super) fn each(&self) -> Result<Vec<DeviceSpec>, NotAvailable> {
        match self {
            DeviceSpec::Verbs(None) => {
                let names = Verbs::load()?.devices()?;
                Ok(names.into_iter().map(|name| DeviceSpec::Verbs(Some(name))).collect())
            }
            DeviceSpec::Cuda(None) => {
                let gpus = Cuda::load()?.devices()?.len();
                Ok((0..gpus as u32).map(|gpu| DeviceSpec::Cuda(Some(gpu))).collect())
            }
            DeviceSpec::Nixl(None) => Ok(vec![DeviceSpec::Nixl(Some(Nixl::BACKEND.to_owned()))]),
            spec => Ok(vec![spec.clone()]),
        }
    }

    /// Opens these registrars, at least one. Each is closed when it is dropped.
    ///
    /// # Errors
    /// [`NotAvailable`] for the first device that cannot be opened, and what it needs. The others
    /// are closed.
    pub fn open(&self) -> Result<Vec<Arc<dyn Registrar>>, NotAvailable> {
        match self {
            DeviceSpec::IoUring(rings) => {
                (0..rings.get()).map(|ring| IoUring::new(ring).map(shared)).collect()
            }
            DeviceSpec::Mlock => Mlock::available().map(|()| vec![shared(Mlock::default())]),
            DeviceSpec::Verbs(Some(name)) => Verbs::load()?.open(name).map(|nic| vec![shared(nic)]),
            DeviceSpec::Cuda(Some(gpu)) => Cuda::load()?.open(*gpu).map(|gpu| vec![shared(gpu)]),
            DeviceSpec::Nixl(Some(backend)) => {
                Nixl::load()?.open(backend).map(|agent| vec![shared(agent)])
            }
            all => {
                let opened: Result<Vec<_>, NotAvailable> =
                    all.each()?.iter().map(DeviceSpec::open).collect();
                Ok(opened?.into_iter().flatten().collect())
            }
        }
    }

    /// Returns whether both name some registrar.
    pub(super) fn overlaps(&self, other: &DeviceSpec) -> bool {
        match (self, other) {
            (DeviceSpec::Verbs(Some(one)), DeviceSpec::Verbs(Some(other))) => one == other,
            (DeviceSpec::Cuda(Some(one)), DeviceSpec::Cuda(Some(other))) => one == other,
            (DeviceSpec::Nixl(one), DeviceSpec::Nixl(other)) => {
                let backend = |named: &Option<String>| {
                    named.clone().unwrap_or_else(|| Nixl::BACKEND.to_owned())
                };
                backend(one) == backend(other)
            }
            _ => self.kind() == other.kind(),
        }
    }
}

fn shared(registrar: impl Registrar + 'static) -> Arc<dyn Registrar> {
    Arc::new(registrar)
}

impl fmt::Display for DeviceSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = self.kind();
        match self {
            DeviceSpec::IoUring(rings) if rings.get() > 1 => write!(f, "{kind}:{rings}"),
            DeviceSpec::Verbs(Some(nic)) => write!(f, "{kind}:{nic}"),
            DeviceSpec::Cuda(Some(gpu)) => write!(f, "{kind}:{gpu}"),
            DeviceSpec::Nixl(Some(backend)) => write!(f, "{kind}:{backend}"),
            _ => f.pad(kind),
        }
    }
}

impl FromStr for DeviceSpec {
    type Err = DevicesError;

    fn from_str(text: &str) -> Result<DeviceSpec, DevicesError> {
        let (kind, which) = match text.split_once(':') {
            Some((kind, which)) => (kind, Some(which)),
            None => (text, None),
        };
        let wrong = |allowed| DevicesError::Which { text: text.to_owned(), allowed };
        match (kind, which) {
            ("io_uring", None) => Ok(DeviceSpec::IoUring(NonZeroUsize::MIN)),
            ("io_uring", Some(rings)) => rings
                .parse()
                .ok()
                .filter(|rings: &NonZeroUsize| rings.get() <= MAX_RINGS)
                .map(DeviceSpec::IoUring)
                .ok_or_else(|| wrong("a number of rings from 1 to 1024, such as io_uring:8")),
            ("mlock", None) => Ok(DeviceSpec::Mlock),
            ("mlock", Some(_)) => Err(wrong("nothing: there is only one mlock")),
            ("verbs", None) => Ok(DeviceSpec::Verbs(None)),
            ("verbs", Some(nic)) if !nic.is_empty() => Ok(DeviceSpec::Verbs(Some(nic.to_owned()))),
            ("verbs", Some(_)) => Err(wrong("the name of a NIC, such as verbs:mlx5_0")),
            ("cuda", None) => Ok(DeviceSpec::Cuda(None)),
            ("cuda", Some(gpu)) => gpu
                .parse()
                .map(|gpu| DeviceSpec::Cuda(Some(gpu)))
                .map_err(|_| wrong("the number of a GPU, such as cuda:0")),
            ("nixl", None) => Ok(DeviceSpec::Nixl(None)),
            ("nixl", Some(backend)) if !backend.is_empty() => {
                Ok(DeviceSpec::Nixl(Some(backend.to_owned())))
            }
            ("nixl", Some(_)) => Err(wrong("the name of a backend, such as nixl:UCX")),
            _ => Err(DevicesError::Unknown { text: text.to_owned() }),
        }
    }
}

impl TryFrom<String> for DeviceSpec {
    type Error = DevicesError;

    fn try_from(text: String) -> Result<DeviceSpec, DevicesError> {
        text.parse()
    }
}

impl From<DeviceSpec> for String {
    fn from(spec: DeviceSpec) -> String {
        spec.to_string()
    }
}

/// A text that names no valid list of registrars.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DevicesError {
    /// The text is empty.
    #[error(
        "no device is named: say io_uring, io_uring:N, mlock, verbs, verbs:NIC, cuda, cuda:N, nixl \
         or nixl:BACKEND"
    )]
    None,
    /// No kind of device has this name.
    #[error(
        "{text:?} is not a device: say io_uring, io_uring:N, mlock, verbs, verbs:NIC, cuda, \
         cuda:N, nixl or nixl:BACKEND, several separated by commas"
    )]
    Unknown {
        /// The name.
        text: String,
    },
    /// The part after the colon is not valid for this kind.
    #[error("{text:?} is not a device: after the colon, {allowed} is allowed")]
    Which {
        /// The name.
        text: String,
        /// The valid values.
        allowed: &'static str,
    },
    /// Two names select the same device.
    #[error("{second} selects a device that {first} selects already: name each device once")]
    Twice {
        /// The first.
        first: String,
        /// The second.
        second: String,
    },
}
