//! *Restart*: a server that is killed and started again.

use std::time::Instant;

use anyhow::Result;
use kvmem_node::{ClientError, MAX_BATCH, NewValue};
use tempfile::TempDir;

use super::memory::NodeFiles;
use super::role::connect;
use super::{NodeChild, unless_all};

/// Bytes of a block. None of its pages is ever touched.
const BLOCK_BYTES: u64 = 4096;

/// Commits blocks, kills the server, starts it again, and waits for the next hit of a client that
/// was connected. Returns the seconds from the end of the server until that hit.
pub(super) fn measure(dir: &TempDir, blocks: u32, child: NodeChild) -> Result<f64> {
    let socket = dir.path().join("socket");
    let files = NodeFiles::new(u64::from(blocks) * BLOCK_BYTES, blocks, false)?;
    let mut server = files.serve(&socket, child)?;
    server.wait()?;
    // The client does not populate its mapping: the pages would become resident.
    let client = connect(&socket, false, false)?;
    let numbers: Vec<u32> = (0..blocks).collect();
    for numbers in numbers.chunks(MAX_BATCH) {
        let reserved = client.reserve(&vec![BLOCK_BYTES; numbers.len()])?;
        let keys = numbers.iter().map(|number| number.to_le_bytes());
        let values = keys.zip(reserved).map(|(key, block)| NewValue::new(key, block));
        client.commit(values.collect()).map_err(ClientError::from)?;
    }
    server.kill()?;
    let start = Instant::now();
    let server = files.serve(&socket, child)?;
    let found = client.lookup(&[(blocks - 1).to_le_bytes()])?;
    let first_hit_s = start.elapsed().as_secs_f64();
    unless_all(found, 1)?;
    let values = client.stats()?.values;
    unless_all(values as usize, blocks as usize)?;
    drop((client, server));
    Ok(first_hit_s)
}
