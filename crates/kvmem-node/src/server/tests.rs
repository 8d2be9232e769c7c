//! Clients that violate the protocol, of messages or of rings: each one hurts itself alone.

mod attacks;
mod bounds;
mod formats;
mod quotas;
mod service_level;

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use kvmem::arena::{Backing, PageSize, Region};
use kvmem::tier::Tier;
use kvmem_testkit::counting_tier::CountingTier;
use proptest::prelude::*;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use tempfile::TempDir;

use super::{NodeServer, ServerOptions, Stopper};
use crate::node::BlockHandle;
use crate::protocol::{
    Answer, Call, Commit, Key, MAX_MESSAGE, NO_ANSWER, PROTOCOL_VERSION, Request, Response, decode,
    encode,
};
use crate::ring::{self, ClientEnds};
use crate::tier::TierOptions;
use crate::{ConnectOptions, Node, NodeClient, NodeOptions, socket};

/// A server in a thread, and a client that follows the protocol.
struct Place {
    folder: TempDir,
    stopper: Stopper,
    thread: Option<JoinHandle<()>>,
    honest: Option<NodeClient>,
}

fn region(bytes: usize) -> Region {
    let builder = Region::builder(bytes).backing(Backing::Shared).ladder(PageSize::Base);
    builder.map().expect("memory can be mapped")
}

impl Place {
    fn new(options: ServerOptions) -> Place {
        Place::with_tier(options, None)
    }

    fn with_tier(options: ServerOptions, tier: Option<Arc<dyn Tier>>) -> Place {
        let folder = tempfile::tempdir().expect("a directory can be made");
        let node = Node::create(region(1 << 20), NodeOptions::default()).expect("possible");
        let mut server =
            NodeServer::bind(node, &folder.path().join("sock"), options).expect("a new path");
        if let Some(tier) = tier {
            let options = TierOptions { store_above: 0.0, ..TierOptions::default() };
            server.attach_tier_with(tier, options).expect("it works");
        }
        let stopper = server.stopper();
        let thread = std::thread::spawn(move || {
            let node = server.run().expect("epoll works");
            node.check().expect("the invariants hold");
        });
        let mut place = Place { folder, stopper, thread: Some(thread), honest: None };
        let client = place.connect(true);
        client.insert("key", b"value").expect("there is space");
        place.honest = Some(client);
        place
    }

    fn connect(&self, rings: bool) -> NodeClient {
        let options = ConnectOptions { rings, ..ConnectOptions::default() };
        // SAFETY: no client of these tests writes to the node's memory.
        unsafe { NodeClient::connect(self.folder.path().join("sock"), &options) }
            .expect("it answers")
    }

    fn check_honest(&self) {
        let client = self.honest.as_ref().expect("it is connected");
        assert_eq!(client.lookup(&["key"]).expect("a call"), 1);
        let pins = client.acquire(&["key"]).expect("a call");
        assert_eq!(pins.value(0).expect("it is there").bytes(), b"value");
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.honest = None;
        self.stopper.stop();
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(std::thread::panicking() || ended.is_some_and(|it| it.is_ok()), "it has panicked");
    }
}

/// A client without a library.
struct Raw {
    socket: OwnedFd,
    bell: OwnedFd,
    ends: ClientEnds,
    /// The memory of the rings once more.
    memory: Region,
}

/// Where the words of the second ring begin: the answers'.
const ANSWERS: usize = 2048 / 8;
/// The word of the tail in a header, and that of the head.
const TAIL: usize = 0;
const HEAD: usize = 128 / 8;
/// The first word of the area of requests.
const AREA: usize = 4096 / 8;

