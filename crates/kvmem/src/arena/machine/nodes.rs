//! *Nodes*: the NUMA nodes of the machine.

use super::files::MachineFiles;
use super::parse;
use crate::arena::Nodes;

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
        Nodes(MachineFiles::here().value(path, parse::list).unwrap_or_else(|_| vec![0]))
    }
}
