//! *Arena settings*: whether a process shares an arena, and of what size.
//!
//! | variable | alias | meaning |
//! |---|---|---|
//! | `KVMEM_ARENA_POOL_SIZE` | `MC_MMAP_ARENA_POOL_SIZE` | [size](super::ByteSize) of the arena, such as `8GiB`; setting it turns the arena on |
//! | `KVMEM_DISABLE_ARENA` | `MC_DISABLE_MMAP_ARENA` | `1`, `true`, `yes` or `on` turns it off whatever its size says; `0`, `false`, `no` or `off` does not |
//!
//! In Mooncake's variable all units are powers of 1024, as there: `8gb` is 8 GiB. In kvmem's own
//! `8GB` is 8,000,000,000 bytes.
//!
//! The first name that is set and not blank counts; its alias is then not read. A value that cannot
//! be understood is an error and not a default: a pool of another size than asked for would be
//! found out only when memory is short. If the arena is turned off, its size is not read.

use std::ffi::OsString;

use thiserror::Error;

use super::byte_size::{self, SizeFault, Units};

const POOL_SIZE: [&str; 2] = ["KVMEM_ARENA_POOL_SIZE", "MC_MMAP_ARENA_POOL_SIZE"];
const DISABLE: [&str; 2] = ["KVMEM_DISABLE_ARENA", "MC_DISABLE_MMAP_ARENA"];

/// What a process-wide arena is to be.
///
/// ```
/// use kvmem::arena::ArenaSettings;
///
/// let variable = |name: &str| (name == "MC_MMAP_ARENA_POOL_SIZE").then(|| "8gb".into());
/// assert_eq!(ArenaSettings::from_lookup(variable), Ok(ArenaSettings::pool(8 << 30)));
///
/// // Nobody requested for one.
/// assert_eq!(ArenaSettings::from_lookup(|_| None), Ok(ArenaSettings::off()));
///
/// // A mistake is told, with its place.
/// let variable = |name: &str| (name == "KVMEM_ARENA_POOL_SIZE").then(|| "8 gigs".into());
/// let error = ArenaSettings::from_lookup(variable).unwrap_err();
/// assert!(error.to_string().starts_with(r#"KVMEM_ARENA_POOL_SIZE="8 gigs" is no size"#), "{error}");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArenaSettings {
    /// Size of the arena in bytes; `None` if nobody asked for one, or it was turned off.
    pub pool_bytes: Option<usize>,
}

/// A setting that cannot be understood.
///
/// ```
/// use kvmem::arena::{ArenaSettings, SettingError};
///
/// let variable = |name: &str| (name == "KVMEM_DISABLE_ARENA").then(|| "maybe".into());
/// let error = ArenaSettings::from_lookup(variable).unwrap_err();
/// assert_eq!(error, SettingError::Switch { variable: "KVMEM_DISABLE_ARENA", value: "maybe".to_owned() });
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SettingError {
    /// A size is none.
    #[error(
        "{variable}={value:?} is no size: {fault}; give a number of bytes, or one with K, M, G or T, such as 8GiB, or unset it"
    )]
    Size {
        /// The variable, by the name that was set.
        variable: &'static str,
        /// Its value. What is not Unicode is replaced by U+FFFD.
        value: String,
        /// What is wrong with it.
        fault: SizeFault,
    },
    /// A switch is neither on nor off.
    #[error(
        "{variable}={value:?} is neither on nor off: give 1, true, yes or on, or 0, false, no or off, or unset it"
    )]
    Switch {
        /// The variable, by the name that was set.
        variable: &'static str,
        /// Its value. What is not Unicode is replaced by U+FFFD.
        value: String,
    },
}

impl ArenaSettings {
    /// No arena: every request gets a mapping of its own.
    pub fn off() -> Self {
        ArenaSettings { pool_bytes: None }
    }

    /// An arena of this size. Of no bytes it cannot be made.
    pub fn pool(bytes: usize) -> Self {
        ArenaSettings { pool_bytes: Some(bytes) }
    }

    /// What the environment says.
    ///
    /// # Errors
    ///
    /// [`SettingError`] names the variable, its value and what may stand there.
    pub fn from_env() -> Result<Self, SettingError> {
        Self::from_lookup(|name| std::env::var_os(name))
    }

    /// What these variables say: as [`from_env`](Self::from_env), but from anywhere.
    ///
    /// # Errors
    ///
    /// As [`from_env`](Self::from_env).
    pub fn from_lookup(variable: impl Fn(&str) -> Option<OsString>) -> Result<Self, SettingError> {
        let first = |names: [&'static str; 2]| {
            names.into_iter().find_map(|name| {
                let value = variable(name)?.to_string_lossy().trim().to_owned();
                (!value.is_empty()).then_some((name, value))
            })
        };
        if let Some((variable, value)) = first(DISABLE)
            && switch(&value).ok_or(SettingError::Switch { variable, value })?
        {
            return Ok(Self::off());
        }
        let Some((variable, value)) = first(POOL_SIZE) else {
            return Ok(Self::off());
        };
        let units = if variable == POOL_SIZE[0] { Units::Standard } else { Units::PowersOf1024 };
        match byte_size::parse(&value, units) {
            Ok(bytes) => Ok(Self::pool(bytes)),
            Err(fault) => Err(SettingError::Size { variable, value, fault }),
        }
    }
}

fn switch(value: &str) -> Option<bool> {
    match value.to_ascii_lowercase().as_str() {
        "1" | "true" | "yes" | "on" => Some(true),
        "0" | "false" | "no" | "off" => Some(false),
        _ => None,
    }
}
