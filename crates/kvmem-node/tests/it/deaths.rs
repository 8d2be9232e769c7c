//! Processes that end at any instant: clients, and the server.
//!
//! The test holds the descriptors of the memory and the index, as a memory holder does. Servers and
//! clients are processes of this program: `KVMEM_TEST_ROLE` says which.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use kvmem_node::{
    CallError, ClientError, ConnectOptions, NewValue, Node, NodeClient, NodeOptions, NodeServer,
    ServerOptions,
};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng as StdRng;

use super::RINGS;
use crate::support::{self, Place, memory, wait_for};

fn connect(path: &Path) -> NodeClient {
    support::connect_with(path, &ConnectOptions { rings: RINGS, ..ConnectOptions::default() })
}

const BYTES: usize = 16 << 20;
const CLIENTS: usize = 8;
const KEYS: u64 = 400;
/// The numbers of the descriptors in a server's process.
const FILES: [RawFd; 3] = [100, 101, 102];

fn rounds() -> usize {
    std::env::var("KVMEM_TEST_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(100)
}

/// Starts this program in a role.
fn start(role: &str, socket: &Path, seed: u64, files: Option<&[OwnedFd; 3]>) -> Child {
    let mut command = Command::new(std::env::current_exe().expect("it runs"));
    // The module without the name of the program.
    let (_, module) = module_path!().split_once("::").expect("it is in the program");
    let test = format!("{module}::role");
    command
        .args(["--exact", &test, "--nocapture", "--test-threads=1"])
        .env("KVMEM_TEST_ROLE", role)
        .env("KVMEM_TEST_CHILD", socket)
        .env("KVMEM_TEST_WORDS", seed.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    if let Some(files) = files {
        use std::os::unix::process::CommandExt;
        let files = files.each_ref().map(AsRawFd::as_raw_fd);
        let pass = move || {
            for (from, to) in files.into_iter().zip(FILES) {
                // SAFETY: `dup2` is async-signal-safe, and the numbers are not in use.
                if unsafe { libc::dup2(from, to) } < 0 {
                    return Err(std::io::Error::last_os_error());
                }
            }
            Ok(())
        };
        // SAFETY: the function makes only calls that are async-signal-safe.
        unsafe { command.pre_exec(pass) };
    }
    command.spawn().expect("a process can be started")
}

/// Acts the role of a child. Does nothing in the test itself.
#[test]
fn role() {
    let Ok(role) = std::env::var("KVMEM_TEST_ROLE") else { return };
    let socket = PathBuf::from(std::env::var_os("KVMEM_TEST_CHILD").expect("a socket"));
    let seed = std::env::var("KVMEM_TEST_WORDS").expect("a seed").parse().expect("a number");
    match role.as_str() {
        "server" => serve(&socket),
        "client" => use_it(&socket, seed),
        "writer" => write_half(&socket),
        other => panic!("{other}"),
    }
}

fn serve(socket: &Path) {
    // SAFETY: the parent has passed these descriptors to this process, and nothing else owns them.
    let files = FILES.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
    let (node, report) = Node::recover(files, NodeOptions::default()).expect("the index is whole");
    assert_eq!(report.damaged, 0);
    node.check().expect("the invariants hold");
    let options = ServerOptions { lease: Duration::from_secs(30), ..ServerOptions::default() };
    let server = NodeServer::bind(node, socket, options).expect("the socket is free");
    server.run().expect("epoll works");
}

/// The file in which a client counts its calls.
fn progress_of(socket: &Path, seed: u64) -> PathBuf {
    socket.with_extension(format!("progress-{seed}"))
}

/// Returns how many calls of a client were answered.
fn calls_of(socket: &Path, seed: u64) -> u64 {
    let mut calls = [0; 8];
    let file = std::fs::File::open(progress_of(socket, seed));
    let read = file.and_then(|file| file.read_exact_at(&mut calls, 0));
    read.map_or(0, |()| u64::from_le_bytes(calls))
}

/// The value under a key: every eight bytes name the key and the place.
fn value(key: u64) -> Vec<u8> {
    let words = 64 + key * 37 % 2000;
    (0..words).flat_map(|at| (key << 32 | at ^ key.wrapping_mul(0x9E37)).to_le_bytes()).collect()
}

/// Reads, writes and verifies until it is killed. Ends with 3 for wrong bytes, with 4 if a call
/// fails that must not.
fn use_it(socket: &Path, seed: u64) {
    let mut random = StdRng::seed_from_u64(seed);
    let retry_for = Duration::from_secs(30);
    let options = ConnectOptions { retry_for, rings: RINGS, ..ConnectOptions::default() };
    // SAFETY: all clients are processes of this test, which write to their reservations alone.
    let client = unsafe { NodeClient::connect(socket, &options) };
    let client = client.unwrap_or_else(|error| fail(4, &error.to_string()));
    let progress = std::fs::File::create(progress_of(socket, seed)).expect("a file can be made");
    for calls in 0_u64.. {
        // What the parent reads: how many calls were answered.
        progress.write_at(&calls.to_le_bytes(), 0).expect("it is a file");
        let first = random.random_range(0..KEYS);
        let keys: Vec<u64> = (first..first + random.random_range(1..9)).collect();
        let names: Vec<[u8; 8]> = keys.iter().map(|key| key.to_le_bytes()).collect();
        match random.random_range(0..10) {
            0..6 => {
                let pins =
                    client.acquire(&names).unwrap_or_else(|error| fail(4, &error.to_string()));
                for _ in 0..2 {
                    for (key, found) in keys.iter().zip(pins.values()) {
                        let wrong = found.is_some_and(|found| found.bytes() != value(*key));
                        if wrong && pins.is_valid() {
                            fail(3, &format!("wrong bytes under {key}"));
                        }
                    }
                    std::thread::yield_now();
                }
            }
            6..9 => store(&client, &keys, &names),
            _ => {
                if let Err(error) = client.remove(&names[..1]) {
                    fail(4, &error.to_string());
                }
            }
        }
    }
}

fn store(client: &NodeClient, keys: &[u64], names: &[[u8; 8]]) {
    let values: Vec<Vec<u8>> = keys.iter().map(|key| value(*key)).collect();
    let sizes: Vec<u64> = values.iter().map(|value| value.len() as u64).collect();
    let mut blocks = match client.reserve(&sizes) {
        Ok(blocks) => blocks,
        Err(ClientError::Call(CallError::OutOfSpace { .. })) => return,
        Err(error) => fail(4, &error.to_string()),
    };
    for (block, value) in blocks.iter_mut().zip(&values) {
        // In two parts, with time to be killed between them.
        let (first, second) = value.split_at(value.len() / 2);
        block.write(0, first).expect("it fits");
        std::thread::yield_now();
        block.write(first.len(), second).expect("it fits");
    }
    match client
        .commit(
            names
                .iter()
                .copied()
                .zip(blocks)
                .map(|(key, block)| NewValue::new(key, block))
                .collect(),
        )
        .map_err(ClientError::from)
    {
        // The commit may have been made by a server that was killed, and its values evicted since.
        Ok(()) | Err(ClientError::Call(CallError::Stale { .. } | CallError::Fenced)) => {}
        Err(error) => fail(4, &error.to_string()),
    }
}

fn fail(code: i32, why: &str) -> ! {
    eprintln!("client {}: {why}", std::process::id());
    std::process::exit(code);
}

/// Writes half of a value, and hangs.
fn write_half(socket: &Path) {
    let client = connect(socket);
    client.insert("pinned", b"value").expect("there is space");
    let pins = client.acquire(&["pinned"]).expect("a call");
    let mut block = client.reserve(&[1 << 20]).expect("there is space").remove(0);
    block.bytes_mut().expect("it is reserved")[..1 << 19].fill(0xAB);
    client.insert("ready", b"").map(drop).unwrap_err();
    client.insert("ready", b"1").expect("there is space");
    std::thread::sleep(Duration::from_secs(3600));
    drop((pins, block));
}

fn files() -> [OwnedFd; 3] {
    let node = Node::create(memory(BYTES), NodeOptions::default()).expect("possible");
    let server = NodeServer::on(node, idle_listener(), ServerOptions::default());
    server.expect("epoll works").descriptors().expect("there are descriptors")
}

/// A descriptor that nobody connects to.
fn idle_listener() -> OwnedFd {
    let (one, _) = std::os::unix::net::UnixStream::pair().expect("a pair");
    one.into()
}

struct Killed(Child);

impl Killed {
    fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        self.kill();
    }
}

#[test]
fn a_hanging_client_is_fenced_and_its_block_is_not_used_again() {
    let place = Place::new();
    let node = Node::create(memory(BYTES), NodeOptions::default()).expect("possible");
    let options = ServerOptions { lease: Duration::from_millis(1000), ..ServerOptions::default() };
    let _server = support::Running::start(node, &place.socket(), options);
    let mut writer = Killed(start("writer", &place.socket(), 0, None));
    let client = connect(&place.socket());
    wait_for("the writer hangs", || client.lookup(&["ready"]).expect("a call") == 1);
    wait_for("it is fenced", || client.stats().expect("a call").fenced_bytes == 1 << 20);
    // All of the memory is used anew, but for the fenced block and what is pinned.
    let all = client.reserve(&[1 << 20; 14]).expect("the rest is evicted");
    assert!(client.reserve(&[1 << 20]).is_err(), "the fenced block is not free");
    writer.kill();
    wait_for("the block is free", || client.reserve(&[1 << 20]).is_ok());
    drop(all);
    let stats = client.stats().expect("a call");
    assert_eq!((stats.fenced_total, stats.fenced_bytes), (1, 0));
}

/// A process that is stopped, and goes on when this is dropped.
struct Stopped<'a>(&'a Killed);

