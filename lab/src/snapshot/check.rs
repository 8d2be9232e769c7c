//! *Checking* a snapshot: its ranges cover the space once, its bins hold the free ones, and its
//! numbers are those of both.

use std::collections::HashMap;

use super::{AllocatorSnapshot, NO_NODE, SnapshotNode, bin_of};

/// Something that is wrong with a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotFault {
    /// The space has another size than its capacity in units.
    #[error("the space has {size} units, and its capacity is {wanted}")]
    Size {
        /// Units of the space.
        size: u32,
        /// Units of the capacity.
        wanted: u64,
    },
    /// There are more nodes than may be.
    #[error("{nodes} nodes, {in_use} of them in use, at most {max}")]
    NodeCount {
        /// Nodes in the file.
        nodes: u32,
        /// Those in use.
        in_use: u32,
        /// The largest number.
        max: u32,
    },
    /// A range does not begin where the one before it ends.
    #[error("node {node} begins at unit {offset}, and the range before it ends at {wanted}")]
    Offset {
        /// The node.
        node: u32,
        /// First unit of its range.
        offset: u32,
        /// The end of the range before it.
        wanted: u64,
    },
    /// A range is empty, or its mark is neither 0 nor 1.
    #[error("node {node} has {size} units and the mark {used}")]
    Range {
        /// The node.
        node: u32,
        /// Units of its range.
        size: u32,
        /// 1 if it is in use.
        used: u8,
    },
    /// A range does not name the one before it.
    #[error("node {node} names {found} as the range before it, which is {wanted}")]
    Neighbour {
        /// The node.
        node: u32,
        /// The node that it names.
        found: u32,
        /// The node before it.
        wanted: u32,
    },
    /// The ranges end before the space does, or behind it.
    #[error("the ranges end at unit {end} of {size}: a link between two of them is damaged")]
    End {
        /// The end of the last range.
        end: u64,
        /// Units of the space.
        size: u32,
    },
    /// Two free ranges stand side by side; the original joins them.
    #[error("the free ranges of the nodes {before} and {node} are not joined")]
    NotJoined {
        /// The first one.
        before: u32,
        /// The one behind it.
        node: u32,
    },
    /// A free range is in no bin.
    #[error("the free range of node {node} is in no bin, so it can never be allocated")]
    NotInBin {
        /// The node.
        node: u32,
    },
    /// A bin holds something else than a free range of its sizes.
    #[error("bin {bin} holds node {node}, which is {why}")]
    InBin {
        /// The bin.
        bin: usize,
        /// The node.
        node: u32,
        /// The reason why it does not belong there.
        why: &'static str,
    },
    /// A bit says something else than the list of a bin.
    #[error("bin {bin} has {what} free range, and its bits say otherwise")]
    Bits {
        /// The bin.
        bin: usize,
        /// `a`, or `no`.
        what: &'static str,
    },
    /// An entry of the stack of nodes occurs twice, names no node, or one that has a range.
    #[error("entry {at} of the stack names node {node}, which is {why}")]
    Stack {
        /// The entry.
        at: usize,
        /// The node.
        node: u32,
        /// The reason why it does not belong there.
        why: &'static str,
    },
    /// A number in the header is not that of the ranges.
    #[error("the header counts {found} {what}, and there are {wanted}")]
    Count {
        /// The things that are counted.
        what: &'static str,
        /// By the header.
        found: u64,
        /// By the ranges.
        wanted: u64,
    },
    /// Live allocations requested more bytes than their ranges have.
    #[error("the header says that {found} bytes were requested, and ranges in use have {limit}")]
    Requested {
        /// By the header.
        found: u64,
        /// Bytes of the ranges in use.
        limit: u64,
    },
}

/// Returns everything that is wrong with a snapshot, at most once for each node. O(nodes).
#[must_use]
pub fn check(snapshot: &AllocatorSnapshot) -> Vec<SnapshotFault> {
    let mut faults = Vec::new();
    let &AllocatorSnapshot { size, max_nodes, nodes_in_use, .. } = snapshot;
    let wanted = snapshot.capacity >> snapshot.multiplier_bits;
    if u64::from(size) != wanted {
        faults.push(SnapshotFault::Size { size, wanted });
    }
    let count = snapshot.nodes.len() as u32;
    if nodes_in_use > count || count > max_nodes {
        let (nodes, in_use, max) = (count, nodes_in_use, max_nodes);
        faults.push(SnapshotFault::NodeCount { nodes, in_use, max });
    }
    let chain = snapshot.chain();
    check_ranges(snapshot, &chain, &mut faults);
    check_bins(snapshot, &chain, &mut faults);
    check_stack(snapshot, &chain, &mut faults);
    check_counts(snapshot, &chain, &mut faults);
    faults
}

