//! *NUMA policy*: the nodes that pages are wanted on.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// The NUMA policy of pages.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Numa {
    /// The kernel chooses: usually the node of the first thread that touches the page.
    #[default]
    None,
    /// On these nodes and no others.
    Bind(Vec<u32>),
    /// On these nodes alternately, page by page; on other nodes if these are full.
    Interleave(Vec<u32>),
}

impl FromStr for Numa {
    type Err = ParseNumaError;

    /// Parses `none`, `bind:NODES` or `interleave:NODES`. Node lists have the kernel's format:
    /// `0,2-3`.
    fn from_str(text: &str) -> Result<Numa, ParseNumaError> {
        let policy = match text.split_once(':') {
            None if text == "none" => Some(Numa::None),
            Some(("bind", list)) => nodes(list).map(Numa::Bind),
            Some(("interleave", list)) => nodes(list).map(Numa::Interleave),
            _ => None,
        };
        policy.ok_or_else(|| ParseNumaError { text: text.to_owned() })
    }
}

/// A text that is not a NUMA policy.
///
/// ```
/// use kvmem::arena::Numa;
///
/// let error = "bind:3-1".parse::<Numa>().unwrap_err();
/// assert_eq!(error.text, "bind:3-1");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "`{text}` is not a NUMA policy: use none, bind:NODES or interleave:NODES, with nodes below \
     1024 such as 0, 0-3 or 0,2-3"
)]
pub struct ParseNumaError {
    /// The text.
    pub text: String,
}

/// Parses a list of nodes such as `0,2-3`. No kernel has more than 1024 nodes.
fn nodes(list: &str) -> Option<Vec<u32>> {
    let node = |text: &str| text.parse::<u32>().ok().filter(|node| *node < 1024);
    let mut nodes = Vec::new();
    for run in list.split(',') {
        let (from, to) = run.split_once('-').unwrap_or((run, run));
        let (from, to) = (node(from)?, node(to)?);
        if from > to {
            return None;
        }
        nodes.extend(from..=to);
    }
    Some(nodes)
}

impl Numa {
    /// Returns the nodes of the policy, in order and without duplicates.
    pub(crate) fn nodes(&self) -> Nodes {
        let mut nodes = match self {
            Numa::None => Vec::new(),
            Numa::Bind(nodes) | Numa::Interleave(nodes) => nodes.clone(),
        };
        nodes.sort_unstable();
        nodes.dedup();
        Nodes(nodes)
    }
}

/// A set of nodes, displayed in the kernel's format: `0-3,8`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Nodes(pub Vec<u32>);

impl fmt::Display for Nodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut first = true;
        for run in self.0.chunk_by(|a, b| a.checked_add(1) == Some(*b)) {
            let comma = if std::mem::take(&mut first) { "" } else { "," };
            match run {
                [one] => write!(f, "{comma}{one}")?,
                [from, .., to] => write!(f, "{comma}{from}-{to}")?,
                [] => {}
            }
        }
        Ok(())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn policies_parse_with_their_nodes() {
        let numa = str::parse::<Numa>;
        assert_eq!(numa("none"), Ok(Numa::None));
        assert_eq!(numa("bind:0"), Ok(Numa::Bind(vec![0])));
        assert_eq!(numa("interleave:0,2-4"), Ok(Numa::Interleave(vec![0, 2, 3, 4])));
        for bad in ["", "0", "bind", "bind:", "bind:x", "bind:3-1", "interleave:0-4096", "none:0"] {
            assert!(numa(bad).is_err(), "{bad}");
        }
    }
}
