//! *Devices error*: a text that names no valid list of registrars.

use thiserror::Error;

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
