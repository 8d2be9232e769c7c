//! *Node server*: serves a node on a socket of its own, for a program that connects to it.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

use kvmem::arena::{Backing, PageSize, Region};
use kvmem_node::{Node, NodeOptions, NodeServer, ServerOptions, Stopper};
use tempfile::TempDir;

/// The variable with the path of the socket.
const NODE: &str = "KVMEM_TEST_NODE";

/// The variable with the path of the socket of a server with a short lease.
const IMPATIENT: &str = "KVMEM_TEST_NODE_IMPATIENT";

/// Bytes of the memory of a node.
const BYTES: usize = 8 << 20;

/// A server in a thread, until it is dropped.
pub(crate) struct ServedNode {
    _folder: TempDir,
    socket: PathBuf,
    /// The memory file and the index file.
    files: [OwnedFd; 3],
    running: Option<(Stopper, JoinHandle<()>)>,
}

impl ServedNode {
    pub(crate) fn start(options: ServerOptions) -> ServedNode {
        // A socket's path is short: the target folder may not be.
        let folder = tempfile::tempdir().expect("a folder can be made");
        let socket = folder.path().join("node.sock");
        let server = NodeServer::bind(fresh(), &socket, options).expect("the socket is free");
        let files = server.descriptors().expect("there are descriptors");
        ServedNode { _folder: folder, socket, files, running: Some(run(server)) }
    }

    /// Returns the path of the socket.
    pub(crate) fn socket(&self) -> &str {
        self.socket.to_str().expect("the folder for temporary files has a UTF-8 path")
    }

    /// Tells a program where the socket is.
    pub(crate) fn tell<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command.env(NODE, &self.socket)
    }

    fn stop(&mut self) {
        if let Some((stopper, thread)) = self.running.take() {
            stopper.stop();
            let ended = thread.join();
            assert!(std::thread::panicking() || ended.is_ok(), "the server does not panic");
        }
    }

    fn serve(&mut self, node: Node) {
        let server = NodeServer::bind(node, &self.socket, ServerOptions::default());
        self.running = Some(run(server.expect("the socket is free")));
    }

    /// Starts a server that finds what the one before has left.
    fn recover(&mut self) {
        let files =
            self.files.each_ref().map(|file| file.try_clone().expect("a descriptor is free"));
        let recovered = Node::recover(files, NodeOptions::default());
        self.serve(recovered.expect("the index is whole").0);
    }

    /// Runs a program that says on its output what is to happen to the server, and goes on when
    /// that is done.
    pub(crate) fn obey(&mut self, program: PathBuf) {
        let mut command = Command::new(program);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = self.tell(&mut command).spawn().expect("it can be run");
        let mut answers = child.stdin.take().expect("it is piped");
        let requests = BufReader::new(child.stdout.take().expect("it is piped"));
        for request in requests.lines() {
            match request.expect("the program writes lines").as_str() {
                "stop" => self.stop(),
                "start" => self.recover(),
                "replace" => self.serve(fresh()),
                other => panic!("the program asks for {other}"),
            }
            // A program that has ended reads nothing, which its status says.
            let _ = answers.write_all(b"done\n");
        }
        let status = child.wait().expect("it was started");
        assert!(status.success(), "the program ended with {status}");
    }
}

impl Drop for ServedNode {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Makes a node without values.
fn fresh() -> Node {
    let memory = Region::builder(BYTES).backing(Backing::Shared).ladder(PageSize::Base).map();
    let memory = memory.expect("memory can be mapped");
    let options = NodeOptions { boundary: 4 << 20, ..NodeOptions::default() };
    Node::create(memory, options).expect("the options are possible")
}

fn run(server: NodeServer) -> (Stopper, JoinHandle<()>) {
    let stopper = server.stopper();
    let run = move || drop(server.run().expect("epoll works"));
    (stopper, std::thread::spawn(run))
}

/// Runs `program` with the variables of two servers, one of them with a short lease.
pub(crate) fn with_nodes(program: impl FnOnce(&[(&str, &str)])) {
    let lease = Duration::from_millis(500);
    let node = ServedNode::start(ServerOptions::default());
    let impatient = ServedNode::start(ServerOptions { lease, ..ServerOptions::default() });
    program(&[(NODE, node.socket()), (IMPATIENT, impatient.socket())]);
}
