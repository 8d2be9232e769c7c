//! The bytes of this version of the protocol: messages, rings and the session file.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use kvmem::arena::Region;
use kvmem_testkit::fixture::{from_hex, text_fixture, to_hex, to_text};

use super::*;
use crate::error::{CallError, Quota, TooMany};
use crate::node::{
    BlockHandle, Event, EventKind, Events, Granted, Listed, Located, Miss, MissReason,
    NO_NAMESPACE, NamespaceStats, NodeStats, Resized,
};
use crate::session_file::SessionFile;
use crate::{ring, session_file};

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

const HANDLE: BlockHandle = BlockHandle { slot: 300, generation: 2 };

/// One call of each kind, in the order of their places.
fn calls() -> Vec<Call<'static>> {
    let keys = || vec![Key(b"one"), Key(b"two")];
    let commit = Commit {
        handle: HANDLE,
        key: Key(b"key"),
        parent: Some(Key(b"parent")),
        checksum: Some(0x0102_0304),
        priority: 3,
        data_type: 1,
        ttl_ms: 1000,
    };
    let (version, namespace) = (PROTOCOL_VERSION, "model");
    vec![
        Call::Hello { version, namespace, read_only: true, token: u64::MAX },
        Call::Resume { pins: vec![(HANDLE, 2)], reservations: vec![HANDLE] },
        Call::ResumeEnd,
        Call::Lookup { keys: keys() },
        Call::Acquire {
            epoch: 5,
            release: vec![HANDLE],
            keys: keys(),
            prefix_only: true,
            wait: false,
        },
        Call::Reserve { sizes: Cow::Borrowed(&[1, 4096]), wait: true },
        Call::Commit { items: vec![commit] },
        Call::Release { epoch: 5, handles: Cow::Borrowed(&[HANDLE]) },
        Call::Remove { keys: keys() },
        Call::Touch { keys: keys() },
        Call::Rings,
        Call::KeepAlive,
        Call::KeepPins,
        Call::Stats,
        Call::Events { from: 7, max: 8, wait_ms: 9 },
        Call::Goodbye,
        Call::Damaged { handles: vec![HANDLE] },
        Call::List { from: 1, max: 2 },
        Call::Sessions,
        Call::Evict { namespace: Some("model"), bytes: 1 << 40 },
        Call::Clear { namespace: None },
        Call::ReclaimPins { pid: 77 },
        Call::Locate { keys: keys() },
        Call::ListNamespace { from: 1, max: 2 },
        Call::Misses { all: true, max: 2 },
        Call::Resize { size: 1 << 40 },
        Call::Registers,
    ]
}

/// One answer of each kind, in the order of their places.
fn answers() -> Vec<Answer> {
    let granted = Granted { handle: HANDLE, offset: 8192, len: 100, checksum: Some(9) };
    let welcome = Welcome {
        version: PROTOCOL_VERSION,
        node_id: 1,
        memory_len: 2 << 30,
        size: 1 << 30,
        is_elastic: true,
        align: 4096,
        boundary: 1 << 30,
        token: 3,
        lease_ms: 4,
        epoch: 5,
        session: 6,
        pin_word: 7,
        resumed: true,
    };
    let kinds = [
        EventKind::Stored,
        EventKind::Replaced,
        EventKind::Removed,
        EventKind::Evicted,
        EventKind::Damaged,
    ];
    let mut number = 0;
    let mut event = |kind, namespace, key: &[u8]| {
        number += 1;
        Event { number, kind, namespace, key: key.to_vec() }
    };
    let mut events: Vec<Event> = kinds.map(|kind| event(kind, 1, b"key")).into();
    events.push(event(EventKind::TierEvicted, NO_NAMESPACE, b""));
    let listed = Listed {
        namespace: "model".to_owned(),
        key: b"key".to_vec(),
        len: 100,
        pins: 2,
        priority: 3,
        idle_ms: 4,
    };
    let session = SessionListed {
        pid: 77,
        namespace: "model".to_owned(),
        pins: 1,
        reservations: 2,
        connected: true,
        silent_ms: 3,
    };
    let misses = MissReason::ALL.map(|reason| Miss {
        namespace: "model".to_owned(),
        key: b"key".to_vec(),
        reason,
        ago_ms: 1,
        gone_s: Some(2),
        evicted_for: Some("other".to_owned()),
        priority: Some(3),
    });
    let namespace = NamespaceStats { name: "model".to_owned(), share: 3, ..Default::default() };
    let stats = NodeStats { capacity: 1, namespaces: vec![namespace], ..NodeStats::default() };
    vec![
        Answer::Welcome(welcome),
        Answer::Resumed { epoch: 5, pins_resumed: true, pin_word: 6 },
        Answer::Done,
        Answer::Rings,
        Answer::Count(300),
        Answer::Pinned { epoch: 5, blocks: vec![Some(granted), None], pending: vec![1] },
        Answer::Reserved(vec![granted]),
        Answer::Stats(Box::new(stats)),
        Answer::Events(Events { events, next: 9, lost: true }),
        Answer::Listed { values: vec![listed], next: Some(8) },
        Answer::Sessions(vec![session]),
        Answer::Located(vec![Located { in_memory: true, in_tier: false }]),
        Answer::Misses(misses.into()),
        Answer::Resized(Resized { size: 1, wanted: 2, held_bytes: 3, registered_clients: 4 }),
    ]
}

