//! *Placement calls*: NUMA policies, the nodes of pages, and the node of a thread.

use std::ptr::NonNull;

use super::call::Call;
use super::errno::{Result, check};
use super::gate::gate;

/// The words of a node mask: 1024 nodes, the maximum of any Linux build.
const WORDS: usize = 1024 / 64;

/// Selects the policy of an address, not of the thread; from the kernel's
/// include/uapi/linux/mempolicy.h.
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

/// Sets the policy (`MPOL_*`) of a range, which applies to pages that do not exist yet.
pub(crate) fn bind(at: NonNull<u8>, len: usize, mode: i32, nodes: &[u32]) -> Result<()> {
    gate(Call::Bind)?;
    let mask = mask(nodes);
    // The kernel reads one bit fewer than the passed number.
    // SAFETY: the mask has as many bits as the call says; no byte of the range is changed.
    let returned = unsafe {
        libc::syscall(libc::SYS_mbind, at.as_ptr(), len, mode, mask.as_ptr(), WORDS * 64 + 1, 0)
    };
    check(returned).map(drop)
}

/// Returns the policy of the page at `at`, and its nodes in ascending order.
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

/// Returns the node of the core that runs the calling thread.
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

/// Returns the processor that runs the calling thread; 0 if the kernel does not say.
///
/// The C library reads it from memory that it shares with the kernel, in about 2 ns. The thread may
/// be on another processor when the call returns.
#[cfg(not(kvmem_simulated))]
pub(crate) fn cpu_here() -> u32 {
    // SAFETY: the call has no conditions.
    u32::try_from(unsafe { libc::sched_getcpu() }).unwrap_or(0)
}

#[cfg(kvmem_simulated)]
unsafe extern "Rust" {
    /// Returns the simulated core that runs the calling thread; see `sync::simulated`.
    safe fn kvmem_simulated_core() -> u32;
}

/// Returns the processor that runs the calling thread: a simulated core.
#[cfg(kvmem_simulated)]
pub(crate) fn cpu_here() -> u32 {
    kvmem_simulated_core()
}

/// Returns the node of each page, or a negative error number (−2 if there is no page).
pub(crate) fn nodes_of(pages: &[NonNull<u8>]) -> Result<Vec<i32>> {
    gate(Call::NodesOf)?;
    let mut nodes = vec![-libc::ENOENT; pages.len()];
    // SAFETY: both arrays have this length; without target nodes the kernel moves no page.
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
