//! A node above a tier.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use kvmem::tier::Tier;
use kvmem_node::{ConnectOptions, Node, NodeClient, NodeServer, ServerOptions, Stopper};
use tempfile::TempDir;

/// A server with a tier below its node, until it is stopped or dropped.
pub(crate) struct Tiered {
    folder: TempDir,
    stopper: Stopper,
    thread: Option<JoinHandle<Node>>,
}

impl Tiered {
    pub(crate) fn start(node: Node, tier: Arc<dyn Tier>) -> Tiered {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let options = ServerOptions { drain: Duration::ZERO, ..ServerOptions::default() };
        let socket = folder.path().join("kvmem.sock");
        let mut server = NodeServer::bind(node, &socket, options).expect("free");
        server.attach_tier(tier).expect("the tier works");
        let stopper = server.stopper();
        let thread = Some(std::thread::spawn(move || server.run().expect("epoll works")));
        Tiered { folder, stopper, thread }
    }

    pub(crate) fn client(&self) -> NodeClient {
        let socket = self.folder.path().join("kvmem.sock");
        // SAFETY: the only clients are those of this test, which write to their reservations alone.
        let client = unsafe { NodeClient::connect(&socket, &ConnectOptions::default()) };
        client.expect("the server answers")
    }

    /// Stops the server, and returns when it has ended.
    pub(crate) fn end(mut self) {
        self.stopper.stop();
        let thread = self.thread.take().expect("it runs");
        thread.join().expect("no panic").check().expect("the invariants hold");
    }
}

impl Drop for Tiered {
    fn drop(&mut self) {
        self.stopper.stop();
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(std::thread::panicking() || ended.is_none_or(|it| it.is_ok()));
    }
}

pub(crate) fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !done() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
