//! Servers of other versions of the protocol.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use kvmem::arena::{Backing, PageSize, Region};
use kvmem_testkit::fixture::from_hex;
use rustix::net::{RecvFlags, SendFlags, SocketAddrUnix, SocketFlags};

use super::{ClientError, ConnectOptions, Hostile, NodeClient, welcome};
use crate::error::CallError;
use crate::protocol::{
    Answer, Call, MAX_MESSAGE, PROTOCOL_VERSION, Request, Response, Welcome, decode, encode,
};
use crate::server::{NodeServer, ServerOptions};
use crate::{Node, NodeOptions, socket};

/// Listens at a new path.
fn listen(path: &Path) -> OwnedFd {
    let listener = socket::packet_socket(SocketFlags::empty()).expect("a socket");
    let address = SocketAddrUnix::new(path).expect("a short path");
    rustix::net::bind(&listener, &address).expect("a new path");
    rustix::net::listen(&listener, 4).expect("it is bound");
    listener
}

/// Answers the greeting of one client, in a thread, and returns that greeting.
fn answer_one(listener: OwnedFd, answer: Vec<u8>) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let socket = rustix::net::accept(&listener).expect("a client comes");
        let mut greeting = vec![0; MAX_MESSAGE];
        let packet = socket::receive(&socket, &mut greeting, RecvFlags::empty());
        let len = packet.expect("it greets").len;
        socket::send(&socket, &answer, &[], SendFlags::empty()).expect("it waits");
        // The client closes the connection.
        let _ = socket::receive(&socket, &mut [0; 16], RecvFlags::empty());
        greeting.truncate(len);
        greeting
    })
}

fn connect(path: &Path) -> Result<NodeClient, ClientError> {
    // A client that tried again would wait for a minute.
    let options =
        ConnectOptions { retry_for: Duration::from_secs(60), ..ConnectOptions::default() };
    // SAFETY: nothing writes to the memory of these servers.
    unsafe { NodeClient::connect(path, &options) }
}

fn encoded(result: Result<Answer, CallError>) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(&Response { id: 1, result }, &mut bytes);
    bytes
}

/// Returns what servers of earlier versions have answered to this client.
fn earlier_answers() -> Vec<(u32, Vec<u8>)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/greetings.txt");
    let text = std::fs::read_to_string(path).expect("the fixture is there");
    let lines = text.lines().filter_map(|line| line.strip_prefix("error "));
    let answers = lines.map(|line| {
        let (version, hex) = line.split_once(' ').expect("a version and bytes");
        (version.parse().expect("a number"), from_hex(hex).expect("bytes"))
    });
    answers.collect()
}

#[test]
fn a_server_of_another_version_is_an_error_that_names_both() {
    let mut answers = earlier_answers();
    assert_eq!(answers.len(), 2, "those of versions 1 and 2");
    for known in [0, PROTOCOL_VERSION - 1, PROTOCOL_VERSION + 1, u32::MAX] {
        let error = CallError::Version { version: PROTOCOL_VERSION, known };
        answers.push((known, encoded(Err(error))));
        // A server that does not compare the versions: with this welcome, with a longer one, with
        // other fields, and with none.
        let welcomed = encoded(Ok(Answer::Welcome(Welcome { version: known, ..welcome() })));
        let begin = [&[1, 0, 0][..], &postcard::to_allocvec(&known).expect("a number")].concat();
        assert!(welcomed.starts_with(&begin));
        answers.push((known, [&welcomed[..], &[1, 2, 3]].concat()));
        answers.push((known, [&begin[..], &[0xFF; 40]].concat()));
        answers.push((known, begin));
        answers.push((known, welcomed));
    }
    for (known, answer) in answers {
        let folder = tempfile::tempdir().expect("a directory can be made");
        let path = folder.path().join("sock");
        let server = answer_one(listen(&path), answer.clone());
        let started = Instant::now();
        let error = connect(&path).expect_err("it is of another version");
        assert!(started.elapsed() < Duration::from_secs(30), "it does not try again");
        let ClientError::Call(CallError::Version { known: found, .. }) = error else {
            panic!("{answer:?}: {error}");
        };
        assert_eq!(found, known);
        let text = error.to_string();
        assert!(text.contains("use the client library of the server's release"), "{text}");
        let greeting = server.join().expect("no panic");
        let Some(Request { call: Call::Hello { version, .. }, .. }) = decode(&greeting) else {
            panic!("{greeting:?}");
        };
        assert_eq!(version, PROTOCOL_VERSION);
    }
}

/// A welcome of another version with all that belongs to one of this version.
#[test]
fn a_whole_welcome_of_another_version_is_an_error() {
    for known in [PROTOCOL_VERSION - 1, PROTOCOL_VERSION + 1] {
        let hostile = Hostile::start(Welcome { version: known, ..welcome() }, Vec::new());
        let error = hostile.connect().expect_err("it is of another version");
        let ClientError::Call(CallError::Version { version: PROTOCOL_VERSION, known: found }) =
            error
        else {
            panic!("{error}");
        };
        assert_eq!(found, known);
    }
}

/// A later release serves the memory: the calls of a client that runs say so at once.
#[test]
fn a_client_that_connects_again_to_a_server_of_another_version_gets_the_error() {
    let folder = tempfile::tempdir().expect("a directory can be made");
    let path = folder.path().join("sock");
    let builder = Region::builder(1 << 20).backing(Backing::Shared).ladder(PageSize::Base);
    let memory = builder.map().expect("memory can be mapped");
    let node = Node::create(memory, NodeOptions::default()).expect("possible");
    let server = NodeServer::bind(node, &path, ServerOptions::default()).expect("a new path");
    let stopper = server.stopper();
    let thread = std::thread::spawn(move || drop(server.run()));
    let client = connect(&path).expect("it answers");
    client.insert("key", b"value").expect("there is space");
    stopper.stop();
    thread.join().expect("no panic");
    let _ = std::fs::remove_file(&path);
    let known = PROTOCOL_VERSION + 1;
    let error = CallError::Version { version: PROTOCOL_VERSION, known };
    let listener = listen(&path);
    for _ in 0..2 {
        let again = listener.try_clone().expect("there are descriptors");
        let server = answer_one(again, encoded(Err(error.clone())));
        let started = Instant::now();
        let found = client.lookup(&["key"]).expect_err("it is of another version");
        assert!(matches!(&found, ClientError::Call(found) if *found == error), "{found}");
        assert!(started.elapsed() < Duration::from_secs(30), "it does not try again");
        server.join().expect("no panic");
    }
    drop(listener);
    let _ = std::fs::remove_file(&path);
}
