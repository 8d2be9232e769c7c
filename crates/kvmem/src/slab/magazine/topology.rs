//! *Topology*: the memory nodes of the machine, and the node that a thread runs on. Tests
//! substitute their own.
//!
//! Only nodes with cores count, because a thread runs on one of these. Nodes that have memory only
//! are ignored.

use std::fmt;
use std::sync::OnceLock;

use crate::arena::Nodes;
use crate::sys;

/// The memory nodes, numbered from 0 without gaps.
pub(crate) trait Topology: fmt::Debug + Send + Sync {
    /// Returns the number of nodes: constant, and at least one.
    fn nodes(&self) -> usize;

    /// Returns the node that the calling thread runs on. Not called if there is only one.
    fn here(&self) -> usize;
}

/// The memory nodes as the kernel reports them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SystemTopology;

/// Returns the kernel's numbers of the nodes, in ascending order. They are read once; cores that
/// are added later to a new node count as cores of the first node.
fn numbers() -> &'static [u32] {
    static NUMBERS: OnceLock<Vec<u32>> = OnceLock::new();
    NUMBERS.get_or_init(|| Nodes::with_cores().0)
}

impl Topology for SystemTopology {
    fn nodes(&self) -> usize {
        numbers().len().max(1)
    }

    /// Makes one system call. If it fails, the thread counts as running on the first node.
    fn here(&self) -> usize {
        sys::node_here().ok().and_then(|node| numbers().binary_search(&node).ok()).unwrap_or(0)
    }
}

#[cfg(all(test, feature = "fault-injection"))]
mod tests {
    use super::*;
    use crate::sys::{Call, Errno, fault};

    #[test]
    fn a_thread_is_on_a_node_or_counts_as_on_the_first() {
        let plan = fault::count();
        let nodes = SystemTopology.nodes();
        assert!(nodes >= 1 && SystemTopology.here() < nodes);
        let node = sys::node_here().expect("the kernel says");
        assert!(numbers().contains(&node), "{node} of {:?}", numbers());
        drop(plan);
        let _plan = fault::fail_all(Call::NodeHere, Errno::EPERM);
        assert_eq!(sys::node_here(), Err(Errno::EPERM));
        assert_eq!(SystemTopology.here(), 0);
    }
}
