//! Attacks: the server serves the others whatever one client sends, pins or leaves behind. The
//! tests are client and server in one thread, so the numbers are exact.

use std::io::{IoSlice, Write};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use kvmem::tier::{BoxError, Lookup, StoreOutcome, Tier, TierHit, TierRead, TierValue};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

use super::bounds::{Stepped, acquire, answer_at, for_own_group, send};
use crate::NodeOptions;
use crate::error::{CallError, Quota, TooMany};
use crate::node::MAX_BATCH;
use crate::protocol::{Answer, Call, Key, PROTOCOL_VERSION, Request, encode};
use crate::ring;
use crate::server::ServerOptions;
use crate::server::closer::pass_descriptors;
use crate::server::ready::Source;
use crate::socket::now_ms;
use crate::tier::TierOptions;

/// A user that is neither the server's own nor an operator.
pub(super) const OTHER: u32 = 54_321;

/// Returns a descriptor whose last close waits for `seconds`, and the sockets that make it wait.
pub(super) fn lingering(seconds: u64) -> (OwnedFd, (TcpListener, TcpStream)) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("there is a port");
    let address = listener.local_addr().expect("it is bound");
    let mut socket = TcpStream::connect(address).expect("it listens");
    let (peer, _) = listener.accept().expect("it was connected");
    socket.set_nonblocking(true).expect("it is a socket");
    while socket.write(&[0; 65_536]).is_ok() {}
    let linger = Some(Duration::from_secs(seconds));
    rustix::net::sockopt::set_socket_linger(&socket, linger).expect("it is a socket");
    socket.set_nonblocking(false).expect("it is a socket");
    (socket.into(), (listener, peer))
}

pub(super) fn send_descriptor(
    socket: &OwnedFd,
    bytes: &[u8],
    descriptor: &OwnedFd,
) -> Result<usize, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptors = [descriptor.as_fd()];
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)));
    let bytes = [IoSlice::new(bytes)];
    rustix::net::sendmsg(socket, &bytes, &mut ancillary, SendFlags::DONTWAIT)
}

/// A client that sends a descriptor whose close takes long stops no one. The kernel refuses it, or
/// other threads close it.
#[test]
fn no_close_of_a_client_s_descriptor_waits() {
    let mut stepped = Stepped::new(ServerOptions::default());
    if stepped.server.closing_threads.is_none() {
        let (socket, number) = stepped.greet();
        let (descriptor, _sockets) = lingering(30);
        assert_eq!(send_descriptor(&socket, b"x", &descriptor), Err(Errno::PERM));
        assert!(stepped.exchange(&socket, number, Call::KeepAlive).0.is_ok());
        rustix::net::sockopt::set_socket_linger(&descriptor, None).expect("it is a socket");
        // As a kernel does that passes descriptors to all sockets.
        let listener = stepped.server.listener.as_ref().expect("it listens");
        pass_descriptors(listener, true).expect("the kernel can");
        stepped.server.closing_threads = Some(Arc::default());
    }
    // With a message that is read, and with one that is not: the server closes the socket.
    for is_read in [true, false] {
        let (socket, number) = stepped.greet();
        let (descriptor, _sockets) = lingering(30);
        assert_eq!(send_descriptor(&socket, &[0; 8], &descriptor), Ok(8));
        drop(descriptor);
        let started = Instant::now();
        if is_read {
            stepped.server.quantum(number, now_ms());
        } else {
            drop(stepped.server.connections.remove(&number));
        }
        assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
        assert!(!stepped.server.connections.contains_key(&number), "clients send none");
    }
    // All of them are closed before long.
    let file: OwnedFd = std::fs::File::open("/dev/zero").expect("it is there").into();
    let open = || {
        let all = std::fs::read_dir("/proc/self/fd").expect("there is /proc");
        let links = all.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
        links.filter(|to| to.ends_with("zero")).count()
    };
    // No other test of this process opens the file.
    assert_eq!(open(), 1);
    for _ in 0..50 {
        let (socket, number) = stepped.greet();
        assert_eq!(send_descriptor(&socket, &[0; 8], &file), Ok(8));
        stepped.server.quantum(number, now_ms());
    }
    let started = Instant::now();
    while open() > 1 {
        assert!(started.elapsed() < Duration::from_secs(10), "{} are open", open());
        std::thread::yield_now();
    }
}

