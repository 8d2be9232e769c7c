//! A hostile peer of a publisher of KV events: any bytes, after nothing, a greeting, or the type of
//! a socket. The publisher and the server go on, and another subscriber learns what the node holds.
#![cfg_attr(fuzzing, no_main)]

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kvmem_fuzz::node::{BYTES, connect, options, shared, value};
use kvmem_node::{KvEventsOptions, Node, NodeServer, ServerOptions};

/// A greeting, and a command that names the type of a socket.
fn opening(kind: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 64];
    (bytes[0], bytes[9], bytes[10]) = (0xFF, 0x7F, 3);
    bytes[12..16].copy_from_slice(b"NULL");
    let body = [&b"\x05READY\x0BSocket-Type\0\0\0"[..], &[kind.len() as u8], kind].concat();
    bytes.extend([4, body.len() as u8]);
    bytes.extend(body);
    bytes
}

/// Returns whether a new subscriber learns of a key.
fn learns(address: SocketAddr, key: &[u8]) -> Result<bool> {
    let mut peer = TcpStream::connect(address)?;
    peer.set_read_timeout(Some(Duration::from_secs(10)))?;
    peer.write_all(&[&opening(b"SUB")[..], &[0, 1, 1]].concat())?;
    let (mut seen, mut bytes) = (Vec::<u8>::new(), [0; 4096]);
    while !seen.windows(key.len()).any(|it| it == key) {
        match peer.read(&mut bytes)? {
            0 => return Ok(false),
            len => seen.extend(&bytes[..len]),
        }
    }
    Ok(true)
}

fn target(bytes: &[u8]) -> Result<()> {
    const KEY: &[u8] = b"a key that no peer says";
    let folder = tempfile::tempdir()?;
    let socket = folder.path().join("sock");
    let node = Node::create(shared(BYTES)?, options())?;
    let mut server = NodeServer::bind(node, &socket, ServerOptions::default())?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    server.publish_events(listener, &KvEventsOptions::default())?;
    let stopper = server.stopper();
    let running = std::thread::spawn(move || server.run());
    let client = connect(&socket)?;
    client.insert(KEY, &value(3))?;

    let (first, bytes) = bytes.split_first().unwrap_or((&0, &[]));
    let greeting = match first % 4 {
        0 => Vec::new(),
        1 => opening(b"SUB")[..64].to_vec(),
        2 => opening(b"SUB"),
        _ => opening(b"DEALER"),
    };
    let mut hostile = TcpStream::connect(address)?;
    hostile.set_read_timeout(Some(Duration::from_millis(2)))?;
    // The publisher may have closed the connection.
    let sent = hostile.write_all(&[&greeting[..], bytes].concat());
    if let Err(error) = &sent {
        let closed = matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset);
        ensure!(closed, "{error}");
    }
    let _ = hostile.read(&mut [0; 1024]);
    ensure!(learns(address, KEY)?, "another subscriber learns nothing");
    drop(client);
    stopper.stop();
    let node = running.join().ok().context("the server's thread panicked")??;
    node.check().map_err(anyhow::Error::msg)
}

/// Returns the openings of peers, and what they say.
fn corpus() -> Vec<(String, Vec<u8>)> {
    let named = |name: &str, first: u8, bytes: &[u8]| (name.to_owned(), [&[first], bytes].concat());
    let request = [&[1, 0, 0, 8][..], &[0; 8]].concat();
    vec![
        named("http", 0, b"GET / HTTP/1.1\r\n\r\n"),
        named("subscriber", 0, &[&opening(b"XSUB")[..], &[0, 3, 1, b'k', b'v']].concat()),
        named("pull", 0, &opening(b"PULL")),
        named("commands", 2, b"\x04\x0B\x09SUBSCRIBEk\x04\x08\x04PING\0\x01a\x04\x07\x06CANCELk"),
        named("long", 2, &[2, 0x7F, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 1]),
        named("replay", 3, &[&request[..], &request, &[1, 0, 1, 0, 1, 0, 0, 0]].concat()),
    ]
}

kvmem_fuzz::run!(target, corpus);
