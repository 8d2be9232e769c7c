//! *Service level*: how long a client waits for the pins of 64 values while a process of another
//! user attacks the server.
//!
//! The server and the client are threads of the test, and the attacker is a process: the test
//! program itself, under another user where this one may be changed. `cargo xtask chaos
//! service_level` runs this with an optimized build, on a machine that does nothing else.

use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use kvmem::arena::{Backing, PageSize, Region};
use rustix::net::{RecvFlags, SendFlags};

use super::attacks::{OTHER, lingering, send_descriptor};
use super::bounds::{acquire, for_own_group, send};
use crate::node::MAX_BATCH;
use crate::protocol::{Call, Key, MAX_MESSAGE, PROTOCOL_VERSION, Request, encode};
use crate::ring;
use crate::server::NodeServer;
use crate::socket;
use crate::{ConnectOptions, Node, NodeClient, NodeOptions};

/// An attacker of the server whose socket is at a path.
type Attack = fn(&Path);

/// The call that an attacker repeats until it is killed.
const ATTACKS: [(&str, Attack); 10] = [
    ("descriptors whose close waits", descriptors),
    ("full rings of clients that close", full_rings),
    ("full messages by 64 connections", full_messages),
    ("values of one byte", tiny_values),
    ("pins of everything", pins),
    ("clients that end with 20,000 pins", handles),
    ("values in the place of thousands", large_values),
    ("sessions that end at once", sessions),
    ("names of namespaces", namespaces),
    ("garbage", garbage),
];

/// The keys of a call, and the bytes of a value.
const KEYS: u32 = 64;
const VALUE: usize = 16 << 10;
/// How long the client calls during each attack, and before it. The attack has begun by then.
const TIME: Duration = Duration::from_millis(1500);
const BEGINNING: Duration = Duration::from_millis(500);
/// The limits of the p99: so many times that of the client alone, and an absolute one.
const TIMES_ALONE: u32 = 5;
const LIMIT: Duration = Duration::from_millis(5);

#[test]
#[ignore = "a measurement: cargo xtask chaos service_level"]
fn no_attack_delays_others() {
    if let Ok(role) = std::env::var("KVMEM_TEST_ROLE") {
        let (number, path) = role.split_once(' ').expect("a number and a path");
        return ATTACKS[number.parse::<usize>().expect("a number")].1(Path::new(path));
    }
    let folder = tempfile::tempdir().expect("a directory can be made");
    let path = folder.path().join("sock");
    let memory = Region::builder(64 << 20).backing(Backing::Shared).ladder(PageSize::Base);
    let node = Node::create(memory.map().expect("memory"), NodeOptions::default());
    let server = NodeServer::bind(node.expect("possible"), &path, for_own_group());
    let server = server.expect("a new path");
    let stopper = server.stopper();
    let server = thread::spawn(move || server.run().expect("epoll works"));
    let client = connect(&path);
    let keys: Vec<[u8; 4]> = (0..KEYS).map(u32::to_le_bytes).collect();
    keys.iter().for_each(|key| client.insert(key, &[key[0]; VALUE]).expect("there is space"));
    println!("{:36} alone µs attacked µs times", "attack");
    let mut too_long = Vec::new();
    for (number, (name, _)) in ATTACKS.iter().enumerate() {
        let alone = p99(&client, &keys);
        let attacker = Attacker::start(number, &path);
        thread::sleep(BEGINNING);
        let contended = p99(&client, &keys);
        assert!(attacker.is_running(), "{name}: the attacker has ended");
        drop(attacker);
        let times = contended.as_secs_f64() / alone.as_secs_f64();
        println!("{name:36} {:8} {:9} {times:6.1}", alone.as_micros(), contended.as_micros());
        if contended > LIMIT || contended > TIMES_ALONE * alone {
            too_long.push(*name);
        }
    }
    drop(client);
    stopper.stop();
    server.join().expect("it ended well");
    assert!(too_long.is_empty(), "too long during: {}", too_long.join(", "));
}

/// Returns the time that all but one call of a hundred take at most.
fn p99(client: &NodeClient, keys: &[[u8; 4]]) -> Duration {
    let (started, mut times) = (Instant::now(), Vec::new());
    while started.elapsed() < TIME {
        let before = Instant::now();
        let pins = client.acquire(keys).expect("a call");
        times.push(before.elapsed());
        drop(pins);
    }
    times.sort_unstable();
    times[times.len() * 99 / 100]
}

fn connect(path: &Path) -> NodeClient {
    // SAFETY: all clients are this program's, and write to their reservations alone.
    unsafe { NodeClient::connect(path, &ConnectOptions::default()) }.expect("the server answers")
}

/// A process that attacks until this value is dropped.
struct Attacker(Child);

