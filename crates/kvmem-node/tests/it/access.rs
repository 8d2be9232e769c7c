//! Users: which of them a server lets in, what they reach then, and which servers they trust.
//!
//! A thread of the test has the user and the groups of another process: the kernel has them for
//! each thread. Changing them takes root.

use std::path::Path;
use std::time::Duration;

use kvmem_node::{
    AllowedGroup, CallError, ClientError, ConnectOptions, Event, MemoryHolder, MemoryHolderClient,
    MemoryHolderOptions, NamespaceRule, NodeClient, NodeError, NodeServer, Principal,
    ServerOptions,
};

use crate::support::{Place, Running, node};

const ALICE: u32 = 41_001;
const BOB: u32 = 41_002;
/// A group of neither.
const ENGINES: u32 = 42_001;
const READERS: u32 = 42_002;

/// Runs a function in a thread of another user; `None` if this process may not.
fn as_user<R: Send>(uid: u32, groups: &[u32], run: impl FnOnce() -> R + Send) -> Option<R> {
    std::thread::scope(|scope| scope.spawn(|| become_user(uid, groups).then(run)).join())
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Gives the thread a user, which is its group, too, and supplementary groups.
fn become_user(uid: u32, groups: &[u32]) -> bool {
    // SAFETY: the calls take numbers, and a pointer to `groups.len()` numbers. They are the
    // kernel's own and not the library's, which would change all threads of the process.
    let changed = unsafe {
        libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) == 0
            && libc::syscall(libc::SYS_setresgid, uid, uid, uid) == 0
            && libc::syscall(libc::SYS_setresuid, uid, uid, uid) == 0
    };
    if !changed {
        println!("skipped: only root becomes user {uid}: {}", std::io::Error::last_os_error());
    }
    changed
}

/// A server that other users reach.
struct Open {
    place: Place,
    _running: Running,
}

impl Open {
    fn start(options: ServerOptions) -> Open {
        use std::os::unix::fs::PermissionsExt;
        let place = Place::new();
        let folder = place.socket().parent().expect("a folder").to_owned();
        std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755)).expect("its own");
        let _running = Running::start(node(4 << 20), &place.socket(), options);
        Open { place, _running }
    }

    fn connect(&self, namespace: &str, read_only: bool) -> Result<NodeClient, ClientError> {
        let options =
            ConnectOptions { namespace: namespace.to_owned(), read_only, ..connect_options() };
        connect(&self.place.socket(), &options)
    }

    /// Connects as another user; `None` if the test cannot.
    fn connect_as(
        &self,
        uid: u32,
        groups: &[u32],
        namespace: &str,
        read_only: bool,
    ) -> Option<Result<NodeClient, ClientError>> {
        as_user(uid, groups, || self.connect(namespace, read_only))
    }
}

/// The servers of the tests belong to the user of the process.
fn connect_options() -> ConnectOptions {
    ConnectOptions { retry_for: Duration::ZERO, ..ConnectOptions::default() }
}

fn connect(path: &Path, options: &ConnectOptions) -> Result<NodeClient, ClientError> {
    // SAFETY: the only clients are those of this test, which write to their reservations alone.
    unsafe { NodeClient::connect(path, options) }
}

fn group(gid: u32, read_only: bool) -> AllowedGroup {
    AllowedGroup { gid, read_only }
}

fn rule(name: &str, who: Principal, read_only: bool) -> NamespaceRule {
    NamespaceRule { name: name.to_owned(), who, read_only }
}