impl Raw {
    fn new(place: &Place) -> Raw {
        let socket = greet(place);
        let mut descriptors = exchange(&socket, Call::Rings);
        let bell = descriptors.pop().expect("a doorbell");
        let file = descriptors.pop().expect("a memory file");
        let again = file.try_clone().expect("there are descriptors");
        let ends = ring::attach(file).expect("it is sealed");
        let memory = Region::attach(again, None).expect("it is sealed");
        Raw { socket, bell, ends, memory }
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index * 8 < self.memory.len());
        // SAFETY: the word is in the mapping, and every access to it is atomic.
        unsafe { self.memory.base().cast::<AtomicU64>().add(index).as_ref() }
    }

    fn ring_bell(&self) {
        rustix::io::write(&self.bell, &1_u64.to_ne_bytes()).expect("an eventfd");
    }

    fn send(&mut self, id: u32, call: Call<'_>) -> bool {
        let mut bytes = Vec::new();
        encode(&Request { id, call }, &mut bytes);
        let sent = self.ends.requests.try_send(&bytes).expect("the server is not hostile");
        if self.ends.requests.bell_is_due() {
            self.ring_bell();
        }
        sent
    }

    /// Sends requests until both rings are full: the server has one answer left, and reads no
    /// further request. Returns how many.
    fn fill(&mut self) -> u32 {
        let deadline = Instant::now() + Duration::from_secs(20);
        let (mut sent, mut full_since) = (0, Instant::now());
        while full_since.elapsed() < Duration::from_millis(100) {
            assert!(Instant::now() < deadline, "the rings get full");
            if self.send(sent + 1, Call::Sessions) {
                sent += 1;
                full_since = Instant::now();
            }
        }
        sent
    }

    /// Waits until the server has closed the connection.
    fn wait_for_end(&self) {
        let mut packet = [0; 16];
        loop {
            match socket::receive(&self.socket, &mut packet, RecvFlags::empty()) {
                Ok(packet) if packet.len > 0 => {}
                Ok(_) | Err(Errno::CONNRESET) => return,
                Err(error) => panic!("{error}"),
            }
        }
    }
}

/// Connects without a library.
fn greet(place: &Place) -> OwnedFd {
    let socket = socket::connect(&place.folder.path().join("sock")).expect("it listens");
    let (version, namespace) = (PROTOCOL_VERSION, "");
    let hello = Call::Hello { version, namespace, read_only: false, token: 0 };
    exchange(&socket, hello);
    socket
}

/// Sends a request by the socket, and reads no answer.
fn request(socket: &OwnedFd, id: u32, call: Call<'_>) {
    let mut bytes = Vec::new();
    encode(&Request { id, call }, &mut bytes);
    socket::send(socket, &bytes, &[], SendFlags::empty()).expect("it is connected");
}

/// Returns whether the server reads all requests within a while.
fn is_read(socket: &OwnedFd) -> bool {
    let deadline = Instant::now() + Duration::from_millis(200);
    loop {
        let mut unread: libc::c_int = -1;
        // SAFETY: the pointer is to an integer, which the call stores.
        let failed =
            unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut unread) } != 0;
        assert!(!failed && unread >= 0, "the socket reports what is unread");
        if unread == 0 || Instant::now() > deadline {
            return unread == 0;
        }
        std::thread::yield_now();
    }
}

fn exchange(socket: &OwnedFd, call: Call<'_>) -> Vec<OwnedFd> {
    let mut bytes = Vec::new();
    encode(&Request { id: 1, call }, &mut bytes);
    socket::send(socket, &bytes, &[], SendFlags::empty()).expect("it is connected");
    let mut answer = vec![0; MAX_MESSAGE];
    let packet = socket::receive(socket.as_fd(), &mut answer, RecvFlags::empty());
    let packet = packet.expect("it answers");
    let response = decode::<Response>(&answer[..packet.len]).expect("an answer");
    assert!(response.result.is_ok(), "{response:?}");
    packet.descriptors
}

