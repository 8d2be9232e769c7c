//! Transfers of NIXL between two agents whose memory is kvmem's.

use std::thread;
use std::time::{Duration, Instant};

use dynamo_memory::nixl::{MemType, XferDescList, XferOp, register_with_nixl};
use kvmem::arena::{Populate, Region};
use kvmem_dynamo::{MemoryDescriptor, RegionMemory};

use crate::agent::agent;

const BYTES: usize = 8 << 20;

/// Returns the bytes of storage.
///
/// # Safety
/// No transfer writes to them while the slice lives.
unsafe fn bytes(memory: &RegionMemory) -> &[u8] {
    let at = std::ptr::with_exposed_provenance::<u8>(memory.addr());
    // SAFETY: the storage keeps the bytes mapped; the rest is the caller's promise.
    unsafe { std::slice::from_raw_parts(at, memory.size()) }
}

#[test]
fn blocks_are_written_from_one_region_to_another() {
    let (Some(from), Some(to)) = (agent("from"), agent("to")) else { return };
    let memory = || {
        let region = Region::builder(BYTES).populate(Populate::Auto).map().expect("memory");
        RegionMemory::new(region)
    };
    let (source, target) = (memory(), memory());
    let at = std::ptr::with_exposed_provenance_mut::<u8>(source.addr());
    for offset in 0..BYTES {
        // SAFETY: the region has that many bytes, and nothing else uses it.
        unsafe { at.add(offset).write((offset % 251) as u8) };
    }
    let register = |memory, agent: &dynamo_memory::nixl::NixlAgent| {
        register_with_nixl(memory, agent.raw_agent(), None).map_err(drop).expect("registered")
    };
    let (source, target) = (register(source, &from), register(target, &to));
    let metadata = to.raw_agent().get_local_md().expect("metadata");
    from.raw_agent().load_remote_md(&metadata).expect("the other agent is reachable");

    // Every second piece of 64 KiB.
    let piece = 64 << 10;
    let list = |base: usize| {
        let mut list = XferDescList::new(MemType::Dram).expect("a list");
        for offset in (0..BYTES).step_by(2 * piece) {
            list.add_desc(base + offset, piece, 0);
        }
        list
    };
    let (local, remote) = (list(source.addr()), list(target.addr()));
    let agent = from.raw_agent();
    let request = agent.create_xfer_req(XferOp::Write, &local, &remote, "to", None);
    let request = request.expect("a request");
    let mut running = agent.post_xfer_req(&request, None).expect("it starts");
    let deadline = Instant::now() + Duration::from_secs(60);
    while running {
        assert!(Instant::now() < deadline, "the transfer does not end");
        running = !agent.get_xfer_status(&request).expect("a status").is_success();
        thread::yield_now();
    }
    drop(request);
    // SAFETY: the transfer has ended.
    let (sent, found) = unsafe { (bytes(source.storage()), bytes(target.storage())) };
    for (index, (sent, found)) in sent.chunks(piece).zip(found.chunks(piece)).enumerate() {
        match index % 2 {
            0 => assert!(found == sent, "piece {index} differs"),
            _ => assert!(found.iter().all(|&byte| byte == 0), "piece {index} was written"),
        }
    }
    agent.invalidate_remote_md("to").expect("it was loaded");
}