fn call_error<T: std::fmt::Debug>(result: Result<T, ClientError>) -> CallError {
    match result {
        Err(ClientError::Call(error)) => error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_user_of_no_rule_is_reported() {
    let allow_groups = vec![group(ENGINES, false), group(READERS, true)];
    let server = Open::start(ServerOptions { allow_groups, ..ServerOptions::default() });
    for groups in [&[][..], &[1, 2, 3]] {
        let Some(denied) = server.connect_as(ALICE, groups, "", true) else { return };
        let own = rustix::process::geteuid().as_raw();
        assert_eq!(call_error(denied), CallError::NotAllowed { uid: ALICE, own });
    }
    // More supplementary groups than fit into the first answer of the kernel.
    let many: Vec<u32> = (1..100).chain([ENGINES]).collect();
    let joined = server.connect_as(ALICE, &many, "", false).expect("as before");
    joined.expect("a member").insert("key", b"value").expect("it writes");
}

#[test]
fn members_of_a_read_only_group_only_read() {
    let allow_groups = vec![group(ENGINES, false), group(READERS, true)];
    let server = Open::start(ServerOptions { allow_groups, ..ServerOptions::default() });
    server.connect("chat", false).expect("its own").insert("key", b"value").expect("space");
    let Some(denied) = server.connect_as(ALICE, &[READERS], "chat", false) else { return };
    let expected = CallError::OnlyReads { uid: ALICE, name: "chat".to_owned() };
    assert_eq!(call_error(denied), expected);
    let reader = server.connect_as(ALICE, &[READERS], "chat", true).expect("as before");
    let reader = reader.expect("it reads");
    assert_eq!(
        reader.acquire(&["key"]).expect("a call").value(0).expect("there").bytes(),
        b"value"
    );
    assert_eq!(call_error(reader.remove(&["key"])), CallError::ReadOnly);
    assert_eq!(call_error(reader.as_operator().clear(None)), CallError::NotOperator);
    assert_eq!(call_error(reader.as_operator().list(0, 1)), CallError::NotOperator);
    assert_eq!(call_error(reader.as_operator().sessions()), CallError::NotOperator);
    assert_eq!(call_error(reader.as_operator().misses(1)), CallError::NotOperator);
    assert_eq!(call_error(reader.as_operator().evict(None, 1)), CallError::NotOperator);
    assert_eq!(call_error(reader.as_operator().reclaim_pins(1)), CallError::NotOperator);
    // A member of both groups has the greater right.
    let both = server.connect_as(ALICE, &[READERS, ENGINES], "chat", false).expect("as before");
    both.expect("it writes").insert("other", b"value").expect("space");
}

/// Returns the descriptors of this process that are files in memory, with their numbers.
fn memory_files() -> Vec<i32> {
    let all = std::fs::read_dir("/proc/self/fd").expect("there is /proc");
    let is_memory = |entry: &std::fs::DirEntry| {
        let target = std::fs::read_link(entry.path()).unwrap_or_default();
        target.to_string_lossy().contains("memfd:")
    };
    let numbers = all.flatten().filter(is_memory);
    numbers.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Other users cannot open again for writing what a server gives to its readers: the memory, and
/// the words of pins. A client's rings are its own.
#[test]
fn another_user_cannot_open_memory_again_for_writing() {
    let allow_groups = vec![group(READERS, true)];
    let server = Open::start(ServerOptions { allow_groups, ..ServerOptions::default() });
    let by_rings = || {
        let options = ConnectOptions { read_only: true, rings: true, ..connect_options() };
        let client = connect(&server.place.socket(), &options).expect("it reads");
        assert!(client.has_rings());
        // All files of memory in this process: also those of the server, and of other tests.
        let files = memory_files();
        assert!(files.len() >= 3, "{files:?}");
        for file in files {
            let path = format!("/proc/self/fd/{file}");
            let opened = std::fs::OpenOptions::new().write(true).open(&path);
            let error = opened.expect_err("the mode forbids it");
            // Another test may have closed it.
            let is_denied = matches!(error.raw_os_error(), Some(libc::EACCES | libc::ENOENT));
            assert!(is_denied, "{path}: {error}");
        }
    };
    let _ = as_user(ALICE, &[READERS], by_rings);
}

#[test]
fn namespaces_belong_to_the_users_of_their_rules() {
    let namespaces = vec![
        rule("alice", Principal::User(ALICE), false),
        rule("alice", Principal::Group(READERS), true),
        rule("bob", Principal::User(BOB), false),
    ];
    let server = Open::start(ServerOptions { namespaces, ..ServerOptions::default() });
    let Some(alice) = server.connect_as(ALICE, &[], "alice", false) else { return };
    let alice = alice.expect("it is its own");
    alice.insert("secret", b"value").expect("space");
    let bob = server.connect_as(BOB, &[], "bob", false).expect("as before").expect("its own");
    bob.insert("plain", b"value").expect("space");
    let not = |name: &str, uid| CallError::NamespaceNotAllowed { uid, name: name.to_owned() };
    for (uid, name) in [(ALICE, "bob"), (BOB, "alice"), (BOB, "other"), (BOB, "")] {
        for read_only in [true, false] {
            let denied = server.connect_as(uid, &[], name, read_only).expect("as before");
            assert_eq!(call_error(denied), not(name, uid));
        }
    }
    // Events and figures are those of one's own namespaces.
    let keys = |client: &NodeClient| {
        let events: Vec<Event> = client.events(0, 100, Duration::ZERO).expect("a call").events;
        events.into_iter().map(|event| event.key).collect::<Vec<_>>()
    };
    let names = |client: &NodeClient| {
        let all = client.stats().expect("a call").namespaces;
        all.into_iter().map(|it| (it.name, it.share, it.bytes > 0)).collect::<Vec<_>>()
    };
    let hidden = || (String::new(), 0, false);
    let shown = |name: &str| (name.to_owned(), 1, true);
    assert_eq!(keys(&alice), [b"secret"]);
    assert_eq!(keys(&bob), [b"plain"]);
    assert_eq!(names(&alice), [shown("alice"), hidden()]);
    assert_eq!(names(&bob), [hidden(), shown("bob")]);
    let reader = server.connect_as(BOB, &[READERS], "alice", true).expect("as before");
    let reader = reader.expect("its group reads");
    assert_eq!(keys(&reader), [&b"secret"[..], b"plain"], "both namespaces of user {BOB}");
    assert_eq!(reader.lookup(&["secret"]).expect("a call"), 1);
    let own = server.connect("", true).expect("the server's own user");
    assert_eq!(keys(&own).len(), 2);
    assert_eq!(names(&own), [shown("alice"), shown("bob")]);
    // A client that waits is woken by events that it sees, and has missed none of them.
    let from = own.events(u64::MAX, 1, Duration::ZERO).expect("a call").next;
    let waits = bob.clone();
    let waiting = std::thread::spawn(move || {
        waits.events(from, 100, Duration::from_secs(60)).expect("a call")
    });
    for number in 0..20_u8 {
        alice.insert([number], b"hidden").expect("space");
    }
    bob.insert("seen", b"value").expect("space");
    let found = waiting.join().expect("it returns").events;
    assert_eq!(found.iter().map(|it| it.key.as_slice()).collect::<Vec<_>>(), [b"seen"]);
}

/// A process that is root in its container has the number of root.
#[test]
fn root_is_a_user_as_any_other() {
    if rustix::process::geteuid().as_raw() != 0 {
        return println!("skipped: the server must be able to become another user");
    }
    let allow_groups = vec![group(ENGINES, false)];
    let (started, servers) = std::sync::mpsc::channel();
    let place = Place::new();
    let socket = place.socket();
    let folder = socket.parent().expect("a folder").to_owned();
    std::os::unix::fs::chown(&folder, Some(ALICE), None).expect("root may");
    let options = ServerOptions { allow_groups, ..ServerOptions::default() };
    let serve = |operators: Vec<u32>| {
        let options = ServerOptions { operators, ..options.clone() };
        let server = NodeServer::bind(node(4 << 20), &socket, options).expect("a new path");
        started.send(server.stopper()).expect("it is waited for");
        server.run().expect("epoll works");
    };
    std::thread::scope(|scope| {
        for operators in [vec![], vec![0]] {
            let may = !operators.is_empty();
            let running = scope.spawn(|| become_user(ALICE, &[ENGINES]).then(|| serve(operators)));
            let stopper = servers.recv().expect("root becomes any user");
            let options = ConnectOptions { server_users: vec![ALICE], ..connect_options() };
            let own = ALICE;
            let first = connect(&socket, &ConnectOptions { read_only: true, ..options.clone() });
            match may {
                true => assert_eq!(
                    first.expect("an operator").as_operator().clear(None).expect("a call"),
                    0
                ),
                false => assert_eq!(call_error(first), CallError::NotAllowed { uid: 0, own }),
            }
            // As a member of the group it may do what the others may.
            let member = as_user(0, &[ENGINES], || {
                let client = connect(&socket, &options).expect("a member");
                let error = client.reserve(&[3 << 20]).err();
                (client.as_operator().sessions().map(drop), error)
            });
            let (sessions, reserved) = member.expect("root");
            match may {
                true => assert!(sessions.is_ok() && reserved.is_none()),
                false => {
                    assert_eq!(call_error(sessions), CallError::NotOperator);
                    let error = reserved.expect("more than half of 4 MiB").to_string();
                    assert!(error.contains("the user has reserved"), "{error}");
                }
            }
            stopper.stop();
            running.join().expect("it ends");
        }
    });
}

#[test]
fn a_client_asks_who_listens() {
    let server = Open::start(ServerOptions {
        allow_groups: vec![group(ENGINES, false)],
        ..ServerOptions::default()
    });
    let own = rustix::process::geteuid().as_raw();
    let socket = server.place.socket();
    let trusting = |users: &[u32]| {
        connect(&socket, &ConnectOptions { server_users: users.to_vec(), ..connect_options() })
    };
    trusting(&[]).expect("its own user's");
    trusting(&[own, 7]).expect("a user of the list");
    let error = trusting(&[7, 8]).expect_err("another user's");
    let text = error.to_string();
    let ClientError::ForeignServer { uid, users, .. } = error else { panic!("{error:?}") };
    assert_eq!((uid, users), (own, vec![7, 8]));
    assert!(text.contains(&format!("user {own} listens")) && text.contains("7, 8"), "{text}");
    assert!(text.contains("`server_users`"), "{text}");
    // A socket of another user, before anything is said to it.
    let place = Place::new();
    let path = place.socket();
    let listen = || {
        let socket = rustix::net::socket(
            rustix::net::AddressFamily::UNIX,
            rustix::net::SocketType::SEQPACKET,
            None,
        )
        .expect("a socket");
        let address = rustix::net::SocketAddrUnix::new(&path).expect("a short path");
        rustix::net::bind(&socket, &address).expect("the folder is open to all");
        rustix::net::listen(&socket, 8).expect("it is bound");
        socket
    };
    use std::os::unix::fs::PermissionsExt;
    let folder = path.parent().expect("a folder");
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o777)).expect("its own");
    let Some(foreign) = as_user(BOB, &[], listen) else { return };
    let error = connect(&path, &connect_options()).expect_err("another user listens");
    assert!(
        matches!(&error, ClientError::ForeignServer { uid: BOB, own: mine, users, .. }
            if *mine == own && users.is_empty()),
        "{error:?}"
    );
    let accepted = rustix::net::accept(&foreign).expect("it has connected");
    let got = rustix::net::recv(&accepted, &mut [0; 64], rustix::net::RecvFlags::DONTWAIT);
    assert_eq!(got.map(|(len, _)| len), Ok(0), "the client has said nothing");
}

#[test]
fn impossible_rules_are_errors_of_the_start() {
    let place = Place::new();
    let allow_groups = vec![group(ENGINES, false), group(ENGINES, true)];
    let options = ServerOptions { allow_groups, ..ServerOptions::default() };
    let error = NodeServer::bind(node(1 << 20), &place.socket(), options).expect_err("both");
    assert!(matches!(error, NodeError::Access(_)), "{error}");
    assert!(!place.socket().exists(), "nothing is left");
}

/// Connects a socket of packets.
fn raw_connection(path: &Path) -> std::os::fd::OwnedFd {
    use rustix::net::sockopt::Timeout;
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};
    let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None);
    let socket = socket.expect("a socket");
    let address = SocketAddrUnix::new(path).expect("a short path");
    rustix::net::connect(&socket, &address).expect("it listens");
    let limit = Some(Duration::from_secs(60));
    rustix::net::sockopt::set_socket_timeout(&socket, Timeout::Recv, limit).expect("a time");
    socket
}

