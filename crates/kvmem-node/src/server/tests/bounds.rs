//! Bounds of what a client can make the server do: work in a quantum, memory, places. The tests are
//! client and server in one thread, so the numbers are exact.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use kvmem::arena::{Backing, PageSize, Region};
use kvmem::tier::{BoxError, Lookup, StoreOutcome, Tier, TierHit, TierRead, TierValue};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use tempfile::TempDir;

use crate::crc;
use crate::error::CallError;
use crate::node::{BlockHandle, MAX_BATCH};
use crate::protocol::{
    Answer, Call, Commit, Key, MAX_MESSAGE, PROTOCOL_VERSION, Request, Response, Welcome, decode,
    encode,
};
use crate::ring;
use crate::server::access::AccessRules;
use crate::server::deferred::WaitingForSpace;
use crate::server::quantum::{OWN_PLACES, USER_PLACES};
use crate::server::{AllowedGroup, NodeServer, ServerOptions};
use crate::socket::{self, now_ms};
use crate::test_heap::bytes_of_thread;
use crate::tier::TierOptions;
use crate::{Node, NodeOptions};

/// A server that serves when the test says so.
pub(super) struct Stepped {
    folder: TempDir,
    pub(super) server: NodeServer,
}

impl Stepped {
    pub(super) fn new(options: ServerOptions) -> Stepped {
        Stepped::of(options, NodeOptions::default())
    }

    pub(super) fn of(options: ServerOptions, node: NodeOptions) -> Stepped {
        let folder = tempfile::tempdir().expect("a directory can be made");
        let memory = Region::builder(8 << 20).backing(Backing::Shared).ladder(PageSize::Base);
        let memory = memory.map().expect("memory can be mapped");
        let node = Node::create(memory, node).expect("possible");
        let server =
            NodeServer::bind(node, &folder.path().join("sock"), options).expect("a new path");
        Stepped { folder, server }
    }

    /// Connects without greeting. Returns also the number of the connection.
    pub(super) fn connect(&mut self) -> (OwnedFd, u32) {
        let socket = socket::connect(&self.folder.path().join("sock")).expect("it listens");
        self.server.accept(now_ms());
        (socket, self.server.next_key)
    }

    pub(super) fn greet(&mut self) -> (OwnedFd, u32) {
        let (socket, number, _) = self.greet_again(0);
        (socket, number)
    }

    /// Greets with the token of a session, or with 0.
    pub(super) fn greet_again(&mut self, token: u64) -> (OwnedFd, u32, Welcome) {
        let (socket, number) = self.connect();
        let (version, namespace) = (PROTOCOL_VERSION, "");
        let hello = Call::Hello { version, namespace, read_only: false, token };
        match self.exchange(&socket, number, hello).0 {
            Ok(Answer::Welcome(welcome)) => (socket, number, welcome),
            other => panic!("{other:?}"),
        }
    }

    /// Returns the client's ends of new rings.
    pub(super) fn rings(&mut self, socket: &OwnedFd, number: u32) -> ring::ClientEnds {
        let (answer, descriptors) = self.exchange(socket, number, Call::Rings);
        assert!(matches!(answer, Ok(Answer::Rings)), "{answer:?}");
        let [file, _bell] = <[OwnedFd; 2]>::try_from(descriptors).expect("two descriptors");
        ring::attach(file).expect("it is sealed")
    }

