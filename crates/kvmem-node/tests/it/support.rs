//! A server in a thread, on a socket of its own.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use kvmem::arena::{Backing, PageSize, Region};
use kvmem::tier::Tier;
use kvmem_node::{
    ConnectOptions, Node, NodeClient, NodeOptions, NodeServer, ServerOptions, Stopper,
};
use tempfile::TempDir;

/// A directory that goes with the test.
pub(crate) struct Place(TempDir);

impl Place {
    pub(crate) fn new() -> Place {
        // Some tests connect as another user.
        let open = Permissions::from_mode(0o755);
        let folder = tempfile::Builder::new().permissions(open).tempdir();
        Place(folder.expect("a directory can be made"))
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.0.path().join("kvmem.sock")
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
    pub(crate) stopper: Stopper,
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

/// A server with a tier, until it is stopped or dropped.
pub(crate) struct Tiered {
    pub(crate) place: Place,
    pub(crate) running: Running,
}

impl Tiered {
    pub(crate) fn start(place: Place, node: Node, tier: Arc<dyn Tier>) -> Tiered {
        Tiered::draining(place, node, tier, Duration::ZERO)
    }

    pub(crate) fn draining(
        place: Place,
        node: Node,
        tier: Arc<dyn Tier>,
        drain: Duration,
    ) -> Tiered {
        let options = ServerOptions { drain, ..ServerOptions::default() };
        let mut server = NodeServer::bind(node, &place.socket(), options).expect("free");
        server.attach_tier(tier).expect("the tier works");
        Tiered { place, running: Running::of(server) }
    }

    pub(crate) fn client(&self) -> NodeClient {
        connect_with(&self.place.socket(), &ConnectOptions::default())
    }

    /// Stops the server, and returns when it has ended.
    pub(crate) fn end(self) {
        self.running.stop().check().expect("the invariants hold");
    }
}

pub(crate) fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub(crate) fn connect_with(path: &Path, options: &ConnectOptions) -> NodeClient {
    // SAFETY: the only clients are those of this test, which write to their reservations alone.
    let client = unsafe { NodeClient::connect(path, options) }.expect("the server answers");
    assert_eq!(client.has_rings(), options.rings);
    client
}