/// A client that closes its socket has the requests of its ring served in quanta, as others have,
/// and no more than it had sent by then.
#[test]
fn a_full_ring_is_served_in_quanta_after_its_client_has_closed() {
    let mut stepped = Stepped::new(ServerOptions::default());
    let (socket, number) = stepped.greet();
    let mut ends = stepped.rings(&socket, number);
    let mut bytes = Vec::new();
    encode(&Request { id: 0, call: acquire(vec![Key(b"x"); MAX_BATCH]) }, &mut bytes);
    let fill = |ends: &mut ring::ClientEnds| {
        let sent = (0..).take_while(|_| ends.requests.try_send(&bytes).expect("it is honest"));
        sent.count() as u64
    };
    let sent = fill(&mut ends);
    assert!(sent >= 32, "{sent}");
    drop(socket);
    let misses = |stepped: &Stepped| stepped.server.node().stats().misses;
    stepped.server.quantum(number, now_ms());
    assert_eq!(misses(&stepped), MAX_BATCH as u64, "a quantum is one full message");
    // Messages that the client sends later are not served.
    assert!(fill(&mut ends) > 0);
    let mut most = 0;
    while stepped.server.connections.contains_key(&number) {
        let before = misses(&stepped);
        assert!(!stepped.server.ready.is_empty(), "the connection waits for its quantum");
        stepped.server.ring_quantum(number, now_ms());
        most = most.max(misses(&stepped) - before);
    }
    assert_eq!((most, misses(&stepped)), (MAX_BATCH as u64, sent * MAX_BATCH as u64));
}

/// However many connections of a user have requests, another user waits for one quantum of them.
#[test]
fn users_are_served_alternately_whatever_connections_they_have() {
    let mut stepped = Stepped::new(for_own_group());
    let hostile: Vec<(OwnedFd, u32)> =
        (0..40).map(|_| stepped.greet_as(OTHER, "", false).expect("it has place")).collect();
    let (good, number) = stepped.greet();
    for (socket, number) in &hostile {
        assert!(send(socket, 0, acquire(vec![Key(b"x"); MAX_BATCH])));
        stepped.server.make_ready(*number, Source::Packets);
    }
    assert!(send(&good, 9, Call::KeepAlive));
    stepped.server.make_ready(number, Source::Packets);
    for _ in 0..40 {
        stepped.server.serve_ready(now_ms());
        if answer_at(&good).is_some() {
            break;
        }
    }
    let misses = stepped.server.node().stats().misses;
    assert!(misses <= 4 * MAX_BATCH as u64, "{misses} keys of others came first");
}

/// A tenant of one-byte values takes entries and whole pages, and gives them up before others do.
#[test]
fn tiny_values_evict_no_others() {
    let node = NodeOptions { max_blocks: Some(512), ..NodeOptions::default() };
    let mut stepped = Stepped::of(ServerOptions::default(), node);
    let own = rustix::process::geteuid().as_raw();
    let (honest, number) = stepped.greet_as(own, "honest", false).expect("it may write");
    let keys: Vec<[u8; 4]> = (0..80_u32).map(u32::to_le_bytes).collect();
    keys.iter().for_each(|key| stepped.insert(&honest, number, key, 64 << 10));
    let (tiny, other) = stepped.greet_as(own, "tiny", false).expect("it may write");
    for key in 0..3000_u32 {
        stepped.insert(&tiny, other, &key.to_le_bytes(), 1);
    }
    let keys = keys.iter().map(|key| Key(key)).collect();
    let (answer, _) = stepped.exchange(&honest, number, Call::Lookup { keys });
    assert!(matches!(answer, Ok(Answer::Count(80))), "{answer:?}");
    let stats = stepped.server.node().stats();
    let [honest, tiny] = [0, 1].map(|number| stats.namespaces[number].bytes);
    assert_eq!((honest, tiny % 4096), (80 * (64 << 10), 0));
    assert_eq!(tiny / 4096, stats.values - 80, "a byte takes a page");
    stepped.server.node().check().expect("the invariants hold");
}

/// The limit of a tenant counts the memory that its values take, not the bytes that it asks for.
#[test]
fn a_limit_counts_what_values_take() {
    let limits = crate::NamespaceLimits { max_bytes: 40_960, ..Default::default() };
    let node = NodeOptions { default_limits: limits, ..NodeOptions::default() };
    let mut stepped = Stepped::of(ServerOptions::default(), node);
    let (socket, number) = stepped.greet();
    for key in 0..100_u32 {
        stepped.insert(&socket, number, &key.to_le_bytes(), 1);
    }
    assert_eq!(stepped.server.node().stats().values, 10);
    let error = stepped.reserve(&socket, number, vec![1; 11]).expect_err("eleven pages");
    assert!(matches!(error, CallError::Quota { what: Quota::NamespaceBytes, .. }), "{error}");
}

