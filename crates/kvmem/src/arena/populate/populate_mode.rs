//! *Populate mode*: not at all, with a number of threads, or with a measured number; and the
//! result.

use std::fmt;
use std::num::NonZeroUsize;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Whether `map` makes pages resident, and with how many threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Populate {
    /// Pages become resident when they are first touched.
    #[default]
    None,
    /// With this number of threads, but at most one per core that the process may use.
    Threads(NonZeroUsize),
    /// With the number of threads that is fastest, measured while the work goes on.
    Auto,
}

impl Populate {
    /// Returns [`Threads`](Populate::Threads), or [`None`](Populate::None) for 0 threads.
    #[must_use]
    pub fn threads(threads: usize) -> Populate {
        NonZeroUsize::new(threads).map_or(Populate::None, Populate::Threads)
    }
}

impl fmt::Display for Populate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Populate::None => f.pad("none"),
            Populate::Threads(threads) => fmt::Display::fmt(threads, f),
            Populate::Auto => f.pad("auto"),
        }
    }
}

impl FromStr for Populate {
    type Err = ParsePopulateError;

    /// Parses `none`, `auto`, or a number of threads.
    fn from_str(text: &str) -> Result<Populate, ParsePopulateError> {
        match text {
            "none" => Ok(Populate::None),
            "auto" => Ok(Populate::Auto),
            number => {
                let threads = number.parse().map(Populate::Threads);
                threads.map_err(|_| ParsePopulateError { text: text.to_owned() })
            }
        }
    }
}

/// A text that does not say how to populate.
///
/// ```
/// use kvmem::arena::Populate;
///
/// assert_eq!("0".parse::<Populate>().unwrap_err().text, "0");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{text}` is not a way to populate: use none, auto, or a number of threads from 1")]
pub struct ParsePopulateError {
    /// The text.
    pub text: String,
}

/// The result of populating.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Populated {
    /// Bytes that are resident now, including those that were resident before.
    pub bytes: u64,
    /// The time in seconds.
    pub seconds: f64,
    /// The number of threads that did most of the work.
    pub threads: usize,
}

impl Populated {
    /// Returns the speed in GiB/s.
    #[must_use]
    pub fn gib_per_s(&self) -> f64 {
        if self.seconds > 0.0 {
            self.bytes as f64 / (1u64 << 30) as f64 / self.seconds
        } else {
            0.0
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn populate_parses_what_it_displays() {
        for how in [Populate::None, Populate::Auto, Populate::threads(3)] {
            assert_eq!(how.to_string().parse(), Ok(how));
        }
        assert_eq!(Populate::threads(0), Populate::None);
        assert!("0".parse::<Populate>().is_err());
    }
}