impl<'a> Stopped<'a> {
    fn stop(process: &'a Killed) -> Stopped<'a> {
        // SAFETY: the call sends a signal to a child that was not waited for.
        assert_eq!(unsafe { libc::kill(process.0.id() as i32, libc::SIGSTOP) }, 0);
        let stat = format!("/proc/{}/stat", process.0.id());
        let is_stopped = || std::fs::read_to_string(&stat).is_ok_and(|it| it.contains(") T "));
        wait_for("it is stopped", is_stopped);
        Stopped(process)
    }
}

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        // SAFETY: as in `stop`.
        unsafe { libc::kill(self.0.0.id() as i32, libc::SIGCONT) };
    }
}

#[test]
fn pins_of_a_stopped_client_are_reclaimed_and_those_of_an_idle_one_are_not() {
    let place = Place::new();
    let node = Node::create(memory(BYTES), NodeOptions::default()).expect("possible");
    let lease = Duration::from_millis(1000);
    let options = ServerOptions { lease, reclaim_pins: true, ..ServerOptions::default() };
    let _server = support::Running::start(node, &place.socket(), options);
    let writer = Killed(start("writer", &place.socket(), 0, None));
    let client = connect(&place.socket());
    wait_for("the writer hangs", || client.lookup(&["ready"]).expect("a call") == 1);
    wait_for("it is fenced", || client.stats().expect("a call").fenced_total == 1);
    assert_eq!(client.stats().expect("a call").pinned, 1);
    let _stopped = Stopped::stop(&writer);
    wait_for("its pin ends", || client.stats().expect("a call").pinned == 0);
}