/// One error of each kind, in the order of their places.
fn errors() -> Vec<CallError> {
    let name = || "model".to_owned();
    vec![
        CallError::OutOfSpace { requested: 1, free: 2, largest: 3 },
        CallError::BadLength { requested: 1, limit: 2 },
        CallError::BadKey { len: 65, limit: 64 },
        CallError::Twice { index: 1 },
        CallError::BatchTooLong { len: 2, limit: 1 },
        CallError::Stale { slot: 1, generation: 2 },
        CallError::Fenced,
        CallError::Quota { what: Quota::ReaderPinnedBytes, value: 2, limit: 1 },
        CallError::ReadOnly,
        CallError::NotOperator,
        CallError::Greeting,
        CallError::Version { version: 6, known: 5 },
        CallError::TooMany { what: TooMany::Rings, limit: 256 },
        CallError::BadNamespace { len: 57, limit: 56 },
        CallError::NamespaceInTier,
        CallError::Undecodable { len: 3 },
        CallError::Unwatched { why: "why".to_owned() },
        CallError::NotAllowed { uid: 1000, own: 0 },
        CallError::NamespaceNotAllowed { uid: 1000, name: name() },
        CallError::OnlyReads { uid: 1000, name: name() },
        CallError::BadSize { requested: 3, min: 1, max: 2 },
    ]
}

/// Returns the first word of what is printed for programmers: the name of the variant.
fn name_of(message: &impl std::fmt::Debug) -> String {
    let text = format!("{message:?}");
    text.split(|it: char| !it.is_alphanumeric()).next().unwrap_or_default().to_owned()
}

/// Returns the lines of some messages. `begin` is what comes before the place of a variant.
fn lines<T: std::fmt::Debug>(
    kind: &str,
    messages: Vec<T>,
    begin: &[u8],
    encoded: impl Fn(T, &mut Vec<u8>),
    is_known: impl Fn(&[u8]) -> bool,
) -> String {
    let (mut text, count, mut bytes) = (String::new(), messages.len() as u8, Vec::new());
    for (place, message) in (0..).zip(messages) {
        let name = name_of(&message);
        encoded(message, &mut bytes);
        assert!(is_known(&bytes), "{name}");
        assert_eq!(bytes[..=begin.len()], [begin, &[place]].concat(), "{name} has this place");
        let _ = writeln!(text, "{kind} {name} {}", to_hex(&bytes));
    }
    // If there were one more variant, zeros would be its fields.
    for len in 0..1000 {
        let zeros = [begin, &[count], &vec![0; len]].concat();
        assert!(!is_known(&zeros), "the list has each {kind}");
    }
    text
}