fn node(snapshot: &AllocatorSnapshot, number: u32) -> &SnapshotNode {
    &snapshot.nodes[number as usize]
}

fn check_ranges(snapshot: &AllocatorSnapshot, chain: &[u32], faults: &mut Vec<SnapshotFault>) {
    let (mut end, mut before) = (0, NO_NODE);
    for &number in chain {
        let &SnapshotNode { offset, size, prev, used, .. } = node(snapshot, number);
        if u64::from(offset) != end {
            faults.push(SnapshotFault::Offset { node: number, offset, wanted: end });
        }
        if size == 0 || used > 1 {
            faults.push(SnapshotFault::Range { node: number, size, used });
        }
        if prev != before {
            faults.push(SnapshotFault::Neighbour { node: number, found: prev, wanted: before });
        }
        if before != NO_NODE && used == 0 && node(snapshot, before).used == 0 {
            faults.push(SnapshotFault::NotJoined { before, node: number });
        }
        end = u64::from(offset) + u64::from(size);
        before = number;
    }
    let leads_on = before != NO_NODE && node(snapshot, before).next != NO_NODE;
    if end != u64::from(snapshot.size) || leads_on {
        faults.push(SnapshotFault::End { end, size: snapshot.size });
    }
}

fn check_bins(snapshot: &AllocatorSnapshot, chain: &[u32], faults: &mut Vec<SnapshotFault>) {
    let mut free: HashMap<u32, bool> = chain
        .iter()
        .filter(|number| node(snapshot, **number).used == 0)
        .map(|number| (*number, false))
        .collect();
    for (bin, &first) in snapshot.bins.iter().enumerate() {
        let (mut number, mut before) = (first, NO_NODE);
        while number != NO_NODE {
            let mut wrong = |why| faults.push(SnapshotFault::InBin { bin, node: number, why });
            let Some(in_bin) = free.get_mut(&number) else {
                wrong("no free range");
                break;
            };
            if std::mem::replace(in_bin, true) {
                wrong("in a bin already");
                break;
            }
            let found = node(snapshot, number);
            if bin_of(found.size) != bin {
                wrong("of another size");
            }
            if found.bin_prev != before {
                wrong("not linked to the one before it");
            }
            (before, number) = (number, found.bin_next);
        }
        let has = first != NO_NODE;
        let (group, bit) = (bin >> 3, 1 << (bin & 7));
        if (snapshot.used_bins[group] & bit != 0) != has {
            let what = if has { "a" } else { "no" };
            faults.push(SnapshotFault::Bits { bin, what });
        }
    }
    for (group, bits) in snapshot.used_bins.iter().enumerate() {
        if (snapshot.used_groups >> group & 1 != 0) != (*bits != 0) {
            let what = if *bits != 0 { "a" } else { "no" };
            faults.push(SnapshotFault::Bits { bin: group << 3, what });
        }
    }
    for &number in chain {
        if free.get(&number) == Some(&false) {
            faults.push(SnapshotFault::NotInBin { node: number });
        }
    }
}

fn check_stack(snapshot: &AllocatorSnapshot, chain: &[u32], faults: &mut Vec<SnapshotFault>) {
    let mut taken = vec![false; snapshot.nodes.len()];
    chain.iter().for_each(|number| taken[*number as usize] = true);
    let spare = snapshot.stack.iter().enumerate().skip(snapshot.nodes_in_use as usize);
    for (at, &number) in spare {
        let why = match taken.get_mut(number as usize) {
            None => "none",
            Some(true) => "in use, or on the stack already",
            Some(seen) => {
                *seen = true;
                continue;
            }
        };
        faults.push(SnapshotFault::Stack { at, node: number, why });
    }
}

fn check_counts(snapshot: &AllocatorSnapshot, chain: &[u32], faults: &mut Vec<SnapshotFault>) {
    let units = |used: u8| -> u64 {
        let ranges = chain.iter().map(|number| node(snapshot, *number));
        ranges.filter(|node| node.used == used).map(|node| u64::from(node.size)).sum()
    };
    let live = chain.iter().filter(|number| node(snapshot, **number).used == 1).count() as u64;
    let counts = [
        ("nodes with a range", u64::from(snapshot.nodes_in_use), chain.len() as u64),
        ("live allocations", snapshot.allocations, live),
        ("free units", u64::from(snapshot.free), units(0)),
    ];
    for (what, found, wanted) in counts {
        if found != wanted {
            faults.push(SnapshotFault::Count { what, found, wanted });
        }
    }
    let limit = units(1) << snapshot.multiplier_bits;
    if snapshot.allocated_bytes > limit {
        faults.push(SnapshotFault::Requested { found: snapshot.allocated_bytes, limit });
    }
}
