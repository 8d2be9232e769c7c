//! A server in a thread, on a socket of its own.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;

use kvmem::arena::{Backing, PageSize, Region};
use kvmem_node::{
    ConnectOptions, Node, NodeClient, NodeOptions, NodeServer, ServerOptions, Stopper,
};

/// A directory that goes with the test.
pub(crate) struct Place(PathBuf);

impl Place {
    pub(crate) fn new() -> Place {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("kvmem-node-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).expect("a directory can be made");
        Place(path)
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.0.join("kvmem.sock")
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Memory that clients can map.
pub(crate) fn memory(bytes: usize) -> Region {
    Region::builder(bytes)
        .backing(Backing::Shared)
        .ladder(PageSize::Base)
        .map()
        .expect("memory can be mapped")
}

pub(crate) fn node(bytes: usize) -> Node {
    Node::create(memory(bytes), NodeOptions::default()).expect("the options are possible")
}

/// A server that runs until it is stopped or dropped.
pub(crate) struct Running {
    stopper: Stopper,
    thread: Option<JoinHandle<Node>>,
}

impl Running {
    pub(crate) fn start(node: Node, path: &Path, options: ServerOptions) -> Running {
        Running::of(NodeServer::bind(node, path, options).expect("the socket is free"))
    }

    pub(crate) fn of(server: NodeServer) -> Running {
        let stopper = server.stopper();
        let run = move || server.run().expect("epoll works");
        Running { stopper, thread: Some(std::thread::spawn(run)) }
    }
}

impl Running {
    /// Stops the server, and returns its node.
    pub(crate) fn stop(mut self) -> Node {
        self.stopper.stop();
        let thread = self.thread.take().expect("it runs");
        thread.join().expect("the server does not panic")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stopper.stop();
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(std::thread::panicking() || ended.is_ok(), "the server does not panic");
        }
    }
}

pub(crate) fn connect_with(path: &Path, options: &ConnectOptions) -> NodeClient {
    // SAFETY: the only clients are those of this test, which write to their reservations alone.
    let client = unsafe { NodeClient::connect(path, options) }.expect("the server answers");
    assert_eq!(client.has_rings(), options.rings);
    client
}