/// Readers together, and each user, pin half of the memory and of the entries at most.
#[test]
fn nobody_pins_everything() {
    let options = NodeOptions { max_blocks: Some(256), ..NodeOptions::default() };
    let mut stepped = Stepped::of(for_own_group(), options);
    let own = rustix::process::geteuid().as_raw();
    let (writer, number) = stepped.greet();
    let keys: Vec<[u8; 4]> = (0..200_u32).map(u32::to_le_bytes).collect();
    keys.iter().for_each(|key| stepped.insert(&writer, number, key, 32 << 10));
    let pin = |stepped: &mut Stepped, (socket, number): &(OwnedFd, u32)| {
        let mut pinned = 0;
        for key in &keys {
            match stepped.exchange(socket, *number, acquire(vec![Key(key)])).0 {
                Ok(_) => pinned += 1,
                Err(error) => return (pinned, Some(error)),
            }
        }
        (pinned, None)
    };
    // 8 MiB: half of them are 128 values of 32 KiB, and half of the entries are 128, too.
    for (uid, read_only, what) in [
        (own, true, [Quota::ReaderPins, Quota::ReaderPinnedBytes]),
        (OTHER, true, [Quota::ReaderPins, Quota::UserPins]),
        (OTHER, false, [Quota::UserPins, Quota::UserPinnedBytes]),
    ] {
        let one = stepped.greet_as(uid, "", read_only).expect("it may");
        let other = stepped.greet_as(uid, "", read_only).expect("it may");
        let (pinned, error) = pin(&mut stepped, &one);
        let Some(CallError::Quota { what: found, limit, .. }) = error else { panic!("{error:?}") };
        assert!(pinned == 128 && what.contains(&found) && limit == 128, "{pinned}, {found:?}");
        // The same values count once for a holder.
        assert_eq!(pin(&mut stepped, &other).0, 128);
        stepped.insert(&writer, number, b"new", 32 << 10);
        stepped.server.node().check().expect("the invariants hold");
        stepped.leave(one);
        stepped.leave(other);
        assert_eq!(stepped.server.node().stats().pinned, 0);
    }
    // The server's own user may pin everything.
    let own = stepped.greet();
    assert_eq!(pin(&mut stepped, &own).1, None);
    stepped.server.node().check().expect("the invariants hold");
}

/// A client that gave up before its greeting was answered leaves no session, and one that has
/// nothing leaves none for longer than the lease.
#[test]
fn sessions_of_nobody_end() {
    let options = ServerOptions { lease: Duration::from_secs(5), ..ServerOptions::default() };
    let mut stepped = Stepped::new(options);
    let hello =
        || Call::Hello { version: PROTOCOL_VERSION, namespace: "", read_only: false, token: 0 };
    for _ in 0..300 {
        let (socket, number) = stepped.connect();
        assert!(send(&socket, 1, hello()));
        drop(socket);
        stepped.server.quantum(number, now_ms());
        stepped.server.quantum(number, now_ms());
    }
    assert_eq!(stepped.server.node().stats().sessions, 0);
    // The process lives, and both know of their sessions.
    let (idle, idle_number) = stepped.greet();
    assert!(stepped.exchange(&idle, idle_number, Call::KeepAlive).0.is_ok());
    let (pinning, number) = stepped.greet();
    stepped.insert(&pinning, number, b"key", 64);
    assert!(stepped.exchange(&pinning, number, acquire(vec![Key(b"key")])).0.is_ok());
    for (socket, number) in [(idle, idle_number), (pinning, number)] {
        drop(socket);
        stepped.server.quantum(number, now_ms());
    }
    stepped.server.tick(now_ms() + 4000);
    assert_eq!(stepped.server.node().stats().orphaned_sessions, 2);
    stepped.server.tick(now_ms() + 6000);
    let stats = stepped.server.node().stats();
    assert_eq!((stats.orphaned_sessions, stats.pinned), (1, 1));
}

/// A tier that has a few values, and stores what it is offered.
#[derive(Default)]
struct BigTier {
    lens: Mutex<Vec<(Vec<u8>, u64)>>,
}

