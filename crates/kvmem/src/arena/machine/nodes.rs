//! *Nodes*: the NUMA nodes of the machine.

use crate::arena::Nodes;
use crate::sys;

impl Nodes {
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
