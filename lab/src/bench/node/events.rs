//! *KV events*: commits while a subscriber reads, the time until it knows of them, and the
//! announcement of everything after a restart.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use kvmem_node::{ClientError, MAX_BATCH, NewValue};
use tempfile::TempDir;

use super::memory::NodeFiles;
use super::role::{ServerProcess, connect};
use super::subscriber::{Heard, Subscriber};
use super::writer::{Stores, Written, key};
use super::{NodeChild, NodeRole};
use crate::bench::beside::BesideProgram;

/// Values that memory has room for.
const ROOM: u64 = 8192;

/// The figures of one repetition.
#[derive(Clone, Copy, Debug)]
pub(super) struct CommitRates {
    pub(super) silent_per_s: f64,
    pub(super) heard_per_s: f64,
    /// Stored keys and removed ones.
    pub(super) published_per_s: f64,
    pub(super) p50_ms: f64,
    pub(super) p99_ms: f64,
}

/// Stores at a server that publishes nothing, and at one with a subscriber.
pub(super) fn measure(
    dir: &TempDir,
    (rings, stores): (bool, Stores),
    time: Duration,
    child: NodeChild,
) -> Result<CommitRates> {
    let room = ROOM.min((1 << 30) / stores.value_bytes);
    let start = |name: &str, publishes| -> Result<(PathBuf, ServerProcess, Option<u16>)> {
        let socket = dir.path().join(name);
        let files = NodeFiles::new(room * stores.value_bytes, 2 * room as u32, true)?;
        let mut server = files.serve_and_publish(&socket, publishes, child)?;
        let port = server.wait()?;
        Ok((socket, server, port))
    };
    let [silent, heard] = [start("silent", false)?, start("heard", true)?];
    let port = heard.2.context("it publishes")?;
    let mut subscriber =
        BesideProgram::run("a subscriber", &mut child(&NodeRole::Subscriber { port }))?;
    let (sockets, milliseconds) = ([silent.0, heard.0], time.as_millis() as u64);
    let pid = heard.1.0.pid();
    let role = NodeRole::Writer { sockets, pid, rings, stores, milliseconds };
    let mut writer = BesideProgram::run("a writer", &mut child(&role))?;
    let Written { commits_per_s: [silent_per_s, heard_per_s] } = writer.answer()?;
    // The last events are on their way.
    std::thread::sleep(Duration::from_millis(100));
    heard.1.kill()?;
    let Heard { keys, p50_ms, p99_ms } = subscriber.answer()?;
    let published_per_s = keys as f64 / time.as_secs_f64();
    Ok(CommitRates { silent_per_s, heard_per_s, published_per_s, p50_ms, p99_ms })
}

/// Commits blocks, kills the server, and starts it again. Returns the seconds from there until a
/// subscriber has read of all of them.
pub(super) fn announce(dir: &TempDir, blocks: u32, child: NodeChild) -> Result<f64> {
    const BYTES: u64 = 4096;
    let socket = dir.path().join("socket");
    let files = NodeFiles::new(u64::from(blocks) * BYTES, blocks, false)?;
    let mut server = files.serve_and_publish(&socket, true, child)?;
    server.wait()?;
    let client = connect(&socket, false, false)?;
    let numbers: Vec<u32> = (0..blocks).collect();
    for numbers in numbers.chunks(MAX_BATCH) {
        let reserved = client.reserve(&vec![BYTES; numbers.len()])?;
        let keys = numbers.iter().map(|number| key(0, u64::from(*number)));
        let values = keys.zip(reserved).map(|(key, block)| NewValue::new(key, block));
        client.commit(values.collect()).map_err(ClientError::from)?;
    }
    server.kill()?;
    let start = Instant::now();
    let mut server = files.serve_and_publish(&socket, true, child)?;
    let port = server.wait()?.context("it publishes")?;
    let mut subscriber = Subscriber::connect(port)?;
    let mut known = 0;
    while known < blocks {
        ensure!(subscriber.hear(|_, _| known += 1)?, "the server ended after {known} blocks");
    }
    Ok(start.elapsed().as_secs_f64())
}
