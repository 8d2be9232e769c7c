//! *Found*: which registrars there are on this machine, with their limits, and why the others are
//! not there.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{DeviceSpec, Limits, NotAvailable};
use crate::arena::Size;

/// The registrars of one kind, or one that is not available.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DetectedDevice {
    /// The kind: `io_uring`, `mlock`, `verbs`, `cuda` or `nixl`.
    pub backend: String,
    /// What there is.
    #[serde(flatten)]
    pub state: Availability,
}

/// What there is of a kind of registrar.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Availability {
    /// These. Of rings, of which there can be many, one stands for all.
    Devices(Vec<Limits>),
    /// None of this kind, or one that the reason names.
    NotAvailable(NotAvailable),
}

impl DetectedDevice {
    /// The registrars of this kind with their limits; none if it is not available.
    #[must_use]
    pub fn devices(&self) -> &[Limits] {
        match &self.state {
            Availability::Devices(devices) => devices,
            Availability::NotAvailable(_) => &[],
        }
    }
}

/// Looks for registrars of every kind, in the order of [`DeviceSpec::kinds`]; each kind is there or
/// says why not. Opens each device, asks for its limits, and closes it again; registers nothing.
/// Takes some milliseconds, on a machine with GPUs up to a second for each, and another second
/// where NIXL is installed.
#[must_use]
pub fn discover() -> Vec<DetectedDevice> {
    DeviceSpec::kinds().iter().flat_map(found).collect()
}

/// The devices of a kind that can be opened, and for each that cannot the reason why.
fn found(kind: &DeviceSpec) -> Vec<DetectedDevice> {
    let mut devices = Vec::new();
    let mut refused = Vec::new();
    match kind.each() {
        Err(reason) => refused.push(reason),
        Ok(each) => {
            for device in each {
                match device.open() {
                    Ok(opened) => devices.extend(opened.iter().map(|registrar| registrar.limits())),
                    Err(reason) => refused.push(reason),
                }
            }
        }
    }
    let there = (!devices.is_empty()).then_some(Availability::Devices(devices));
    let states = there.into_iter().chain(refused.into_iter().map(Availability::NotAvailable));
    states.map(|state| DetectedDevice { backend: kind.kind().to_owned(), state }).collect()
}

/// A line for each device, or one that says why there is none.
impl fmt::Display for DetectedDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.state {
            Availability::NotAvailable(reason) => write!(f, "{reason}"),
            Availability::Devices(devices) => {
                for (at, limits) in devices.iter().enumerate() {
                    let end = if at == 0 { "" } else { "\n" };
                    write!(f, "{end}{}", Line(limits))?;
                }
                Ok(())
            }
        }
    }
}

/// The limits of one registrar in a line.
struct Line<'a>(&'a Limits);

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let limits = self.0;
        write!(f, "{}: ", limits.device)?;
        match limits.max_bytes {
            u64::MAX => f.write_str("a key for any number of bytes")?,
            bytes => write!(f, "up to {} a key", Size(bytes))?,
        }
        match limits.max_keys {
            u64::MAX => f.write_str(", any number of keys")?,
            keys => write!(f, ", {keys} keys")?,
        }
        if let Some(bytes) = limits.preferred_chunk_bytes {
            write!(f, ", quickest with {} a key", Size(bytes))?;
        }
        match &limits.memlock {
            None => f.write_str(", memlock does not hold"),
            Some(memlock) => write!(
                f,
                ", memlock {} with {} {}",
                Size(memlock.limit_bytes),
                Size(memlock.used_bytes),
                memlock.account
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::register::{Account, Memlock};

    #[test]
    fn limits_are_told_in_a_line() {
        let ring = Limits {
            device: "io_uring:0".to_owned(),
            max_bytes: 1 << 30,
            max_keys: 16_384,
            preferred_chunk_bytes: Some(1 << 21),
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
            "io_uring:0: up to 1 GiB a key, 16384 keys, quickest with 2 MiB a key, memlock 8 MiB with 4 KiB pinned by rings \
             of this user\nfree: a key for any number of bytes, any number of keys, memlock does not hold"
        );
        let json = serde_json::to_value(&found).unwrap();
        assert_eq!(
            (&json["backend"], &json["devices"][1]["device"]),
            (&"io_uring".into(), &"free".into())
        );
        assert_eq!(serde_json::from_value::<DetectedDevice>(json).unwrap(), found);
    }

    #[test]
    fn absence_is_told_with_its_reason() {
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
    fn every_kind_is_there_or_says_why_not() {
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