fn messages() -> String {
    let request = |call, bytes: &mut Vec<u8>| encode(&Request { id: 1, call }, bytes);
    let answer = |it, bytes: &mut Vec<u8>| encode(&Response { id: 1, result: Ok(it) }, bytes);
    let error = |it, bytes: &mut Vec<u8>| encode(&Response { id: 1, result: Err(it) }, bytes);
    let is_request = |bytes: &[u8]| decode::<Request<'_>>(bytes).is_some();
    let is_response = |bytes: &[u8]| decode::<Response>(bytes).is_some();
    lines("call", calls(), &[1], request, is_request)
        + &lines("answer", answers(), &[1, 0], answer, is_response)
        + &lines("error", errors(), &[1, 1], error, is_response)
}

/// Returns the memory of two rings with messages.
fn rings() -> String {
    let (mut server, file) = ring::create().expect("memory can be mapped");
    let again = file.try_clone().expect("there are descriptors");
    let mut client = ring::attach(file).expect("it is sealed");
    for message in [&b"first request"[..], b"second"] {
        assert_eq!(client.requests.try_send(message), Ok(true));
    }
    assert_eq!(server.answers.try_send(b"answer"), Ok(true));
    let mut received = Vec::new();
    assert_eq!(server.requests.try_receive(&mut received), Ok(true));
    assert_eq!(received, b"first request");
    let memory = Region::attach(again, None).expect("it is sealed");
    // SAFETY: no thread stores to the memory meanwhile.
    to_text(unsafe { memory.bytes() })
}

/// Returns the session file with the words of two sessions.
fn session_words() -> String {
    let words = SessionFile::create().expect("memory can be mapped");
    words.begin(0, 1);
    words.begin(255, 0x0102_0304_0506_0708);
    words.set_pin_word(255, 9);
    let file = words.share().expect("there are descriptors");
    let mut bytes = vec![0; session_file::FILE_BYTES];
    assert_eq!(rustix::io::pread(file, &mut bytes[..], 0), Ok(bytes.len()));
    to_text(&bytes)
}

/// A change of these bytes, under the same number, would reach users whose client or server has
/// something else under it.
#[test]
fn this_version_has_these_bytes() {
    let parts = [("messages", messages()), ("rings", rings()), ("session-file", session_words())];
    for (name, now) in parts {
        let path = path(&format!("protocol-{name}-v{PROTOCOL_VERSION}.txt"));
        let before = text_fixture(&path, || now.clone());
        let before: Vec<&str> = before.lines().filter(|line| !line.starts_with('#')).collect();
        let now: Vec<&str> = now.lines().collect();
        let differs = before.iter().zip(&now).find(|(before, now)| before != now);
        assert_eq!(differs, None, "{name}: raise PROTOCOL_VERSION");
        assert_eq!(before.len(), now.len(), "{name}: raise PROTOCOL_VERSION");
    }
}

/// What clients and servers of any two versions must understand of each other.
#[test]
fn all_versions_name_the_version_at_the_same_place() {
    let text = std::fs::read_to_string(path("greetings.txt")).expect("the fixture is there");
    let mut count = 0;
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let [kind, version, hex] = line.split(' ').collect::<Vec<_>>()[..] else {
            panic!("{line}");
        };
        let (version, bytes) = (version.parse().expect("a number"), from_hex(hex).expect("bytes"));
        match kind {
            "hello" => assert_eq!(version_of_greeting(&bytes), Some((1, version))),
            "error" => {
                let error = CallError::Version { version: 9, known: version };
                let response = decode::<Response>(&bytes).expect("it has not changed");
                assert_eq!(response.result.expect_err("it is an error"), error);
                assert_eq!(version_of_welcome(&bytes), None);
            }
            other => panic!("{other}"),
        }
        count += 1;
    }
    assert_eq!(count, 4);
    let mut bytes = Vec::new();
    let Answer::Welcome(welcome) = answers().remove(0) else { panic!("it is the first") };
    let result = Ok(Answer::Welcome(Welcome { version: 300, ..welcome }));
    encode(&Response { id: 1, result }, &mut bytes);
    assert_eq!(version_of_welcome(&bytes), Some(300));
    assert_eq!(version_of_welcome(&bytes[..5]), Some(300));
    encode(&Response { id: 1, result: Ok(Answer::Done) }, &mut bytes);
    assert_eq!(version_of_welcome(&bytes), None);
    encode(&Request { id: 1, call: Call::Stats }, &mut bytes);
    assert_eq!(version_of_greeting(&bytes), None);
}
