//! *NUMA*: on which nodes pages are to lie, and whether they do.
//!
//! A policy decides where pages go that are not there yet, so it is set before the first touch.
//! What was set is read back, and once pages are resident, a sample of them is asked for where it
//! lies.

use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{ArenaError, Call, Errno};
use crate::sys;

/// Where pages are to lie.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Numa {
    /// Wherever the kernel puts them: usually on the node of the thread that touches first.
    #[default]
    None,
    /// On these nodes and on no other.
    Bind(Vec<u32>),
    /// On these nodes in turn, page by page; on others when they are full.
    Interleave(Vec<u32>),
}

impl FromStr for Numa {
    type Err = String;

    /// `none`, `bind:NODES` or `interleave:NODES`, where nodes are written as the kernel does:
    /// `0,2-3`.
    fn from_str(text: &str) -> Result<Numa, String> {
        let nodes = |list: &str| {
            nodes(list)
                .ok_or_else(|| format!("{list:?} is no list of nodes; examples: 0, 0-3, 0,2-3"))
        };
        match text.split_once(':') {
            None if text == "none" => Ok(Numa::None),
            Some(("bind", list)) => nodes(list).map(Numa::Bind),
            Some(("interleave", list)) => nodes(list).map(Numa::Interleave),
            _ => Err(format!("{text:?} is no policy: say none, bind:NODES or interleave:NODES")),
        }
    }
}

/// The nodes of `0,2-3`. No kernel has more than 1024.
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

/// A set of nodes, shown the way the kernel does: `0-3,8`.
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
    /// From the kernel's text.
    fn parse(text: &str) -> Option<Nodes> {
        let mut nodes = Vec::new();
        for run in text.trim().split(',').filter(|run| !run.is_empty()) {
            let (from, to) = run.split_once('-').unwrap_or((run, run));
            // No kernel has more nodes than this, so a strange text cannot make a huge list.
            nodes.extend(from.parse::<u32>().ok()?..=to.parse::<u32>().ok()?.min(1023));
        }
        Some(Nodes(nodes))
    }

    /// The nodes that have memory. A kernel without NUMA has one.
    pub(crate) fn with_memory() -> Nodes {
        Nodes::read("/sys/devices/system/node/has_memory")
    }

    /// The nodes that have cores. A kernel without NUMA has one.
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
    /// The nodes it names, in order and once each.
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

    /// Refuses a policy that names no node, or one that is not there.
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

    /// Sets the policy of a range and reads it back. Says whether there was one to set.
    pub(crate) fn apply(&self, at: NonNull<u8>, len: usize) -> Result<bool, ArenaError> {
        if *self == Numa::None {
            return Ok(false);
        }
        let nodes = self.nodes();
        let refused = |call| {
            let nodes = nodes.clone();
            move |errno| ArenaError::PolicyRefused { nodes, call, errno }
        };
        sys::bind(at, len, self.mode(), &nodes.0).map_err(refused(Call::Bind))?;
        let (mode, found) = sys::policy_at(at).map_err(refused(Call::GetPolicy))?;
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

    /// Refuses pages that lie on other nodes than they were bound to.
    pub(crate) fn verify(&self, range: &Range<usize>, found: &Nodes) -> Result<(), ArenaError> {
        match self {
            Numa::Bind(_) => {
                let wanted = self.nodes();
                if found.0.iter().all(|node| wanted.0.contains(node)) {
                    return Ok(());
                }
                Err(ArenaError::Misplaced { range: range.clone(), found: found.clone(), wanted })
            }
            // Interleaving is a preference: the kernel may use others when these are full.
            Numa::None | Numa::Interleave(_) => Ok(()),
        }
    }
}

/// Pages that are asked where they lie, at most.
const SAMPLE: usize = 64;

/// The nodes of the resident pages among a sample, spread evenly over the range.
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
    fn policies_name_their_nodes() {
        let numa = str::parse::<Numa>;
        assert_eq!(numa("none"), Ok(Numa::None));
        assert_eq!(numa("bind:0"), Ok(Numa::Bind(vec![0])));
        assert_eq!(numa("interleave:0,2-4"), Ok(Numa::Interleave(vec![0, 2, 3, 4])));
        for bad in ["", "0", "bind", "bind:", "bind:x", "bind:3-1", "interleave:0-4096", "none:0"] {
            assert!(numa(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn nodes_are_read_as_they_are_shown() {
        for text in ["0", "0-3", "0-1,4,6-7"] {
            assert_eq!(Nodes::parse(text).map(|nodes| nodes.to_string()).as_deref(), Some(text));
        }
        assert_eq!(Nodes::parse("0-4294967295").map(|nodes| nodes.0.len()), Some(1024));
        assert_eq!(Nodes::parse("x"), None);
        assert_eq!(Nodes::parse("\n"), Some(Nodes(vec![])));
    }
}
