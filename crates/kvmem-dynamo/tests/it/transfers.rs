//! Transfers of NIXL between two agents whose memory is kvmem's.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
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
    write_and_compare();
}

/// Transfers until the test below kills the process.
#[test]
#[ignore = "it is a process of another test, and does not end"]
fn transfers_without_end() {
    while write_and_compare() {
        println!("{TRANSFERRED}");
    }
}

/// What the process prints after each transfer.
const TRANSFERRED: &str = "transferred";

#[test]
fn a_process_killed_in_transfers_is_followed_by_another() {
    for _ in 0..2 {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "transfers::transfers_without_end", "--ignored", "--nocapture"])
            // UCX's shared memory has a name that outlives a killed process.
            .env("UCX_TLS", "tcp,self")
            .stdout(Stdio::piped())
            .spawn()
            .expect("this program starts again");
        let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let has_begun = lines.map_while(Result::ok).any(|line| line.contains(TRANSFERRED));
        child.kill().expect("it is a child");
        let status = child.wait().expect("it is a child");
        // Without NIXL it ends by itself. Else nothing but the signal ends it.
        assert_eq!(has_begun, status.code().is_none(), "{status}");
    }
    // The next ones have the names and the memory of those that were killed.
    write_and_compare();
}

/// Writes blocks of a region to those of another one. Returns false without NIXL.
fn write_and_compare() -> bool {
    let (Some(from), Some(to)) = (agent("from"), agent("to")) else { return false };
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
    true
}