#[test]
fn damage_ends_the_connection_and_no_other() {
    let place = Place::new(ServerOptions::default());
    let damages: [fn(&mut Raw); 4] = [
        // A tail that no producer can have.
        |raw| raw.word(TAIL).store(u64::MAX, Ordering::Release),
        // A message that is longer than what was sent.
        |raw| {
            raw.word(AREA).store(1 << 40, Ordering::Relaxed);
            raw.word(TAIL).store(2, Ordering::Release);
        },
        // A tail that goes back.
        |raw| {
            assert!(raw.send(1, Call::KeepAlive));
            let deadline = Instant::now() + Duration::from_secs(10);
            while raw.word(HEAD).load(Ordering::Acquire) == 0 {
                assert!(Instant::now() < deadline, "the server reads");
                std::thread::yield_now();
            }
            raw.word(TAIL).store(0, Ordering::Release);
        },
        // A head of the answers that the server has not reached.
        |raw| {
            raw.word(ANSWERS + HEAD).store(1 << 20, Ordering::Release);
            // The server looks at the head when it has no space left.
            for _ in 0..200_000 {
                raw.send(1, Call::Stats);
                if raw.word(ANSWERS + TAIL).load(Ordering::Acquire) > (1 << 15) - 64 {
                    break;
                }
            }
        },
    ];
    for damage in damages {
        let mut raw = Raw::new(&place);
        damage(&mut raw);
        raw.ring_bell();
        raw.wait_for_end();
        place.check_honest();
    }
}

#[test]
fn a_client_that_ends_in_the_middle_of_a_message_is_gone() {
    let place = Place::new(ServerOptions::default());
    let mut raw = Raw::new(&place);
    // Sent before the end: both are served, and the session ends.
    let keys = vec![Key(b"key")];
    assert!(raw.send(NO_ANSWER, Call::Remove { keys }));
    assert!(raw.send(NO_ANSWER, Call::Goodbye));
    // The words of a third message, whose tail is missing.
    let at = AREA + raw.word(TAIL).load(Ordering::Relaxed) as usize;
    (at..at + 4).for_each(|word| raw.word(word).store(u64::MAX, Ordering::Relaxed));
    drop(raw);
    let client = place.honest.as_ref().expect("it is connected");
    let deadline = Instant::now() + Duration::from_secs(10);
    while client.stats().expect("a call").sessions > 1 {
        assert!(Instant::now() < deadline, "the session ends");
        std::thread::yield_now();
    }
    assert_eq!(client.lookup(&["key"]).expect("a call"), 0);
}

#[test]
fn a_client_that_reads_nothing_waits_for_itself() {
    let place = Place::new(ServerOptions::default());
    let mut raw = Raw::new(&place);
    let sent = raw.fill();
    // A packet that the server does not read, either.
    let mut packet = Vec::new();
    encode(&Request { id: NO_ANSWER, call: Call::KeepAlive }, &mut packet);
    socket::send(&raw.socket, &packet, &[], SendFlags::empty()).expect("it is connected");
    place.check_honest();

    // Then it reads: all answers come, in order.
    let mut answer = Vec::new();
    for number in 1..=sent {
        let deadline = Instant::now() + Duration::from_secs(10);
        while !raw.ends.answers.try_receive(&mut answer).expect("the server is not hostile") {
            assert!(Instant::now() < deadline, "answer {number} of {sent}");
            std::thread::yield_now();
        }
        if raw.ends.answers.bell_is_due() {
            raw.ring_bell();
        }
        let response = decode::<Response>(&answer).expect("an answer");
        assert_eq!(response.id, number);
        assert!(matches!(response.result, Ok(Answer::Sessions(_))));
    }
    place.check_honest();
}

/// The server waits for space in the ring, and sees the end of the socket nevertheless.
#[test]
fn a_client_that_reads_nothing_can_go() {
    let place = Place::new(ServerOptions::default());
    let mut raw = Raw::new(&place);
    raw.fill();
    let Raw { socket, bell, ends, memory } = raw;
    drop(socket);
    let client = place.honest.as_ref().expect("it is connected");
    let deadline = Instant::now() + Duration::from_secs(10);
    while client.as_operator().sessions().expect("an operator").iter().all(|it| it.connected) {
        assert!(Instant::now() < deadline, "the connection ends");
        std::thread::yield_now();
    }
    drop((bell, ends, memory));
    place.check_honest();
}

