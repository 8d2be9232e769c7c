//! *Placement calls*: on which NUMA nodes pages are to lie, and lie; on which one a thread runs.

use std::ptr::NonNull;

use super::{Call, Result, check, gate};

/// Words of a node mask: 1024 nodes, the most that Linux can be built for.
const WORDS: usize = 1024 / 64;

/// Ask about an address, not about the thread: from the kernel's include/uapi/linux/mempolicy.h.
const MPOL_F_ADDR: i32 = 1 << 1;

fn mask(nodes: &[u32]) -> [u64; WORDS] {
    let mut mask = [0; WORDS];
    for node in nodes {
        if let Some(word) = mask.get_mut(*node as usize / 64) {
            *word |= 1 << (node % 64);
        }
    }
    mask
}

/// Sets the policy (`MPOL_*`) of a range: it decides where pages go that are not there yet.
pub(crate) fn bind(at: NonNull<u8>, len: usize, mode: i32, nodes: &[u32]) -> Result<()> {
    gate(Call::Bind)?;
    let mask = mask(nodes);
    // The kernel reads one bit less than it is told.
    // SAFETY: the mask has as many bits as the call says; no byte of the range is changed.
    let returned = unsafe {
        libc::syscall(libc::SYS_mbind, at.as_ptr(), len, mode, mask.as_ptr(), WORDS * 64 + 1, 0)
    };
    check(returned).map(drop)
}

/// The policy of the page at `at`, and its nodes in ascending order.
pub(crate) fn policy_at(at: NonNull<u8>) -> Result<(i32, Vec<u32>)> {
    gate(Call::GetPolicy)?;
    let mut mode: i32 = 0;
    let mut mask = [0u64; WORDS];
    // SAFETY: both outputs are as large as the call says.
    let returned = unsafe {
        libc::syscall(
            libc::SYS_get_mempolicy,
            &raw mut mode,
            mask.as_mut_ptr(),
            WORDS * 64,
            at.as_ptr(),
            MPOL_F_ADDR,
        )
    };
    check(returned)?;
    let nodes =
        (0..(WORDS * 64) as u32).filter(|node| mask[*node as usize / 64] >> (node % 64) & 1 == 1);
    Ok((mode, nodes.collect()))
}

/// The node of the core that the calling thread runs on.
pub(crate) fn node_here() -> Result<u32> {
    gate(Call::NodeHere)?;
    let mut node: u32 = 0;
    // SAFETY: the output has the type that the call fills; the other two may be null.
    let returned = unsafe {
        libc::syscall(
            libc::SYS_getcpu,
            std::ptr::null_mut::<u32>(),
            &raw mut node,
            std::ptr::null_mut::<libc::c_void>(),
        )
    };
    check(returned).map(|_| node)
}

/// For each page its node, or a negative error number (−2: no page is there).
pub(crate) fn nodes_of(pages: &[NonNull<u8>]) -> Result<Vec<i32>> {
    gate(Call::NodesOf)?;
    let mut nodes = vec![-libc::ENOENT; pages.len()];
    // SAFETY: both arrays have the length that the call says; without target nodes no page is
    // moved.
    let returned = unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            0,
            pages.len(),
            pages.as_ptr(),
            std::ptr::null::<i32>(),
            nodes.as_mut_ptr(),
            0,
        )
    };
    check(returned).map(|_| nodes)
}
