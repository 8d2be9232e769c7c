//! A node with one client, with one byte for each block. Each block names the one before it in its
//! chain as its parent.

use std::thread::JoinHandle;

use anyhow::Result;
use kvmem::arena::{Backing, PageSize, Region};
use kvmem_node::{
    CallError, ClientError, ConnectOptions, Eviction, MAX_BATCH, NewValue, Node, NodeClient,
    NodeError, NodeOptions, NodeReservation, NodeServer, ParentKey, ServerOptions, Stopper,
    ValueOptions,
};
use tempfile::TempDir;

use super::PolicyId;
use super::model::Model;

/// Bytes of the memory for each block.
const BYTES: usize = 64;

pub(super) struct NodeCache {
    client: NodeClient,
    stopper: Stopper,
    server: Option<JoinHandle<Result<Node, NodeError>>>,
    /// The socket is in it.
    _dir: TempDir,
}

impl NodeCache {
    pub(super) fn new(policy: PolicyId, blocks: u64) -> Result<NodeCache> {
        let eviction = match policy {
            PolicyId::NodeScanResistant => Eviction::ScanResistant,
            _ => Eviction::Lru,
        };
        let options = NodeOptions {
            max_blocks: Some(u32::try_from(blocks).unwrap_or(u32::MAX)),
            align: BYTES as u64,
            eviction,
            ..NodeOptions::default()
        };
        let memory = Region::builder(blocks as usize * BYTES).backing(Backing::Shared);
        let memory = memory.ladder(PageSize::Base).map()?;
        let dir = TempDir::with_prefix("kvmem-bench-")?;
        let socket = dir.path().join("socket");
        let node = Node::create(memory, options)?;
        let server = NodeServer::bind(node, &socket, ServerOptions::default())?;
        let stopper = server.stopper();
        let server = Some(std::thread::spawn(move || server.run()));
        // SAFETY: the only client writes to its reservations alone.
        let client = unsafe { NodeClient::connect(&socket, &ConnectOptions::default()) }?;
        Ok(NodeCache { client, stopper, server, _dir: dir })
    }

    /// Reserves as many of these blocks as the node has space for beside those that are pinned.
    fn reserve(&self, blocks: usize) -> Result<Vec<NodeReservation>, ClientError> {
        let is_full =
            |error: &ClientError| matches!(error, ClientError::Call(CallError::OutOfSpace { .. }));
        match self.client.reserve(&vec![1; blocks]) {
            Err(error) if is_full(&error) => {}
            reserved => return reserved,
        }
        let mut reserved = Vec::new();
        for _ in 0..blocks {
            match self.client.reserve(&[1]) {
                Err(error) if is_full(&error) => break,
                one => reserved.append(&mut one?),
            }
        }
        Ok(reserved)
    }

    /// Serves a request as an engine does: the blocks found are pinned, the others are stored, and
    /// the pins end.
    fn serve(&self, chain: &[u32]) -> Result<u64, ClientError> {
        let key = |at: usize| chain[at].to_le_bytes();
        let keys: Vec<[u8; 4]> = (0..chain.len()).map(key).collect();
        let mut found = 0;
        let mut pins = Vec::new();
        for keys in keys.chunks(MAX_BATCH) {
            let batch = self.client.acquire_prefix(keys)?;
            found += batch.hits();
            let is_whole = batch.hits() == keys.len();
            pins.push(batch);
            if !is_whole {
                break;
            }
        }
        let mut first = found;
        for keys in keys[found..].chunks(MAX_BATCH) {
            let batch = self.client.acquire(keys)?;
            let missing = (0..keys.len()).filter(|at| batch.value(*at).is_none());
            let missing: Vec<usize> = missing.map(|at| first + at).collect();
            pins.push(batch);
            first += keys.len();
            if missing.is_empty() {
                continue;
            }
            let reserved = self.reserve(missing.len())?;
            let is_full = reserved.len() < missing.len();
            let values = missing.into_iter().zip(reserved).map(|(at, reservation)| {
                let parent = at.checked_sub(1).map(|at| ParentKey::new(key(at)));
                let parent = parent.transpose()?;
                let options = ValueOptions { parent, ..ValueOptions::default() };
                Ok(NewValue { key: key(at), reservation, options })
            });
            self.client.commit(values.collect::<Result<_, ClientError>>()?)?;
            if is_full {
                break;
            }
        }
        Ok(found as u64)
    }
}

impl Model for NodeCache {
    fn request(&mut self, chain: &[u32]) -> Result<u64> {
        Ok(self.serve(chain)?)
    }
}

impl Drop for NodeCache {
    fn drop(&mut self) {
        self.stopper.stop();
        // A server that failed has failed the calls before.
        drop(self.server.take().map(JoinHandle::join));
    }
}
