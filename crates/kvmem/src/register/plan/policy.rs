//! *Policy*: how registrars are called, and the environment variables that set it.
//!
//! | variable | alias | meaning |
//! |---|---|---|
//! | `KVMEM_PARALLEL_REGISTER` | `MC_ENABLE_PARALLEL_REG_MR` | `-1`: automatic, `0`: sequential, `1`: parallel |
//! | | `MC_DISABLE_PARALLEL_REG_MR` | `1`: sequential, even if `MC_ENABLE_PARALLEL_REG_MR` is set; `0`: no effect |
//!
//! The first variable that is set and not blank counts: first `KVMEM_PARALLEL_REGISTER`, then
//! `MC_DISABLE_PARALLEL_REG_MR`, then `MC_ENABLE_PARALLEL_REG_MR`. The order of the last two is
//! that of the engine that defined them. An invalid value is an error, not a default.

use crate::arena::Populate;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fmt;
use std::num::NonZeroUsize;
use std::str::FromStr;
use thiserror::Error;

const OWN: &str = "KVMEM_PARALLEL_REGISTER";
const ENABLE: &str = "MC_ENABLE_PARALLEL_REG_MR";
const DISABLE: &str = "MC_DISABLE_PARALLEL_REG_MR";

/// How registrars are called.
///
/// Neither fixed choice is always right. Published measurements of the same change show
/// registering in parallel 4.2 times as fast on one machine, 2.7 times slower on another, and 5.3
/// times slower on untouched memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    /// One call after another. Missing pages are faulted in by the first call that needs them,
    /// which is the slowest way of populating.
    Sequential,
    /// This number of registrars concurrently, at most one thread for each. Missing pages are
    /// populated first: untouched memory is never registered by several registrars at once.
    Parallel(NonZeroUsize),
    /// Missing pages are populated first. Then the first chunks, or slices, are registered in both
    /// ways, and the rest in the faster way.
    #[default]
    Auto,
}

impl Policy {
    /// Calls `threads` registrars concurrently; 0 means one call after another.
    #[must_use]
    pub fn parallel(threads: usize) -> Policy {
        NonZeroUsize::new(threads).map_or(Policy::Sequential, Policy::Parallel)
    }

    /// Calls all registrars concurrently.
    #[must_use]
    pub fn all_at_once() -> Policy {
        Policy::Parallel(NonZeroUsize::MAX)
    }

    /// Returns the policy that the environment sets; `None` if it sets none.
    ///
    /// # Errors
    /// [`PolicyError`] names the variable, its value and the valid values.
    pub fn from_env() -> Result<Option<Policy>, PolicyError> {
        Policy::from_lookup(|name| std::env::var_os(name))
    }

    /// Returns the policy that variables from any source set, by the rules of
    /// [`from_env`](Policy::from_env).
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
    /// [`PolicyError`] names the variable, its value and the valid values.
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

/// An environment variable with an invalid policy.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{variable}={value:?} is not a registration policy: set {allowed}, or unset it")]
pub struct PolicyError {
    /// The name of the variable.
    pub variable: &'static str,
    /// Its value; bytes that are not Unicode are replaced by U+FFFD.
    pub value: String,
    /// The valid values.
    pub allowed: &'static str,
}

/// A text that is not a policy.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ParsePolicyError {
    /// The text is none of the policies.
    #[error("{text:?} is not a policy: use sequential, parallel, parallel:N or auto")]
    Unknown {
        /// The text.
        text: String,
    },
    /// The part after `parallel:` is not a number of registrars.
    #[error("{text:?} is not a number of registrars from 1: use parallel:4, or parallel for all")]
    Threads {
        /// The part after the colon.
        text: String,
    },
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
    type Err = ParsePolicyError;

    /// Parses `sequential`, `parallel`, `parallel:N` or `auto`.
    fn from_str(text: &str) -> Result<Policy, ParsePolicyError> {
        match text.split_once(':') {
            None if text == "sequential" => Ok(Policy::Sequential),
            None if text == "parallel" => Ok(Policy::all_at_once()),
            None if text == "auto" => Ok(Policy::Auto),
            Some(("parallel", threads)) => threads
                .parse()
                .map(Policy::Parallel)
                .map_err(|_| ParsePolicyError::Threads { text: threads.to_owned() }),
            _ => Err(ParsePolicyError::Unknown { text: text.to_owned() }),
        }
    }
}

/// The user's options for a plan, and the machine's cores.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanOptions {
    /// How registrars are called.
    pub policy: Policy,
    /// The number of threads that can run at once.
    pub cores: usize,
    /// How missing pages are populated; with [`Populate::None`] the first registrar, called alone,
    /// faults them in.
    pub populate: Populate,
    /// The largest chunk in bytes; `None`: the registrars' preferred length, and the whole region
    /// for registrars that [copy by address](crate::register::Limits::copies_by_address).
    pub chunk_bytes: Option<u64>,
    /// Whether each range is populated and registered before the next one, in order of addresses.
    pub by_range: bool,
}

impl PlanOptions {
    /// Returns options with this policy and number of cores, and defaults for the rest.
    #[must_use]
    pub fn new(policy: Policy, cores: usize) -> PlanOptions {
        PlanOptions { policy, cores, populate: Populate::Auto, chunk_bytes: None, by_range: false }
    }
}

#[cfg(all(test, not(loom)))]
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
    fn variables_mean_what_they_mean_in_their_engine() {
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
    fn an_invalid_value_is_named() {
        for (variable, value) in
            [(OWN, "2"), (OWN, "auto"), (ENABLE, "true"), (DISABLE, "-1"), (DISABLE, "yes")]
        {
            let error = read(&[(variable, value)]).unwrap_err();
            assert_eq!((error.variable, error.value.as_str()), (variable, value));
            assert!(error.to_string().starts_with(&format!("{variable}={value:?}")), "{error}");
        }
    }

    #[test]
    fn policies_parse_as_they_are_shown() {
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