#[test]
fn no_call_waits_for_a_stopped_server_for_ever_and_no_drop_at_all() {
    let place = Place::new();
    let files = files();
    let server = Killed(start("server", &place.socket(), 0, Some(&files)));
    let options = ConnectOptions {
        rings: RINGS,
        retry_for: Duration::from_secs(60),
        ..ConnectOptions::default()
    };
    drop(support::connect_with(&place.socket(), &options));
    let limit = Duration::from_millis(300);
    let options = ConnectOptions { answer_within: limit, retry_for: Duration::ZERO, ..options };
    let client = support::connect_with(&place.socket(), &options);
    let keys: Vec<[u8; 8]> = (0..500_u64).map(u64::to_le_bytes).collect();
    keys.iter().for_each(|key| client.insert(key, b"value").expect("there is space"));
    let pins: Vec<_> = (0..2000).map(|at| client.acquire(&keys[at % 500..][..1])).collect();
    let held = client.acquire(&keys[..1]).expect("a call");
    let stopped = Stopped::stop(&server);
    let is_timeout = |error: &ClientError| match error {
        ClientError::Disconnected { error, .. } => error.kind() == std::io::ErrorKind::TimedOut,
        _ => false,
    };
    let both = [client.clone(), client.clone()].map(|client| {
        std::thread::spawn(move || client.lookup(&["key"]).expect_err("nothing answers"))
    });
    for thread in both {
        let error = thread.join().expect("no panic");
        assert!(is_timeout(&error), "{error}");
    }
    // SAFETY: it does not connect.
    let error = unsafe { NodeClient::connect(place.socket(), &options) }.expect_err("no answer");
    assert!(is_timeout(&error), "{error}");
    // More than the socket has space for.
    drop(pins);
    drop(stopped);
    // The releases that had no space are sent by and by, and the session is the same.
    wait_for("the pins end", || client.stats().is_ok_and(|stats| stats.pinned == 1));
    assert!(held.is_valid());
}

