//! *Arena settings*: whether a process has a process-wide arena, and its size.
//!
//! | variable | alias | meaning |
//! |---|---|---|
//! | `KVMEM_ARENA_POOL_SIZE` | `MC_MMAP_ARENA_POOL_SIZE` | [size](crate::arena::ByteSize) of the
//! arena, such as `8GiB`; setting it turns the arena on |
//! | `KVMEM_DISABLE_ARENA` | `MC_DISABLE_MMAP_ARENA` | `1`, `true`, `yes` or `on` turns it off
//! whatever the size; `0`, `false`, `no` or `off` does not |
//!
//! In Mooncake's variable all units are powers of 1024, as in Mooncake itself: `8gb` is 8 GiB. In
//! kvmem's own variable `8GB` is 8,000,000,000 bytes.
//!
//! The first name that is set and not blank counts; its alias is then ignored. A wrong value is an
//! error and does not select a default, because a pool of an unexpected size would be noticed only
//! when memory is short. If the arena is turned off, its size is not read.

use std::ffi::OsString;

use thiserror::Error;

use crate::arena::byte_size::{self, SizeFault, Units};

const POOL_SIZE: [&str; 2] = ["KVMEM_ARENA_POOL_SIZE", "MC_MMAP_ARENA_POOL_SIZE"];
const DISABLE: [&str; 2] = ["KVMEM_DISABLE_ARENA", "MC_DISABLE_MMAP_ARENA"];

/// The settings of a process-wide arena.
///
/// ```
/// use kvmem::arena::ArenaSettings;
///
/// let variable = |name: &str| (name == "MC_MMAP_ARENA_POOL_SIZE").then(|| "8gb".into());
/// assert_eq!(ArenaSettings::from_lookup(variable), Ok(ArenaSettings::pool(8 << 30)));
///
/// // Neither variable is set.
/// assert_eq!(ArenaSettings::from_lookup(|_| None), Ok(ArenaSettings::off()));
///
/// // An error names the variable and its value.
/// let variable = |name: &str| (name == "KVMEM_ARENA_POOL_SIZE").then(|| "8 gigs".into());
/// let error = ArenaSettings::from_lookup(variable).unwrap_err();
/// let begin = r#"KVMEM_ARENA_POOL_SIZE="8 gigs" is not a size"#;
/// assert!(error.to_string().starts_with(begin), "{error}");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArenaSettings {
    /// The size of the arena in bytes; `None` if no variable sets it, or the arena is turned off.
    pub pool_bytes: Option<usize>,
}

/// A setting with a wrong value.
///
/// ```
/// use kvmem::arena::{ArenaSettings, SettingError};
///
/// let variable = |name: &str| (name == "KVMEM_DISABLE_ARENA").then(|| "maybe".into());
/// let error = ArenaSettings::from_lookup(variable).unwrap_err();
/// let (variable, value) = ("KVMEM_DISABLE_ARENA", "maybe".to_owned());
/// assert_eq!(error, SettingError::Switch { variable, value });
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SettingError {
    /// The value is not a size.
    #[error(
        "{variable}={value:?} is not a size: {fault}; give a number of bytes, or one with K, M, G \
         or T, such as 8GiB, or unset it"
    )]
    Size {
        /// The name that was set.
        variable: &'static str,
        /// Its value. Bytes that are not Unicode are replaced by U+FFFD.
        value: String,
        /// The reason.
        fault: SizeFault,
    },
    /// The value is neither on nor off.
    #[error(
        "{variable}={value:?} is neither on nor off: use 1, true, yes or on, or 0, false, no or \
         off, or unset it"
    )]
    Switch {
        /// The name that was set.
        variable: &'static str,
        /// Its value. Bytes that are not Unicode are replaced by U+FFFD.
        value: String,
    },
}

impl ArenaSettings {
    /// Returns the settings without an arena: every request gets a mapping of its own.
    #[must_use]
    pub fn off() -> Self {
        ArenaSettings { pool_bytes: None }
    }

    /// Returns the settings of an arena of this size. Making an arena of 0 bytes fails.
    #[must_use]
    pub fn pool(bytes: usize) -> Self {
        ArenaSettings { pool_bytes: Some(bytes) }
    }

    /// Reads the settings from the environment.
    ///
    /// # Errors
    ///
    /// [`SettingError`] names the variable, its value and the accepted values.
    pub fn from_env() -> Result<Self, SettingError> {
        Self::from_lookup(|name| std::env::var_os(name))
    }

    /// Reads the settings from `variable`, which returns the value of a name.
    ///
    /// # Errors
    ///
    /// [`SettingError`] names the variable, its value and the accepted values.
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
