//! Clients of other versions of the protocol.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use kvmem_testkit::fixture::from_hex;
use rustix::net::{RecvFlags, SendFlags};

use super::Place;
use crate::error::CallError;
use crate::protocol::{
    Call, MAX_MESSAGE, NO_ANSWER, PROTOCOL_VERSION, Request, Response, decode, encode,
};
use crate::server::ServerOptions;
use crate::socket;

fn answer_to(socket: &OwnedFd, message: &[u8]) -> Response {
    socket::send(socket, message, &[], SendFlags::empty()).expect("it is connected");
    let mut answer = vec![0; MAX_MESSAGE];
    let packet = socket::receive(socket.as_fd(), &mut answer, RecvFlags::empty());
    let packet = packet.expect("it answers");
    assert!(packet.descriptors.is_empty(), "an error has no descriptors");
    decode::<Response>(&answer[..packet.len]).expect("an answer")
}

/// The greeting of a version, as a client of it sends it.
fn greeting(version: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    let call = Call::Hello { version, namespace: "model", read_only: false, token: 7 };
    encode(&Request { id: 1, call }, &mut bytes);
    bytes
}

/// The greetings that clients of earlier versions have sent, of their own libraries.
fn earlier_greetings() -> Vec<(u32, Vec<u8>)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/greetings.txt");
    let text = std::fs::read_to_string(path).expect("the fixture is there");
    let lines = text.lines().filter_map(|line| line.strip_prefix("hello "));
    let greetings = lines.map(|line| {
        let (version, hex) = line.split_once(' ').expect("a version and bytes");
        (version.parse().expect("a number"), from_hex(hex).expect("bytes"))
    });
    greetings.collect()
}

#[test]
fn a_client_of_another_version_gets_an_error_that_names_both() {
    let place = Place::new(ServerOptions::default());
    let mut greetings = earlier_greetings();
    assert_eq!(greetings.len(), 2, "those of versions 1 and 2");
    greetings.extend((0..PROTOCOL_VERSION).map(|version| (version, greeting(version))));
    for version in [PROTOCOL_VERSION + 1, u32::MAX] {
        greetings.push((version, greeting(version)));
        // One with further fields, with other ones, and with none.
        greetings.push((version, [greeting(version), vec![1, 2, 3]].concat()));
        let begin = greeting(version).len() - b"\x05model\x00\x07".len();
        let begin = &greeting(version)[..begin];
        greetings.push((version, [begin, &[0xFF; 40]].concat()));
        greetings.push((version, begin.to_vec()));
    }
    for (version, bytes) in greetings {
        let socket = socket::connect(&place.folder.path().join("sock")).expect("it listens");
        // It may ask again.
        for _ in 0..2 {
            let Response { id, result } = answer_to(&socket, &bytes);
            let error = CallError::Version { version, known: PROTOCOL_VERSION };
            assert_eq!(
                (id, result.expect_err("it is of another version")),
                (1, error),
                "{bytes:?}"
            );
        }
        place.check_honest();
    }
    // A message of this version without the right fields gives an error of its own, not that of
    // another version.
    let socket = socket::connect(&place.folder.path().join("sock")).expect("it listens");
    let bytes = [greeting(PROTOCOL_VERSION), vec![0]].concat();
    let Response { id, result } = answer_to(&socket, &bytes);
    let error = CallError::Undecodable { len: bytes.len() };
    assert_eq!((id, result.expect_err("it is too long")), (NO_ANSWER, error));
    place.check_honest();
}
