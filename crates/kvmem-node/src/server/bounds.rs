//! Bounds of what a client can make the server do: work in a turn, memory, places. The tests are
//! client and server in one thread, so the numbers are exact.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use kvmem::arena::{Backing, PageSize, Region};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use super::turn::OWN_PLACES;
use super::{NodeServer, ServerOptions};
use crate::error::CallError;
use crate::heap::bytes_of_thread;
use crate::node::MAX_BATCH;
use crate::protocol::{
    Answer, Call, Key, MAX_MESSAGE, PROTOCOL_VERSION, Request, Response, decode, encode,
};
use crate::ring;
use crate::socket::{self, now_ms};
use crate::tier::{NodeTier, TierOptions, TierRead};
use crate::{Node, NodeOptions};

/// A server that serves when the test says so.
struct Stepped {
    folder: PathBuf,
    server: NodeServer,
}

impl Stepped {
    fn new(options: ServerOptions) -> Stepped {
        Stepped::of(options, NodeOptions::default())
    }

    fn of(options: ServerOptions, node: NodeOptions) -> Stepped {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("kvmem-node-bounds-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).expect("a directory can be made");
        let memory = Region::builder(8 << 20).backing(Backing::Shared).ladder(PageSize::Base);
        let memory = memory.map().expect("memory can be mapped");
        let node = Node::create(memory, node).expect("possible");
        let server = NodeServer::bind(node, &folder.join("sock"), options).expect("a new path");
        Stepped { folder, server }
    }

    /// Connects without greeting. Returns also the number of the connection.
    fn connect(&mut self) -> (OwnedFd, u32) {
        let socket = socket::connect(&self.folder.join("sock")).expect("it listens");
        self.server.accept(now_ms());
        (socket, self.server.next_key)
    }

    fn greet(&mut self) -> (OwnedFd, u32) {
        let (socket, number) = self.connect();
        let (version, namespace) = (PROTOCOL_VERSION, "");
        let hello = Call::Hello { version, namespace, read_only: false, token: 0 };
        let (answer, _) = self.exchange(&socket, number, hello);
        assert!(matches!(answer, Ok(Answer::Welcome(_))), "{answer:?}");
        (socket, number)
    }

    fn exchange(
        &mut self,
        socket: &OwnedFd,
        number: u32,
        call: Call<'_>,
    ) -> (Result<Answer, CallError>, Vec<OwnedFd>) {
        assert!(send(socket, 1, call), "the socket has space");
        self.server.turn(number, now_ms());
        let mut buffer = vec![0; MAX_MESSAGE];
        let packet = socket::receive(socket, &mut buffer, RecvFlags::DONTWAIT);
        let packet = packet.expect("it has answered");
        let response = decode::<Response>(&buffer[..packet.len]).expect("an answer");
        (response.result, packet.descriptors)
    }
}

impl Drop for Stepped {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Sends a request, if the socket has space.
fn send(socket: &OwnedFd, id: u32, call: Call<'_>) -> bool {
    let mut bytes = Vec::new();
    encode(&Request { id, call }, &mut bytes);
    match socket::send(socket, &bytes, &[], SendFlags::DONTWAIT) {
        Ok(()) => true,
        Err(Errno::AGAIN) => false,
        Err(error) => panic!("{error}"),
    }
}

fn acquire(keys: Vec<Key<'_>>) -> Call<'_> {
    Call::Acquire { epoch: 0, release: Vec::new(), keys, prefix_only: false }
}

/// However much waits in its socket or ring, a client has one turn, and others have theirs.
#[test]
fn a_turn_has_little_more_than_the_work_of_one_message() {
    let mut stepped = Stepped::new(ServerOptions::default());
    let (socket, number) = stepped.greet();
    let full = || acquire(vec![Key(b"x"); MAX_BATCH]);
    let sent = (0..12).take_while(|_| send(&socket, 1, full())).count() as u64;
    assert!(sent >= 4, "the socket takes {sent} messages");
    for turn in 1..=sent {
        stepped.server.turn(number, now_ms());
        assert_eq!(stepped.server.node().stats().misses, turn * MAX_BATCH as u64);
    }
    // Small messages end the turn by their number.
    let (socket, number) = stepped.greet();
    let before = stepped.server.node().stats().misses;
    for _ in 0..64 {
        assert!(send(&socket, 0, acquire(vec![Key(b"x")])), "small messages have space");
    }
    for turn in 1..=4 {
        stepped.server.turn(number, now_ms());
        assert_eq!(stepped.server.node().stats().misses - before, turn * 16);
    }
    // The same by a ring.
    let (socket, number) = stepped.greet();
    let (answer, descriptors) = stepped.exchange(&socket, number, Call::Rings);
    assert!(matches!(answer, Ok(Answer::Rings)));
    let [file, _bell] = <[OwnedFd; 2]>::try_from(descriptors).expect("two descriptors");
    let mut ends = ring::attach(file).expect("it is sealed");
    let mut bytes = Vec::new();
    encode(&Request { id: 0, call: full() }, &mut bytes);
    for _ in 0..8 {
        assert!(
            ends.requests.try_send(&bytes).expect("the server is honest"),
            "the ring has space"
        );
    }
    let before = stepped.server.node().stats().misses;
    for turn in 1..=8 {
        stepped.server.ring_turn(number, now_ms());
        assert_eq!(stepped.server.node().stats().misses - before, turn * MAX_BATCH as u64);
    }
}

/// A tier that has a value under every key, and is never done.
struct EndlessTier;

impl NodeTier for EndlessTier {
    fn store(&self, values: &[(&[u8], &[u8])]) -> Vec<bool> {
        vec![true; values.len()]
    }

    fn len_of(&self, _: &[u8]) -> Option<u64> {
        Some(64)
    }

    fn fetch(&self, reads: &mut [TierRead<'_>]) -> Vec<bool> {
        vec![true; reads.len()]
    }

    fn remove(&self, _: &[&[u8]]) -> bool {
        true
    }

    fn clear(&self) -> bool {
        true
    }
}

/// A client sends what makes the server remember something, reads no answer, and comes again.
#[test]
fn the_memory_that_clients_take_is_bounded() {
    // A connection: 64 calls of 1024 keys with 64 bytes each, their answers, and less.
    const OF_CONNECTION: isize = 12 << 20;
    // The server itself, for 8 MiB in blocks of 4 KiB.
    const OF_SERVER: isize = 8 << 20;
    let node = NodeOptions { max_handles_per_session: 4096, ..NodeOptions::default() };
    let mut stepped = Stepped::of(ServerOptions::default(), node);
    stepped.server.attach_tier(Arc::new(EndlessTier), TierOptions::default()).expect("it works");
    let keys: Vec<[u8; 64]> = (0..4096_u32)
        .map(|number| std::array::from_fn(|at| number.to_le_bytes()[at % 4]))
        .collect();
    let before = bytes_of_thread();
    let mut open = VecDeque::new();
    let (mut most, mut sent) = (0, 0_usize);
    for round in 0..64_usize {
        let (socket, number) = stepped.greet();
        for turn in 0..150_usize {
            let from = (round * 37 + turn * 911) % 3000;
            let some = || keys[from..from + MAX_BATCH].iter().map(|key| Key(key)).collect();
            let call = match turn % 8 {
                0..4 => acquire(some()),
                4 => Call::Remove { keys: some() },
                5 => Call::Reserve { sizes: vec![4096; 900].into() },
                6 => Call::Events { from: u64::MAX, max: 512, wait_ms: u32::MAX },
                _ => Call::Lookup { keys: some() },
            };
            sent += usize::from(send(&socket, turn as u32 + 1, call));
            // The threads of the tier are not served: the tier hangs.
            stepped.server.turn(number, now_ms());
            stepped.server.answer_waiting(now_ms());
            most = most.max(bytes_of_thread() - before);
        }
        open.push_back((socket, number));
        if open.len() > 2 {
            // The oldest one goes without a goodbye, and its process lives.
            let (socket, number) = open.pop_front().expect("there are three");
            drop(socket);
            stepped.server.turn(number, now_ms());
            stepped.server.turn(number, now_ms());
        }
    }
    assert!(sent > 2000, "the server takes messages: {sent}");
    assert!(most < OF_SERVER + 3 * OF_CONNECTION, "{most} bytes");
    assert!(stepped.server.deferred.len() <= 3 * 64, "{}", stepped.server.deferred.len());
    stepped.server.node().check().expect("the invariants hold");
}

#[test]
fn a_returning_client_cannot_make_the_server_count_for_long() {
    let mut stepped = Stepped::new(ServerOptions::default());
    let (socket, number) = stepped.connect();
    let (version, namespace) = (PROTOCOL_VERSION, "");
    let hello = |token| Call::Hello { version, namespace, read_only: false, token };
    let (answer, _) = stepped.exchange(&socket, number, hello(0));
    let Ok(Answer::Welcome(welcome)) = answer else { panic!("{answer:?}") };
    let reserved = stepped.exchange(&socket, number, Call::Reserve { sizes: vec![64].into() }).0;
    let Ok(Answer::Reserved(blocks)) = reserved else { panic!("{reserved:?}") };
    let handle = blocks[0].handle;
    let item = crate::protocol::Commit {
        handle,
        key: Key(b"key"),
        checksum: None,
        priority: 0,
        ttl_ms: 0,
    };
    let (answer, _) = stepped.exchange(&socket, number, Call::Commit { items: vec![item] });
    assert!(matches!(answer, Ok(Answer::Done)), "{answer:?}");
    let (answer, _) = stepped.exchange(&socket, number, acquire(vec![Key(b"key")]));
    assert!(matches!(answer, Ok(Answer::Pinned { .. })), "{answer:?}");
    drop(socket);
    stepped.server.turn(number, now_ms());
    // It says that it has four billion pins, and more come.
    let (socket, number) = stepped.connect();
    let (answer, _) = stepped.exchange(&socket, number, hello(welcome.token));
    assert!(matches!(answer, Ok(Answer::Welcome(welcome)) if welcome.resumed), "{answer:?}");
    let keep = Call::Keep { pins: vec![(handle, u32::MAX)], reservations: Vec::new() };
    assert!(stepped.exchange(&socket, number, keep).0.is_ok());
    let started = std::time::Instant::now();
    assert!(stepped.exchange(&socket, number, Call::Kept).0.is_ok());
    assert!(stepped.exchange(&socket, number, acquire(vec![Key(b"key"); 100])).0.is_ok());
    stepped.server.node().check().expect("the invariants hold");
    assert!(send(&socket, 1, Call::Goodbye));
    stepped.server.turn(number, now_ms());
    drop(socket);
    stepped.server.turn(number, now_ms());
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
    assert_eq!(stepped.server.node().stats().pinned, 0);
    stepped.server.node().check().expect("the invariants hold");
}

#[test]
fn a_connection_that_does_not_greet_is_closed() {
    let lease = Duration::from_millis(100);
    let mut stepped = Stepped::new(ServerOptions { lease, ..ServerOptions::default() });
    let (_greeted, _) = stepped.greet();
    let (silent, _) = stepped.connect();
    let (talks, number) = stepped.connect();
    let now = now_ms();
    assert!(send(&talks, 1, Call::KeepAlive));
    stepped.server.turn(number, now + 90);
    stepped.server.tick(now + 90);
    assert_eq!(stepped.server.connections.len(), 3);
    stepped.server.tick(now + 250);
    assert_eq!(stepped.server.connections.len(), 1);
    let mut buffer = [0; 64];
    let packet = socket::receive(&silent, &mut buffer, RecvFlags::DONTWAIT).expect("it is closed");
    assert_eq!(packet.len, 0);
}

#[test]
fn other_users_leave_places_to_the_servers_own() {
    const OTHER: u32 = 54_321;
    let limited = |max_connections, allow_group| {
        Stepped::new(ServerOptions { max_connections, allow_group, ..ServerOptions::default() })
    };
    assert!(!limited(32, None).server.has_place_for(OTHER));
    let own = rustix::process::getuid().as_raw();
    let group = rustix::process::getgid().as_raw();
    let mut stepped = limited(32, Some(group));
    let mut open = Vec::new();
    while stepped.server.has_place_for(OTHER) {
        open.push(stepped.connect());
    }
    assert_eq!(open.len(), 32 - 32 / OWN_PLACES);
    while stepped.server.has_place_for(own) {
        open.push(stepped.connect());
    }
    assert_eq!(open.len(), 32);
    let _ = stepped.connect();
    assert_eq!(stepped.server.connections.len(), 32, "one more is not accepted");
}

/// A server that ends before it runs, such as for want of a thread, leaves no socket.
#[test]
fn the_file_of_the_socket_goes_with_the_server() {
    let Stepped { folder, server } = &Stepped::new(ServerOptions::default());
    let socket = folder.join("sock");
    assert!(socket.exists() && server.node().is_empty());
    let other = folder.join("other");
    let memory = Region::builder(1 << 20).backing(Backing::Shared).ladder(PageSize::Base);
    let node = Node::create(memory.map().expect("memory can be mapped"), NodeOptions::default());
    let options = ServerOptions::default();
    let server = NodeServer::bind(node.expect("possible"), &other, options).expect("a new path");
    assert!(other.exists());
    drop(server);
    assert!(!other.exists() && socket.exists());
}

/// Quotas are those of sessions: blocks and bytes.
#[test]
fn reservations_have_quotas() {
    let node = NodeOptions {
        max_reserved_per_session: 1 << 20,
        max_handles_per_session: 100,
        ..NodeOptions::default()
    };
    let mut stepped = Stepped::of(ServerOptions::default(), node);
    let (socket, number) = stepped.greet();
    let mut reserve = |sizes: Vec<u64>| {
        stepped.exchange(&socket, number, Call::Reserve { sizes: sizes.into() }).0
    };
    assert!(reserve(vec![1000; 60]).is_ok());
    let error = reserve(vec![1000; 41]).expect_err("too many");
    assert!(matches!(error, CallError::Quota { value: 101, limit: 100, .. }), "{error}");
    let error = reserve(vec![1 << 20]).expect_err("too large");
    assert!(matches!(error, CallError::Quota { limit: 0x10_0000, .. }), "{error}");
    assert!(reserve(vec![1000; 40]).is_ok());
    assert!(reserve(vec![1]).is_err());
    // Another session has its own.
    let (socket, number) = stepped.greet();
    let sizes = vec![1 << 20];
    assert!(stepped.exchange(&socket, number, Call::Reserve { sizes: sizes.into() }).0.is_ok());
}
