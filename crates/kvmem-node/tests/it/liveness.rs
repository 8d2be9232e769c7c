//! Clients that live where no server can see them: their blocks stay their own.
//!
//! A server is killed, and the next one recovers, while a client of the first one has a pin and a
//! reservation. Another client then fills all the memory that it gets. Servers and clients are
//! processes of this program, in namespaces and with users of their own: `KVMEM_TEST_ROLE` says
//! which.

use std::fs;
use std::io::{BufRead, BufReader, Lines, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use kvmem_node::{
    AllowedGroup, ClientError, ConnectOptions, MemoryHolder, MemoryHolderCallError,
    MemoryHolderClient, MemoryHolderError, MemoryHolderOptions, NamespaceRule, NewValue, Node,
    NodeClient, NodeOptions, NodeServer, Principal, ServerOptions, ValueOptions,
};

use crate::support::{Place, connect_with, wait_for};

const BYTES: usize = 8 << 20;
const BLOCK: usize = 1 << 20;
/// Shorter than any wait of these tests: no time may end a session.
const LEASE: Duration = Duration::from_millis(200);
/// So long that a thread which is ready to run does run.
const LONG_LEASE: Duration = Duration::from_secs(5);
/// The name of a process is 15 bytes, cut anywhere: here in the middle of a Cyrillic letter.
const CYRILLIC: &str = "движокдвижокдв";

/// How the client runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClientLife {
    Plain,
    /// Its name is not UTF-8.
    Cyrillic,
    /// Its first thread has ended.
    WithoutFirstThread,
    PidNamespace,
    TimeNamespace,
    /// It has forked a child that stays when it ends.
    Forked,
}

/// How both servers run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ServerLife {
    Plain,
    PidNamespace,
    TimeNamespace,
    /// Another user than the client, behind `hidepid`.
    HidePid,
}

/// The user and the group of a server and of a client that are no root.
const SERVER: u32 = 64_002;
const CLIENT: u32 = 64_001;
const GROUP: u32 = 64_100;

fn is_root() -> bool {
    rustix::process::getuid().is_root()
}

/// Holds the memory of the servers at a socket, as a process of their user.
fn hold_memory(socket: &Path, user: Option<u32>) -> Life {
    if user.is_some() {
        let folder = socket.parent().expect("a folder");
        std::os::unix::fs::chown(folder, user, Some(GROUP)).expect("root may");
    }
    let mut holder = Life::start("memory holder", socket, &[], user, || true);
    holder.line("holding");
    holder
}

