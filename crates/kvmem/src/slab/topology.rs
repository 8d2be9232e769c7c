//! *Topology*: how many memory nodes there are, and on which of them a thread runs; tests bring
//! their own.
//!
//! Counted are the nodes that have cores: a thread runs on one of these, whatever other nodes have
//! memory.

use std::fmt;
use std::sync::OnceLock;

use crate::arena::Nodes;
use crate::sys;

/// Nodes, numbered from 0 without gaps.
pub(crate) trait Topology: fmt::Debug + Send + Sync {
    /// How many there are: always as many, and one at least.
    fn nodes(&self) -> usize;

    /// On which of them the calling thread runs now. Not asked where there is one only.
    fn here(&self) -> usize;
}

/// What the kernel says.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SystemTopology;

/// The kernel's numbers, in ascending order. Read once: cores that are added later to a new node
/// count as on the first.
fn numbers() -> &'static [u32] {
    static NUMBERS: OnceLock<Vec<u32>> = OnceLock::new();
    NUMBERS.get_or_init(|| Nodes::with_cores().0)
}

impl Topology for SystemTopology {
    fn nodes(&self) -> usize {
        numbers().len().max(1)
    }

    /// One call of the kernel. Where it is refused, the first node.
    fn here(&self) -> usize {
        sys::node_here().ok().and_then(|node| numbers().binary_search(&node).ok()).unwrap_or(0)
    }
}

#[cfg(all(test, feature = "fault-injection", not(loom)))]
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