impl Tier for BigTier {
    fn store(&self, values: &[TierValue<'_>]) -> Vec<Result<StoreOutcome, BoxError>> {
        let mut lens = self.lens.lock().expect("no panic");
        lens.extend(values.iter().map(|it| (it.key.to_vec(), it.bytes.len() as u64)));
        values.iter().map(|_| Ok(StoreOutcome::Stored)).collect()
    }

    fn look_up(&self, keys: &[&[u8]]) -> Vec<Lookup> {
        keys.iter().map(|key| self.len_of(key)).collect()
    }

    fn len_of(&self, key: &[u8]) -> Lookup {
        let lens = self.lens.lock().expect("no panic");
        let found = lens.iter().find(|(of, _)| of == key);
        found.map_or(Lookup::Missing, |(_, len)| Lookup::Found(*len))
    }

    fn fetch(&self, reads: &mut [TierRead<'_>]) -> Vec<Option<TierHit>> {
        vec![Some(TierHit::default()); reads.len()]
    }

    fn remove(&self, keys: &[&[u8]]) -> Result<(), BoxError> {
        self.lens.lock().expect("no panic").retain(|(of, _)| !keys.contains(&of.as_slice()));
        Ok(())
    }

    fn clear(&self) -> Result<(), BoxError> {
        self.lens.lock().expect("no panic").clear();
        Ok(())
    }
}

/// Serves what waits until the client has an answer. Returns it, and the most values that left the
/// memory between two quanta of others.
fn answer_of(stepped: &mut Stepped, socket: &OwnedFd) -> (Result<Answer, CallError>, u64) {
    let gone = |stepped: &Stepped| {
        let stats = stepped.server.node().stats();
        stats.evicted_total + stats.removed_total
    };
    let (mut most, started) = (0, Instant::now());
    while started.elapsed() < Duration::from_secs(60) {
        if let Some(response) = answer_at(socket) {
            return (response.result, most);
        }
        let before = gone(stepped);
        stepped.server.serve_tier(now_ms());
        stepped.server.answer_waiting(now_ms());
        most = most.max(gone(stepped) - before);
    }
    panic!("there is no answer");
}

/// An acquisition that must evict a thousand values for one of the tier does so in parts.
#[test]
fn a_large_fetch_is_done_in_parts() {
    let node = NodeOptions { max_blocks: Some(4096), ..NodeOptions::default() };
    let mut stepped = Stepped::of(ServerOptions::default(), node);
    let tier = Arc::new(BigTier::default());
    tier.lens.lock().expect("no panic").push((b"\0big".to_vec(), 5 << 20));
    let options = TierOptions { store_above: 1.0, ..TierOptions::default() };
    stepped.server.attach_tier_with(Arc::clone(&tier) as _, options).expect("it works");
    let (socket, number) = stepped.greet();
    for key in 0..2000_u32 {
        stepped.insert(&socket, number, &key.to_le_bytes(), 64);
    }
    assert!(send(&socket, 7, acquire(vec![Key(b"big")])));
    let before = stepped.server.node().stats().evicted_total;
    stepped.server.quantum(number, now_ms());
    let evicted = stepped.server.node().stats().evicted_total - before;
    assert_eq!(evicted, 512);
    let (answer, most) = answer_of(&mut stepped, &socket);
    let Ok(Answer::Pinned { blocks, .. }) = answer else { panic!("{answer:?}") };
    assert!(blocks[0].is_some_and(|block| block.len == 5 << 20) && most <= 512, "{most}");
    assert!(stepped.server.node().stats().evicted_total - before >= 1230);
    stepped.server.node().check().expect("the invariants hold");
}

/// An eviction that has waited behind another one goes on without an event.
#[test]
fn the_next_eviction_goes_on_when_the_first_is_over() {
    let mut stepped = Stepped::of(ServerOptions::default(), NodeOptions::default());
    let options = TierOptions { store_above: 1.0, ..TierOptions::default() };
    stepped.server.attach_tier_with(Arc::new(BigTier::default()), options).expect("it works");
    let ((first, number), (second, other)) = (stepped.greet(), stepped.greet());
    for key in 0..8_u32 {
        stepped.insert(&first, number, &key.to_le_bytes(), 64);
    }
    // The tier stores all values for the first one, so both wait.
    for (socket, number) in [(&first, number), (&second, other)] {
        assert!(send(socket, 7, Call::Evict { namespace: None, bytes: 64 }));
        stepped.server.quantum(number, now_ms());
    }
    let (answer, _) = answer_of(&mut stepped, &first);
    assert!(matches!(answer, Ok(Answer::Count(_))), "{answer:?}");
    assert!(answer_at(&second).is_some() || stepped.server.has_work(), "nothing wakes the server");
    let (answer, _) = answer_of(&mut stepped, &second);
    assert!(matches!(answer, Ok(Answer::Count(1..))), "{answer:?}");
}

/// A value whose time is over keeps its block until the tier has removed its older value, and the
/// tier learns of it without an event.
#[test]
fn the_tier_gets_the_jobs_of_a_tick_at_once() {
    let mut stepped = Stepped::new(ServerOptions::default());
    let tier = Arc::new(BigTier::default());
    tier.lens.lock().expect("no panic").push((b"\0key".to_vec(), 64));
    let options = TierOptions { store_above: 1.0, ..TierOptions::default() };
    stepped.server.attach_tier_with(tier, options).expect("it works");
    let (socket, number) = stepped.greet();
    stepped.insert_for(&socket, number, b"key", 64, 1);
    stepped.server.serve_tier(now_ms());
    let now = now_ms() + 1000;
    let mut next_tick = now;
    assert!(!stepped.server.has_work());
    stepped.server.iterate([], &mut next_tick, now);
    assert_eq!(stepped.server.node().stats().pinned, 1, "the tier still has to remove it");
    assert!(stepped.server.has_work(), "nothing wakes the server");
    stepped.server.iterate([], &mut next_tick, now);
    assert!(!stepped.server.has_work());
    let started = Instant::now();
    while stepped.server.node().stats().pinned > 0 && started.elapsed() < Duration::from_secs(60) {
        std::thread::yield_now();
        stepped.server.serve_tier(now);
    }
    assert_eq!(stepped.server.node().stats().used, 0);
}

/// All values of a large namespace are removed in parts, and those that come later stay.
#[test]
fn clearing_is_done_in_parts() {
    for tiered in [false, true] {
        let node = NodeOptions { max_blocks: Some(4096), ..NodeOptions::default() };
        let mut stepped = Stepped::of(ServerOptions::default(), node);
        let tier = Arc::new(BigTier::default());
        tier.lens.lock().expect("no panic").push((b"\0in tier".to_vec(), 64));
        if tiered {
            let options = TierOptions::default();
            stepped.server.attach_tier_with(Arc::clone(&tier) as _, options).expect("it works");
        }
        let (socket, number) = stepped.greet();
        for key in 0..1500_u32 {
            stepped.insert(&socket, number, &key.to_le_bytes(), 64);
        }
        assert!(send(&socket, 7, Call::Clear { namespace: None }));
        stepped.server.quantum(number, now_ms());
        assert_eq!(stepped.server.node().stats().removed_total, 512);
        let (other, number) = stepped.greet();
        stepped.insert(&other, number, b"new", 64);
        let (answer, most) = answer_of(&mut stepped, &socket);
        assert!(matches!(answer, Ok(Answer::Count(1500))), "{answer:?}");
        assert!(most <= 512, "{most}");
        for (key, count) in [(&b"new"[..], 1), (b"in tier", 0)] {
            let keys = vec![Key(key)];
            let (answer, _) = stepped.exchange(&other, number, Call::Lookup { keys });
            assert!(matches!(answer, Ok(Answer::Count(found)) if found == count), "{answer:?}");
        }
        assert!(!tier.lens.lock().expect("no panic").iter().any(|_| tiered));
        stepped.server.node().check().expect("the invariants hold");
    }
}

/// A client with thousands of pins and reservations ends, or returns without them, in parts.
#[test]
fn many_handles_end_in_parts() {
    let node = NodeOptions { align: 64, max_blocks: Some(50_000), ..NodeOptions::default() };
    let mut stepped = Stepped::of(ServerOptions::default(), node);
    let (socket, number, welcome) = stepped.greet_again(0);
    let mut handles = Vec::new();
    for _ in 0..40 {
        let blocks = stepped.reserve(&socket, number, vec![64; 1000]);
        handles.extend(blocks.expect("there is space"));
    }
    stepped.insert(&socket, number, b"key", 64);
    assert!(stepped.exchange(&socket, number, acquire(vec![Key(b"key")])).0.is_ok());
    drop(socket);
    stepped.server.quantum(number, now_ms());
    // It returns with all reservations but a thousand, and without the pin. More than 36,500 of
    // them did not fit into the answer.
    let (socket, number, _) = stepped.greet_again(welcome.token);
    for part in handles[1000..].chunks(4096) {
        let call = Call::Resume { pins: Vec::new(), reservations: part.to_vec() };
        assert!(stepped.exchange(&socket, number, call).0.is_ok());
    }
    let (answer, _) = stepped.exchange(&socket, number, Call::ResumeEnd);
    assert!(matches!(answer, Ok(Answer::Resumed { pins_resumed: true, .. })), "{answer:?}");
    let left = |stepped: &Stepped| stepped.server.node().stats().reservations;
    assert!(left(&stepped) > 39_000 && stepped.server.has_work());
    stepped.server.node().check().expect("the invariants hold");
    stepped.server.serve_tier(now_ms());
    assert_eq!((left(&stepped), stepped.server.node().stats().pinned), (39_000, 0));
    assert!(!stepped.server.has_work());
    // One of those that are over is stale at once; the others are whole.
    let error = stepped.exchange(
        &socket,
        number,
        Call::Release { epoch: 0, handles: vec![handles[0]].into() },
    );
    assert!(error.0.is_ok(), "a release of what is over says nothing");
    stepped.leave((socket, number));
    assert!(left(&stepped) > 30_000 && stepped.server.has_work());
    stepped.server.node().check().expect("the invariants hold");
    let (other, number) = stepped.greet();
    let mut quanta = 0;
    while stepped.server.has_work() {
        let before = left(&stepped);
        stepped.server.serve_tier(now_ms());
        assert!(before - left(&stepped) <= 2048);
        assert!(stepped.exchange(&other, number, Call::KeepAlive).0.is_ok());
        quanta += 1;
    }
    assert!(quanta >= 15 && left(&stepped) == 0, "{quanta}");
    let stats = stepped.server.node().stats();
    assert_eq!((stats.sessions, stats.used), (1, 64), "one client and one value are left");
    stepped.server.node().check().expect("the invariants hold");
}

/// Names that requests choose use up the namespaces. Those that no client uses are emptied for
/// others, the one that was left first before all others.
#[test]
fn idle_namespaces_are_emptied_for_others() {
    let mut stepped = Stepped::new(for_own_group());
    let names: Vec<String> = (0..64).map(|number| format!("tenant {number}")).collect();
    for name in &names {
        let (socket, number) = stepped.greet_as(OTHER, name, false).expect("there is place");
        (0..3_u8).for_each(|key| stepped.insert(&socket, number, &[key], 64));
        stepped.leave((socket, number));
    }
    // The first one is in use again.
    let (used, used_number) = stepped.greet_as(OTHER, &names[0], false).expect("it is there");
    let error = stepped.greet_as(OTHER, "one more", false).expect_err("all have values");
    assert!(matches!(error, CallError::TooMany { what: TooMany::Namespaces, .. }), "{error}");
    stepped.server.serve_tier(now_ms());
    let (socket, number) = stepped.greet_as(OTHER, "one more", false).expect("one was emptied");
    stepped.insert(&socket, number, b"key", 64);
    let names_left: Vec<String> =
        stepped.server.node().stats().namespaces.into_iter().map(|it| it.name).collect();
    assert!(names_left.contains(&names[0]) && !names_left.contains(&names[1]), "{names_left:?}");
    let keys = vec![Key(&[0]), Key(&[1]), Key(&[2])];
    let (answer, _) = stepped.exchange(&used, used_number, Call::Lookup { keys });
    assert!(matches!(answer, Ok(Answer::Count(3))), "{answer:?}");
    stepped.server.node().check().expect("the invariants hold");
}

/// The tier has every value that it takes when an operator has evicted it.
#[test]
fn what_an_operator_evicts_is_stored_first() {
    let mut stepped = Stepped::new(ServerOptions::default());
    let tier = Arc::new(BigTier::default());
    let options = TierOptions { store_above: 1.0, ..TierOptions::default() };
    stepped.server.attach_tier_with(Arc::clone(&tier) as _, options).expect("it works");
    let (socket, number) = stepped.greet();
    for key in 0..1000_u32 {
        stepped.insert(&socket, number, &key.to_le_bytes(), 4096);
    }
    assert!(send(&socket, 7, Call::Evict { namespace: None, bytes: u64::MAX }));
    stepped.server.quantum(number, now_ms());
    let (answer, _) = answer_of(&mut stepped, &socket);
    assert!(matches!(answer, Ok(Answer::Count(4_096_000))), "{answer:?}");
    assert_eq!(stepped.server.node().stats().values, 0);
    assert_eq!(tier.lens.lock().expect("no panic").len(), 1000);
}
