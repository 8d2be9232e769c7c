//! A memory holder in a thread, well-behaved clients, and others.

use std::fs::File;
use std::io::{IoSlice, Read, Seek, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use kvmem_node::{
    MAX_RETAINED, MemoryHolder, MemoryHolderCallError, MemoryHolderClient, MemoryHolderError,
    MemoryHolderOptions, NodeServer, ServerOptions,
};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketType, recv, sendmsg, socket,
};

use crate::support::{Place, node};

/// A memory holder that runs until it is stopped or idle.
struct Retention {
    path: PathBuf,
    thread: Option<JoinHandle<()>>,
}

impl Retention {
    fn start(place: &Place, idle: Duration) -> Retention {
        let path = place.socket().with_extension("holder");
        let options = MemoryHolderOptions { idle, ends_after_use: true };
        let holder = MemoryHolder::bind(&path, options).expect("the socket is free");
        let thread = std::thread::spawn(move || holder.run().expect("poll works"));
        Retention { path, thread: Some(thread) }
    }

    fn client(&self) -> MemoryHolderClient {
        MemoryHolderClient::connect(&self.path).expect("it listens")
    }

    fn join(mut self) {
        self.thread.take().expect("it runs").join().expect("the memory holder does not panic");
    }
}

impl Drop for Retention {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            if let Ok(client) = MemoryHolderClient::connect(&self.path) {
                let _ = client.stop();
            }
            let ended = thread.join();
            assert!(std::thread::panicking() || ended.is_ok(), "the memory holder does not panic");
        }
    }
}

const LONG: Duration = Duration::from_secs(600);

fn file(text: &str) -> OwnedFd {
    let memory = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC);
    let mut file = File::from(memory.expect("a memory file"));
    file.write_all(text.as_bytes()).expect("it takes bytes");
    file.into()
}

fn text(file: OwnedFd) -> String {
    let (mut file, mut text) = (File::from(file), String::new());
    file.rewind().expect("a memory file can be read from its beginning");
    file.read_to_string(&mut text).expect("it is text");
    text
}

fn call_error(error: MemoryHolderError) -> MemoryHolderCallError {
    match error {
        MemoryHolderError::Call(error) => error,
        other => panic!("{other}"),
    }
}

