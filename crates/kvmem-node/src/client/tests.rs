//! Servers that violate the protocol: a client gets errors, and trusts no length.

mod formats;

use std::os::fd::{AsFd, OwnedFd};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use kvmem::arena::{Backing, PageSize, Region};
use proptest::prelude::*;
use rustix::event::{EventfdFlags, eventfd};
use rustix::net::{RecvFlags, SendFlags, SocketAddrUnix, SocketFlags};
use tempfile::TempDir;

use super::{ClientError, ConnectOptions, NodeClient};
use crate::node::{BlockHandle, Granted};
use crate::protocol::{
    Answer, BELL, Call, MAX_MESSAGE, PROTOCOL_VERSION, Request, Response, Welcome, decode, encode,
};
use crate::session_file::SessionFile;
use crate::{ring, socket};

/// Length of the server's memory in bytes.
const BYTES: usize = 64 << 10;

/// How long the clients of floods wait for an answer.
const ANSWER_WITHIN: Duration = Duration::from_millis(500);

/// A server that answers each request after the greeting with the next of some messages.
struct Hostile {
    folder: TempDir,
    thread: Option<JoinHandle<()>>,
}

impl Hostile {
    fn start(welcome: Welcome, answers: Vec<Answered>) -> Hostile {
        Hostile::start_with(welcome, HostileBell::Full, answers)
    }

    fn start_with(welcome: Welcome, bell: HostileBell, answers: Vec<Answered>) -> Hostile {
        let folder = tempfile::tempdir().expect("a directory can be made");
        let listener = socket::packet_socket(SocketFlags::empty()).expect("a socket");
        let address = SocketAddrUnix::new(folder.path().join("sock")).expect("a short path");
        rustix::net::bind(&listener, &address).expect("a new path");
        rustix::net::listen(&listener, 4).expect("it is bound");
        let thread = std::thread::spawn(move || serve(&listener, welcome, bell, answers));
        Hostile { folder, thread: Some(thread) }
    }

    fn connect(&self) -> Result<NodeClient, ClientError> {
        self.connect_with(&ConnectOptions::default())
    }

    fn connect_with(&self, options: &ConnectOptions) -> Result<NodeClient, ClientError> {
        let retry_for = Duration::ZERO;
        let options = ConnectOptions { retry_for, ..options.clone() };
        // SAFETY: nothing writes to the memory of this server.
        unsafe { NodeClient::connect(self.folder.path().join("sock"), &options) }
    }
}

impl Drop for Hostile {
    fn drop(&mut self) {
        // The thread ends when the client has gone, or when it has nothing more to say.
        let _ = socket::connect(&self.folder.path().join("sock"));
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(std::thread::panicking() || ended.is_some_and(|it| it.is_ok()));
    }
}

/// An answer: a whole one under the right number, or any bytes.
#[derive(Clone, Debug)]
enum Answered {
    Blocks(Vec<Option<(u64, u64)>>),
    Reserved(Vec<(u64, u64)>),
    Count(u64),
    Bytes(Vec<u8>),
    /// Pins of an epoch.
    Epoch(u64),
    /// Answers to requests that nobody has made, without an end.
    Flood,
}

