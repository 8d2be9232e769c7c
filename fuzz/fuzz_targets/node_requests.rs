//! Requests of a hostile client of a node: any packets after a whole greeting. The server goes on,
//! its invariants hold, and other clients keep their values.
#![cfg_attr(fuzzing, no_main)]

use anyhow::{Context, Result, ensure};
use kvmem_fuzz::node::{Running, connect, value};
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType};

/// A greeting with the number 1: version 1, no namespace, for writing, without a token.
const HELLO: [u8; 6] = [1, 0, 1, 0, 0, 0];
/// Numbers of the calls, as they are encoded.
const ACQUIRE: u8 = 4;
const RESERVE: u8 = 5;
const COMMIT: u8 = 6;
const RELEASE: u8 = 7;

/// Divides the bytes into packets: a length of one byte, and that number of bytes.
fn packets(mut bytes: &[u8]) -> Vec<&[u8]> {
    let mut packets = Vec::new();
    while let Some((len, rest)) = bytes.split_first() {
        let (packet, rest) = rest.split_at(rest.len().min((*len).into()));
        packets.push(packet);
        bytes = rest;
    }
    packets
}

fn target(bytes: &[u8]) -> Result<()> {
    let (server, ()) = Running::start(|_| Ok(()))?;
    let other = connect(&server.socket())?;
    other.insert([3], &value(3))?;
    let pins = other.acquire(&[[3]])?;

    let flags = SocketFlags::CLOEXEC;
    let hostile =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    rustix::net::connect(&hostile, &SocketAddrUnix::new(server.socket())?)?;
    let send = |packet: &[u8]| rustix::net::send(&hostile, packet, SendFlags::NOSIGNAL);
    send(&HELLO)?;
    for packet in packets(bytes).into_iter().filter(|packet| !packet.is_empty()) {
        // The server may have closed the connection, or wait until answers are read.
        if rustix::net::send(&hostile, packet, SendFlags::NOSIGNAL | SendFlags::DONTWAIT).is_err() {
            break;
        }
    }
    drop(hostile);

    // The process of the hostile client is an operator, so it may have ended the pins.
    other.keep_alive().context("the server serves others")?;
    if let Some(found) = pins.value(0) {
        let whole = found.bytes() == value(3);
        ensure!(whole || !pins.is_valid(), "a pinned value has other bytes");
    }
    drop((pins, other));
    let node = server.stop()?;
    node.check().map_err(anyhow::Error::msg)
}

/// Returns messages of each kind, with good and with bad numbers.
fn corpus() -> Vec<(String, Vec<u8>)> {
    let message = |call: u8, rest: &[u8]| {
        let mut message = vec![rest.len() as u8 + 2, 2, call];
        message.extend(rest);
        message
    };
    let named = |name: &str, messages: &[Vec<u8>]| (name.to_owned(), messages.concat());
    // An entry and its generation, a key of one byte, no checksum, a priority, no time to live.
    let commit = message(COMMIT, &[1, 1, 1, 1, b'k', 0, 9, 0]);
    let each: Vec<Vec<u8>> = (0..24).map(|call| message(call, &[0; 6])).collect();
    let ones: Vec<Vec<u8>> = (0..24).map(|call| message(call, &[1; 8])).collect();
    let huge: Vec<Vec<u8>> = (0..24).map(|call| message(call, &[0xFF; 12])).collect();
    vec![
        named("each", &each),
        named("ones", &ones),
        named("huge", &huge),
        named(
            "value",
            &[message(RESERVE, &[1, 100]), commit, message(ACQUIRE, &[0, 0, 1, 1, b'k', 0])],
        ),
        named(
            "pins",
            &[message(ACQUIRE, &[0, 0, 2, 1, 3, 1, 3, 0]), message(RELEASE, &[0, 1, 0, 1])],
        ),
        named("sizes", &[message(RESERVE, &[3, 0, 1, 0xFF, 0xFF, 0xFF, 0x7F])]),
    ]
}

kvmem_fuzz::run!(target, corpus);