/// Repeats a call until the memory holder has noticed the end of a connection.
fn eventually<T>(call: impl Fn() -> Result<T, MemoryHolderError>) -> T {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        match call() {
            Ok(done) => return done,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn descriptors_come_back_from_another_connection() {
    let place = Place::new();
    let retention = Retention::start(&place, LONG);
    let mode = std::fs::metadata(&retention.path).expect("a socket").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let first = retention.client();
    assert!(first.claim("node").expect("it is free").is_empty());
    let (memory, index) = (file("the memory"), file("the index"));
    first.put("node", &[memory.as_fd(), index.as_fd()]).expect("it has none");
    let listed = &first.list().expect("a call")[0];
    assert_eq!((&*listed.name, listed.descriptors, listed.bytes), ("node", 2, 19));
    assert_eq!(listed.claimed_by, Some(std::process::id()));

    let second = retention.client();
    let error = call_error(second.claim("node").expect_err("the first one has it"));
    let pid = std::process::id();
    assert_eq!(error, MemoryHolderCallError::Claimed { name: "node".to_owned(), pid });
    drop((first, memory, index));
    let mut found = eventually(|| second.claim("node"));
    assert_eq!(text(found.pop().expect("the second one")), "the index");
    assert_eq!(text(found.pop().expect("the first one")), "the memory");

    let name = "node".to_owned();
    let in_use = MemoryHolderCallError::NameInUse { name: name.clone() };
    let other = file("other");
    assert_eq!(call_error(second.put("node", &[other.as_fd()]).expect_err("it has some")), in_use);
    second.rename("node", "node-aside").expect("the name is free");
    assert_eq!(
        call_error(second.get("node").expect_err("set aside")),
        MemoryHolderCallError::Absent { name }
    );
    second.put("node", &[other.as_fd()]).expect("it has none");
    second.forget("node-aside").expect("it is there");
    assert_eq!(second.get("node").expect("it is there").len(), 1);
    assert!(second.is_connected());
    second.stop().expect("a call");
    retention.join();
    assert!(!second.is_connected());
}

#[test]
fn a_memory_holder_ends_when_it_is_idle() {
    let place = Place::new();
    let retention = Retention::start(&place, Duration::from_millis(50));
    let client = retention.client();
    std::thread::sleep(Duration::from_millis(100));
    client.put("a", &[file("a").as_fd()]).expect("a connected client keeps it awake");
    drop(client);
    std::thread::sleep(Duration::from_millis(100));
    retention.client().forget("a").expect("descriptors keep it awake");
    let path = retention.path.clone();
    retention.join();
    assert!(!path.exists(), "the socket goes with the memory holder");
    assert!(matches!(MemoryHolderClient::connect(&path), Err(MemoryHolderError::NoHolder { .. })));
}

/// The server that used it has ended and left nothing, or the socket's folder is gone.
#[test]
fn a_memory_holder_ends_when_nothing_needs_it() {
    let place = Place::new();
    let ends = |retention: Retention| {
        let deadline = Instant::now() + Duration::from_secs(30);
        while !retention.thread.as_ref().expect("it runs").is_finished() {
            assert!(Instant::now() < deadline, "it stays");
            std::thread::sleep(Duration::from_millis(5));
        }
        retention.join();
    };
    let used = Retention::start(&place, LONG);
    // A look at the list is no use of it.
    assert!(used.client().list().expect("a call").is_empty());
    let client = used.client();
    assert!(client.claim("node").expect("it is free").is_empty());
    drop(client);
    ends(used);
    let unreachable = Retention::start(&place, Duration::from_millis(50));
    unreachable.client().put("node", &[file("memory").as_fd()]).expect("it has none");
    std::fs::remove_file(&unreachable.path).expect("it is there");
    ends(unreachable);
}

/// Leaves a socket that nobody answers. A child that another test has just forked has the listener
/// too, until it runs its own program.
fn leave_dead_socket(path: &Path) {
    drop(std::os::unix::net::UnixListener::bind(path).expect("the path is free"));
    let is_dead = || {
        let connected = std::os::unix::net::UnixStream::connect(path);
        connected.is_err_and(|error| Errno::from_io_error(&error) == Some(Errno::CONNREFUSED))
    };
    let end = Instant::now() + Duration::from_secs(60);
    while !is_dead() {
        assert!(Instant::now() < end, "another process still listens");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn one_memory_holder_socket() {
    let place = Place::new();
    let retention = Retention::start(&place, LONG);
    let second = MemoryHolder::bind(&retention.path, MemoryHolderOptions::default());
    assert!(matches!(second, Err(MemoryHolderError::HolderInUse { .. })), "{second:?}");
    // A socket without a listener is that of a memory holder that was killed.
    let dead = place.socket().with_extension("dead");
    leave_dead_socket(&dead);
    drop(MemoryHolder::bind(&dead, MemoryHolderOptions::default()).expect("it is replaced"));
    assert!(!dead.exists());
    // Another file is not: connecting to it fails in the same way.
    let other = place.socket().with_extension("other");
    std::fs::write(&other, "not a socket").expect("the path is free");
    let error =
        MemoryHolder::bind(&other, MemoryHolderOptions::default()).expect_err("it is no socket");
    assert!(error.to_string().contains("is no socket"), "{error}");
    let bound = NodeServer::bind(node(1 << 20), &other, ServerOptions::default());
    assert!(bound.is_err_and(|error| error.to_string().contains("is no socket")));
    assert_eq!(std::fs::read_to_string(&other).expect("it is there"), "not a socket");
    // Many that start at once: one of them listens.
    let path = place.socket().with_extension("race");
    leave_dead_socket(&path);
    let bind = || MemoryHolder::bind(&path, MemoryHolderOptions::default());
    let made: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(bind)).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    let (bound, rest): (Vec<_>, Vec<_>) = made.into_iter().partition(Result::is_ok);
    assert_eq!(bound.len(), 1, "{rest:?}");
    assert!(
        rest.iter().all(|it| matches!(it, Err(MemoryHolderError::HolderInUse { .. }))),
        "{rest:?}"
    );
}

fn raw(path: &Path) -> OwnedFd {
    let socket = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).expect("a socket");
    let address = SocketAddrUnix::new(path).expect("a short path");
    rustix::net::connect(&socket, &address).expect("it listens");
    socket
}

fn send(socket: &OwnedFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> bool {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(descriptors)));
    }
    sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL).is_ok()
}

/// Returns how often this process has a file open.
fn times_open(path: &Path) -> usize {
    let all = std::fs::read_dir("/proc/self/fd").expect("a folder").flatten();
    all.filter(|fd| std::fs::read_link(fd.path()).is_ok_and(|found| found == path)).count()
}

