//! *Node*: what the fuzz targets of a node share.

use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use anyhow::{Context, Result, anyhow};
use kvmem::arena::{Backing, PageSize, Region};
use kvmem_node::{
    ConnectOptions, Node, NodeClient, NodeError, NodeOptions, NodeServer, ServerOptions, Stopper,
};
use tempfile::TempDir;

/// Bytes of the memory of a node.
pub const BYTES: usize = 256 << 10;
/// The most blocks of a node.
pub const BLOCKS: u32 = 32;

/// Maps shared memory of a length.
pub fn shared(len: usize) -> Result<Region> {
    let builder = Region::builder(len).backing(Backing::Shared).ladder(PageSize::Base);
    builder.map().context("memory can be mapped")
}

/// Returns the options of a small node.
#[must_use]
pub fn options() -> NodeOptions {
    NodeOptions { max_blocks: Some(BLOCKS), ..NodeOptions::default() }
}

/// The value of a key.
#[must_use]
pub fn value(key: u8) -> Vec<u8> {
    vec![key; 1 + usize::from(key) * 500]
}

/// A server in a thread of this process, and the folder of its socket.
pub struct Running {
    folder: TempDir,
    stopper: Stopper,
    thread: Option<JoinHandle<Result<Node, NodeError>>>,
}

impl Running {
    /// Starts a server with an empty node. `look` sees the server before it runs.
    pub fn start<R>(look: impl FnOnce(&NodeServer) -> Result<R>) -> Result<(Running, R)> {
        let folder = tempfile::tempdir()?;
        let node = Node::create(shared(BYTES)?, options())?;
        let server = NodeServer::bind(node, &folder.path().join("sock"), ServerOptions::default())?;
        let seen = look(&server)?;
        let stopper = server.stopper();
        let thread = Some(std::thread::spawn(move || server.run()));
        Ok((Running { folder, stopper, thread }, seen))
    }

    /// Returns the path of the socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("sock")
    }

    /// Ends the server. A panic of its thread is an error.
    pub fn stop(mut self) -> Result<Node> {
        self.stopper.stop();
        let thread = self.thread.take().context("it runs")?;
        let node = thread.join().map_err(|_| anyhow!("the server's thread panicked"))?;
        Ok(node?)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stopper.stop();
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Connects to a server.
pub fn connect(socket: &Path) -> Result<NodeClient> {
    // SAFETY: the clients of a target write to their own reservations alone.
    let client = unsafe { NodeClient::connect(socket, &ConnectOptions::default()) };
    client.context("the server answers")
}