impl Attacker {
    fn start(number: usize, path: &Path) -> Attacker {
        let mut command = Command::new(std::env::current_exe().expect("the program has a path"));
        let test = "server::service_level::no_attack_delays_others";
        command.args([test, "--exact", "--ignored"]).stdout(Stdio::null()).stderr(Stdio::null());
        command.env("KVMEM_TEST_ROLE", format!("{number} {}", path.display()));
        if rustix::process::geteuid().is_root() {
            command.uid(OTHER);
        }
        Attacker(command.spawn().expect("the program runs itself"))
    }

    fn is_running(&self) -> bool {
        let path = format!("/proc/{}/stat", self.0.id());
        let stat = std::fs::read_to_string(path).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, state)| !state.starts_with('Z'))
    }
}

impl Drop for Attacker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Connects and greets; `None` if the server rejects the client.
fn greet(path: &Path, namespace: &str) -> Option<OwnedFd> {
    let socket = socket::connect(path).ok()?;
    let (version, read_only, token) = (PROTOCOL_VERSION, false, 0);
    send(&socket, 1, Call::Hello { version, namespace, read_only, token });
    answer(&socket).map(|_| socket)
}

/// Waits for an answer; returns the descriptors that come with it.
fn answer(socket: &OwnedFd) -> Option<Vec<OwnedFd>> {
    let mut buffer = vec![0; MAX_MESSAGE];
    let packet = socket::receive(socket, &mut buffer, RecvFlags::empty()).ok()?;
    (packet.len > 0).then_some(packet.descriptors)
}

fn full_message() -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(&Request { id: 0, call: acquire(vec![Key(b"x"); MAX_BATCH]) }, &mut bytes);
    bytes
}

fn descriptors(path: &Path) {
    let (descriptor, _sockets) = lingering(30);
    loop {
        if let Ok(socket) = socket::connect(path) {
            let _ = send_descriptor(&socket, &[0; 8], &descriptor);
        }
    }
}

fn full_rings(path: &Path) {
    let bytes = full_message();
    let fill = || {
        let socket = greet(path, "")?;
        send(&socket, 2, Call::Rings);
        let [file, _bell] = <[OwnedFd; 2]>::try_from(answer(&socket)?).ok()?;
        let mut ends = ring::attach(file).ok()?;
        while ends.requests.try_send(&bytes).ok()? {}
        Some(())
    };
    loop {
        fill();
    }
}

fn full_messages(path: &Path) {
    let bytes = full_message();
    let sockets: Vec<OwnedFd> = (0..64).filter_map(|_| greet(path, "")).collect();
    let mut buffer = vec![0; MAX_MESSAGE];
    loop {
        for socket in &sockets {
            let _ = socket::send(socket, &bytes, &[], SendFlags::DONTWAIT);
            while socket::receive(socket, &mut buffer, RecvFlags::DONTWAIT)
                .is_ok_and(|it| it.len > 0)
            {}
        }
    }
}

fn tiny_values(path: &Path) {
    let client = connect(path);
    for number in 0_u64.. {
        let _ = client.insert(number.to_le_bytes(), b"x");
    }
}

/// Stores values of a page, and pins all that it can.
fn pins(path: &Path) {
    let client = connect(path);
    let mut held = Vec::new();
    for number in 0_u64.. {
        let _ = client.insert(number.to_le_bytes(), &[1; 4096]);
        held.extend(client.acquire(&[number.to_le_bytes()]));
    }
}

fn handles(path: &Path) {
    let keys: Vec<[u8; 8]> = (0..20_000_u64).map(|key| (key % 100).to_le_bytes()).collect();
    loop {
        let client = connect(path);
        keys[..100].iter().for_each(|key| _ = client.insert(key, b"x"));
        let pins: Vec<_> = keys.chunks(1000).map(|keys| client.acquire(keys)).collect();
        // The end of the connection ends the pins, and not one call after the other.
        pins.into_iter().for_each(std::mem::forget);
    }
}

/// Stores values of a page, and then one that takes the place of most of them.
fn large_values(path: &Path) {
    let client = connect(path);
    let large = vec![1; 48 << 20];
    loop {
        (0..12_000_u64).for_each(|key| _ = client.insert(key.to_le_bytes(), b"x"));
        let _ = client.insert(b"large", &large);
    }
}

fn sessions(path: &Path) {
    loop {
        greet(path, "");
    }
}

fn namespaces(path: &Path) {
    for number in 0_u64.. {
        greet(path, &format!("name {number}"));
    }
}

fn garbage(path: &Path) {
    for number in (0..=u8::MAX).cycle() {
        if let Ok(socket) = socket::connect(path) {
            let _ =
                socket::send(&socket, &[number.wrapping_mul(37); 1000], &[], SendFlags::DONTWAIT);
        }
    }
}
