//! *Policy*: in which way registrars are called, and where a user has said so.
//!
//! | variable | alias | meaning |
//! |---|---|---|
//! | `KVMEM_PARALLEL_REGISTER` | `MC_ENABLE_PARALLEL_REG_MR` | `-1`: automatic, `0`: sequential, `1`: parallel |
//! | | `MC_DISABLE_PARALLEL_REG_MR` | `1`: sequential, whatever the alias above says; `0` says nothing |
//!
//! The first that is set and not blank counts, from the left and from above; but
//! `MC_DISABLE_PARALLEL_REG_MR` comes before its sister, as it did where both come from. A value
//! that cannot be understood is an error and not a default.

use std::ffi::OsString;
use std::fmt;
use std::num::NonZeroUsize;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

const OWN: &str = "KVMEM_PARALLEL_REGISTER";
const ENABLE: &str = "MC_ENABLE_PARALLEL_REG_MR";
const DISABLE: &str = "MC_DISABLE_PARALLEL_REG_MR";

/// In which way registrars are called.
///
/// Neither of the fixed ways is always right. Published measurements of the same change show
/// registering in parallel 4.2 times as fast on one machine, 2.7 times slower on another, and 5.3
/// times slower where the memory had not been touched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    /// One call after another. Memory that is not resident becomes so in the first call that needs
    /// it, which is the slowest way there is.
    Sequential,
    /// So many registrars side by side, though no more than there are. Memory that is not resident
    /// is populated first: untouched memory is never registered by several at once.
    Parallel(NonZeroUsize),
    /// Memory that is not resident is populated first. Then slices are registered both ways, and
    /// the rest in the way that was faster.
    #[default]
    Auto,
}

impl Policy {
    /// So many registrars side by side; one after another if that is 0.
    #[must_use]
    pub fn parallel(threads: usize) -> Policy {
        NonZeroUsize::new(threads).map_or(Policy::Sequential, Policy::Parallel)
    }

    /// All registrars side by side.
    #[must_use]
    pub fn all_at_once() -> Policy {
        Policy::Parallel(NonZeroUsize::MAX)
    }

    /// What the environment says; `None` if it says nothing.
    ///
    /// # Errors
    /// [`PolicyError`] names the variable, its value and what may stand there.
    pub fn from_env() -> Result<Option<Policy>, PolicyError> {
        Policy::from_lookup(|name| std::env::var_os(name))
    }

    /// What these variables say: as [`from_env`](Policy::from_env), but from anywhere.
    ///
    /// ```
    /// use kvmem::register::Policy;
    ///
    /// let variable = |name: &str| (name == "MC_ENABLE_PARALLEL_REG_MR").then(|| "-1".into());
    /// assert_eq!(Policy::from_lookup(variable), Ok(Some(Policy::Auto)));
    ///
    /// let variable = |name: &str| (name == "KVMEM_PARALLEL_REGISTER").then(|| "yes".into());
    /// let error = Policy::from_lookup(variable).unwrap_err();
    /// assert!(error.to_string().starts_with(r#"KVMEM_PARALLEL_REGISTER="yes""#), "{error}");
    /// ```
    ///
    /// # Errors
    /// As [`from_env`](Policy::from_env).
    pub fn from_lookup(
        variable: impl Fn(&str) -> Option<OsString>,
    ) -> Result<Option<Policy>, PolicyError> {
        let value = |name: &'static str| {
            let value = variable(name)?.to_string_lossy().trim().to_owned();
            (!value.is_empty()).then_some(value)
        };
        if let Some(text) = value(OWN) {
            return three_way(OWN, text).map(Some);
        }
        match value(DISABLE) {
            Some(text) if text == "1" => return Ok(Some(Policy::Sequential)),
            Some(text) if text != "0" => {
                return Err(PolicyError { variable: DISABLE, value: text, allowed: "0 or 1" });
            }
            _ => {}
        }
        value(ENABLE).map(|text| three_way(ENABLE, text)).transpose()
    }
}

