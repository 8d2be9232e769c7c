//! How long a restarted server takes to find its values: `restart [BLOCKS]`, by default a million.

use std::time::{Duration, Instant};

use kvmem::arena::{Backing, PageSize, Region};
use kvmem_node::{
    ConnectOptions, MAX_BATCH, NewValue, Node, NodeClient, NodeOptions, NodeServer, ServerOptions,
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let blocks: u32 = std::env::args().nth(1).map_or(Ok(1_000_000), |text| text.parse())?;
    let folder = tempfile::tempdir()?;
    let socket = folder.path().join("kvmem.sock");
    // The bytes of the values do not matter, so no page of them is touched.
    let bytes = blocks as usize * 4096;
    let memory = Region::builder(bytes).backing(Backing::Shared).ladder(PageSize::Base).map()?;
    let options = NodeOptions { max_blocks: Some(blocks), max_events: 0, ..NodeOptions::default() };
    let node = Node::create(memory, options.clone())?;
    let server = NodeServer::bind(node, &socket, ServerOptions::default())?;
    let files = server.descriptors()?;
    let stopper = server.stopper();
    let running = std::thread::spawn(move || server.run());
    let connect = ConnectOptions { retry_for: Duration::from_secs(60), ..Default::default() };
    // SAFETY: this is the only client.
    let client = unsafe { NodeClient::connect(&socket, &connect) }?;
    let started = Instant::now();
    for first in (0..blocks).step_by(MAX_BATCH) {
        let keys: Vec<[u8; 4]> =
            (first..blocks.min(first + MAX_BATCH as u32)).map(u32::to_le_bytes).collect();
        let reserved = client.reserve(&vec![4096; keys.len()])?;
        client.commit(
            keys.into_iter().zip(reserved).map(|(key, block)| NewValue::new(key, block)).collect(),
        )?;
    }
    let stored = started.elapsed();
    println!("{blocks} blocks reserved and committed in {stored:.2?}");
    stopper.stop();
    drop(running.join().expect("the server does not panic")?);

    let started = Instant::now();
    let (node, report) = Node::recover(files, options)?;
    let recovered = started.elapsed();
    let server = NodeServer::bind(node, &socket, ServerOptions::default())?;
    let stopper = server.stopper();
    let running = std::thread::spawn(move || server.run());
    let found = client.lookup(&[(blocks - 1).to_le_bytes()])?;
    let hit = started.elapsed();
    println!("{} values recovered in {recovered:.2?}, first hit after {hit:.2?}", report.values);
    assert_eq!((report.values, found), (u64::from(blocks), 1));
    drop(client);
    stopper.stop();
    running.join().expect("the server does not panic")?;
    Ok(())
}