#[test]
fn processes_are_killed_at_random_instants() {
    let place = Place::new();
    let files = files();
    let mut random = StdRng::seed_from_u64(7);
    let mut seed = 0;
    let client = |seed: &mut u64| {
        *seed += 1;
        (Killed(start("client", &place.socket(), *seed, None)), *seed)
    };
    let mut server = Killed(start("server", &place.socket(), 0, Some(&files)));
    let mut clients: Vec<(Killed, u64)> = (0..CLIENTS).map(|_| client(&mut seed)).collect();
    for round in 0..rounds() {
        std::thread::sleep(Duration::from_millis(random.random_range(1..60)));
        for one in &mut clients {
            let ended = one.0.0.try_wait().expect("a child");
            assert!(ended.is_none(), "a client has ended in round {round}: {ended:?}");
        }
        if random.random_bool(0.3) {
            server.kill();
            std::thread::sleep(Duration::from_millis(random.random_range(0..10)));
            server = Killed(start("server", &place.socket(), 0, Some(&files)));
        } else {
            let victim = random.random_range(0..CLIENTS);
            clients[victim].0.kill();
            clients[victim] = client(&mut seed);
        }
    }
    // No client is stuck: each one has further calls answered after the last kill.
    for (client, seed) in &mut clients {
        let calls = calls_of(&place.socket(), *seed);
        wait_for(&format!("client {seed} goes on after {calls} calls"), || {
            let ended = client.0.try_wait().expect("a child");
            assert!(ended.is_none(), "client {seed} has ended: {ended:?}");
            calls_of(&place.socket(), *seed) >= calls + 3
        });
    }
    clients.clear();
    let last = connect(&place.socket());
    wait_for("all sessions end", || last.stats().expect("a call").sessions == 1);
    let stats = last.stats().expect("a call");
    assert_eq!((stats.pinned, stats.reservations, stats.reserved_bytes), (0, 0, 0));
    let (mut from, mut bytes, mut values) = (Some(0), 0, 0);
    while let Some(at) = from {
        let (listed, next) = last.as_operator().list(at, 512).expect("an operator");
        for one in listed {
            let key = u64::from_le_bytes(one.key[..].try_into().expect("eight bytes"));
            let pins = last.acquire(&[&one.key]).expect("a call");
            assert_eq!(pins.value(0).expect("it is listed").bytes(), value(key));
            bytes += one.len.next_multiple_of(4096);
            values += 1;
        }
        from = next;
    }
    assert!(values > 0, "nothing was stored");
    assert_eq!((stats.used, stats.values), (bytes, values));
}
