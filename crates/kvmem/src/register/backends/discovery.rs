//! *Discovery*: the registrars of this machine, with their limits, and why others are missing.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::DeviceSpec;
use crate::arena::HumanBytes;
use crate::register::{Limits, NotAvailable};

/// The registrars of one kind, or why one is not available.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DetectedDevice {
    /// The kind: `io_uring`, `mlock`, `verbs`, `cuda` or `nixl`.
    pub backend: String,
    /// Whether the kind is available.
    #[serde(flatten)]
    pub state: Availability,
}

/// The availability of one kind of registrar.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Availability {
    /// The available registrars. There can be many rings; one stands for all.
    Devices(Vec<Limits>),
    /// None of this kind is available, or the one that the reason names is not.
    NotAvailable(NotAvailable),
}

impl DetectedDevice {
    /// Returns the registrars of this kind with their limits; none if it is not available.
    #[must_use]
    pub fn devices(&self) -> &[Limits] {
        match &self.state {
            Availability::Devices(devices) => devices,
            Availability::NotAvailable(_) => &[],
        }
    }
}

/// Detects registrars of every kind, in the order of [`DeviceSpec::kinds`]; a kind without
/// registrars says why. Opens each device, queries its limits, and closes it again; registers
/// nothing. Takes some milliseconds; with GPUs up to a second for each, and another second if NIXL
/// is installed.
#[must_use]
pub fn discover() -> Vec<DetectedDevice> {
    DeviceSpec::kinds().iter().flat_map(detect).collect()
}

/// Returns the devices of a kind that can be opened, and the reason for each that cannot.
fn detect(kind: &DeviceSpec) -> Vec<DetectedDevice> {
    let mut devices = Vec::new();
    let mut missing = Vec::new();
    match kind.each() {
        Err(reason) => missing.push(reason),
        Ok(each) => {
            for device in each {
                match device.open() {
                    Ok(opened) => devices.extend(opened.iter().map(|registrar| registrar.limits())),
                    Err(reason) => missing.push(reason),
                }
            }
        }
    }
    let available = (!devices.is_empty()).then_some(Availability::Devices(devices));
    let states = available.into_iter().chain(missing.into_iter().map(Availability::NotAvailable));
    states.map(|state| DetectedDevice { backend: kind.kind().to_owned(), state }).collect()
}

/// Writes a line for each device, or one that says why there is none.
impl fmt::Display for DetectedDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.state {
            Availability::NotAvailable(reason) => write!(f, "{reason}"),
            Availability::Devices(devices) => {
                for (index, limits) in devices.iter().enumerate() {
                    let separator = if index == 0 { "" } else { "\n" };
                    write!(f, "{separator}{}", LimitsLine(limits))?;
                }
                Ok(())
            }
        }
    }
}

/// Writes the limits of one registrar in a line.
struct LimitsLine<'a>(&'a Limits);

impl fmt::Display for LimitsLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let limits = self.0;
        write!(f, "{}: ", limits.device)?;
        match limits.max_bytes {
            u64::MAX => f.write_str("any number of bytes a key")?,
            bytes => write!(f, "up to {} a key", HumanBytes(bytes))?,
        }
        match limits.max_keys {
            u64::MAX => f.write_str(", any number of keys")?,
            keys => write!(f, ", {keys} keys")?,
        }
        if let Some(bytes) = limits.preferred_chunk_bytes {
            write!(f, ", preferably {} a key", HumanBytes(bytes))?;
        }
        match &limits.memlock {
            None => f.write_str(", no memlock limit"),
            Some(memlock) => write!(
                f,
                ", memlock {} with {} {}",
                HumanBytes(memlock.limit_bytes),
                HumanBytes(memlock.used_bytes),
                memlock.account
            ),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::register::{Account, Memlock};

    #[test]
    fn limits_are_shown_in_a_line() {
        let ring = Limits {
            device: "io_uring:0".to_owned(),
            max_bytes: 1 << 30,
            max_keys: 16_384,
            preferred_chunk_bytes: Some(1 << 21),
            copies_by_address: false,
            memlock: Some(Memlock {
                account: Account::Rings,
                limit_bytes: 8 << 20,
                used_bytes: 4096,
            }),
        };
        let found = DetectedDevice {
            backend: "io_uring".to_owned(),
            state: Availability::Devices(vec![ring, Limits::none("free")]),
        };
        assert_eq!(
            found.to_string(),
            "io_uring:0: up to 1 GiB a key, 16384 keys, preferably 2 MiB a key, memlock 8 MiB \
             with 4 KiB pinned by rings of this user\nfree: any number of bytes a key, any number \
             of keys, no memlock limit"
        );
        let json = serde_json::to_value(&found).unwrap();
        assert_eq!(
            (&json["backend"], &json["devices"][1]["device"]),
            (&"io_uring".into(), &"free".into())
        );
        assert_eq!(serde_json::from_value::<DetectedDevice>(json).unwrap(), found);
    }

    #[test]
    fn absence_is_shown_with_its_reason() {
        let reason = NotAvailable::new("verbs", "libibverbs.so.1 is not there", "install it");
        let found = DetectedDevice {
            backend: "verbs".to_owned(),
            state: Availability::NotAvailable(reason.clone()),
        };
        assert_eq!(
            found.to_string(),
            "verbs is not available: libibverbs.so.1 is not there; install it"
        );
        assert!(found.devices().is_empty());
        let json = serde_json::to_value(&found).unwrap();
        assert_eq!(json["not_available"]["reason"], "libibverbs.so.1 is not there");
        assert_eq!(serde_json::from_value::<DetectedDevice>(json).unwrap(), found);
    }

    #[test]
    fn every_kind_is_available_or_says_why_not() {
        let found = discover();
        let mut kinds: Vec<_> = found.iter().map(|found| found.backend.as_str()).collect();
        kinds.dedup();
        assert_eq!(kinds, ["io_uring", "mlock", "verbs", "cuda", "nixl"]);
        for found in &found {
            match &found.state {
                Availability::Devices(devices) => {
                    assert!(!devices.is_empty(), "{found}");
                    assert!(
                        devices.iter().all(|limits| limits.max_bytes > 0 && limits.max_keys > 0),
                        "{found}"
                    );
                }
                Availability::NotAvailable(reason) => assert_eq!(reason.backend, found.backend),
            }
        }
    }
}
