//! *Memory* of a node, made here and served by another process.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use anyhow::Result;
use kvmem::arena::{Backing, Ladder, Populate, Region};
use kvmem_node::{Node, NodeOptions};

use super::role::ServerProcess;
use super::{NodeChild, NodeRole};
use crate::bench::beside::BesideProgram;

/// Maps a memory file, on hugepages where the system gives them to such files.
pub(super) fn map(bytes: u64, populate: bool) -> Result<Region> {
    let ladder: Ladder = "thp,4k".parse()?;
    let builder = Region::builder(bytes as usize).backing(Backing::Shared).ladder(ladder);
    let populate = if populate { Populate::Auto } else { Populate::None };
    Ok(builder.populate(populate).map()?)
}

/// The three files of a node, without a server.
#[derive(Debug)]
pub(super) struct NodeFiles([OwnedFd; 3]);

impl NodeFiles {
    /// Makes a node for `max_blocks` blocks at one time.
    pub(super) fn new(bytes: u64, max_blocks: u32, populate: bool) -> Result<NodeFiles> {
        let options = NodeOptions { max_blocks: Some(max_blocks), ..NodeOptions::default() };
        let node = Node::create(map(bytes, populate)?, options)?;
        Ok(NodeFiles(node.descriptors()?))
    }

    /// Starts a server of the files, and does not wait for it.
    pub(super) fn serve(&self, socket: &Path, child: NodeChild) -> Result<ServerProcess> {
        self.serve_and_publish(socket, false, child)
    }

    /// Starts a server that publishes events, if `publishes`.
    pub(super) fn serve_and_publish(
        &self,
        socket: &Path,
        publishes: bool,
        child: NodeChild,
    ) -> Result<ServerProcess> {
        // Without the flag that would close them in the child.
        let [memory, index, sessions] = &self.0;
        let files = [rustix::io::dup(memory)?, rustix::io::dup(index)?, rustix::io::dup(sessions)?];
        let socket = socket.to_owned();
        let passed = files.each_ref().map(AsRawFd::as_raw_fd);
        let role = NodeRole::Server { socket, files: passed, publishes };
        Ok(ServerProcess(BesideProgram::run("the server", &mut child(&role))?))
    }
}