fn three_way(variable: &'static str, value: String) -> Result<Policy, PolicyError> {
    match value.as_str() {
        "-1" => Ok(Policy::Auto),
        "0" => Ok(Policy::Sequential),
        "1" => Ok(Policy::all_at_once()),
        _ => Err(PolicyError {
            variable,
            value,
            allowed: "-1 (automatic), 0 (sequential) or 1 (parallel)",
        }),
    }
}

/// A variable that cannot be understood.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{variable}={value:?} says nothing about how to register: give {allowed}, or unset it")]
pub struct PolicyError {
    /// The variable, by the name that was set.
    pub variable: &'static str,
    /// Its value. What is not Unicode is replaced by U+FFFD.
    pub value: String,
    /// What may stand there.
    pub allowed: &'static str,
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Policy::Sequential => f.pad("sequential"),
            Policy::Parallel(NonZeroUsize::MAX) => f.pad("parallel"),
            Policy::Parallel(threads) => write!(f, "parallel:{threads}"),
            Policy::Auto => f.pad("auto"),
        }
    }
}

impl FromStr for Policy {
    type Err = String;

    /// `sequential`, `parallel`, `parallel:N` or `auto`.
    fn from_str(text: &str) -> Result<Policy, String> {
        match text.split_once(':') {
            None if text == "sequential" => Ok(Policy::Sequential),
            None if text == "parallel" => Ok(Policy::all_at_once()),
            None if text == "auto" => Ok(Policy::Auto),
            Some(("parallel", threads)) => threads.parse().map(Policy::Parallel).map_err(|_| {
                format!("`{threads}` is no number of registrars: say parallel:4, or parallel")
            }),
            _ => {
                Err(format!("`{text}` is no policy: say sequential, parallel, parallel:N or auto"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names and values.
    type Variables = &'static [(&'static str, &'static str)];

    fn read(variables: &[(&str, &str)]) -> Result<Option<Policy>, PolicyError> {
        Policy::from_lookup(|name| {
            variables.iter().find(|(set, _)| *set == name).map(|(_, value)| OsString::from(value))
        })
    }

    #[test]
    fn variables_say_what_they_said_where_they_come_from() {
        let cases: [(Variables, Option<Policy>); 11] = [
            (&[], None),
            (&[(OWN, " ")], None),
            (&[(OWN, "-1")], Some(Policy::Auto)),
            (&[(OWN, "0"), (ENABLE, "1")], Some(Policy::Sequential)),
            (&[(OWN, "1"), (DISABLE, "1")], Some(Policy::all_at_once())),
            (&[(ENABLE, "-1")], Some(Policy::Auto)),
            (&[(ENABLE, " 0 ")], Some(Policy::Sequential)),
            (&[(ENABLE, "1")], Some(Policy::all_at_once())),
            (&[(ENABLE, "1"), (DISABLE, "1")], Some(Policy::Sequential)),
            (&[(ENABLE, "1"), (DISABLE, "0")], Some(Policy::all_at_once())),
            (&[(DISABLE, "0")], None),
        ];
        for (variables, policy) in cases {
            assert_eq!(read(variables), Ok(policy), "{variables:?}");
        }
    }

    #[test]
    fn a_mistake_is_named() {
        for (variable, value) in
            [(OWN, "2"), (OWN, "auto"), (ENABLE, "true"), (DISABLE, "-1"), (DISABLE, "yes")]
        {
            let error = read(&[(variable, value)]).unwrap_err();
            assert_eq!((error.variable, error.value.as_str()), (variable, value));
            assert!(error.to_string().starts_with(&format!("{variable}={value:?}")), "{error}");
        }
    }

    #[test]
    fn policies_are_read_as_they_are_shown() {
        for policy in [Policy::Sequential, Policy::all_at_once(), Policy::parallel(3), Policy::Auto]
        {
            assert_eq!(policy.to_string().parse(), Ok(policy));
        }
        assert_eq!(Policy::parallel(0), Policy::Sequential);
        for wrong in ["", "both", "parallel:", "parallel:0", "parallel:many", "auto:2"] {
            assert!(wrong.parse::<Policy>().is_err(), "{wrong}");
        }
    }
}
