//! *Devices*: registrars named by text, such as `io_uring:8,mlock`.
//!
//! A list is separated by commas. Keys are looked up by a registrar's name: two registrars cannot
//! have the same name, and no device may be named twice. `verbs,verbs:mlx5_0` names a NIC twice.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::device_spec::DeviceSpec;
use super::device_spec::DevicesError;
use crate::register::{NotAvailable, Registrar};

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

#[cfg(all(test, not(loom)))]
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
