//! A node in two processes: a server, and a supervisor that starts the server again when it dies.
//!
//! ```text
//! cargo run -p kvmem-node --example serve -- BYTES SOCKET [LEASE_IN_MILLISECONDS [BOUNDARY]]
//! ```
//!
//! The supervisor makes the two files of the node, and holds their descriptors. Each server
//! inherits them and recovers the node. The supervisor prints the process number of each server on
//! a line of its own. It ends, with its server, when its standard input is closed.

use std::ffi::OsString;
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use kvmem::arena::{Backing, PageSize, Region};
use kvmem_node::{Node, NodeOptions, NodeServer, ServerOptions};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// The numbers of the descriptors in a server: those of the memory, the index and the sessions.
const FILES: [RawFd; 3] = [100, 101, 102];

fn main() -> Outcome<()> {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let number =
        |text: &OsString| -> Outcome<u64> { Ok(text.to_str().ok_or("give a number")?.parse()?) };
    match &arguments[..] {
        [word, socket, lease] if word == "--recover" => serve(socket, number(lease)?),
        [bytes, socket] => keep(number(bytes)?, socket, 60_000, NodeOptions::default().boundary),
        [bytes, socket, lease] => {
            keep(number(bytes)?, socket, number(lease)?, NodeOptions::default().boundary)
        }
        [bytes, socket, lease, boundary] => {
            keep(number(bytes)?, socket, number(lease)?, number(boundary)?)
        }
        _ => Err("give BYTES and SOCKET".into()),
    }
}

/// Serves the node whose files the supervisor has passed.
fn serve(socket: &OsString, lease_ms: u64) -> Outcome<()> {
    // SAFETY: the supervisor has passed these descriptors, and nothing else in the process owns
    // them.
    let files = FILES.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
    let (node, _) = Node::recover(files, NodeOptions::default())?;
    let lease = Duration::from_millis(lease_ms);
    let options = ServerOptions { lease, ..ServerOptions::default() };
    NodeServer::bind(node, socket.as_ref(), options)?.run()?;
    Ok(())
}

/// Makes the node's files, and runs one server after the other.
fn keep(bytes: u64, socket: &OsString, lease_ms: u64, boundary: u64) -> Outcome<()> {
    let memory = Region::builder(usize::try_from(bytes)?)
        .backing(Backing::Shared)
        .ladder(PageSize::Base)
        .map()?;
    let options = NodeOptions { max_blocks: Some(8192), boundary, ..NodeOptions::default() };
    let node = Node::create(memory, options)?;
    // This server only lends its descriptors: nobody can connect to one end of a pair.
    let (idle, _) = std::os::unix::net::UnixStream::pair()?;
    let files = NodeServer::on(node, idle.into(), ServerOptions::default())?.descriptors()?;
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    loop {
        let mut server = start(socket, lease_ms, &files)?;
        println!("{}", server.id());
        server.wait()?;
    }
}

/// Starts a server that has the files.
fn start(socket: &OsString, lease_ms: u64, files: &[OwnedFd; 3]) -> Outcome<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("--recover").arg(socket).arg(lease_ms.to_string()).stdin(Stdio::null());
    let files = files.each_ref().map(AsRawFd::as_raw_fd);
    let pass = move || {
        for (from, to) in files.into_iter().zip(FILES) {
            // SAFETY: `dup2` is async-signal-safe, and the process has no such numbers.
            if unsafe { libc::dup2(from, to) } < 0 {
                return Err(std::io::Error::last_os_error());
            }
        }
        // The server ends with the supervisor.
        // SAFETY: the call is async-signal-safe, and takes two numbers.
        match unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    // SAFETY: the function makes only calls that are async-signal-safe.
    unsafe { command.pre_exec(pass) };
    Ok(command.spawn()?)
}