/// The answer comes when no request makes the server look at the connection.
#[test]
fn an_answer_for_events_waits_for_space_in_the_socket() {
    const EVENTS: u32 = 1 << 20;
    let place = Place::new(ServerOptions::default());
    // How many answers a socket takes: the request behind the next one is not read.
    let full = greet(&place);
    let mut fits = 0;
    while is_read(&full) {
        fits += 1;
        request(&full, 1, Call::KeepAlive);
    }
    let fits = fits - 2;
    let socket = greet(&place);
    let (from, wait_ms) = (u64::MAX, 1000);
    request(&socket, EVENTS, Call::Events { from, max: 1, wait_ms });
    (0..fits).for_each(|_| request(&socket, 1, Call::KeepAlive));
    assert!(is_read(&socket), "{fits} answers have space");
    // Now the time of the events passes, and their answer has none.
    std::thread::sleep(Duration::from_millis(1200));
    let mut answer = vec![0; MAX_MESSAGE];
    for id in std::iter::repeat_n(1, fits).chain([EVENTS]) {
        let mut ready = [PollFd::new(&socket, PollFlags::IN)];
        let limit = Timespec { tv_sec: 10, tv_nsec: 0 };
        assert_eq!(poll(&mut ready, Some(&limit)), Ok(1), "the answer to {id}");
        let packet =
            socket::receive(&socket, &mut answer, RecvFlags::empty()).expect("it is there");
        let response = decode::<Response>(&answer[..packet.len]).expect("an answer");
        assert_eq!(response.id, id);
    }
}

#[test]
fn a_doorbell_that_never_rests_delays_no_other_client() {
    let place = Place::new(ServerOptions { spin: Duration::ZERO, ..ServerOptions::default() });
    let raw = Raw::new(&place);
    // A client may make the descriptor blocking and fill its counter: the server does not touch it.
    rustix::fs::fcntl_setfl(&raw.bell, rustix::fs::OFlags::empty()).expect("an eventfd");
    rustix::io::write(&raw.bell, &(u64::MAX - 2).to_ne_bytes()).expect("an eventfd");
    for _ in 0..100 {
        place.check_honest();
    }
}

#[test]
fn a_server_without_rings_serves_by_the_socket() {
    let place = Place::new(ServerOptions { max_rings: 1, ..ServerOptions::default() });
    let second = place.connect(true);
    assert!(!second.has_rings() && place.honest.as_ref().is_some_and(NodeClient::has_rings));
    assert_eq!(second.lookup(&["key"]).expect("a call"), 1);
    drop(second);
    place.check_honest();
}

/// Any handle: of an entry in use, of one that never was, and of a use that is over.
fn handles() -> impl Strategy<Value = Vec<BlockHandle>> {
    let slot = prop_oneof![0..4_u32, any::<u32>()];
    let generation = prop_oneof![0..4_u32, any::<u32>()];
    let handle = (slot, generation).prop_map(|(slot, generation)| BlockHandle { slot, generation });
    prop::collection::vec(handle, 0..5)
}

fn keys() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let key = prop::collection::vec(any::<u8>(), 0..70);
    let known = Just(b"mine".to_vec());
    prop::collection::vec(prop_oneof![key, known], 0..5)
}

fn refs(keys: &[Vec<u8>]) -> Vec<Key<'_>> {
    keys.iter().map(|key| Key(key)).collect()
}