#[test]
fn malformed_messages_are_answered_and_lose_nothing() {
    let place = Place::new();
    let retention = Retention::start(&place, LONG);
    let client = retention.client();
    client.put("node", &[file("the memory").as_fd()]).expect("it has none");
    let mut answer = [0; 16 << 10];
    let hostile = raw(&retention.path);
    let mut random = 0x2545_F491_4F6C_DD1D_u64;
    for len in 1..400_usize {
        let mut bytes = vec![0; len];
        for byte in &mut bytes {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            *byte = (random >> 32) as u8;
        }
        // Often the right version, but never the message that stops the memory holder.
        bytes[0] = (len % 2) as u8;
        if bytes.get(1) == Some(&6) {
            bytes[1] = 99;
        }
        assert!(send(&hostile, &bytes, &[]));
        let (_, len) = recv(&hostile, &mut answer[..], RecvFlags::empty()).expect("an answer");
        assert!(len >= 3);
    }
    // A put that announces 1 descriptor and brings none, 2, or as many as the kernel takes.
    let put = [&[1, 1, 4][..], b"evil", &[1]].concat();
    let unwanted = place.socket().with_extension("unwanted");
    let null = File::create(&unwanted).expect("the path is free");
    for count in [0, 2, 64] {
        assert!(send(&hostile, &put, &vec![null.as_fd(); count]));
        let (_, len) = recv(&hostile, &mut answer[..], RecvFlags::empty()).expect("an answer");
        assert_eq!(answer[1], 1, "{count} descriptors are an error: {:?}", &answer[..len]);
    }
    // Descriptors that come with another message.
    assert!(send(&hostile, &[1, 3], &[null.as_fd(); 4]));
    recv(&hostile, &mut answer[..], RecvFlags::empty()).expect("an answer");
    // The last ones are closed after the answer.
    let deadline = Instant::now() + Duration::from_secs(10);
    while times_open(&unwanted) > 1 {
        assert!(Instant::now() < deadline, "unwanted descriptors are closed");
    }
    // Too long: the connection ends.
    assert!(send(&hostile, &vec![1; 20 << 10], &[]));
    assert!(matches!(recv(&hostile, &mut answer[..], RecvFlags::empty()), Ok((_, 0)) | Err(_)));

    let listed = client.list().expect("a call");
    assert_eq!((listed.len(), &*listed[0].name), (1, "node"));
}

#[test]
fn silent_and_greedy_clients_do_not_stop_others() {
    let place = Place::new();
    let retention = Retention::start(&place, LONG);
    let client = retention.client();
    // It never reads its answers: its connection ends, at the latest when the socket is full.
    let deaf = raw(&retention.path);
    let mut sent = 0;
    while send(&deaf, &[1, 3], &[]) && sent < 100_000 {
        sent += 1;
    }
    assert!(client.list().expect("the memory holder still answers").is_empty());
    drop(deaf);
    // Names are limited, for each client that takes them.
    for number in 0..MAX_RETAINED {
        client.claim(&format!("n{number}")).expect("there is space");
    }
    let error = call_error(client.claim("one-more").expect_err("too many"));
    assert_eq!(error, MemoryHolderCallError::TooManyNames { limit: MAX_RETAINED });
    let null = File::open("/dev/null").expect("it exists");
    let error = call_error(client.put("n0", &[null.as_fd(); 5]).expect_err("too many"));
    assert_eq!(error, MemoryHolderCallError::Descriptors { got: 5, expected: 5, limit: 4 });
    // Connections are limited: others are closed, and the first ones stay.
    let others: Vec<OwnedFd> = (0..40).map(|_| raw(&retention.path)).collect();
    assert!(client.list().expect("an old connection").is_empty());
    drop(others);
    eventually(|| retention.client().list());
}

/// A memory holder that another release has started: it and its clients say which versions they
/// speak.
#[test]
fn a_memory_holder_of_another_version_is_an_error_that_names_both() {
    let place = Place::new();
    let retention = Retention::start(&place, LONG);
    let client = retention.client();
    client.put("node", &[file("the memory").as_fd()]).expect("it has none");
    // A client of another version learns the version of the memory holder.
    let mut answer = [0; 16 << 10];
    for version in [0, 2, 0xFF] {
        let other = raw(&retention.path);
        for call in 0..8 {
            assert!(send(&other, &[version, call, 4, b'n', b'o', b'd', b'e'], &[]));
            let (_, len) = recv(&other, &mut answer[..], RecvFlags::empty()).expect("an answer");
            // Version, an error, the one of undecodable messages, and the length of this one.
            assert_eq!(answer[..len], [1, 1, 6, 7]);
        }
    }
    assert_eq!(client.list().expect("a call").len(), 1);
    // A memory holder of another version, with any answer.
    for version in [0_u8, 2, 0xFF] {
        let path = place.socket().with_extension(version.to_string());
        let listener = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).expect("a socket");
        let address = SocketAddrUnix::new(&path).expect("a short path");
        rustix::net::bind(&listener, &address).expect("a new path");
        rustix::net::listen(&listener, 4).expect("it is bound");
        let other = std::thread::spawn(move || {
            let socket = rustix::net::accept(&listener).expect("a client comes");
            let mut message = [0; 64];
            for answer in [&[version][..], &[version, 0, 0], &[version; 40]] {
                let (_, len) = recv(&socket, &mut message[..], RecvFlags::empty()).expect("a call");
                assert_eq!(message[..len], [1, 3], "the list of names");
                assert!(send(&socket, answer, &[]));
            }
        });
        let client = MemoryHolderClient::connect(&path).expect("it listens");
        for _ in 0..3 {
            let error = client.list().expect_err("it is of another version");
            let text = error.to_string();
            assert!(
                matches!(error, MemoryHolderError::HolderVersion { version: found, known: 1, .. }
                    if found == version),
                "{error}"
            );
            let end = format!("end process {}", std::process::id());
            assert!(
                text.contains(&end) && text.contains("use the kvmem that started it"),
                "{text}"
            );
        }
        other.join().expect("no panic");
    }
}
