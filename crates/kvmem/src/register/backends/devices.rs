//! *Devices*: registrars named by text, such as `io_uring:8,mlock`.
//!
//! A list is separated by commas. Keys are looked up by a registrar's name: two registrars cannot
//! have the same name, and no device may be named twice. `verbs,verbs:mlx5_0` names a NIC twice.

use std::fmt;
use std::num::NonZeroUsize;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::cuda::Cuda;
use super::nixl::Nixl;
use super::verbs::Verbs;
use super::{IoUring, Mlock};
use crate::register::{NotAvailable, Registrar};

/// The largest number of rings in one list. Each ring takes a descriptor and some hundred KiB of
/// kernel memory.
const MAX_RINGS: usize = 1024;

/// Registrars of one kind. [`Devices`] lists the names.
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
    fn overlaps(&self, other: &DeviceSpec) -> bool {
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

/// Registrars by name: at least one, none of them twice.
///
/// | text | registrars | their names |
/// |---|---|---|
/// | `io_uring`, `io_uring:8` | one ring; 8 rings | `io_uring:0`, `io_uring:1`, … |
/// | `mlock` | locked memory | `mlock` |
/// | `verbs`, `verbs:mlx5_0` | all NICs; this NIC | the NIC's name: `mlx5_0` |
/// | `cuda`, `cuda:0` | all GPUs; this GPU | `cuda:0`, … |
/// | `nixl`, `nixl:UCX` | a NIXL agent with UCX; with this backend | `nixl:UCX` |
///
/// ```
/// use kvmem::register::{DeviceSpec, Devices};
///
/// let devices: Devices = "io_uring:8,verbs:mlx5_0".parse()?;
/// assert_eq!(devices.specs()[1], DeviceSpec::Verbs(Some("mlx5_0".to_owned())));
/// assert_eq!(devices.to_string(), "io_uring:8,verbs:mlx5_0");
///
/// let error = "io_uring:0".parse::<Devices>().unwrap_err();
/// assert!(error.to_string().contains("a number of rings from 1 to 1024"), "{error}");
/// # Ok::<(), kvmem::register::DevicesError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Devices(Vec<DeviceSpec>);

impl Devices {
    /// Returns a list of these devices, in this order.
    ///
    /// # Errors
    /// [`DevicesError`] if there is no device, or one is named twice.
    pub fn new(specs: impl IntoIterator<Item = DeviceSpec>) -> Result<Devices, DevicesError> {
        let mut all: Vec<DeviceSpec> = Vec::new();
        for spec in specs {
            if let Some(before) = all.iter().find(|before| before.overlaps(&spec)) {
                return Err(DevicesError::Twice {
                    first: before.to_string(),
                    second: spec.to_string(),
                });
            }
            all.push(spec);
        }
        if all.is_empty() { Err(DevicesError::None) } else { Ok(Devices(all)) }
    }

    /// Returns the devices, in their order.
    #[must_use]
    pub fn specs(&self) -> &[DeviceSpec] {
        &self.0
    }

    /// Opens all devices, in their order. Each is closed when it is dropped.
    ///
    /// # Errors
    /// [`NotAvailable`] for the first device that cannot be opened, and what it needs. The others
    /// are closed.
    pub fn open(&self) -> Result<Vec<Arc<dyn Registrar>>, NotAvailable> {
        let opened: Result<Vec<_>, NotAvailable> = self.0.iter().map(DeviceSpec::open).collect();
        Ok(opened?.into_iter().flatten().collect())
    }
}

impl fmt::Display for Devices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = self.0.iter().map(DeviceSpec::to_string).collect();
        f.pad(&names.join(","))
    }
}

impl FromStr for Devices {
    type Err = DevicesError;

    fn from_str(text: &str) -> Result<Devices, DevicesError> {
        if text.trim().is_empty() {
            return Err(DevicesError::None);
        }
        let specs: Result<Vec<DeviceSpec>, DevicesError> =
            text.split(',').map(|spec| spec.trim().parse()).collect();
        Devices::new(specs?)
    }
}