/// The bytes of any request, as a client's library would never send it.
fn requests() -> impl Strategy<Value = Vec<u8>> {
    fn encoded(id: u32, call: Call<'_>) -> Vec<u8> {
        let mut bytes = Vec::new();
        encode(&Request { id, call }, &mut bytes);
        bytes
    }
    let sizes = prop::collection::vec(prop_oneof![0..9000_u64, any::<u64>()], 0..5);
    let request = (any::<u32>(), 0..28_u8, handles(), keys(), sizes, any::<u64>(), any::<bool>());
    request.prop_map(|(id, kind, handles, keys, sizes, number, flag)| {
        let call = match kind {
            0 => Call::Hello {
                version: number as u32,
                namespace: "x",
                read_only: flag,
                token: number,
            },
            1 => Call::Resume {
                pins: handles.iter().map(|handle| (*handle, number as u32)).collect(),
                reservations: handles,
            },
            2 => Call::ResumeEnd,
            3 => Call::Lookup { keys: refs(&keys) },
            4 | 5 => Call::Acquire {
                epoch: number,
                release: handles,
                keys: refs(&keys),
                prefix_only: flag,
                wait: number % 2 == 0,
            },
            6 | 7 => Call::Reserve { sizes: sizes.into(), wait: flag },
            8 | 9 => {
                let item = |(handle, key): (&BlockHandle, &Vec<u8>)| {
                    let handle = *handle;
                    (handle, key.clone())
                };
                let items: Vec<(BlockHandle, Vec<u8>)> =
                    handles.iter().zip(&keys).map(item).collect();
                let items = items.iter().map(|(handle, key)| Commit {
                    handle: *handle,
                    key: Key(key),
                    parent: flag.then_some(Key(key)),
                    checksum: flag.then_some(number as u32),
                    priority: number as u8,
                    data_type: number as u8,
                    ttl_ms: number,
                });
                return encoded(id, Call::Commit { items: items.collect() });
            }
            10 => Call::Release { epoch: number, handles: handles.into() },
            11 => Call::Touch { keys: refs(&keys) },
            12 => Call::Damaged { handles },
            13 => Call::Events { from: number, max: number as u32, wait_ms: 0 },
            14 => Call::Stats,
            15 | 16 => Call::Remove { keys: refs(&keys) },
            17 => Call::Goodbye,
            18 => Call::Rings,
            19 => Call::List { from: number as u32, max: number as u32 },
            20 => Call::Sessions,
            21 => Call::Evict { namespace: flag.then_some(""), bytes: number },
            22 => Call::Clear { namespace: flag.then_some("") },
            24 => Call::Locate { keys: refs(&keys) },
            25 => Call::ListNamespace { from: number as u32, max: number as u32 },
            23 => Call::ReclaimPins { pid: if flag { std::process::id() } else { number as u32 } },
            26 => Call::Registers,
            27 => Call::Resize { size: number },
            _ => Call::KeepAlive,
        };
        encoded(id, call)
    })
}

/// Bits that are flipped somewhere in a message, or none.
fn damage() -> impl Strategy<Value = Option<(prop::sample::Index, u8)>> {
    prop::option::of((any::<prop::sample::Index>(), any::<u8>()))
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 48,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Whatever a client sends, in whatever order, the server answers or closes the connection, its
    /// state stays whole, and others are served.
    #[test]
    fn any_messages_hurt_their_sender_alone(
        messages in prop::collection::vec((requests(), damage(), any::<bool>()), 1..40),
        greeted in any::<bool>(),
        tiered in any::<bool>(),
    ) {
        let tier = tiered.then(|| Arc::new(CountingTier::default()) as Arc<dyn Tier>);
        let place = Place::with_tier(ServerOptions::default(), tier);
        let ungreeted = || socket::connect(&place.folder.path().join("sock")).expect("it listens");
        let mut socket = if greeted { greet(&place) } else { ungreeted() };
        let mut answer = vec![0; MAX_MESSAGE];
        for (mut bytes, damage, cut) in messages {
            if let Some((at, bits)) = damage {
                let at = at.index(bytes.len());
                bytes[at] ^= bits;
                if cut {
                    bytes.truncate(at.max(1));
                }
            }
            let sent = socket::send(&socket, &bytes, &[], SendFlags::DONTWAIT);
            // The answers are read as they come, and none is waited for: some requests have none.
            while let Ok(packet) = socket::receive(&socket, &mut answer, RecvFlags::DONTWAIT) {
                if packet.len == 0 {
                    break;
                }
            }
            if sent.is_err() {
                socket = greet(&place);
            }
        }
        drop(socket);
        // The messages may have removed the value, as an operator does.
        let client = place.honest.as_ref().expect("it is connected");
        client.insert("key", b"value").expect("there is space");
        place.check_honest();
    }
}
