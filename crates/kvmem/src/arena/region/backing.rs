//! *Backing*: the kind of memory behind a region's addresses.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The kind of memory behind the addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Backing {
    /// Memory of this process alone.
    #[default]
    Private,
    /// A sealed memory file that other processes can attach.
    Shared,
}

impl fmt::Display for Backing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Backing::Private => "private",
            Backing::Shared => "shared",
        })
    }
}
