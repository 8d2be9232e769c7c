//! Servers that do not keep to the protocol: a client gets errors, and trusts no length.

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use kvmem::arena::{Backing, PageSize, Region};
use proptest::prelude::*;
use rustix::net::{RecvFlags, SendFlags, SocketAddrUnix, SocketFlags};

use super::{ClientError, ConnectOptions, NodeClient};
use crate::node::{BlockHandle, Granted};
use crate::pin_word::PinWords;
use crate::protocol::{
    Answer, MAX_MESSAGE, PROTOCOL_VERSION, Request, Response, Welcome, decode, encode,
};
use crate::socket;

/// What the memory of the server has, in bytes.
const BYTES: usize = 64 << 10;

/// A server that answers each request after the greeting with the next of some messages.
struct Hostile {
    folder: PathBuf,
    thread: Option<JoinHandle<()>>,
}

impl Hostile {
    fn start(welcome: Welcome, answers: Vec<Answered>) -> Hostile {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("kvmem-node-hostile-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).expect("a directory can be made");
        let listener = socket::packet_socket(SocketFlags::empty()).expect("a socket");
        let address = SocketAddrUnix::new(folder.join("sock")).expect("a short path");
        rustix::net::bind(&listener, &address).expect("a new path");
        rustix::net::listen(&listener, 4).expect("it is bound");
        let thread = std::thread::spawn(move || serve(&listener, welcome, answers));
        Hostile { folder, thread: Some(thread) }
    }

    fn connect(&self) -> Result<NodeClient, ClientError> {
        let options = ConnectOptions { retry_for: Duration::ZERO, ..ConnectOptions::default() };
        // SAFETY: nothing writes to the memory of this server.
        unsafe { NodeClient::connect(self.folder.join("sock"), &options) }
    }
}

impl Drop for Hostile {
    fn drop(&mut self) {
        // The thread ends when the client has gone, or when it has nothing more to say.
        let _ = socket::connect(&self.folder.join("sock"));
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(std::thread::panicking() || ended.is_some_and(|it| it.is_ok()));
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// An answer: a whole one under the right number, or any bytes.
#[derive(Clone, Debug)]
enum Answered {
    Blocks(Vec<Option<(u64, u64)>>),
    Reserved(Vec<(u64, u64)>),
    Count(u64),
    Bytes(Vec<u8>),
}

fn serve(listener: &OwnedFd, welcome: Welcome, answers: Vec<Answered>) {
    let Ok(socket) = rustix::net::accept(listener) else { return };
    let builder = Region::builder(BYTES).backing(Backing::Shared).ladder(PageSize::Base);
    let memory = builder.map().expect("memory can be mapped");
    let file = memory.share().expect("there are descriptors").expect("it is shared");
    let words = PinWords::create().expect("memory can be mapped");
    words.set(0, 1);
    let words_file = words.share().expect("there are descriptors").expect("it is shared");
    let mut buffer = vec![0; MAX_MESSAGE];
    let mut greeted = false;
    let mut answers = answers.into_iter();
    while let Ok(packet) = socket::receive(&socket, &mut buffer, RecvFlags::empty()) {
        let Some(Request { id, .. }) = decode::<Request<'_>>(&buffer[..packet.len]) else { return };
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
                    answer(Answer::Pinned { epoch: 1, blocks });
                }
                Some(Answered::Reserved(blocks)) => {
                    answer(Answer::Reserved(blocks.into_iter().map(granted).collect()));
                }
                Some(Answered::Count(count)) => answer(Answer::Count(count)),
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
        align: 4096,
        token: 1,
        lease_ms: 1000,
        epoch: 1,
        session: 0,
        pin_word: 1,
        resumed: false,
        named: false,
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
fn a_greeting_for_other_memory_is_told() {
    let hostile = Hostile::start(Welcome { memory_len: 1 << 40, ..welcome() }, Vec::new());
    let error = hostile.connect().map(drop).expect_err("the file is shorter");
    assert!(matches!(error, ClientError::Protocol { .. }), "{error}");
}

#[test]
fn a_session_that_cannot_be_is_told() {
    let hostile = Hostile::start(Welcome { session: 256, ..welcome() }, Vec::new());
    let error = hostile.connect().map(drop).expect_err("there are 256 words");
    assert!(matches!(error, ClientError::Protocol { .. }), "{error}");
}