/// Sends a packet until the client has gone, for some seconds at most.
fn flood(socket: &OwnedFd, packet: &[u8]) {
    let started = Instant::now();
    while started.elapsed() < 4 * ANSWER_WITHIN
        && socket::send(socket, packet, &[], SendFlags::empty()).is_ok()
    {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Descriptor that a hostile server passes as the doorbell of rings.
#[derive(Clone, Copy, Debug)]
enum HostileBell {
    /// Its counter is so high that a write waits.
    Full,
    /// A write to a pipe that nobody reads ends a process that does not ignore SIGPIPE.
    Pipe,
}

/// Gives rings, and wakes the client without an answer.
fn serve_rings(socket: &OwnedFd, id: u32, bell: HostileBell) {
    let (mut ends, file) = ring::create().expect("memory can be mapped");
    // The next request rings the doorbell.
    assert_eq!(ends.requests.prepare_to_sleep(), Ok(true));
    let bell: OwnedFd = match bell {
        HostileBell::Full => {
            let bell = eventfd(0, EventfdFlags::CLOEXEC).expect("there are descriptors");
            rustix::io::write(&bell, &(u64::MAX - 1).to_ne_bytes()).expect("it has space");
            bell
        }
        HostileBell::Pipe => std::io::pipe().expect("there are descriptors").1.into(),
    };
    let mut bytes = Vec::new();
    encode(&Response { id, result: Ok(Answer::Rings) }, &mut bytes);
    let descriptors = [file.as_fd(), bell.as_fd()];
    socket::send(socket, &bytes, &descriptors, SendFlags::empty()).expect("the client waits");
    flood(socket, &BELL);
}

fn serve(listener: &OwnedFd, welcome: Welcome, bell: HostileBell, answers: Vec<Answered>) {
    let Ok(socket) = rustix::net::accept(listener) else { return };
    let builder = Region::builder(BYTES).backing(Backing::Shared).ladder(PageSize::Base);
    let memory = builder.map().expect("memory can be mapped");
    let file = memory.share().expect("there are descriptors").expect("it is shared");
    let words = SessionFile::create().expect("memory can be mapped");
    words.begin(0, 1);
    let words_file = words.open_locked(1).expect("there are descriptors");
    let mut buffer = vec![0; MAX_MESSAGE];
    let mut greeted = false;
    let mut answers = answers.into_iter();
    while let Ok(packet) = socket::receive(&socket, &mut buffer, RecvFlags::empty()) {
        let request = decode::<Request<'_>>(&buffer[..packet.len]);
        let Some(Request { id, call }) = request else { return };
        if matches!(call, Call::Rings) {
            return serve_rings(&socket, id, bell);
        }
        if id == crate::protocol::NO_ANSWER {
            continue;
        }
        let mut bytes = Vec::new();
        let mut answer = |answer| encode(&Response { id, result: Ok(answer) }, &mut bytes);
        let descriptors = if greeted { Vec::new() } else { vec![file.as_fd(), words_file.as_fd()] };
        if greeted {
            let handle = BlockHandle { slot: 1, generation: 1 };
            let granted = |(offset, len)| Granted { handle, offset, len, checksum: None };
            match answers.next() {
                None => return,
                Some(Answered::Blocks(blocks)) => {
                    let blocks = blocks.into_iter().map(|it| it.map(granted)).collect();
                    answer(Answer::Pinned { epoch: 1, blocks, pending: Vec::new() });
                }
                Some(Answered::Reserved(blocks)) => {
                    answer(Answer::Reserved(blocks.into_iter().map(granted).collect()));
                }
                Some(Answered::Count(count)) => answer(Answer::Count(count)),
                Some(Answered::Epoch(epoch)) => {
                    let blocks = vec![Some(granted((0, 1))), None];
                    answer(Answer::Pinned { epoch, blocks, pending: Vec::new() });
                }
                Some(Answered::Flood) => {
                    encode(&Response { id: id + 1, result: Ok(Answer::Done) }, &mut bytes);
                    return flood(&socket, &bytes);
                }
                Some(Answered::Bytes(other)) => {
                    // Nobody may wait for the answer to another request.
                    let _ = socket::send(&socket, &other, &[], SendFlags::empty());
                    return;
                }
            }
        } else {
            greeted = true;
            answer(Answer::Welcome(welcome));
        }
        if socket::send(&socket, &bytes, &descriptors, SendFlags::empty()).is_err() {
            return;
        }
    }
}

fn welcome() -> Welcome {
    Welcome {
        version: PROTOCOL_VERSION,
        node_id: 1,
        memory_len: BYTES as u64,
        size: BYTES as u64,
        is_elastic: false,
        align: 4096,
        boundary: 0,
        token: 1,
        lease_ms: 1000,
        epoch: 1,
        session: 0,
        pin_word: 1,
        resumed: false,
    }
}

fn answers() -> impl Strategy<Value = Answered> {
    let number = || prop_oneof![0..100_000_u64, any::<u64>()];
    let block = move || (number(), number());
    prop_oneof![
        prop::collection::vec(prop::option::of(block()), 0..4).prop_map(Answered::Blocks),
        prop::collection::vec(block(), 0..4).prop_map(Answered::Reserved),
        any::<u64>().prop_map(Answered::Count),
        prop::collection::vec(any::<u8>(), 1..200).prop_map(Answered::Bytes),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 64,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Whatever a server answers, the client returns an error or values inside of the memory.
    #[test]
    fn no_answer_is_trusted(answers in prop::collection::vec(answers(), 1..8)) {
        let calls = answers.len();
        let hostile = Hostile::start(welcome(), answers);
        let client = hostile.connect().expect("the greeting is whole");
        let (base, len) = client.memory();
        let memory = base.addr()..base.addr() + len;
        for call in 0..calls {
            if call % 2 == 0 {
                let Ok(pins) = client.acquire(&["a", "b"]) else { continue };
                for value in pins.values().flatten() {
                    let bytes = value.bytes().as_ptr_range();
                    prop_assert!(bytes.start.addr() >= memory.start);
                    prop_assert!(bytes.end.addr() <= memory.end);
                }
            } else if let Ok(blocks) = client.reserve(&[5000]) {
                let bytes = blocks[0].bytes().as_ptr_range();
                prop_assert!(blocks.len() == 1 && blocks[0].len() == 5000);
                prop_assert!(bytes.start.addr() >= memory.start);
                prop_assert!(bytes.end.addr() <= memory.end);
            }
        }
        drop(client);
    }
}

#[test]
fn a_greeting_for_other_memory_is_reported() {
    let hostile = Hostile::start(Welcome { memory_len: 1 << 40, ..welcome() }, Vec::new());
    let error = hostile.connect().map(drop).expect_err("the file is shorter");
    assert!(matches!(error, ClientError::Protocol { .. }), "{error}");
}

#[test]
fn an_impossible_session_is_reported() {
    let hostile = Hostile::start(Welcome { session: 256, ..welcome() }, Vec::new());
    let error = hostile.connect().map(drop).expect_err("there are 256 words");
    assert!(matches!(error, ClientError::Protocol { .. }), "{error}");
}

/// A server gives pins of an epoch that is over, although it has revoked none of the client's.
#[test]
fn pins_of_an_earlier_epoch_are_not_valid() {
    let answers = vec![Answered::Epoch(5), Answered::Epoch(3), Answered::Epoch(5)];
    let hostile = Hostile::start(Welcome { epoch: 5, ..welcome() }, answers);
    let client = hostile.connect().expect("the greeting is whole");
    let valid = [5, 3, 5].map(|_| client.acquire(&["a", "b"]).expect("two keys").is_valid());
    assert_eq!(valid, [true, false, true]);
}

/// A call ends in time, also while its server sends and sends.
#[test]
fn answers_to_other_requests_do_not_delay_a_call() {
    ends_in_time(&Hostile::start(welcome(), vec![Answered::Flood]), false);
}

/// Nor do doorbells without a message, nor a doorbell that cannot be rung.
#[test]
fn doorbells_do_not_delay_a_call() {
    ends_in_time(&Hostile::start(welcome(), Vec::new()), true);
}

#[test]
fn a_reader_accepts_no_block() {
    let hostile = Hostile::start(welcome(), vec![Answered::Reserved(vec![(0, 10)])]);
    let options = ConnectOptions { read_only: true, ..ConnectOptions::default() };
    let client = hostile.connect_with(&options).expect("the greeting is whole");
    let error = client.reserve(&[10]).map(drop).expect_err("it only reads");
    assert!(matches!(error, ClientError::Protocol { .. }), "{error}");
}

#[test]
fn a_doorbell_that_is_a_pipe_is_reported() {
    let hostile = Hostile::start_with(welcome(), HostileBell::Pipe, Vec::new());
    let options = ConnectOptions { rings: true, ..ConnectOptions::default() };
    let error = hostile.connect_with(&options).map(drop).expect_err("a pipe is no doorbell");
    assert!(matches!(error, ClientError::Protocol { .. }), "{error}");
}

fn ends_in_time(hostile: &Hostile, rings: bool) {
    let answer_within = ANSWER_WITHIN;
    let options = ConnectOptions { answer_within, rings, ..ConnectOptions::default() };
    let client = hostile.connect_with(&options).expect("the greeting is whole");
    let started = Instant::now();
    let error = client.lookup(&["a"]).expect_err("there is no answer");
    let waited = started.elapsed();
    assert!(matches!(error, ClientError::Disconnected { .. }), "{error}");
    assert!(waited < 2 * ANSWER_WITHIN, "{waited:?}");
}
