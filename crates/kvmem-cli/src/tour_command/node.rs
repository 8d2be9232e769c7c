//! *Node*: values that belong to no engine: an engine is killed, then the server, and all are
//! there.
//!
//! A server of its own process, `kvmem serve`, gets values from an *engine*, another process, which
//! then pins one of them, reserves a block, writes half of it, and is killed. Then the server is
//! killed and started again. The tour has a client of its own all the time, and verifies every byte
//! at the end. The memory holder, which holds the memory while no server runs, is a thread of the
//! tour, and the kernel kills the others with the tour: a tour that is killed leaves nothing but an
//! empty folder.

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use kvmem_node::{
    ConnectOptions, MemoryHolder, MemoryHolderClient, MemoryHolderOptions, NewValue, NodeClient,
};
use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};
use tempfile::TempDir;

use super::disk::Phase;
use super::printer::Missing;

/// Values that are stored.
const VALUES: u64 = 64;
/// Values of a call.
const BATCH: u64 = 16;
/// The memory of the node, as a multiple of the bytes of the values.
const MEMORY: u64 = 2;
const MAX_VALUE: u64 = 1 << 20;
/// The sign of an engine that has stored the values; the seconds that it took follow.
const STORED_IN: &str = "stored in seconds:";
/// The longest wait for a process.
const LONGEST: Duration = Duration::from_secs(20);

/// What was measured.
#[derive(Clone, Debug)]
pub(super) struct OnNode {
    /// Bytes of a value, and of the node's memory.
    pub(super) value_bytes: u64,
    pub(super) memory_bytes: u64,
    /// Values.
    pub(super) values: u64,
    /// The bytes that were stored, and the seconds that it took.
    pub(super) stored: Phase,
    /// Seconds from the end of the engine until its reservation was free.
    pub(super) engine_seconds: f64,
    /// Seconds from the end of the server until the next one had found a value.
    pub(super) server_seconds: f64,
    /// The values that it found.
    pub(super) found: u64,
    /// The faults that were found.
    pub(super) mismatches: Vec<String>,
}

/// Returns the memory of a node for values of this size.
fn memory_bytes(value_bytes: u64) -> u64 {
    MEMORY * VALUES * value_bytes
}

/// Starts `kvmem` with these arguments, to end with this process.
fn start(args: &[&str]) -> io::Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    // SAFETY: the function makes one system call, and allocates nothing.
    unsafe {
        command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::KILL))?));
    }
    command.spawn()
}

/// A process that ends with its owner.
struct Process(Child);

impl Process {
    /// Starts `kvmem`, and waits for a line of its output that begins with `sign`. Returns the rest
    /// of the line, too.
    fn start(args: &[&str], sign: &str) -> io::Result<(Process, String)> {
        let mut process = Process(start(args)?);
        let output = process.0.stdout.take().expect("the output is a pipe");
        for line in BufReader::new(output).lines() {
            if let Some(rest) = line?.strip_prefix(sign) {
                return Ok((process, rest.to_owned()));
            }
        }
        let status = process.0.wait()?;
        Err(io::Error::other(format!("kvmem {} ended with {status}", args[0])))
    }

    fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The folder of the sockets, with the memory holder.
struct SocketFolder {
    folder: PathBuf,
    holder: Option<JoinHandle<()>>,
}

impl SocketFolder {
    fn new() -> io::Result<SocketFolder> {
        // The path of a socket is short, so the folder is not that of the report.
        let folder = TempDir::with_prefix("kvmem-tour-")?.keep();
        let mut place = SocketFolder { folder, holder: None };
        let holder = MemoryHolder::bind(&place.holder_socket(), MemoryHolderOptions::default());
        let holder = holder.map_err(io::Error::other)?;
        place.holder = Some(std::thread::Builder::new().spawn(move || drop(holder.run()))?);
        Ok(place)
    }

    fn socket(&self) -> PathBuf {
        self.folder.join("node.sock")
    }

    fn holder_socket(&self) -> PathBuf {
        self.folder.join("node.sock.holder")
    }