    /// Reserves blocks, and waits for space.
    pub(super) fn reserve(
        &mut self,
        socket: &OwnedFd,
        number: u32,
        sizes: Vec<u64>,
    ) -> Result<Vec<BlockHandle>, CallError> {
        match self.exchange(socket, number, Call::Reserve { sizes: sizes.into(), wait: true }).0? {
            Answer::Reserved(blocks) => Ok(blocks.into_iter().map(|it| it.handle).collect()),
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn exchange(
        &mut self,
        socket: &OwnedFd,
        number: u32,
        call: Call<'_>,
    ) -> (Result<Answer, CallError>, Vec<OwnedFd>) {
        assert!(send(socket, 1, call), "the socket has space");
        self.server.quantum(number, now_ms());
        let mut buffer = vec![0; MAX_MESSAGE];
        let packet = socket::receive(socket, &mut buffer, RecvFlags::DONTWAIT);
        let packet = packet.expect("it has answered");
        let response = decode::<Response>(&buffer[..packet.len]).expect("an answer");
        (response.result, packet.descriptors)
    }
}

/// Returns the next answer, if there is one.
pub(super) fn answer_at(socket: &OwnedFd) -> Option<Response> {
    let mut buffer = vec![0; MAX_MESSAGE];
    match socket::receive(socket, &mut buffer, RecvFlags::DONTWAIT) {
        Ok(packet) => Some(decode(&buffer[..packet.len]).expect("an answer")),
        Err(error) => {
            assert_eq!(error, Errno::AGAIN);
            None
        }
    }
}

/// Returns options of a server that the members of this process's group may use.
pub(super) fn for_own_group() -> ServerOptions {
    let gid = rustix::process::getegid().as_raw();
    let allow_groups = vec![AllowedGroup { gid, read_only: false }];
    ServerOptions { allow_groups, ..ServerOptions::default() }
}

/// Sends a request, if the socket has space.
pub(super) fn send(socket: &OwnedFd, id: u32, call: Call<'_>) -> bool {
    let mut bytes = Vec::new();
    encode(&Request { id, call }, &mut bytes);
    match socket::send(socket, &bytes, &[], SendFlags::DONTWAIT) {
        Ok(()) => true,
        Err(Errno::AGAIN) => false,
        Err(error) => panic!("{error}"),
    }
}

pub(super) fn acquire(keys: Vec<Key<'_>>) -> Call<'_> {
    Call::Acquire { epoch: 0, release: Vec::new(), keys, prefix_only: false, wait: true }
}

/// However much waits in its socket or ring, a client has one quantum, and others have theirs.
#[test]
fn a_quantum_has_little_more_than_the_work_of_one_message() {
    let mut stepped = Stepped::new(ServerOptions::default());
    let (socket, number) = stepped.greet();
    let full = || acquire(vec![Key(b"x"); MAX_BATCH]);
    let sent = (0..12).take_while(|_| send(&socket, 1, full())).count() as u64;
    assert!(sent >= 4, "the socket takes {sent} messages");
    for quantum in 1..=sent {
        stepped.server.quantum(number, now_ms());
        assert_eq!(stepped.server.node().stats().misses, quantum * MAX_BATCH as u64);
    }
    // Small messages end the quantum by their number.
    let (socket, number) = stepped.greet();
    let before = stepped.server.node().stats().misses;
    for _ in 0..64 {
        assert!(send(&socket, 0, acquire(vec![Key(b"x")])), "small messages have space");
    }
    for quantum in 1..=4 {
        stepped.server.quantum(number, now_ms());
        assert_eq!(stepped.server.node().stats().misses - before, quantum * 16);
    }
    // The same by a ring.
    let (socket, number) = stepped.greet();
    let mut ends = stepped.rings(&socket, number);
    let mut bytes = Vec::new();
    encode(&Request { id: 0, call: full() }, &mut bytes);
    for _ in 0..8 {
        assert!(
            ends.requests.try_send(&bytes).expect("the server is honest"),
            "the ring has space"
        );
    }
    let before = stepped.server.node().stats().misses;
    for quantum in 1..=8 {
        stepped.server.ring_quantum(number, now_ms());
        assert_eq!(stepped.server.node().stats().misses - before, quantum * MAX_BATCH as u64);
    }
}

/// A tier that has a value under every key, and is never done.
struct EndlessTier;

impl Tier for EndlessTier {
    fn store(&self, values: &[TierValue<'_>]) -> Vec<Result<StoreOutcome, BoxError>> {
        values.iter().map(|_| Ok(StoreOutcome::Stored)).collect()
    }

    fn look_up(&self, keys: &[&[u8]]) -> Vec<Lookup> {
        keys.iter().map(|key| self.len_of(key)).collect()
    }

    fn len_of(&self, _: &[u8]) -> Lookup {
        Lookup::Found(64)
    }

    fn fetch(&self, reads: &mut [TierRead<'_>]) -> Vec<Option<TierHit>> {
        vec![Some(TierHit::default()); reads.len()]
    }

    fn remove(&self, _: &[&[u8]]) -> Result<(), BoxError> {
        Ok(())
    }

    fn clear(&self) -> Result<(), BoxError> {
        Ok(())
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
    stepped
        .server
        .attach_tier_with(Arc::new(EndlessTier), TierOptions::default())
        .expect("it works");
    let keys: Vec<[u8; 64]> = (0..4096_u32)
        .map(|number| std::array::from_fn(|at| number.to_le_bytes()[at % 4]))
        .collect();
    let before = bytes_of_thread();
    let mut open = VecDeque::new();
    let (mut most, mut sent) = (0, 0_usize);
    for round in 0..24_usize {
        let (socket, number) = stepped.greet();
        for quantum in 0..150_usize {
            let from = (round * 37 + quantum * 911) % 3000;
            let some = || keys[from..from + MAX_BATCH].iter().map(|key| Key(key)).collect();
            let call = match quantum % 8 {
                0..4 => acquire(some()),
                4 => Call::Remove { keys: some() },
                5 => Call::Reserve { sizes: vec![4096; 900].into(), wait: true },
                6 => Call::Events { from: u64::MAX, max: 512, wait_ms: u32::MAX },
                _ => Call::Lookup { keys: some() },
            };
            sent += usize::from(send(&socket, quantum as u32 + 1, call));
            // The threads of the tier are not served: the tier hangs.
            stepped.server.quantum(number, now_ms());
            stepped.server.answer_waiting(now_ms());
            most = most.max(bytes_of_thread() - before);
        }
        open.push_back((socket, number));
        if open.len() > 2 {
            // The oldest one goes without a goodbye, and its process lives.
            let (socket, number) = open.pop_front().expect("there are three");
            drop(socket);
            stepped.server.quantum(number, now_ms());
            stepped.server.quantum(number, now_ms());
        }
    }
    assert!(sent > 750, "the server takes messages: {sent}");
    assert!(most < OF_SERVER + 3 * OF_CONNECTION, "{most} bytes");
    assert!(stepped.server.deferred.len() <= 3 * 64, "{}", stepped.server.deferred.len());
    stepped.server.node().check().expect("the invariants hold");
}

#[test]
fn a_returning_client_cannot_make_the_server_count_for_long() {
    let mut stepped = Stepped::new(ServerOptions::default());
    let (socket, number, welcome) = stepped.greet_again(0);
    stepped.insert(&socket, number, b"key", 64);
    let (answer, _) = stepped.exchange(&socket, number, acquire(vec![Key(b"key")]));
    let Ok(Answer::Pinned { blocks, .. }) = answer else { panic!("{answer:?}") };
    let handle = blocks[0].expect("it was inserted").handle;
    drop(socket);
    stepped.server.quantum(number, now_ms());
    // It says that it has four billion pins, and more come.
    let (socket, number, welcome) = stepped.greet_again(welcome.token);
    assert!(welcome.resumed);
    let resume = Call::Resume { pins: vec![(handle, u32::MAX)], reservations: Vec::new() };
    assert!(stepped.exchange(&socket, number, resume).0.is_ok());
    let started = std::time::Instant::now();
    assert!(stepped.exchange(&socket, number, Call::ResumeEnd).0.is_ok());
    assert!(stepped.exchange(&socket, number, acquire(vec![Key(b"key"); 100])).0.is_ok());
    stepped.server.node().check().expect("the invariants hold");
    assert!(send(&socket, 1, Call::Goodbye));
    stepped.server.quantum(number, now_ms());
    drop(socket);
    stepped.server.quantum(number, now_ms());
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
    stepped.server.quantum(number, now + 90);
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
    let own = rustix::process::geteuid().as_raw();
    let options = ServerOptions { max_connections: 32, ..for_own_group() };
    let mut stepped = Stepped::new(options);
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
    let socket = folder.path().join("sock");
    assert!(socket.exists() && server.node().is_empty());
    let other = folder.path().join("other");
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
    let mut reserve = |sizes| stepped.reserve(&socket, number, sizes);
    assert!(reserve(vec![1000; 60]).is_ok());
    let error = reserve(vec![1000; 41]).expect_err("too many");
    assert!(matches!(error, CallError::Quota { value: 101, limit: 100, .. }), "{error}");
    let error = reserve(vec![1 << 20]).expect_err("too large");
    assert!(matches!(error, CallError::Quota { limit: 0x10_0000, .. }), "{error}");
    assert!(reserve(vec![1000; 40]).is_ok());
    assert!(reserve(vec![1]).is_err());
    // Another session has its own.
    let (socket, number) = stepped.greet();
    assert!(stepped.reserve(&socket, number, vec![1 << 20]).is_ok());
}

impl Stepped {
    /// Stores a value, with a checksum.
    pub(super) fn insert(&mut self, socket: &OwnedFd, number: u32, key: &[u8], len: u64) {
        self.insert_for(socket, number, key, len, 0);
    }

    /// Stores a value for `ttl_ms` milliseconds; 0: without an end.
    pub(super) fn insert_for(
        &mut self,
        socket: &OwnedFd,
        number: u32,
        key: &[u8],
        len: u64,
        ttl_ms: u64,
    ) {
        let handle = self.reserve(socket, number, vec![len]).expect("there is space")[0];
        let checksum = Some(crc::of(&vec![0; len as usize]));
        let item = Commit {
            handle,
            key: Key(key),
            parent: None,
            checksum,
            priority: 0,
            data_type: 0,
            ttl_ms,
        };
        let (answer, _) = self.exchange(socket, number, Call::Commit { items: vec![item] });
        assert!(matches!(answer, Ok(Answer::Done)), "{answer:?}");
    }

    /// Scrubs until the scrubber waits for the clock. Returns the values that were verified.
    fn scrub_at(&mut self, now: u64) -> u64 {
        let before = self.server.node().stats().scrubbed_total;
        loop {
            self.server.scrub(now);
            match self.server.scrubber.as_ref().expect("it runs").due_at() {
                Some(due_at) if due_at > now => break,
                _ => std::thread::yield_now(),
            }
        }
        self.server.node().stats().scrubbed_total - before
    }
}

/// Values that take less than a millisecond each count, too.
#[test]
fn small_values_are_scrubbed_at_the_rate() {
    // 64 bytes take half a millisecond.
    let options = ServerOptions { scrub_bytes_per_s: Some(128_000), ..ServerOptions::default() };
    let mut stepped = Stepped::new(options);
    let (socket, number) = stepped.greet();
    for key in 0..500_u32 {
        stepped.insert(&socket, number, &key.to_le_bytes(), 64);
    }
    let now = now_ms();
    let at_once = stepped.scrub_at(now);
    assert!((1..=25).contains(&at_once), "{at_once} values without any time passing");
    // In steps of a few milliseconds the rate is reached, and not exceeded.
    let verified: u64 = (1..=50).map(|step| stepped.scrub_at(now + step * 4)).sum();
    assert!((380..=425).contains(&verified), "{verified} values in 200 ms");
}

/// A server that is stopped serves what its clients have sent, however much that is.
#[test]
fn what_was_received_is_served_before_the_end() {
    let mut stepped = Stepped::new(ServerOptions::default());
    let (socket, _) = stepped.greet();
    let (by_ring, number) = stepped.greet();
    let mut ends = stepped.rings(&by_ring, number);
    for id in 1..=40 {
        assert!(send(&socket, id, acquire(vec![Key(b"x")])), "small messages have space");
        let mut bytes = Vec::new();
        encode(&Request { id, call: acquire(vec![Key(b"x")]) }, &mut bytes);
        assert!(ends.requests.try_send(&bytes).expect("the server is honest"), "there is space");
    }
    stepped.server.stopper().stop();
    let path = stepped.folder.path().join("sock");
    let Stepped { folder, server } = stepped;
    let node = server.run().expect("epoll works");
    assert_eq!(node.stats().misses, 80);
    assert!(!path.exists());
    let (mut buffer, mut message) = (vec![0; MAX_MESSAGE], Vec::new());
    for id in 1..=40 {
        assert_eq!(answer_at(&socket).expect("it was answered").id, id);
        let answered = ends.answers.try_receive(&mut message).expect("the server is honest");
        assert!(answered, "answer {id}");
    }
    let packet = socket::receive(&socket, &mut buffer, RecvFlags::DONTWAIT).expect("it is closed");
    assert_eq!(packet.len, 0);
    drop(folder);
}

impl Stepped {
    /// Greets as a process of another user.
    pub(super) fn greet_as(
        &mut self,
        uid: u32,
        namespace: &str,
        read_only: bool,
    ) -> Result<(OwnedFd, u32), CallError> {
        let (socket, number) = self.connect();
        let connection = self.server.connections.get_mut(&number).expect("it was accepted");
        connection.peer.uid = uid;
        let hello = Call::Hello { version: PROTOCOL_VERSION, namespace, read_only, token: 0 };
        self.exchange(&socket, number, hello).0.map(|_| (socket, number))
    }

    /// Closes a connection whose client has said goodbye.
    pub(super) fn leave(&mut self, (socket, number): (OwnedFd, u32)) {
        assert!(send(&socket, 1, Call::Goodbye));
        self.server.quantum(number, now_ms());
        drop(socket);
        self.server.quantum(number, now_ms());
    }
}

/// A member of the group who comes again and again, under other names, leaves places to others.
#[test]
fn one_user_cannot_exhaust_namespaces_or_sessions() {
    const OTHER: u32 = 54_321;
    let mut stepped = Stepped::new(for_own_group());
    // Names without values are used again.
    for round in 0..600 {
        let greeted = stepped.greet_as(OTHER, &format!("name {round}"), false);
        stepped.leave(greeted.expect("the names before are empty"));
    }
    assert!(stepped.server.node().stats().namespaces.len() <= 256 / USER_PLACES + 1);
    // Names with values are bounded by the share of the user.
    let mut made = 0;
    let error = loop {
        match stepped.greet_as(OTHER, &format!("used {made}"), false) {
            Ok((socket, number)) => {
                stepped.insert(&socket, number, b"key", 64);
                stepped.leave((socket, number));
                made += 1;
            }
            Err(error) => break error,
        }
    };
    assert!(matches!(error, CallError::TooMany { .. }), "{error}");
    assert_eq!(made, 256 / USER_PLACES);
    // So are the sessions at one time.
    let mut open = Vec::new();
    let error = loop {
        match stepped.greet_as(OTHER, "used 0", true) {
            Ok(greeted) => open.push(greeted),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, CallError::TooMany { .. }), "{error}");
    assert_eq!(open.len(), 256 / USER_PLACES);
    assert!(!stepped.server.has_place_for(OTHER) || stepped.server.has_place_for(OTHER + 1));
    stepped.greet_as(OTHER + 1, "of another user", false).expect("others have their own share");
    let own = rustix::process::geteuid().as_raw();
    stepped.greet_as(own, "of the server's own", false).expect("there is place");
    stepped.server.node().check().expect("the invariants hold");
}

#[test]
fn a_reader_makes_no_namespace_and_finds_it_when_it_is_made() {
    let mut stepped = Stepped::new(ServerOptions::default());
    let own = rustix::process::geteuid().as_raw();
    let (reader, number) = stepped.greet_as(own, "model", true).expect("it may read");
    assert!(stepped.server.node().stats().namespaces.is_empty());
    let lookup = || Call::Lookup { keys: vec![Key(b"key")] };
    let (answer, _) = stepped.exchange(&reader, number, lookup());
    assert!(matches!(answer, Ok(Answer::Count(0))), "{answer:?}");
    for call in
        [acquire(vec![Key(b"key")]), Call::Touch { keys: vec![Key(b"key")] }, Call::Sessions]
    {
        assert!(stepped.exchange(&reader, number, call).0.is_ok());
    }
    let (writer, other) = stepped.greet_as(own, "model", false).expect("it may write");
    stepped.insert(&writer, other, b"key", 64);
    let (answer, _) = stepped.exchange(&reader, number, lookup());
    assert!(matches!(answer, Ok(Answer::Count(1))), "{answer:?}");
    let long = "x".repeat(57);
    let error = stepped.greet_as(own, &long, true).expect_err("too long");
    assert!(matches!(error, CallError::BadNamespace { .. }), "{error}");
    stepped.server.node().check().expect("the invariants hold");
}

/// The session of a client that has nothing ends while the client resumes it, if that takes longer
/// than the lease. The connection ends with it.
#[test]
fn a_client_that_resumes_for_too_long_is_disconnected() {
    let mut stepped = Stepped::new(ServerOptions::default());
    let (socket, number, welcome) = stepped.greet_again(0);
    assert!(stepped.exchange(&socket, number, Call::KeepAlive).0.is_ok());
    drop(socket);
    stepped.server.quantum(number, now_ms());
    let (socket, number, welcome) = stepped.greet_again(welcome.token);
    assert!(welcome.resumed);
    let later = now_ms() + 2 * welcome.lease_ms;
    stepped.server.tick(later);
    assert_eq!(stepped.server.node().stats().sessions, 0);
    let end = socket::receive(&socket, &mut [0; 16], RecvFlags::DONTWAIT);
    assert_eq!(end.map(|packet| packet.len), Ok(0), "the server has closed the connection");
    drop(socket);
    stepped.server.quantum(number, later);
    stepped.greet();
}

/// A token resumes the session of its user, and the rules are those of the server of now.
#[test]
fn a_session_is_resumed_by_its_user_as_the_rules_say() {
    const OTHER: u32 = 54_321;
    let mut stepped = Stepped::new(for_own_group());
    let mut greet = |uid, token, read_only_group: bool| {
        let mut options = for_own_group();
        options.allow_groups[0].read_only = read_only_group;
        let own = rustix::process::geteuid().as_raw();
        stepped.server.access = AccessRules::new(own, &options).expect("possible");
        let (socket, number) = stepped.connect();
        stepped.server.connections.get_mut(&number).expect("it was accepted").peer.uid = uid;
        let (version, namespace) = (PROTOCOL_VERSION, "");
        let hello = Call::Hello { version, namespace, read_only: false, token };
        let answer = stepped.exchange(&socket, number, hello).0;
        // A client that sends nothing more does not know of its session.
        send(&socket, 2, Call::ResumeEnd);
        drop(socket);
        stepped.server.quantum(number, now_ms());
        answer.map(|answer| match answer {
            Answer::Welcome(welcome) => (welcome.token, welcome.resumed),
            other => panic!("{other:?}"),
        })
    };
    let (token, resumed) = greet(OTHER, 0, false).expect("a member");
    assert!(!resumed);
    let (stolen, resumed) = greet(OTHER + 1, token, false).expect("a member");
    assert!(!resumed && stolen != token, "the session of another user");
    let error = greet(OTHER, token, true).expect_err("its group only reads now");
    assert_eq!(error, CallError::OnlyReads { uid: OTHER, name: String::new() });
    assert_eq!(greet(OTHER, token, false), Ok((token, true)));
}

#[test]
fn one_user_cannot_reserve_everything() {
    const OTHER: u32 = 54_321;
    let own = rustix::process::geteuid().as_raw();
    let mut stepped = Stepped::new(for_own_group());
    let mut greet = |uid| stepped.greet_as(uid, "", false).expect("there is place");
    let clients = [greet(OTHER), greet(OTHER), greet(own)];
    let mut reserve = |at: usize, size: u64| {
        let (socket, number) = &clients[at];
        stepped.reserve(socket, *number, vec![size])
    };
    assert!(reserve(0, 3 << 20).is_ok());
    let error = reserve(1, 2 << 20).expect_err("more than half of 8 MiB");
    assert!(matches!(error, CallError::Quota { limit: 0x40_0000, .. }), "{error}");
    assert!(reserve(1, 1 << 20).is_ok() && reserve(2, 4 << 20).is_ok());
}

/// A client waits while the process has no free descriptor: the loop sleeps, and tries again later.
#[test]
fn a_server_without_descriptors_sleeps() {
    use rustix::event::epoll::{self, Event};
    let mut stepped = Stepped::new(ServerOptions::default());
    let _client = socket::connect(&stepped.folder.path().join("sock")).expect("it listens");
    let is_ready = |server: &NodeServer| {
        let mut events = [std::mem::MaybeUninit::<Event>::uninit(); 4];
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        !epoll::wait(&server.epoll, &mut events, Some(&now)).expect("epoll works").0.is_empty()
    };
    assert!(is_ready(&stepped.server));
    stepped.server.accept_failed(Errno::CONNABORTED);
    assert!(is_ready(&stepped.server), "the next client may be accepted");
    stepped.server.accept_failed(Errno::MFILE);
    assert!(!is_ready(&stepped.server), "the loop would spin");
    stepped.server.tick(now_ms());
    assert!(is_ready(&stepped.server));
    stepped.server.accept(now_ms());
    assert_eq!(stepped.server.connections.len(), 1);
}

/// One large block in memory full of small values: others are served between its evictions.
#[test]
fn a_reservation_that_evicts_many_values_is_done_in_parts() {
    let (mut stepped, other) = Stepped::filled();
    let (large, second) = (stepped.greet(), stepped.greet());
    for ((socket, number), size) in [(&large, 8 << 20), (&second, 64)] {
        assert!(send(socket, 7, Call::Reserve { sizes: vec![size].into(), wait: true }));
        stepped.server.quantum(*number, now_ms());
    }
    let (response, most) = stepped.answer_in_parts(&large.0, &other);
    assert!(matches!(response.result, Ok(Answer::Reserved(_))), "{response:?}");
    assert!((1..=512).contains(&most), "{most} evictions in a quantum");
    assert_eq!(stepped.server.node().stats().evicted_total, 2000);
    // The one behind it has no space left.
    stepped.server.serve_tier(now_ms());
    stepped.server.answer_waiting(now_ms());
    let response = answer_at(&second.0).expect("it was answered");
    assert!(matches!(response.result, Err(CallError::OutOfSpace { .. })), "{response:?}");
    stepped.server.node().check().expect("the invariants hold");
}

impl Stepped {
    /// Goes on with the calls that wait, until there is an answer. Returns it, and the most values
    /// that were evicted between two quanta of others.
    fn answer_in_parts(&mut self, socket: &OwnedFd, other: &(OwnedFd, u32)) -> (Response, u64) {
        let mut most = 0;
        for _ in 0..100 {
            if let Some(response) = answer_at(socket) {
                return (response, most);
            }
            assert!(self.server.is_awake(), "the loop would sleep");
            let evicted = self.server.node().stats().evicted_total;
            self.server.serve_tier(now_ms());
            self.server.answer_waiting(now_ms());
            most = most.max(self.server.node().stats().evicted_total - evicted);
            assert!(self.exchange(&other.0, other.1, Call::KeepAlive).0.is_ok());
        }
        panic!("there is no answer");
    }

    /// Fills the memory with 2000 values, one in each page.
    fn filled() -> (Stepped, (OwnedFd, u32)) {
        let node = NodeOptions { max_blocks: Some(4096), ..NodeOptions::default() };
        let mut stepped = Stepped::of(ServerOptions::default(), node);
        let (other, number) = stepped.greet();
        for key in 0..2000_u32 {
            stepped.insert(&other, number, &key.to_le_bytes(), 64);
        }
        (stepped, (other, number))
    }
}

/// Reservations that wait behind each other, each with some evictions, have one quantum together.
#[test]
fn reservations_that_wait_share_the_evictions_of_a_quantum() {
    let (mut stepped, other) = Stepped::filled();
    let clients: Vec<(OwnedFd, u32)> = (0..5).map(|_| stepped.greet()).collect();
    // The first one needs more evictions than a quantum has. The others wait behind it.
    let sizes = [2400 << 10, 1 << 20, 1 << 20, 1 << 20, 1 << 20];
    for ((socket, number), size) in clients.iter().zip(sizes) {
        let evicted = stepped.server.node().stats().evicted_total;
        assert!(send(socket, 7, Call::Reserve { sizes: vec![size].into(), wait: true }));
        stepped.server.quantum(*number, now_ms());
        assert!(stepped.server.node().stats().evicted_total - evicted <= 512);
    }
    assert_eq!(stepped.server.waiting_for_space.len(), 5);
    for (socket, _) in &clients {
        let (response, most) = stepped.answer_in_parts(socket, &other);
        assert!(matches!(response.result, Ok(Answer::Reserved(_))), "{response:?}");
        assert!(most <= 512, "{most} evictions in a quantum");
    }
    clients.into_iter().for_each(|client| stepped.leave(client));
    // Many blocks count as many evictions do.
    let small: Vec<(OwnedFd, u32)> = (0..3).map(|_| stepped.greet()).collect();
    let session = stepped.server.node().all_sessions()[0];
    stepped.server.waiting_for_space.push_back(WaitingForSpace::of_nobody(session));
    for (socket, number) in &small {
        assert!(send(socket, 7, Call::Reserve { sizes: vec![1; 600].into(), wait: true }));
        stepped.server.quantum(*number, now_ms());
    }
    let reserved = |stepped: &Stepped| stepped.server.node().stats().reserved_total;
    let before = reserved(&stepped);
    stepped.server.serve_tier(now_ms());
    let more = reserved(&stepped) - before;
    assert_eq!(more, 1200, "two of three are served");
    stepped.server.node().check().expect("the invariants hold");
}

/// An operator evicts everything: others are served between the evictions.
#[test]
fn an_eviction_by_an_operator_is_done_in_parts() {
    let (mut stepped, other) = Stepped::filled();
    let (socket, number) = stepped.greet();
    assert!(send(&socket, 7, Call::Evict { namespace: None, bytes: u64::MAX }));
    stepped.server.quantum(number, now_ms());
    assert_eq!(stepped.server.node().stats().evicted_total, 512);
    let (response, most) = stepped.answer_in_parts(&socket, &other);
    assert!(matches!(response.result, Ok(Answer::Count(8_192_000))), "{response:?}");
    assert_eq!((most, stepped.server.node().len()), (512, 0));
    // A client that goes meanwhile leaves nothing behind.
    for key in 0..1000_u32 {
        stepped.insert(&other.0, other.1, &key.to_le_bytes(), 64);
    }
    assert!(send(&socket, 8, Call::Evict { namespace: Some(""), bytes: u64::MAX }));
    stepped.server.quantum(number, now_ms());
    stepped.leave((socket, number));
    assert!(stepped.server.evicting.is_empty() && stepped.server.node().len() == 488);
    stepped.server.node().check().expect("the invariants hold");
}
