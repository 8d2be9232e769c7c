//! *NUMA*: sets the nodes of pages, and verifies them.
//!
//! A policy applies only to pages that do not exist yet, so it is set before the first touch. kvmem
//! reads the policy back, and once pages are resident, asks the kernel for the nodes of a sample of
//! them.

use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::arena::{ArenaError, Call, Errno};
use crate::sys;

/// The NUMA policy of pages.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Numa {
    /// The kernel chooses: usually the node of the first thread that touches the page.
    #[default]
    None,
    /// On these nodes and no others.
    Bind(Vec<u32>),
    /// On these nodes in turn, page by page; on other nodes if these are full.
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

/// A set of nodes, displayed in the kernel's format: `0-3,8`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Nodes(pub Vec<u32>);

impl fmt::Display for Nodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut first = true;
        for run in self.0.chunk_by(|a, b| a + 1 == *b) {
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

impl Nodes {
    /// Parses the kernel's text.
    fn parse(text: &str) -> Option<Nodes> {
        let mut nodes = Vec::new();
        for run in text.trim().split(',').filter(|run| !run.is_empty()) {
            let (from, to) = run.split_once('-').unwrap_or((run, run));
            // No kernel has more nodes than this, so a strange text cannot make a huge list.
            nodes.extend(from.parse::<u32>().ok()?..=to.parse::<u32>().ok()?.min(1023));
        }
        Some(Nodes(nodes))
    }

    /// Returns the nodes that have memory. A kernel without NUMA has one.
    pub(crate) fn with_memory() -> Nodes {
        Nodes::read("/sys/devices/system/node/has_memory")
    }

    /// Returns the nodes that have cores. A kernel without NUMA has one.
    pub(crate) fn with_cores() -> Nodes {
        Nodes::read("/sys/devices/system/node/has_cpu")
    }

    fn read(path: &str) -> Nodes {
        sys::read_text(path)
            .ok()
            .and_then(|text| Nodes::parse(&text))
            .unwrap_or_else(|| Nodes(vec![0]))
    }
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

    fn mode(&self) -> i32 {
        match self {
            Numa::None => libc::MPOL_DEFAULT,
            Numa::Bind(_) => libc::MPOL_BIND,
            Numa::Interleave(_) => libc::MPOL_INTERLEAVE,
        }
    }

    /// Fails for a policy that names no node, or a node that does not exist.
    pub(crate) fn check(&self) -> Result<(), ArenaError> {
        if *self == Numa::None {
            return Ok(());
        }
        let online = Nodes::with_memory();
        let nodes = self.nodes();
        if nodes.0.is_empty() {
            return Err(ArenaError::NoNodes { online });
        }
        match nodes.0.iter().find(|node| !online.0.contains(node)) {
            Some(&node) => Err(ArenaError::NoSuchNode { node, online }),
            None => Ok(()),
        }
    }

    /// Sets the policy of a range and reads it back. Returns whether there was a policy to set.
    pub(crate) fn apply(&self, at: NonNull<u8>, len: usize) -> Result<bool, ArenaError> {
        if *self == Numa::None {
            return Ok(false);
        }
        let nodes = self.nodes();
        let call_failed = |call| {
            let nodes = nodes.clone();
            move |errno| ArenaError::PolicyFailed { nodes, call, errno }
        };
        sys::bind(at, len, self.mode(), &nodes.0).map_err(call_failed(Call::Bind))?;
        let (mode, found) = sys::policy_at(at).map_err(call_failed(Call::GetPolicy))?;
        // The kernel may add flags above the mode.
        if mode & 0xfff != self.mode() || found != nodes.0 {
            return Err(ArenaError::Misplaced {
                range: 0..len,
                found: Nodes(found),
                wanted: nodes,
            });
        }
        Ok(true)
    }

    /// Fails if pages are on other nodes than the policy binds them to.
    pub(crate) fn verify(&self, range: &Range<usize>, found: &Nodes) -> Result<(), ArenaError> {
        match self {
            Numa::Bind(_) => {
                let wanted = self.nodes();
                if found.0.iter().all(|node| wanted.0.contains(node)) {
                    return Ok(());
                }
                Err(ArenaError::Misplaced { range: range.clone(), found: found.clone(), wanted })
            }
            // Interleaving is a preference: the kernel may use other nodes when these are full.
            Numa::None | Numa::Interleave(_) => Ok(()),
        }
    }
}

/// The largest number of pages in a placement sample.
const SAMPLE: usize = 64;

/// Returns the nodes of the resident pages among a sample, spread evenly over the range.
pub(crate) fn nodes_found(at: NonNull<u8>, len: usize, unit: usize) -> Result<Nodes, Errno> {
    let pages = len / unit;
    let count = pages.min(SAMPLE);
    let sample: Vec<NonNull<u8>> = (0..count)
        .map(|n| {
            let page = (pages as u128 * n as u128 / count as u128) as usize;
            // SAFETY: `page < pages`, so the address is within the range.
            unsafe { at.add(page * unit) }
        })
        .collect();
    if sample.is_empty() {
        return Ok(Nodes::default());
    }
    let mut nodes: Vec<u32> =
        sys::nodes_of(&sample)?.into_iter().filter_map(|node| u32::try_from(node).ok()).collect();
    nodes.sort_unstable();
    nodes.dedup();
    Ok(Nodes(nodes))
}

#[cfg(test)]
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

    #[test]
    fn nodes_parse_what_they_display() {
        for text in ["0", "0-3", "0-1,4,6-7"] {
            assert_eq!(Nodes::parse(text).map(|nodes| nodes.to_string()).as_deref(), Some(text));
        }
        assert_eq!(Nodes::parse("0-4294967295").map(|nodes| nodes.0.len()), Some(1024));
        assert_eq!(Nodes::parse("x"), None);
        assert_eq!(Nodes::parse("\n"), Some(Nodes(vec![])));
    }
}