    fn serve(&self, bytes: u64) -> io::Result<Process> {
        let (socket, size) = (self.socket(), bytes.to_string());
        let socket = socket.to_str().ok_or_else(|| io::Error::other("the folder is no UTF-8"))?;
        let (server, _) =
            Process::start(&["serve", "--size", &size, "--socket", socket], "serving ")?;
        Ok(server)
    }
}

impl Drop for SocketFolder {
    fn drop(&mut self) {
        let stopped = MemoryHolderClient::connect(self.holder_socket()).map(|holder| holder.stop());
        if let (Some(holder), Ok(Ok(()))) = (self.holder.take(), stopped) {
            let _ = holder.join();
        }
        // By name: a list of the folder needs a descriptor, and there may be none left.
        let _ = fs::remove_file(self.socket());
        let _ = fs::remove_file(self.holder_socket());
        let _ = fs::remove_dir(&self.folder);
    }
}

/// Connects to the server of this tour.
fn connect(socket: &Path) -> io::Result<NodeClient> {
    let options = ConnectOptions { retry_for: LONGEST, ..ConnectOptions::default() };
    // SAFETY: the clients of this server are processes of the tour, which write to their own
    // reservations alone.
    unsafe { NodeClient::connect(socket, &options) }.map_err(io::Error::other)
}

/// Fills a value with words of its number and their position.
fn fill(bytes: &mut [u8], number: u64) {
    for (at, eight) in (0_u64..).zip(bytes.chunks_mut(8)) {
        let word = (number << 32 | at).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes();
        eight.copy_from_slice(&word[..eight.len()]);
    }
}

/// Shows it, with values of a part of `pool_bytes`.
///
/// # Errors
/// The server or an engine cannot be started, or does not answer.
pub(super) fn show(pool_bytes: u64) -> Result<OnNode, Missing> {
    shown(pool_bytes).map_err(|error| {
        let why = format!("`kvmem serve` cannot be shown: {error}");
        Missing::new("a node", why, &["kvmem serve --size 128MiB --socket PATH"])
    })
}

fn shown(pool_bytes: u64) -> io::Result<OnNode> {
    let value_bytes = (pool_bytes / (2 * MEMORY * VALUES)).min(MAX_VALUE) / 4096 * 4096;
    let memory_bytes = memory_bytes(value_bytes);
    let place = SocketFolder::new()?;
    let mut server = place.serve(memory_bytes)?;
    let client = connect(&place.socket())?;
    let mut mismatches = Vec::new();

    let socket = place.socket();
    let socket = socket.to_str().ok_or_else(|| io::Error::other("the folder is no UTF-8"))?;
    let (mut engine, seconds) = Process::start(&["tour", "--engine", socket], STORED_IN)?;
    let seconds = seconds.trim().parse().map_err(io::Error::other)?;
    let stored = Phase { bytes: VALUES * value_bytes, seconds };
    let stats = client.stats().map_err(io::Error::other)?;
    if (stats.reservations, stats.pinned) != (1, 1) {
        mismatches.push(format!(
            "the engine has {} reservation(s) and {} pin(s)",
            stats.reservations, stats.pinned
        ));
    }
    let started = Instant::now();
    engine.kill();
    let engine_seconds = loop {
        let stats = client.stats().map_err(io::Error::other)?;
        let waited = started.elapsed();
        if (stats.reservations, stats.pinned) == (0, 0) {
            break waited.as_secs_f64();
        }
        if waited > LONGEST {
            mismatches.push("what a killed engine had did not come back".to_owned());
            break waited.as_secs_f64();
        }
    };

    let started = Instant::now();
    server.kill();
    let server = place.serve(memory_bytes)?;
    let hits = client.lookup(&[0_u64.to_le_bytes()]).map_err(io::Error::other)?;
    let server_seconds = started.elapsed().as_secs_f64();
    let mut found = 0;
    if hits == 1 {
        found = verify(&client, value_bytes, &mut mismatches).map_err(io::Error::other)?;
    }
    if found != VALUES {
        mismatches.push(format!("{found} of {VALUES} values were found after the restart"));
    }
    drop(client);
    end(server)?;
    let values = VALUES;
    Ok(OnNode {
        value_bytes,
        memory_bytes,
        values,
        stored,
        engine_seconds,
        server_seconds,
        found,
        mismatches,
    })
}

/// Compares every byte. Returns how many values there are.
fn verify(
    client: &NodeClient,
    value_bytes: u64,
    mismatches: &mut Vec<String>,
) -> Result<u64, kvmem_node::ClientError> {
    let mut found = 0;
    let mut expected = vec![0; value_bytes as usize];
    for first in (0..VALUES).step_by(BATCH as usize) {
        let keys: Vec<[u8; 8]> = (first..first + BATCH).map(u64::to_le_bytes).collect();
        let pins = client.acquire(&keys)?;
        for (number, value) in (first..).zip(pins.values()) {
            let Some(value) = value else { continue };
            found += 1;
            fill(&mut expected, number);
            if value.bytes() != expected {
                mismatches.push(format!("value {number} has other bytes than were stored"));
            }
        }
    }
    Ok(found)
}

/// Ends the server as an operator does.
fn end(mut server: Process) -> io::Result<()> {
    if let Some(pid) = Pid::from_raw(server.0.id() as i32) {
        kill_process(pid, Signal::TERM)?;
    }
    let deadline = Instant::now() + LONGEST;
    while server.0.try_wait()?.is_none() {
        if Instant::now() > deadline {
            return Err(io::Error::other("the server did not stop"));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Stores the values. Returns the seconds that it took.
fn store(client: &NodeClient, value_bytes: u64) -> Result<f64, kvmem_node::ClientError> {
    let started = Instant::now();
    for first in (0..VALUES).step_by(BATCH as usize) {
        let mut blocks = client.reserve(&vec![value_bytes; BATCH as usize])?;
        for (number, block) in (first..).zip(&mut blocks) {
            fill(block.bytes_mut()?, number);
        }
        let keys = (first..).map(u64::to_le_bytes);
        client.commit(keys.zip(blocks).map(|(key, block)| NewValue::new(key, block)).collect())?;
    }
    Ok(started.elapsed().as_secs_f64())
}

/// Does what an engine does before it is killed: it stores the values, pins one, and writes half of
/// another.
pub(super) fn engine(socket: &Path) -> io::Result<()> {
    let client = connect(socket)?;
    let value_bytes = client.stats().map_err(io::Error::other)?.capacity / (MEMORY * VALUES);
    let seconds = store(&client, value_bytes).map_err(io::Error::other)?;
    let _pins = client.acquire(&[0_u64.to_le_bytes()]).map_err(io::Error::other)?;
    let mut blocks = client.reserve(&[value_bytes]).map_err(io::Error::other)?;
    let bytes = blocks[0].bytes_mut().map_err(io::Error::other)?;
    bytes[..value_bytes as usize / 2].fill(0xEE);
    println!("{STORED_IN} {seconds}");
    io::stdout().flush()?;
    loop {
        std::thread::sleep(LONGEST);
    }
}