/// A process that is killed with the test, and lines that it writes.
struct Life {
    process: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Life {
    /// Runs this program in a role, by `wrapper` and with `setup` in the new process.
    fn start(
        role: &str,
        socket: &Path,
        wrapper: &[&str],
        user: Option<u32>,
        set_up: impl Fn() -> bool + Send + Sync + 'static,
    ) -> Life {
        let own = std::env::current_exe().expect("it runs");
        let mut command = match wrapper {
            [] => Command::new(&own),
            [program, arguments @ ..] => {
                let mut command = Command::new(program);
                command.args(arguments).arg(&own);
                command
            }
        };
        let (_, module) = module_path!().split_once("::").expect("it is in the program");
        command
            .args(["--exact", &format!("{module}::role"), "--nocapture", "--test-threads=1"])
            .env("KVMEM_TEST_ROLE", role)
            .env("KVMEM_TEST_CHILD", socket)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let set_up = move || {
            // SAFETY: the calls are async-signal-safe and take numbers alone.
            let is_user = user.is_none_or(|user| unsafe {
                set_up()
                    && libc::setgroups(0, std::ptr::null()) == 0
                    && libc::setresgid(GROUP, GROUP, GROUP) == 0
                    && libc::setresuid(user, user, user) == 0
            });
            if is_user { Ok(()) } else { Err(std::io::Error::last_os_error()) }
        };
        // SAFETY: the function makes only calls that are async-signal-safe.
        unsafe { command.pre_exec(set_up) };
        let mut process = command.spawn().expect("a process can be started");
        let input = process.stdin.take().expect("a pipe");
        let output = BufReader::new(process.stdout.take().expect("a pipe")).lines();
        Life { process, input, output }
    }

    /// Returns the next line that begins with a word, without it.
    fn line(&mut self, word: &str) -> String {
        loop {
            let line = self.output.next().expect("the process lives").expect("it writes text");
            // The test harness writes lines of its own, and the name of the test without an end.
            if let Some((_, rest)) = line.split_once(word) {
                return rest.trim().to_owned();
            }
        }
    }

    fn say(&mut self, command: &str) -> String {
        writeln!(self.input, "{command}").expect("the process lives");
        self.line("answer:")
    }

    fn kill(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Gives this process a `/proc` that hides the processes of other users.
fn hide_processes() -> bool {
    // SAFETY: the calls are async-signal-safe, and the strings end with zeros.
    unsafe {
        let private = libc::MS_REC | libc::MS_PRIVATE;
        let (null, proc) = (std::ptr::null(), c"proc".as_ptr());
        libc::unshare(libc::CLONE_NEWNS) == 0
            && libc::mount(null, c"/".as_ptr(), null, private, null.cast()) == 0
            && libc::mount(proc, c"/proc".as_ptr(), proc, 0, c"hidepid=2".as_ptr().cast()) == 0
    }
}

/// The namespaces of a container: those of two pods share none of these.
const IN_PID_NAMESPACE: [&str; 10] = [
    "unshare",
    "--pid",
    "--ipc",
    "--uts",
    "--net",
    "--cgroup",
    "--mount",
    "--fork",
    "--kill-child",
    "--mount-proc",
];
const IN_TIME_NAMESPACE: [&str; 6] =
    ["unshare", "--time", "--fork", "--kill-child", "--boottime", "86400000"];

fn start_server(life: ServerLife, socket: &Path) -> Life {
    let mut server = match life {
        ServerLife::Plain => Life::start("server", socket, &[], None, || true),
        ServerLife::PidNamespace => Life::start("server", socket, &IN_PID_NAMESPACE, None, || true),
        ServerLife::TimeNamespace => {
            Life::start("server", socket, &IN_TIME_NAMESPACE, None, || true)
        }
        ServerLife::HidePid => Life::start("server", socket, &[], Some(SERVER), hide_processes),
    };
    server.line("serving");
    server
}

fn start_client(life: ClientLife, user: Option<u32>, socket: &Path) -> Life {
    let wrapper: &[&str] = match life {
        ClientLife::PidNamespace => &IN_PID_NAMESPACE,
        ClientLife::TimeNamespace => &IN_TIME_NAMESPACE,
        _ => &[],
    };
    let role = match life {
        ClientLife::Cyrillic => "cyrillic",
        ClientLife::WithoutFirstThread => "thread",
        ClientLife::Forked => "forked",
        _ => "client",
    };
    let mut client = Life::start(role, socket, wrapper, user, || true);
    client.line("holding");
    client
}

/// Acts the role of a child. Does nothing in the test itself.
#[test]
fn role() {
    let Ok(role) = std::env::var("KVMEM_TEST_ROLE") else { return };
    let socket = PathBuf::from(std::env::var_os("KVMEM_TEST_CHILD").expect("a path"));
    let holder = socket.with_extension("holder");
    match role.as_str() {
        "server" | "reclaiming server" => serve(&role, &socket, &holder),
        "memory holder" => {
            let options =
                MemoryHolderOptions { idle: Duration::from_secs(600), ..Default::default() };
            let holder = MemoryHolder::bind(&holder, options).expect("the socket is free");
            println!("\nholding");
            holder.run().expect("poll works");
        }
        "cyrillic" => {
            fs::write("/proc/self/comm", &CYRILLIC.as_bytes()[..15]).expect("a name");
            hold(&socket, false);
        }
        "thread" => {
            std::thread::spawn(move || hold(&socket, false));
            // SAFETY: the call ends this thread alone, which is the first one of the process: the
            // test harness runs a single test in it. Nothing of this thread is used any more.
            unsafe { libc::syscall(libc::SYS_exit, 0) };
        }
        role => hold(&socket, role == "forked"),
    }
}

fn serve(role: &str, socket: &Path, holder: &Path) {
    let holder = MemoryHolderClient::connect(holder).expect("it listens");
    let mut files = holder.claim("node");
    // The connection of the server before may not have ended yet.
    while let Err(MemoryHolderError::Call(MemoryHolderCallError::Claimed { .. })) = files {
        std::thread::sleep(Duration::from_millis(5));
        files = holder.claim("node");
    }
    let node = match <[_; 3]>::try_from(files.expect("it answers")) {
        Ok(files) => Node::recover(files, NodeOptions::default()).expect("it is whole").0,
        Err(_) => {
            let node = crate::support::node(BYTES);
            let files = node.descriptors().expect("descriptors are free");
            holder.put("node", &files.each_ref().map(AsFd::as_fd)).expect("the name is free");
            node
        }
    };
    let allow_groups = vec![AllowedGroup { gid: GROUP, read_only: false }];
    let rule = |who| NamespaceRule { name: String::new(), who, read_only: false };
    let reclaim_pins = role == "reclaiming server";
    let lease = if reclaim_pins { LONG_LEASE } else { LEASE };
    let options = ServerOptions {
        lease,
        reclaim_pins,
        allow_groups,
        namespaces: vec![rule(Principal::User(0)), rule(Principal::Group(GROUP))],
        operators: vec![0],
        ..ServerOptions::default()
    };
    let server = NodeServer::bind(node, socket, options).expect("the socket is free");
    println!("\nserving");
    server.run().expect("epoll works");
}

/// Options of a client that trusts the servers of these tests.
fn of_any_server() -> ConnectOptions {
    let server_users = vec![rustix::process::getuid().as_raw(), 0, SERVER];
    ConnectOptions { server_users, ..ConnectOptions::default() }
}

/// Has a pin and a reservation, and says what becomes of them.
fn hold(socket: &Path, fork: bool) {
    // SAFETY: all clients are those of this test, which write to their reservations alone.
    let client = unsafe { NodeClient::connect(socket, &of_any_server()) };
    let client = client.expect("the server answers");
    client.insert("pinned", &vec![0xAA; BLOCK]).expect("there is space");
    let pins = client.acquire(&["pinned"]).expect("a call");
    let mut block = client.reserve(&[BLOCK as u64]).expect("there is space").remove(0);
    block.bytes_mut().expect("it is reserved").fill(0x11);
    if fork {
        // SAFETY: the child makes only calls that are async-signal-safe.
        if unsafe { libc::fork() } == 0 {
            // SAFETY: as above. Nothing of this test waits for the ends of its pipes.
            unsafe {
                for descriptor in 0..3 {
                    libc::close(descriptor);
                }
                libc::sleep(60);
                libc::_exit(0);
            }
        }
    }
    println!("\nholding");
    let value = pins.value(0).expect("it is pinned");
    for line in std::io::stdin().lines() {
        let answer = match line.expect("text").as_str() {
            "read" => {
                let wrong = value.bytes().iter().filter(|byte| **byte != 0xAA).count();
                format!("{wrong} wrong, valid {}", pins.is_valid())
            }
            "write" => match block.bytes_mut() {
                Ok(bytes) => {
                    bytes.fill(0x22);
                    "written".to_owned()
                }
                Err(error) => error.to_string(),
            },
            _ => format!("{:?}", client.lookup(&["pinned"])),
        };
        println!("\nanswer: {answer}");
    }
    std::process::exit(0);
}

/// Reserves blocks until there is no more space.
fn reserve_all(client: &NodeClient) -> Vec<kvmem_node::NodeReservation> {
    std::iter::from_fn(|| client.reserve(&[BLOCK as u64]).ok()).flatten().collect()
}

/// Kills a server under a client that lives, and fills the memory of the next one.
fn check_living_client(server_life: ServerLife, client_life: ClientLife) {
    let place = Place::new();
    let socket = place.socket();
    let hidden = server_life == ServerLife::HidePid;
    let _memory = hold_memory(&socket, hidden.then_some(SERVER));
    let mut server = start_server(server_life, &socket);
    let mut client = start_client(client_life, hidden.then_some(CLIENT), &socket);
    assert_eq!(client.say("read"), "0 wrong, valid true");
    server.kill();
    let _server = start_server(server_life, &socket);
    let other = connect_with(&socket, &of_any_server());
    // Several leases, in which the client makes no call.
    let until = Instant::now() + 5 * LEASE;
    let mut stored = 0;
    while Instant::now() < until || stored == 0 {
        for mut block in reserve_all(&other) {
            block.bytes_mut().expect("it is reserved").fill(0x77);
            stored += 1;
            other.commit(vec![NewValue::new(format!("other-{stored}"), block)]).expect("its own");
        }
        std::thread::sleep(LEASE / 10);
    }
    assert_eq!(client.say("read"), "0 wrong, valid true");
    assert_eq!(client.say("write"), "written");
    let found = other.as_operator().list(0, 100).expect("an operator").0;
    for value in found.iter().filter(|value| value.key != b"pinned") {
        let pins = other.acquire(&[&value.key]).expect("a call");
        let bytes = pins.value(0).expect("nothing evicts it").bytes();
        assert!(bytes.iter().all(|byte| *byte == 0x77), "another client's value was changed");
    }
    assert_eq!(client.say("lookup"), "Ok(1)");
    let whole = (BYTES / BLOCK) as u64;
    assert_eq!(reserve_all(&other).len() as u64, whole - 2, "a pin and a reservation stay");
    client.kill();
    wait_for("its blocks are free", || reserve_all(&other).len() as u64 == whole);
}

#[test]
fn the_blocks_of_living_clients_stay() {
    let has_time_namespaces = Path::new("/proc/self/ns/time").exists();
    let cases = [
        (ServerLife::Plain, ClientLife::Plain, true),
        (ServerLife::Plain, ClientLife::Cyrillic, true),
        (ServerLife::Plain, ClientLife::WithoutFirstThread, true),
        // The child has neither the memory nor the lock: it holds nothing when its parent has
        // ended.
        (ServerLife::Plain, ClientLife::Forked, true),
        (ServerLife::Plain, ClientLife::PidNamespace, is_root()),
        // The server and the client are in two PID namespaces, as in two pods.
        (ServerLife::PidNamespace, ClientLife::PidNamespace, is_root()),
        (ServerLife::Plain, ClientLife::TimeNamespace, is_root() && has_time_namespaces),
        (ServerLife::HidePid, ClientLife::Plain, is_root()),
    ];
    std::thread::scope(|scope| {
        for (server, client, is_possible) in cases {
            if is_possible {
                scope.spawn(move || check_living_client(server, client));
            } else {
                println!("skipped: {server:?} and {client:?} take root and a kernel that has them");
            }
        }
    });
}

/// A client whose connection the server does not yet know to be broken comes back.
#[test]
fn a_client_that_gave_up_waiting_resumes_its_session() {
    let place = Place::new();
    let socket = place.socket();
    let _memory = hold_memory(&socket, None);
    let mut server = start_server(ServerLife::Plain, &socket);
    let answer_within = Duration::from_millis(300);
    let options = ConnectOptions {
        answer_within,
        retry_for: Duration::from_secs(30),
        ..ConnectOptions::default()
    };
    let client = connect_with(&socket, &options);
    client.insert("pinned", b"value").expect("there is space");
    let pins = client.acquire(&["pinned"]).expect("a call");
    let mut block = client.reserve(&[BLOCK as u64]).expect("there is space").remove(0);
    let pid = server.process.id() as i32;
    // SAFETY: the calls send signals to a child that was not waited for.
    unsafe { libc::kill(pid, libc::SIGSTOP) };
    let error = client.lookup(&["pinned"]).map(drop);
    // SAFETY: as above.
    unsafe { libc::kill(pid, libc::SIGCONT) };
    if let Err(error) = error {
        assert!(matches!(error, ClientError::Disconnected { .. }), "{error}");
    }
    assert_eq!(client.lookup(&["pinned"]).expect("the server runs again"), 1);
    assert!(pins.is_valid());
    block.bytes_mut().expect("it is reserved").fill(1);
    client.commit(vec![NewValue::new("reserved", block)]).expect("its own");
    assert_eq!(client.stats().expect("a call").sessions, 1, "no session is left behind");
    server.kill();
}

/// A client that holds something and makes no call connects again by itself.
#[test]
fn an_idle_client_that_holds_something_connects_again() {
    let place = Place::new();
    let socket = place.socket();
    let _memory = hold_memory(&socket, None);
    for (rings, pinned) in [(false, true), (true, true), (false, false)] {
        let mut server = start_server(ServerLife::Plain, &socket);
        let options = ConnectOptions { rings, ..ConnectOptions::default() };
        let client = connect_with(&socket, &options);
        client.insert("pinned", b"value").expect("there is space");
        let pins = pinned.then(|| client.acquire(&["pinned"]).expect("a call"));
        let block = (!pinned).then(|| client.reserve(&[100]).expect("there is space"));
        server.kill();
        let _server = start_server(ServerLife::Plain, &socket);
        let other = connect_with(&socket, &ConnectOptions::default());
        let returned = || {
            let sessions = other.as_operator().sessions().expect("an operator");
            sessions.len() == 2 && sessions.iter().all(|it| it.connected)
        };
        wait_for("it is connected again", returned);
        assert!(pins.as_ref().is_none_or(kvmem_node::PinBatch::is_valid));
        assert!(block.iter().flatten().all(kvmem_node::NodeReservation::is_valid));
    }
}

/// A machine that was stopped, such as a virtual one that moved: nobody could say that it lives.
#[test]
fn a_pause_of_the_machine_ends_no_lease() {
    let place = Place::new();
    let socket = place.socket();
    let _memory = hold_memory(&socket, None);
    let mut server = Life::start("reclaiming server", &socket, &[], None, || true);
    server.line("serving");
    let mut client = start_client(ClientLife::Plain, None, &socket);
    let processes = [&server, &client].map(|it| it.process.id() as i32);
    let signal = |process: i32, signal| {
        // SAFETY: the call sends a signal to a child that was not waited for.
        assert_eq!(unsafe { libc::kill(process, signal) }, 0);
    };
    processes.into_iter().for_each(|process| signal(process, libc::SIGSTOP));
    std::thread::sleep(LONG_LEASE + LONG_LEASE / 10);
    signal(processes[0], libc::SIGCONT);
    // The server looks at its leases four times in each.
    std::thread::sleep(LONG_LEASE * 3 / 10);
    signal(processes[1], libc::SIGCONT);
    assert_eq!(client.say("read"), "0 wrong, valid true");
    assert_eq!(client.say("write"), "written");
    let other = connect_with(&socket, &ConnectOptions::default());
    let stats = other.stats().expect("a call");
    assert_eq!((stats.pinned, stats.fenced_total), (1, 0));
}

/// A container may have a clock of its own. A value that one server has stored with a time to live
/// has the same time left at the next one, whose clock is a day ahead, and at one a day behind.
#[test]
fn the_clock_of_a_container_changes_no_time_to_live() {
    if !is_root() || !Path::new("/proc/self/ns/time").exists() {
        return println!("skipped: it takes root and a kernel with time namespaces");
    }
    let place = Place::new();
    let socket = place.socket();
    let _memory = hold_memory(&socket, None);
    let lives = [ServerLife::Plain, ServerLife::TimeNamespace, ServerLife::Plain];
    let insert = |client: &NodeClient, key: &str, ttl: Duration| {
        let reservation = client.reserve(&[100]).expect("there is space").remove(0);
        let options = ValueOptions { ttl: Some(ttl), ..ValueOptions::default() };
        client.commit(vec![NewValue { key, reservation, options }]).expect("it is reserved");
    };
    let (hour, short) = (Duration::from_secs(3600), Duration::from_millis(500));
    for (number, life) in lives.into_iter().enumerate() {
        let mut server = start_server(life, &socket);
        let client = connect_with(&socket, &ConnectOptions::default());
        if number > 0 {
            assert_eq!(client.lookup(&["long"]).expect("a call"), 1, "it expired early: {life:?}");
            std::thread::sleep(short);
            assert_eq!(client.lookup(&["short"]).expect("a call"), 0, "it did not expire");
        }
        insert(&client, "long", hour);
        insert(&client, "short", short);
        drop(client);
        server.kill();
    }
}

/// Clients that are closed while their server is away say goodbye to the next one.
#[test]
fn a_client_that_was_closed_while_its_server_was_away_leaves_nothing() {
    let place = Place::new();
    let socket = place.socket();
    let _memory = hold_memory(&socket, None);
    for rings in [false, true] {
        let mut server = start_server(ServerLife::Plain, &socket);
        let options = ConnectOptions { rings, ..ConnectOptions::default() };
        let clients: Vec<NodeClient> = (0..5).map(|_| connect_with(&socket, &options)).collect();
        clients[0].insert("pinned", b"value").expect("there is space");
        let pins: Vec<_> =
            clients.iter().map(|it| it.acquire(&["pinned"]).expect("a call")).collect();
        let blocks = clients[1].reserve(&[BLOCK as u64]).expect("there is space");
        server.kill();
        drop((pins, blocks, clients));
        let _server = start_server(ServerLife::Plain, &socket);
        let other = connect_with(&socket, &ConnectOptions::default());
        wait_for("nothing is left", || {
            let stats = other.stats().expect("a call");
            (stats.sessions, stats.pinned, stats.reservations) == (1, 0, 0)
        });
    }
}

/// Clients that give up while the server hangs leave no session.
#[test]
fn a_client_that_could_not_connect_leaves_nothing() {
    let place = Place::new();
    let socket = place.socket();
    let _memory = hold_memory(&socket, None);
    let server = start_server(ServerLife::Plain, &socket);
    let other = connect_with(&socket, &ConnectOptions::default());
    let pid = server.process.id() as i32;
    for rings in [false, true] {
        let options = ConnectOptions {
            rings,
            retry_for: Duration::ZERO,
            answer_within: Duration::from_millis(20),
            ..ConnectOptions::default()
        };
        // SAFETY: the calls send signals to a child that was not waited for.
        unsafe { libc::kill(pid, libc::SIGSTOP) };
        let stat = || fs::read_to_string(format!("/proc/{pid}/stat")).expect("it is a child");
        wait_for("it is stopped", || stat().contains(") T "));
        for _ in 0..50 {
            // SAFETY: the client reads and writes nothing.
            let error = unsafe { NodeClient::connect(&socket, &options) }.map(drop);
            assert!(matches!(error, Err(ClientError::Disconnected { .. })), "{error:?}");
        }
        // SAFETY: as above.
        unsafe { libc::kill(pid, libc::SIGCONT) };
        wait_for("nothing is left", || other.stats().expect("a call").sessions == 1);
    }
}