/// The folder of the sockets is mounted into containers whose processes are root.
#[test]
fn a_memory_holder_alone() {
    if rustix::process::geteuid().as_raw() != 0 {
        return println!("skipped: the memory holder must be able to become another user");
    }
    let place = Place::new();
    let path = place.socket();
    let folder = path.parent().expect("a folder").to_owned();
    std::os::unix::fs::chown(&folder, Some(ALICE), None).expect("root may");
    let (bound, is_bound) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let running = scope.spawn(|| {
            assert!(become_user(ALICE, &[]));
            let holder =
                MemoryHolder::bind(&path, MemoryHolderOptions::default()).expect("a new path");
            bound.send(()).expect("it is waited for");
            holder.run()
        });
        is_bound.recv().expect("it listens");
        let of_root = raw_connection(&path);
        let got = rustix::net::recv(&of_root, &mut [0; 64], rustix::net::RecvFlags::empty());
        assert_eq!(got.map(|(len, _)| len), Ok(0), "it is closed at once");
        let stop = || MemoryHolderClient::connect(&path).and_then(|holder| holder.stop());
        as_user(ALICE, &[], stop).expect("as before").expect("its own user");
        running.join().expect("it ends").expect("epoll works");
    });
}

/// Calls of the kernel that change what others see, or fail: what a client that writes can do, and
/// one that reads cannot. docs/node.md has the table.
#[test]
fn a_reader_cannot_punch_holes_and_a_writer_can() {
    use rustix::io::Errno;
    use rustix::mm::{Advice, MprotectFlags, madvise, mprotect};
    let allow_groups = vec![group(ENGINES, false), group(READERS, true)];
    let server = Open::start(ServerOptions { allow_groups, ..ServerOptions::default() });
    let own = server.connect("", false).expect("its own");
    own.insert("key", &[7; 4096]).expect("space");
    let pins = own.acquire(&["key"]).expect("a call");
    let value = pins.value(0).expect("it is there");
    let remove = |client: &NodeClient| {
        let (base, len) = client.memory();
        // SAFETY: the range is the client's mapping, and the only bytes in it are those of the
        // value, which the test compares afterwards.
        unsafe { madvise(base.cast_mut().cast(), len, Advice::LinuxRemove) }
    };
    let read = || {
        let client = server.connect("", true).expect("it reads");
        let (base, len) = client.memory();
        // SAFETY: the range is the client's mapping, which stays readable whatever the outcome.
        let written = unsafe {
            mprotect(base.cast_mut().cast(), len, MprotectFlags::READ | MprotectFlags::WRITE)
        };
        (remove(&client), written)
    };
    let Some((removed, written)) = as_user(ALICE, &[READERS], read) else { return };
    assert_eq!((removed, written), (Err(Errno::ACCESS), Err(Errno::ACCESS)));
    assert_eq!(value.bytes(), [7; 4096]);
    let write = || remove(&server.connect("", false).expect("it writes"));
    assert_eq!(as_user(BOB, &[ENGINES], write).expect("as before"), Ok(()));
    // Bytes of a pinned value are zeros, which a checksum would show.
    assert_eq!(value.bytes(), [0; 4096]);
}
