//! *NUMA policy*: applies the policy of a region to its pages, and verifies where they are.
//!
//! A policy applies only to pages that do not exist yet, so it is set before the first touch. kvmem
//! reads the policy back, and once pages are resident, queries the kernel for the nodes of a sample
//! of them.

use std::ops::Range;
use std::ptr::NonNull;

use crate::arena::pages::address_at;
use crate::arena::{ArenaError, Call, Errno, Nodes, Numa};
use crate::sys;

impl Numa {
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
            address_at(at, page * unit)
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
