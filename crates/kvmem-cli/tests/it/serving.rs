//! A server of a node in a process of its own, for tests.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use kvmem_node::{ClientError, ConnectOptions, MemoryHolderClient, NodeClient};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

/// A folder with a socket, and with the memory holder that a server starts there.
pub(crate) struct Place(TempDir);

impl Place {
    pub(crate) fn new() -> Place {
        // The path of a socket is short.
        Place(tempfile::tempdir().expect("a folder can be made"))
    }

    pub(crate) fn folder(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder().join("node.sock")
    }

    pub(crate) fn holder_socket(&self) -> PathBuf {
        self.folder().join("node.sock.holder")
    }

    pub(crate) fn holder(&self) -> MemoryHolderClient {
        MemoryHolderClient::connect(self.holder_socket()).expect("the memory holder answers")
    }

    /// Returns the options of a server here.
    pub(crate) fn options(&self, size: &str, more: &[&str]) -> Vec<String> {
        self.options_in("4k", size, more)
    }

    /// Returns the options of a server here, in these kinds of pages.
    fn options_in(&self, pages: &str, size: &str, more: &[&str]) -> Vec<String> {
        let socket = self.socket().into_os_string().into_string().expect("a plain path");
        let options = ["serve", "--size", size, "--pages", pages, "--socket", &socket];
        options.iter().chain(more).map(|word| (*word).to_owned()).collect()
    }

    /// Starts a server, and waits until it serves.
    pub(crate) fn serve(&self, size: &str, more: &[&str]) -> Server {
        self.serve_in("4k", size, more)
    }

    /// Starts a server in these kinds of pages.
    pub(crate) fn serve_in(&self, pages: &str, size: &str, more: &[&str]) -> Server {
        let command = Command::new(env!("CARGO_BIN_EXE_kvmem"));
        self.started(command, &self.options_in(pages, size, more))
    }

    pub(crate) fn serve_by(&self, command: Command, size: &str, more: &[&str]) -> Server {
        self.started(command, &self.options(size, more))
    }

    fn started(&self, mut command: Command, options: &[String]) -> Server {
        let report = self.folder().join("report.json");
        let _ = fs::remove_file(&report);
        command.args(options).arg("--json").arg(&report);
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it can be started");
        let stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut text = String::new();
        for line in stdout.lines() {
            text += &(line.expect("text") + "\n");
            if text.lines().last().is_some_and(|line| line.starts_with("serving ")) {
                let json = fs::read_to_string(&report).expect("the report is written");
                let report = serde_json::from_str(&json).expect("JSON");
                let stderr = child.stderr.take().map(BufReader::new);
                return Server { child, stderr, report, text };
            }
        }
        let mut errors = String::new();
        let _ = child.stderr.take().expect("a pipe").read_to_string(&mut errors);
        panic!("{:?}: {text}{errors}", child.wait());
    }

    /// Runs a server that must fail.
    pub(crate) fn fails(&self, size: &str, more: &[&str]) -> (Option<i32>, String) {
        self.fails_in("4k", size, more)
    }

    /// Runs a server in these kinds of pages that must fail.
    pub(crate) fn fails_in(&self, pages: &str, size: &str, more: &[&str]) -> (Option<i32>, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kvmem"));
        command.args(self.options_in(pages, size, more)).stdin(Stdio::null());
        let output = command.output().expect("it can be started");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    }

    /// Runs a command for operators on the socket.
    pub(crate) fn operator(&self, command: &str, more: &[&str]) -> Output {
        let mut run = Command::new(env!("CARGO_BIN_EXE_kvmem"));
        run.arg(command).args(more).arg("--socket").arg(self.socket());
        run.stdin(Stdio::null()).output().expect("it can be started")
    }

    pub(crate) fn client(&self) -> NodeClient {
        self.client_of(&ConnectOptions::default()).expect("the server answers")
    }

    pub(crate) fn client_of(&self, options: &ConnectOptions) -> Result<NodeClient, ClientError> {
        // SAFETY: all clients of this socket are those of the tests, which write to their own
        // reservations alone.
        unsafe { NodeClient::connect(self.socket(), options) }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Ok(holder) = MemoryHolderClient::connect(self.holder_socket()) {
            let _ = holder.stop();
        }
    }
}

/// A server that is killed at the end of the test, unless it was before.
pub(crate) struct Server {
    child: Child,
    stderr: Option<BufReader<ChildStderr>>,
    pub(crate) report: Value,
    /// What it printed until it served.
    pub(crate) text: String,
}

impl Server {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        signal_process(self.child.id(), signal);
    }

    /// Kills it, as `kill -9` does. Returns what it wrote on standard error.
    pub(crate) fn kill(mut self) -> String {
        self.child.kill().expect("it runs");
        self.wait().1
    }

    /// Waits for a line on its standard error that has this part, and returns it.
    pub(crate) fn error_line(&mut self, part: &str) -> String {
        let lines = self.stderr.as_mut().expect("a pipe").lines();
        let mut lines = lines.map(|line| line.expect("text"));
        lines.find(|line| line.contains(part)).expect("it writes the line")
    }

    /// Waits until it has ended.
    pub(crate) fn wait(&mut self) -> (ExitStatus, String) {
        let status = self.child.wait().expect("it is a child");
        let mut errors = String::new();
        if let Some(mut stderr) = self.stderr.take() {
            stderr.read_to_string(&mut errors).expect("text");
        }
        (status, errors)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn signal_process(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(pid.try_into().expect("a process")).expect("a process");
    kill_process(pid, signal).expect("it runs");
}

/// Waits until a condition holds.
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns duplicates of the three files of a node without a server.
pub(crate) fn files(holder: &MemoryHolderClient) -> [OwnedFd; 3] {
    holder.get("node").expect("it is retained").try_into().expect("three files")
}
