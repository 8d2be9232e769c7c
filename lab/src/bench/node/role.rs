//! *Roles*: what the other processes of the suite do.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, ensure};
use kvmem_node::{
    ConnectOptions, KvEventsOptions, Node, NodeClient, NodeOptions, NodeServer, ServerOptions,
};
use serde::{Deserialize, Serialize};

use super::exchange::exchange;
use super::subscriber::subscribe;
use super::writer::{Stores, write};
use crate::bench::beside::BesideProgram;

/// The task of a process in a benchmark of nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "role", rename_all = "lowercase")]
pub enum NodeRole {
    /// Serves a node until the end of its input. It has inherited the descriptors of the memory
    /// file, the index file and the session file.
    Server { socket: PathBuf, files: [RawFd; 3], publishes: bool },
    /// Calls for some time, from the batch of keys number `first` on.
    Client { socket: PathBuf, rings: bool, first: usize, milliseconds: u64 },
    /// Stores values for some time at each of two servers, the second of which is process `pid`.
    Writer { sockets: [PathBuf; 2], pid: u32, rings: bool, stores: Stores, milliseconds: u64 },
    /// Reads the events of a server until its end.
    Subscriber { port: u16 },
}

/// A server listens, and publishes events on this port.
#[derive(Serialize, Deserialize)]
pub(super) struct Listening {
    port: Option<u16>,
}

/// Acts a role in this process, which belongs to it: the descriptors of a server are its own.
/// Writes lines of JSON to `output`.
pub fn act(role: &NodeRole, output: &mut dyn Write) -> Result<()> {
    let say = |output: &mut dyn Write, line: String| {
        writeln!(output, "{line}").and_then(|()| output.flush())
    };
    match role {
        NodeRole::Server { socket, files, publishes } => {
            // SAFETY: the parent has duplicated the descriptors for this process, and nothing else
            // in it knows of them.
            let files = files.map(|file| unsafe { OwnedFd::from_raw_fd(file) });
            let (node, _) = Node::recover(files, NodeOptions::default())?;
            let mut server = NodeServer::bind(node, socket, ServerOptions::default())?;
            let mut port = None;
            if *publishes {
                let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
                port = Some(listener.local_addr()?.port());
                server.publish_events(listener, &KvEventsOptions::default())?;
            }
            let stopper = server.stopper();
            std::thread::spawn(move || {
                // An error of the input is its end.
                let _ = std::io::stdin().lock().read_to_end(&mut Vec::new());
                stopper.stop();
            });
            say(output, serde_json::json!(Listening { port }).to_string())?;
            server.run()?;
            Ok(())
        }
        NodeRole::Client { socket, rings, first, milliseconds } => {
            let client = connect(socket, *rings, true)?;
            let time = Duration::from_millis(*milliseconds);
            let sample = exchange(&client, *first, time)?;
            Ok(say(output, serde_json::json!(sample).to_string())?)
        }
        NodeRole::Writer { sockets: [silent, heard], pid, rings, stores, milliseconds } => {
            let clients = [connect(silent, *rings, true)?, connect(heard, *rings, true)?];
            let written = write(&clients, *pid, *stores, Duration::from_millis(*milliseconds))?;
            Ok(say(output, serde_json::json!(written).to_string())?)
        }
        NodeRole::Subscriber { port } => {
            Ok(say(output, serde_json::json!(subscribe(*port)?).to_string())?)
        }
    }
}

/// Connects to the server of a measurement.
pub(super) fn connect(socket: &Path, rings: bool, populate: bool) -> Result<NodeClient> {
    let options = ConnectOptions {
        rings,
        populate,
        retry_for: Duration::from_secs(60),
        ..ConnectOptions::default()
    };
    // SAFETY: all clients are this suite's, and write to their reservations alone.
    let client = unsafe { NodeClient::connect(socket, &options) }?;
    ensure!(client.has_rings() == rings, "the server gave the client no rings");
    Ok(client)
}

/// A server that runs. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct ServerProcess(pub(super) BesideProgram);

impl ServerProcess {
    /// Waits until the server listens. Returns the port of its events, if it publishes them.
    pub(super) fn wait(&mut self) -> Result<Option<u16>> {
        let Listening { port } = self.0.answer()?;
        Ok(port)
    }

    /// Ends the server by SIGKILL.
    pub(super) fn kill(self) -> Result<()> {
        self.0.kill()
    }
}