impl TryFrom<String> for Devices {
    type Error = DevicesError;

    fn try_from(text: String) -> Result<Devices, DevicesError> {
        text.parse()
    }
}

impl From<Devices> for String {
    fn from(devices: Devices) -> String {
        devices.to_string()
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
        /// The word.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_as_they_are_shown() {
        for text in [
            "io_uring",
            "io_uring:8",
            "mlock",
            "verbs",
            "verbs:mlx5_0,verbs:mlx5_1",
            "cuda",
            "cuda:0,cuda:7",
            "nixl",
            "nixl:UCX,nixl:POSIX",
            "io_uring:1024,mlock,verbs,cuda,nixl",
        ] {
            let devices: Devices = text.parse().unwrap();
            assert_eq!(devices.to_string(), text);
            assert_eq!(Devices::new(devices.specs().to_vec()), Ok(devices.clone()));
            let json = serde_json::to_string(&devices).unwrap();
            assert_eq!(json, format!("\"{text}\""));
            assert_eq!(serde_json::from_str::<Devices>(&json).unwrap(), devices);
        }
        assert_eq!("io_uring:1".parse::<Devices>().unwrap().to_string(), "io_uring");
        assert_eq!(" mlock, cuda ".parse::<Devices>().unwrap().to_string(), "mlock,cuda");
        for spec in DeviceSpec::kinds() {
            assert_eq!(spec.kind().parse(), Ok(spec));
        }
    }

    #[test]
    fn an_invalid_name_is_reported_with_the_valid_ones() {
        for (text, expected) in [
            ("", "no device is named"),
            ("rdma", "\"rdma\" is not a device: say io_uring, io_uring:N, mlock"),
            ("mlock,", "\"\" is not a device"),
            ("io_uring:", "a number of rings from 1 to 1024"),
            ("io_uring:0", "a number of rings from 1 to 1024"),
            ("io_uring:1025", "a number of rings from 1 to 1024"),
            ("io_uring:-1", "a number of rings from 1 to 1024"),
            ("mlock:1", "after the colon, nothing"),
            ("verbs:", "the name of a NIC"),
            ("cuda:first", "the number of a GPU"),
            ("nixl:", "the name of a backend"),
        ] {
            let error = text.parse::<Devices>().unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn devices_are_opened_with_names_of_their_own() {
        match "io_uring:3,mlock".parse::<Devices>().unwrap().open() {
            Ok(opened) => {
                let names: Vec<_> = opened.iter().map(|registrar| registrar.name()).collect();
                assert_eq!(names, ["io_uring:0", "io_uring:1", "io_uring:2", "mlock"]);
            }
            Err(reason) => println!("skipped: {reason}"),
        }
        let reason = "mlock,verbs:no_such_nic".parse::<Devices>().unwrap().open().unwrap_err();
        assert!(["verbs", "mlock"].contains(&&*reason.backend), "{reason}");
    }

    #[test]
    fn nothing_is_named_twice() {
        for (text, expected) in [
            ("io_uring:2,io_uring", "io_uring selects a device that io_uring:2 selects already"),
            ("mlock,mlock", "mlock selects a device that mlock selects already"),
            ("verbs,mlock,verbs:mlx5_0", "verbs:mlx5_0 selects a device that verbs selects"),
            ("verbs:a,verbs:a", "verbs:a selects"),
            ("cuda:1,cuda", "cuda selects a device that cuda:1 selects already"),
            ("nixl,nixl:UCX", "nixl:UCX selects a device that nixl selects already"),
            ("nixl:POSIX,nixl:POSIX", "nixl:POSIX selects"),
        ] {
            let error = text.parse::<Devices>().unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
        assert!("nixl,nixl:POSIX".parse::<Devices>().is_ok(), "another backend");
        assert!("verbs:a,verbs:b,cuda:0,cuda:1".parse::<Devices>().is_ok());
    }
}
